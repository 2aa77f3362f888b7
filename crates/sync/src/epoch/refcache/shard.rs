//! Shards: what each thread writes when it counts, and where that lies.

use super::cache::Cache;
use super::rounds::Epoch;
use crate::face::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::face::{NearTable, const_new};
use crate::owner_lock::OwnerLock;

/// In place of an epoch: the cache does not take part.
const RETIRED: u32 = u32::MAX;

/// The data that one thread writes.
pub(super) struct CacheShard {
    /// Others visit it to flush for an idle thread, or to know all counts. The owner takes it in `world.rs` only.
    pub(super) cache: OwnerLock<Cache>,
    /// The epoch in which the cache was last flushed, or [`RETIRED`]. *written under the lock of `cache`; read by threads
    /// that look for laggards (hint)*
    flushed: AtomicU32,
    /// The owner is freeing objects: it must not begin to free others inside their destructors, and a thread that settles
    /// waits for it. *atomic (freed); set under the lock of `cache`, cleared without, so that a waiting thread can look
    /// without being in its way*
    pub(super) freeing: AtomicBool,
}

/// The shards of all threads, by slot.
pub(super) type CacheShards = NearTable<CacheShard>;

impl CacheShard {
    const_new! {
        pub(super) fn new() -> Self {
            let (flushed, freeing) = (AtomicU32::new(RETIRED), AtomicBool::new(false));
            CacheShard { cache: OwnerLock::new(Cache::new()), flushed, freeing }
        }
    }

    /// Whether the cache takes part and was last flushed in `epoch`. Exact under its lock.
    pub(super) fn was_flushed_in(&self, epoch: Epoch) -> bool {
        // Relaxed: written under the lock, or a hint.
        self.flushed.load(Ordering::Relaxed) == epoch.word()
    }

    /// The epoch in which the cache was last flushed, if it takes part. The caller has locked it.
    pub(super) fn flushed(&self) -> Option<Epoch> {
        // Relaxed: written under the lock.
        let word = self.flushed.load(Ordering::Relaxed);
        (word != RETIRED).then(|| Epoch::from_word(word))
    }

    /// Notes in which epoch the cache was flushed; in none if it takes part no more. The caller has locked it.
    pub(super) fn set_flushed(&self, epoch: Option<Epoch>) {
        // Relaxed: published by the lock.
        self.flushed.store(epoch.map_or(RETIRED, Epoch::word), Ordering::Relaxed);
    }

    /// Whether the owner is freeing objects.
    pub(super) fn is_freeing(&self) -> bool {
        // Acquire(freed): what the destructors did; pairs with Release(freed) where Freeing ends.
        self.freeing.load(Ordering::Acquire)
    }
}

impl Default for CacheShard {
    fn default() -> Self {
        CacheShard::new()
    }
}

/// The owner of the shard is freeing objects, until this is dropped: also when a destructor panics, or others would
/// wait for ever.
pub(super) struct Freeing<'a>(pub(super) &'a CacheShard);

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        // Release(freed): pairs with Acquire(freed) in is_freeing().
        self.0.freeing.store(false, Ordering::Release);
    }
}
