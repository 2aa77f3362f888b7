//! Slots: places that hold a reference or none, and are read by many while they change.
//!
//! # Theory
//! A reader takes the pointer and counts its reference under the lock of its own cache, so a flush comes before
//! both or after both. If the slot's reference has been dropped and its object found dead, then every cache was
//! flushed after the slot was emptied, and saw that: a reader who comes after its flush finds the slot empty, and
//! one who came before is counted. So reading needs neither a lock of the slot nor a grace period.
//!
//! # Cost
//! load: as a clone, and one load of the slot's line.

use super::object::{Counted, Object};
use super::world::world;
use super::{Passing, Ref, into_counted};
use crate::face::Host;
use crate::face::atomic::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// A place for a [`Ref`] that is read by many while it changes.
pub struct RefSlot<T: Send + Sync + 'static> {
    /// From a `Ref` that was forgotten, or null. *atomic (slot)*
    counted: AtomicPtr<Counted<T>>,
    /// Where its objects are made. *immutable*
    home: Host,
    marker: PhantomData<Ref<T>>,
}

impl<T: Send + Sync + 'static> RefSlot<T> {
    /// An empty slot.
    pub fn new() -> Self {
        RefSlot { counted: AtomicPtr::new(ptr::null_mut()), home: Host::here(), marker: PhantomData }
    }

    /// Another reference to what is there.
    #[inline]
    pub fn load(&self) -> Option<Ref<T>> {
        let mut found = None;
        world(self.home).count_found::<Passing>(1, || {
            // Acquire(slot): the object; pairs with the exchanges below.
            found = NonNull::new(self.counted.load(Ordering::Acquire));
            found.map(Object::of)
        });
        found.map(|counted| Ref { counted, marker: PhantomData })
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        // SeqCst: for clients that keep hints beside their slots; pairs with the exchanges below.
        self.counted.load(Ordering::SeqCst).is_null()
    }

    /// Whether `object` is there.
    pub fn holds(&self, object: &Ref<T>) -> bool {
        // SeqCst: as in is_empty().
        ptr::eq(self.counted.load(Ordering::SeqCst), object.counted.as_ptr())
    }

    /// Puts `new` there, and returns what was there.
    pub fn replace(&self, new: Option<Ref<T>>) -> Option<Ref<T>> {
        let new = new.map_or(ptr::null_mut(), into_counted);
        // SeqCst: as in is_empty(). Release(slot) and Acquire(slot) are part of it.
        let old = self.counted.swap(new, Ordering::SeqCst);
        NonNull::new(old).map(|counted| Ref { counted, marker: PhantomData })
    }

    /// Puts `new` there if nothing is.
    ///
    /// # Errors
    /// Gives `new` back if something is there.
    pub fn fill(&self, new: Ref<T>) -> Result<(), Ref<T>> {
        let new = into_counted(new);
        // SeqCst: as in replace(). A failure publishes nothing.
        match self.counted.compare_exchange(ptr::null_mut(), new, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => {
                // Not null: it was a reference a moment ago.
                let counted = NonNull::new(new).expect("from a reference");
                Err(Ref { counted, marker: PhantomData })
            }
        }
    }
}

impl<T: Send + Sync + 'static> Default for RefSlot<T> {
    fn default() -> Self {
        RefSlot::new()
    }
}

impl<T: Send + Sync + 'static> Drop for RefSlot<T> {
    fn drop(&mut self) {
        self.replace(None);
    }
}
