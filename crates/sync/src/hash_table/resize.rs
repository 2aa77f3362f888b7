//! Resizing: begins a move to a larger or smaller array, and moves a few buckets at a time.

use super::bucket::Array;
use super::{BUCKETS_MIN, HashTable, MOVE_AT_ONCE};
use crate::face::atomic::Ordering;
use crate::face::{Mutant, seeded};
use crate::rcu::Guard;
use std::hash::{BuildHasher, Hash};

/// An array that is no longer current, on its way to be freed.
struct Retired<K, V>(*mut Array<K, V>);

// SAFETY: it owns the array and no node: each is in the next array too.
unsafe impl<K: Send, V: Send> Send for Retired<K, V> {}

impl<K, V> Retired<K, V> {
    /// # Safety
    /// No reader may be left that could have found the array.
    unsafe fn free(self) {
        // SAFETY: from `Box::into_raw`; `finish` makes one `Retired` of each array. Its nodes are not touched.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl<K: Hash + Eq + Send + Sync, V: Send + Sync, S: BuildHasher> HashTable<K, V, S> {
    /// How many buckets there are, or will be when the resize that is under way is done.
    pub fn buckets(&self) -> usize {
        let guard = self.read();
        let array = self.current(&guard);
        array.next(&guard).unwrap_or(array).len()
    }

    /// Begins to move to `buckets` buckets, rounded up to a power of two. Does nothing, and says false, if there are
    /// so many already, or if the previous resize is not over; that includes its grace period.
    pub fn resize(&self, buckets: usize) -> bool {
        let buckets = buckets.max(BUCKETS_MIN).next_power_of_two();
        let Some(mut resizing) = self.resizing.try_lock() else { return false };
        let guard = self.read();
        let array = self.current(&guard);
        if array.next(&guard).is_some() || array.len() == buckets {
            return false;
        }
        // The chains of the array before this one use the links that the new one needs: its readers must be gone.
        let read = resizing.is_some_and(|period| !self.domain.poll(period));
        if read && !seeded(Mutant::ResizeWithoutGracePeriod) {
            return false;
        }
        *resizing = None;
        array.set_next(Box::new(Array::new(buckets, 1 - array.link)));
        true
    }

    /// Begins to move to as few buckets as the entries need; as [`resize`](Self::resize).
    pub fn shrink(&self) -> bool {
        self.len() < self.buckets() / 4 && self.resize(self.len())
    }

    /// Moves a few buckets if a resize is under way.
    #[inline]
    pub(super) fn help(&self) {
        let finished = {
            let guard = self.read();
            let array = self.current(&guard);
            match array.next(&guard) {
                Some(next) => self.help_slow(array, next, &guard),
                None => return,
            }
        };
        // Outside the section: deferring may wait.
        if let Some(retired) = finished {
            // SAFETY: runs a grace period after the array stopped being current; no other pointer to it is left.
            self.domain.defer(move || unsafe { retired.free() });
        }
    }

    #[cold]
    fn help_slow(&self, old: &Array<K, V>, new: &Array<K, V>, guard: &Guard<'_>) -> Option<Retired<K, V>> {
        let claimed = old.claim(MOVE_AT_ONCE);
        let count = claimed.len();
        for at in claimed {
            let bucket = old.lock_at(at).expect("a bucket is moved by who claimed it");
            bucket.copy_to(new);
            bucket.mark_moved();
        }
        old.note_moved(count).then(|| self.finish(old, guard))
    }

    /// Makes the next array the current one.
    fn finish(&self, old: &Array<K, V>, _guard: &Guard<'_>) -> Retired<K, V> {
        let mut resizing = self.resizing.lock();
        // Release(array): all chains of the new array; pairs with Acquire(array) in current().
        let retired = self.current.swap(old.next_ptr(), Ordering::AcqRel);
        debug_assert!(std::ptr::eq(retired, old), "only the current array is moved");
        // Readers of the old chains: the next resize waits for them.
        *resizing = Some(self.domain.start());
        Retired(retired)
    }
}
