//! Counted: `Arc` and `Weak` whose reference counts the machine sees.
//!
//! # Theory
//! The standard library's types do the work. Before each change of a count the machine is told of a
//! read-modify-write at the place where `std` keeps it: two words right before the value, rounded to its
//! alignment. So false sharing of a count with the first fields of its object shows too.
//!
//! # Differences from `std`
//! A type of our own is no receiver of methods and does not turn into a pointer to a trait object by itself.

use sluice_machine::cell::{touch_read, touch_update};
use std::fmt;
use std::ops::Deref;
use std::sync;

/// Bytes of one count.
const COUNT: usize = size_of::<usize>();

/// Where `std` keeps the strong count of the value at `value`; the weak one is behind it.
fn strong<T: ?Sized>(value: *const T, align: usize) -> *const u8 {
    value.cast::<u8>().wrapping_sub((2 * COUNT).max(align))
}

/// The [`std::sync::Arc`] of simulated machines.
#[repr(transparent)]
pub struct Arc<T: ?Sized>(sync::Arc<T>);

/// The [`std::sync::Weak`] of simulated machines.
#[repr(transparent)]
pub struct Weak<T: ?Sized>(sync::Weak<T>, std::marker::PhantomData<sync::Arc<T>>);

impl<T> Arc<T> {
    /// A first reference to `value`.
    pub fn new(value: T) -> Arc<T> {
        Arc::named(sync::Arc::new(value))
    }

    /// The value, if nobody else holds it.
    pub fn into_inner(this: Arc<T>) -> Option<T> {
        // Drop tells the machine that a count goes; the other reference then is the one that went.
        let inner = this.0.clone();
        drop(this);
        sync::Arc::into_inner(inner)
    }
}

impl<T> Arc<T> {
    /// The pointer to the value, which keeps the reference alive until [`from_raw`](Self::from_raw).
    pub fn into_raw(this: Arc<T>) -> *const T {
        let raw = Arc::as_ptr(&this);
        std::mem::forget(this);
        raw
    }

    /// The reference that became `raw`.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](Self::into_raw), and no second `Arc` is made from it.
    #[allow(unsafe_code)]
    pub unsafe fn from_raw(raw: *const T) -> Arc<T> {
        // SAFETY: into_raw() forgot a `sync::Arc` of the value; the caller says that it is ours.
        Arc(unsafe { sync::Arc::from_raw(raw) })
    }
}

impl<T: ?Sized> Arc<T> {
    /// Tells the machine what the new object is called.
    fn named(inner: sync::Arc<T>) -> Arc<T> {
        let (value, align) = (sync::Arc::as_ptr(&inner), align_of_val(&*inner));
        let name = std::any::type_name::<T>();
        sluice_machine::name_object(strong(value, align), 2 * COUNT, name, "refcount");
        sluice_machine::name_object(value.cast(), size_of_val(&*inner), name, "");
        Arc(inner)
    }

    fn strong(&self) -> *const u8 {
        strong(sync::Arc::as_ptr(&self.0), align_of_val(&*self.0))
    }

    fn weak(&self) -> *const u8 {
        self.strong().wrapping_add(COUNT)
    }

    /// Whether both are of the same object.
    pub fn ptr_eq(this: &Arc<T>, other: &Arc<T>) -> bool {
        sync::Arc::ptr_eq(&this.0, &other.0)
    }

    /// Where the value is.
    pub fn as_ptr(this: &Arc<T>) -> *const T {
        sync::Arc::as_ptr(&this.0)
    }

    /// How many references there are.
    #[track_caller]
    pub fn strong_count(this: &Arc<T>) -> usize {
        touch_read(this.strong(), COUNT);
        sync::Arc::strong_count(&this.0)
    }

    /// A reference that does not keep the value.
    #[track_caller]
    pub fn downgrade(this: &Arc<T>) -> Weak<T> {
        touch_update(this.weak(), COUNT);
        Weak(sync::Arc::downgrade(&this.0), std::marker::PhantomData)
    }

    /// The value for writing, if nobody else refers to it.
    #[track_caller]
    pub fn get_mut(this: &mut Arc<T>) -> Option<&mut T> {
        touch_update(this.weak(), COUNT);
        touch_read(this.strong(), COUNT);
        sync::Arc::get_mut(&mut this.0)
    }
}

impl<T: Clone> Arc<T> {
    /// The value for writing, in a copy if others refer to it.
    #[track_caller]
    pub fn make_mut(this: &mut Arc<T>) -> &mut T {
        touch_update(this.strong(), COUNT);
        sync::Arc::make_mut(&mut this.0)
    }
}

impl<T: ?Sized> Clone for Arc<T> {
    #[track_caller]
    fn clone(&self) -> Arc<T> {
        touch_update(self.strong(), COUNT);
        Arc(self.0.clone())
    }
}

impl<T: ?Sized> Drop for Arc<T> {
    fn drop(&mut self) {
        touch_update(self.strong(), COUNT);
    }
}

impl<T: ?Sized> Deref for Arc<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Weak<T> {
    /// A reference to nothing.
    pub const fn new() -> Weak<T> {
        Weak(sync::Weak::new(), std::marker::PhantomData)
    }
}

impl<T: ?Sized> Weak<T> {
    /// Where the counts are, while there is a value.
    fn strong(&self) -> Option<*const u8> {
        self.0.upgrade().map(|value| strong(sync::Arc::as_ptr(&value), align_of_val(&*value)))
    }

    /// A reference that keeps the value, if it is still there.
    #[track_caller]
    pub fn upgrade(&self) -> Option<Arc<T>> {
        if let Some(strong) = self.strong() {
            touch_update(strong, COUNT);
        }
        self.0.upgrade().map(Arc)
    }
}

impl<T: ?Sized> Clone for Weak<T> {
    #[track_caller]
    fn clone(&self) -> Weak<T> {
        if let Some(strong) = self.strong() {
            touch_update(strong.wrapping_add(COUNT), COUNT);
        }
        Weak(self.0.clone(), std::marker::PhantomData)
    }
}

impl<T: ?Sized> Drop for Weak<T> {
    fn drop(&mut self) {
        if let Some(strong) = self.strong() {
            touch_update(strong.wrapping_add(COUNT), COUNT);
        }
    }
}

impl<T> Default for Weak<T> {
    fn default() -> Weak<T> {
        Weak::new()
    }
}

impl<T: Default> Default for Arc<T> {
    fn default() -> Arc<T> {
        Arc::new(T::default())
    }
}

impl<T: ?Sized, From> std::convert::From<From> for Arc<T>
where
    sync::Arc<T>: std::convert::From<From>,
{
    fn from(value: From) -> Arc<T> {
        Arc::named(value.into())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Arc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: ?Sized> fmt::Debug for Weak<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(Weak)")
    }
}

impl<T: ?Sized + PartialEq> PartialEq for Arc<T> {
    fn eq(&self, other: &Arc<T>) -> bool {
        self.0 == other.0
    }
}

impl<T: ?Sized + Eq> Eq for Arc<T> {}
