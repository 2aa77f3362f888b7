//! Object: what a tree may hold, by the counted reference that it holds.

use crate::face::Arc;
use crate::face::atomic::{Ordering, fence};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Nodes and objects lie at multiples of this, so that an address has room for a height.
pub(super) const ALIGN: usize = 16;

/// A counted reference to an object that a tree may hold, which is as wide as an address.
///
/// # Safety
/// - `into_raw` gives a multiple of 16, and `from_raw` makes the same reference of it again;
/// - the object lives and stays where it is as long as there is a reference to it, one that is raw included;
/// - any thread may use and drop a reference, and what it leads to.
pub unsafe trait Object: Clone + Send + Sync + 'static {
    /// The type of the object.
    type Target: ?Sized + 'static;

    /// The reference as an address.
    fn into_raw(self) -> NonNull<()>;

    /// The reference again.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](Self::into_raw), and no second reference is made from it.
    unsafe fn from_raw(raw: NonNull<()>) -> Self;

    /// The object of the reference.
    ///
    /// # Safety
    /// `raw` is of [`into_raw`](Self::into_raw), and a reference to the object is not dropped for `'a`.
    unsafe fn target<'a>(raw: NonNull<()>) -> &'a Self::Target;

    /// Whether there is no other reference. If so, all threads with former references are done with the object.
    fn is_sole(&self) -> bool;
}

// SAFETY: the address is that of a `T`, which is aligned enough; an `Arc` keeps its value alive and in its place, and a `T` may
// be used and dropped by any thread.
unsafe impl<T: Send + Sync + 'static> Object for Arc<T> {
    type Target = T;

    fn into_raw(self) -> NonNull<()> {
        const { assert!(align_of::<T>() >= ALIGN, "addresses have no room for a height") };
        // SAFETY: an `Arc` is never null.
        unsafe { NonNull::new_unchecked(Arc::into_raw(self).cast_mut().cast()) }
    }

    unsafe fn from_raw(raw: NonNull<()>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Arc::from_raw(raw.as_ptr().cast_const().cast::<T>()) }
    }

    #[inline]
    unsafe fn target<'a>(raw: NonNull<()>) -> &'a T {
        // SAFETY: the caller's promise.
        unsafe { raw.cast().as_ref() }
    }

    fn is_sole(&self) -> bool {
        let sole = Arc::strong_count(self) == 1;
        // Acquire: what others did with it; pairs with the Release decrement of their `Arc`s.
        fence(Ordering::Acquire);
        sole
    }
}

/// The reference that `raw` is, not to be dropped.
///
/// # Safety
/// `raw` is of [`into_raw`](Object::into_raw), and a reference to the object is not dropped as long as this is used.
pub(super) unsafe fn borrowed<O: Object>(raw: NonNull<()>) -> ManuallyDrop<O> {
    // SAFETY: the caller's promise; it is not dropped, so that the other reference stays the only one.
    ManuallyDrop::new(unsafe { O::from_raw(raw) })
}
