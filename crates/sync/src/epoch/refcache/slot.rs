//! Slots: places that hold a reference or none, and are read by many while they change.
//!
//! # Theory
//! A reader takes the pointer and counts its reference under the lock of its own cache, so a flush comes before
//! both or after both. If the slot's reference has been dropped and its object found dead, then every cache was
//! flushed after the slot was emptied, and saw that: a reader that comes after its flush finds the slot empty, and
//! one that came before is counted. So reading needs neither a lock of the slot nor a grace period.
//!
//! *Borrowing.* A thread that needs the value for a moment only need not count it: while its cache is *held*, no thread
//! can flush it, not even itself. The object in the slot then had at least the slot's reference. If it is freed, there
//! was a boundary T of two epochs at which it had none (see above), so T is later; and before it is freed every cache
//! is flushed in the epoch that begins at T, this one too, if it takes part: not before it is let go. Nor can a
//! settling thread have all caches before.
//! ```text
//!   reader's cache   flush .... |---- held: finds the object, looks ----|  flush
//!   slot's reference                  | emptied, dropped
//!   epochs              e              ........ T ....... e + 1 ........|......... e + 2: judged
//! ```
//! No code that the thread runs meanwhile may flush or wait for a flush: a flush that becomes due is left to the next
//! count, and a call that would settle does nothing. Since it is the thread's *own* cache that is held, and no other
//! counts in it, all this is a look at its own line. The thread must wait for no other thread, which may in turn wait
//! for this cache.
//!
//! # Cost
//! load: as a clone, and one load of the slot's line. borrow: about a third of the instructions of a load and the drop
//! that follows it.

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

    /// Calls `look` with what is there, borrowed for the call and not counted: for a look that is over soon.
    ///
    /// The calling thread's cache is held meanwhile. So `look` must not wait for another thread, as for a lock under
    /// which somebody counts references: that one may be waiting for us. `look` may count references and borrow values;
    /// but it frees no object, and [`settle`](super::settle) does nothing.
    #[inline]
    pub fn borrow<R>(&self, look: impl FnOnce(Option<&T>) -> R) -> R {
        let _held = world(self.home).hold();
        // Acquire(slot): as in load().
        let counted = NonNull::new(self.counted.load(Ordering::Acquire));
        // SAFETY: it is a slot's reference, which counts, that we have found while our cache was held and took part, see
        // *borrowing*: so it is not freed before the cache is held no more, which is after the call. `look` cannot keep it longer.
        look(counted.map(|counted| unsafe { &counted.as_ref().value }))
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
