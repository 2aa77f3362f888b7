//! Shards: a structure in many parts, chosen by key, each with a lock of its own, so that two keys rarely meet.

use sluice_sync::{CachePadded, LockClass, Mutex, fibonacci};

const SHARDS: usize = 64;

/// Parts of one kind. *Immutable; each protected by itself, a leaf.*
pub(crate) struct Shards<T>(Box<[CachePadded<Mutex<T>>]>);

impl<T: Default> Shards<T> {
    /// Empty parts with locks of `class`.
    pub(crate) fn new(class: &'static LockClass) -> Self {
        Shards((0..SHARDS).map(|_| CachePadded::new(Mutex::with_class(class, T::default()))).collect())
    }

    /// The part that `key` belongs to.
    pub(crate) fn of(&self, key: u64) -> &Mutex<T> {
        // Numbers in a row, and the scrambled ones of the kernel, go to different shards.
        &self.0[(fibonacci(key) >> 32) as usize % SHARDS]
    }

    /// True if all are as `is` says. For tests.
    #[cfg(test)]
    pub(crate) fn all(&self, is: impl Fn(&T) -> bool) -> bool {
        self.0.iter().all(|part| is(&part.lock()))
    }
}
