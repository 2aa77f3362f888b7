//! Worlds: the caches that count one set of objects, and the epochs in which all of them are flushed.

use super::cache::Cache;
use super::object::Object;
use crate::Mutex;
use crate::face::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::face::{CachePadded, Host, PerHost, SHRUNK, SlotTable, const_new, global, thread};
use crate::spin::{SpinGuard, SpinLock, Ttas};

/// After so many counts a thread flushes its cache.
const TURNS: u32 = if SHRUNK { 2 } else { 2048 };

/// What one thread writes.
#[derive(Default)]
struct Shard {
    /// The lock is the owner's but for moments: others take it to flush for an idle thread.
    cache: SpinLock<Cache, Ttas>,
    /// The owner is freeing objects: it must not begin to free others inside their destructors, and who settles
    /// waits for it. *atomic (freed); set under the lock of `cache`, cleared without, so that who waits for it can
    /// look without being in its way*
    freeing: AtomicBool,
}

/// All caches that may hold counts of an object.
pub(super) struct World {
    /// By thread slot. *each protected by its lock*
    shards: SlotTable<CachePadded<Shard>>,
    /// The epoch that is now. *atomic (epoch); written under `enlisted`*
    epoch: CachePadded<AtomicU64>,
    /// How many caches have not been flushed in it. *atomic (flushed)*
    pending: CachePadded<AtomicUsize>,
    /// The slots of the caches that are in use. A cache joins under this lock, so who holds it knows them all.
    /// *protected by itself*
    enlisted: Mutex<Vec<u32>>,
}

impl Shard {
    /// Whether the owner is freeing objects.
    fn is_freeing(&self) -> bool {
        // Acquire(freed): what the destructors did; pairs with Release(freed) in freed().
        self.freeing.load(Ordering::Acquire)
    }

    /// The owner has freed what it found dead.
    fn freed(&self) {
        // Release(freed): pairs with Acquire(freed) in is_freeing().
        self.freeing.store(false, Ordering::Release);
    }
}

/// Whether a flush was its cache's first in the epoch.
enum Flushed {
    First,
    /// And there is no other cache to be flushed: the caller begins the next epoch.
    Last,
    Again,
}

global! {
    static WORLDS: PerHost<World> = PerHost::new(World::new());
}

/// The world that counts the objects made at `home`.
#[inline]
pub(super) fn world(home: Host) -> &'static World {
    WORLDS.get(home)
}

impl World {
    const_new! {
        fn new() -> Self {
            World {
                shards: SlotTable::new(),
                epoch: CachePadded::new(AtomicU64::new(0)),
                pending: CachePadded::new(AtomicUsize::new(0)),
                enlisted: Mutex::new(Vec::new()),
            }
        }
    }

    /// Counts `delta` references of `object`, one of this world, in the calling thread's cache.
    #[inline]
    pub(super) fn count(&self, object: Object, delta: i64) {
        self.with_cache(|cache| cache.count(object, delta, &self.epoch));
    }

    /// Counts a reference of the object that `find` finds, under the lock of the calling thread's cache.
    #[inline]
    pub(super) fn count_found(&self, find: impl FnOnce() -> Option<Object>) {
        self.with_cache(|cache| {
            if let Some(object) = find() {
                cache.count(object, 1, &self.epoch);
            }
        });
    }

    /// Calls `count` with the calling thread's cache, and flushes it when that is due.
    #[inline]
    fn with_cache(&self, count: impl FnOnce(&mut Cache)) {
        let shard = self.shards.get(thread::slot());
        let mut guard = shard.cache.lock();
        if !guard.is_enlisted() {
            drop(guard);
            guard = self.enlist(shard);
        }
        let cache = &mut *guard;
        count(cache);
        // Relaxed: our own.
        let due = cache.turns >= TURNS && !shard.freeing.load(Ordering::Relaxed);
        drop(guard);
        if due {
            self.maintain(shard);
        }
    }

    /// Lets the calling thread's cache take part in flushes from now on; returns it locked.
    #[cold]
    fn enlist<'a>(&'a self, shard: &'a Shard) -> SpinGuard<'a, Cache, Ttas> {
        let mut enlisted = self.enlisted.lock();
        let mut cache = shard.cache.lock();
        // Relaxed: written under this lock.
        cache.enlist(self.epoch.load(Ordering::Relaxed));
        // Relaxed: publishes nothing. If the last flush of this epoch was counted already, who did it waits for
        // this lock to begin the next epoch, and counts us in that.
        self.pending.fetch_add(1, Ordering::Relaxed);
        enlisted.push(thread::slot());
        cache
    }

    /// Flushes `cache` and judges its objects.
    fn flush(&self, cache: &mut Cache, dead: &mut Vec<Object>) -> Flushed {
        // Acquire(epoch): all flushes of the epochs before; pairs with Release(epoch) in begin_epoch().
        let now = self.epoch.load(Ordering::Acquire);
        cache.flush(&self.epoch);
        cache.review(now, &self.epoch, dead);
        if std::mem::replace(&mut cache.flushed, now) == now {
            return Flushed::Again;
        }
        // AcqRel(flushed): the counts that we gave up, handed on to the last; pairs with itself.
        match self.pending.fetch_sub(1, Ordering::AcqRel) {
            1 => Flushed::Last,
            _ => Flushed::First,
        }
    }

    /// Flushes the calling thread's cache, helps the epoch to its end, and frees what is found dead.
    #[cold]
    fn maintain(&self, shard: &Shard) {
        let mut dead = Vec::new();
        let flushed = {
            let mut cache = shard.cache.lock();
            // Relaxed: published by the lock, under which settle() looks.
            shard.freeing.store(true, Ordering::Relaxed);
            self.flush(&mut cache, &mut dead)
        };
        match flushed {
            Flushed::First => {}
            Flushed::Last => self.begin_epoch(&self.enlisted.lock()),
            // We have counted `TURNS` times since; whoever has not come by may be idle.
            Flushed::Again => self.flush_laggards(&mut dead),
        }
        free(dead);
        shard.freed();
    }

    /// Begins the next epoch, when every cache has been flushed in this one. The caller holds `enlisted`.
    fn begin_epoch(&self, enlisted: &[u32]) {
        // Relaxed, both: published by the epoch, and nobody counts down before seeing that.
        self.pending.store(enlisted.len(), Ordering::Relaxed);
        let now = self.epoch.load(Ordering::Relaxed);
        // Release(epoch): pairs with Acquire(epoch) in flush().
        self.epoch.store(now + 1, Ordering::Release);
        // SeqCst(review): pairs with the fence in Cache::begin_review().
        fence(Ordering::SeqCst);
    }

    /// Flushes the caches that have not been flushed in this epoch, for their threads.
    fn flush_laggards(&self, dead: &mut Vec<Object>) {
        // Somebody else is at it.
        let Some(enlisted) = self.enlisted.try_lock() else { return };
        // Relaxed: written under this lock.
        let now = self.epoch.load(Ordering::Relaxed);
        for slot in enlisted.iter() {
            let mut cache = self.shards.get(*slot).cache.lock();
            if cache.flushed != now && matches!(self.flush(&mut cache, dead), Flushed::Last) {
                drop(cache);
                return self.begin_epoch(&enlisted);
            }
        }
    }

    /// Whether the calling thread is freeing objects.
    pub(super) fn is_freeing(&self) -> bool {
        // Relaxed: our own.
        self.shards.get(thread::slot()).freeing.load(Ordering::Relaxed)
    }

    /// Stops all counting for a moment, in which the global counts are exact, and frees what is unreferenced;
    /// again, until that frees nothing more and nobody else is freeing.
    pub(super) fn settle(&self) {
        let slot = thread::slot();
        let own = self.shards.get(slot);
        if self.is_freeing() {
            return;
        }
        if !own.cache.lock().is_enlisted() {
            drop(self.enlist(own));
        }
        loop {
            let mut dead = Vec::new();
            let other = {
                let enlisted = self.enlisted.lock();
                let mut caches: Vec<_> =
                    enlisted.iter().map(|slot| self.shards.get(*slot).cache.lock()).collect();
                caches.iter_mut().for_each(|cache| cache.flush(&self.epoch));
                caches.iter_mut().for_each(|cache| cache.review_exact(&mut dead));
                let mut others = enlisted.iter().filter(|of| **of != slot).map(|of| self.shards.get(*of));
                // Another thread that settles must wait for us. Relaxed: published by the locks.
                own.freeing.store(!dead.is_empty(), Ordering::Relaxed);
                others.find(|shard| shard.is_freeing())
            };
            if !dead.is_empty() {
                free(dead);
                own.freed();
            } else if let Some(other) = other {
                while other.is_freeing() {
                    thread::yield_now();
                }
            } else {
                return;
            }
        }
    }
}

impl Default for World {
    fn default() -> Self {
        World::new()
    }
}

fn free(dead: Vec<Object>) {
    for object in dead {
        // SAFETY: moved to `dead` once, out of the one review queue that held it, by a review that found it dead.
        unsafe { object.free() };
    }
}
