//! Weak references: what leads to a value as long as that has references, and is none.
//!
//! # Theory
//! A weak reference is a pointer beside the object, followed as that of a slot is (`slot.rs`): the pointer is read and the reference counted
//! under the lock of the reader's cache. A review that finds the object dead does not know of a reader that comes after it. So the
//! object is not freed then: the pointer is emptied, and there is another review. In that, each cache is flushed after the pointer
//! was emptied: a reader that comes after its flush finds nothing, and one that came before it is counted, and seen.
//!
//! # Cost
//! Objects without weak references: nothing. Following one: as a load of a slot. The first one to an object: two allocations.

use super::object::{Object, WeakSlot};
use super::world::{CacheWorld, world};
use super::{Passing, Ref};
use crate::face::Arc;
use crate::face::atomic::Ordering;
use std::marker::PhantomData;

/// Leads to a value as long as the value has references, without being a reference.
///
/// ```
/// use sluice_sync::{Ref, WeakRef, refcache::settle};
///
/// let value = Ref::new(7);
/// let weak = WeakRef::to(&value);
/// assert_eq!(weak.follow().as_deref(), Some(&7));
/// drop(value);
/// settle();
/// assert!(weak.has_ended() && weak.follow().is_none());
/// ```
pub struct WeakRef<T: Send + Sync + 'static> {
    slot: Arc<WeakSlot>,
    marker: PhantomData<Ref<T>>,
}

impl<T: Send + Sync + 'static> WeakRef<T> {
    /// One to the value of `this`.
    pub fn to(this: &Ref<T>) -> WeakRef<T> {
        WeakRef { slot: Object::of(this.counted).weak(), marker: PhantomData }
    }

    /// Whether the value was found without a reference: then this leads nowhere.
    pub fn has_ended(&self) -> bool {
        // Relaxed: a hint, which may come later than it could.
        self.slot.object.load(Ordering::Relaxed).is_null()
    }

    /// A reference to the value. None once the value was found without a reference, even if weak references were
    /// followed since.
    pub fn follow(&self) -> Option<Ref<T>> {
        let mut found = None;
        world(self.slot.home).count_found::<Passing>(1, || {
            // Acquire(weak): pairs with AcqRel(weak) in end().
            found = Object::found(self.slot.object.load(Ordering::Acquire));
            found
        });
        found.map(|object| Ref { counted: object.counted(), marker: PhantomData })
    }
}

impl<T: Send + Sync + 'static> Clone for WeakRef<T> {
    fn clone(&self) -> Self {
        WeakRef { slot: self.slot.clone(), marker: PhantomData }
    }
}

impl CacheWorld {
    /// Has `object`, which a review has found dead, reviewed once more.
    pub(super) fn review_anew(&self, object: Object) {
        let shard = self.shard();
        let mut cache = self.own(shard);
        if !cache.is_enlisted() {
            drop(cache);
            cache = self.enlist(shard);
        }
        cache.review_anew(object);
    }
}
