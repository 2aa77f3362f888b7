//! Worlds: the caches that count one set of objects, and the epochs in which all of them are flushed.

use super::blocks::{Blocks, Kind};
use super::cache::Cache;
use super::object::Object;
use crate::Mutex;
use crate::face::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::face::{CachePadded, Host, PerHost, SHRUNK, SlotTable, const_new, global, thread};
use crate::owner_lock::{Inside, OwnerLock};
use std::ptr::NonNull;

/// After so many counts a thread flushes its cache.
const TURNS: u32 = if SHRUNK { 2 } else { 2048 };
/// A thread that has flushed its cache so often again in one epoch waits no longer for those who were busy in the epoch
/// before. It is not done at the first time because whoever flushes for a busy thread frees what that one made, misses
/// on every line of it, and is late itself meanwhile: in the end one thread frees for all.
const PATIENCE: u32 = if SHRUNK { 1 } else { 4 };

/// What one thread writes.
#[derive(Default)]
struct Shard {
    /// Others visit it to flush for an idle thread, or to know all counts. Taken by [`World::own`] only.
    cache: OwnerLock<Cache>,
    /// Memory that the owner uses again. Apart from the cache: who counts does not want its lines. Nobody visits it.
    blocks: OwnerLock<Blocks>,
    /// The epoch in which the cache was last flushed. *written under the lock of `cache`; read by those who look for
    /// laggards (hint)*
    flushed: AtomicU64,
    /// Another thread did it, so the owner is taken for idle. *as `flushed`*
    idle: AtomicBool,
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
    /// It was not; how many there were after the first.
    Again(u32),
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
        self.count_found(delta, || Some(object));
    }

    /// Counts `delta` references of the object that `find` finds, if it does, under the lock of the calling thread's
    /// cache.
    #[inline]
    pub(super) fn count_found(&self, delta: i64, find: impl FnOnce() -> Option<Object>) {
        let shard = self.shard();
        let mut cache = self.own(shard);
        if !cache.is_enlisted() {
            drop(cache);
            cache = self.enlist(shard);
        }
        if let Some(object) = find() {
            cache.count(object, delta, &self.epoch);
        }
        let due = cache.turns >= TURNS;
        drop(cache);
        if due {
            self.maintain(shard);
        }
    }

    /// What the calling thread writes.
    #[inline]
    fn shard(&self) -> &Shard {
        self.shards.get(thread::slot())
    }

    /// The calling thread's cache, locked; `shard` is its shard. Not to be called by one who has it.
    #[inline]
    fn own<'a>(&self, shard: &'a Shard) -> Inside<'a, Cache> {
        // SAFETY: one thread at a time has a slot, and the next one gets it when the kernel knows this one no more. All
        // calls are in this file, and none is made while an earlier one's guard is there: under it nothing runs but
        // what `Cache` does.
        unsafe { shard.cache.lock() }
    }

    /// A block of `kind`.
    pub(super) fn allocate(&self, kind: Kind) -> NonNull<u8> {
        let kept = if kind.is_kept() { self.own_blocks().take(kind) } else { None };
        kept.unwrap_or_else(|| kind.allocate())
    }

    /// The memory that the calling thread keeps, locked. Not to be called by one who has it.
    #[inline]
    fn own_blocks(&self) -> Inside<'_, Blocks> {
        // SAFETY: as in own(): both calls are beside this, and under the lock nothing runs but what `Blocks` does.
        unsafe { self.shard().blocks.lock() }
    }

    /// Does away with `block`.
    ///
    /// # Safety
    /// It came from [`allocate`](Self::allocate) of this kind, and nobody will use it again.
    pub(super) unsafe fn free(&self, kind: Kind, block: NonNull<u8>) {
        if kind.is_kept() {
            // SAFETY: by contract.
            unsafe { self.own_blocks().give(kind, block) };
        } else {
            // SAFETY: by contract.
            unsafe { kind.free(block) };
        }
    }

    /// Lets the calling thread's cache take part in flushes from now on; returns it locked.
    #[cold]
    fn enlist<'a>(&self, shard: &'a Shard) -> Inside<'a, Cache> {
        let mut enlisted = self.enlisted.lock();
        let mut cache = self.own(shard);
        cache.enlist();
        // Relaxed, both: written under this lock. The cache has yet to be flushed in this epoch.
        shard.flushed.store(self.epoch.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
        // Relaxed: publishes nothing. If the last flush of this epoch was counted already, who did it waits for
        // this lock to begin the next epoch, and counts us in that.
        self.pending.fetch_add(1, Ordering::Relaxed);
        enlisted.push(thread::slot());
        cache
    }

    /// Flushes the cache of `shard`, which the caller has locked, and judges its objects.
    fn flush(&self, shard: &Shard, cache: &mut Cache, dead: &mut Vec<Object>) -> Flushed {
        // Acquire(epoch): all flushes of the epochs before; pairs with Release(epoch) in begin_epoch().
        let now = self.epoch.load(Ordering::Acquire);
        cache.flush(&self.epoch);
        cache.review(now, &self.epoch, dead);
        // Relaxed, both: written under the cache's lock.
        if shard.flushed.load(Ordering::Relaxed) == now {
            cache.again += 1;
            return Flushed::Again(cache.again);
        }
        cache.again = 0;
        shard.flushed.store(now, Ordering::Relaxed);
        // AcqRel(flushed): the counts that we gave up, handed on to the last; pairs with itself.
        match self.pending.fetch_sub(1, Ordering::AcqRel) {
            1 => Flushed::Last,
            _ => Flushed::First,
        }
    }

    /// Flushes the calling thread's cache, helps the epoch to its end, and frees what is found dead.
    #[cold]
    fn maintain(&self, shard: &Shard) {
        // Relaxed: our own.
        if shard.freeing.load(Ordering::Relaxed) {
            return;
        }
        let (flushed, mut dead) = {
            let mut cache = self.own(shard);
            // Relaxed, both: published by the lock, under which settle() looks.
            shard.freeing.store(true, Ordering::Relaxed);
            shard.idle.store(false, Ordering::Relaxed);
            let mut dead = std::mem::take(&mut cache.dead);
            (self.flush(shard, &mut cache, &mut dead), dead)
        };
        match flushed {
            Flushed::First => {}
            Flushed::Last => self.begin_epoch(&self.enlisted.lock()),
            // We have counted `TURNS` times since; whoever has not come by may be idle.
            Flushed::Again(times) => self.flush_laggards(times < PATIENCE, &mut dead),
        }
        free(&mut dead);
        self.own(shard).dead = dead;
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

    /// Flushes the caches that have not been flushed in this epoch, for their threads; with `only_idle`, those of idle
    /// threads.
    fn flush_laggards(&self, only_idle: bool, dead: &mut Vec<Object>) {
        // Somebody else is at it.
        let Some(enlisted) = self.enlisted.try_lock() else { return };
        // Relaxed: written under this lock.
        let now = self.epoch.load(Ordering::Relaxed);
        // Relaxed: a hint; whoever is flushed by now has counted itself down.
        let lags = |shard: &&CachePadded<Shard>| shard.flushed.load(Ordering::Relaxed) != now;
        // Relaxed: a hint too.
        let is_due =
            |shard: &&CachePadded<Shard>| lags(shard) && (!only_idle || shard.idle.load(Ordering::Relaxed));
        let laggards: Vec<_> = enlisted.iter().map(|slot| self.shards.get(*slot)).filter(is_due).collect();
        if laggards.is_empty() {
            return;
        }
        let mut ended = false;
        for (shard, mut cache) in
            laggards.iter().zip(OwnerLock::visit_all(laggards.iter().map(|shard| &shard.cache)))
        {
            // Now its owner cannot flush it, which it may have done meanwhile.
            if lags(shard) {
                // Relaxed: written under the cache's lock.
                shard.idle.store(true, Ordering::Relaxed);
                ended |= matches!(self.flush(shard, &mut cache, dead), Flushed::Last);
            }
        }
        if ended {
            self.begin_epoch(&enlisted);
        }
    }

    /// Whether the calling thread is freeing objects.
    pub(super) fn is_freeing(&self) -> bool {
        // Relaxed: our own.
        self.shard().freeing.load(Ordering::Relaxed)
    }

    /// Stops all counting for a moment, in which the global counts are exact, and frees what is unreferenced;
    /// again, until that frees nothing more and nobody else is freeing.
    pub(super) fn settle(&self) {
        let slot = thread::slot();
        let own = self.shards.get(slot);
        if self.is_freeing() {
            return;
        }
        let enlisted = self.own(own).is_enlisted();
        if !enlisted {
            drop(self.enlist(own));
        }
        loop {
            let mut dead = Vec::new();
            let other = {
                let enlisted = self.enlisted.lock();
                let mut caches =
                    OwnerLock::visit_all(enlisted.iter().map(|slot| &self.shards.get(*slot).cache));
                caches.iter_mut().for_each(|cache| cache.flush(&self.epoch));
                caches.iter_mut().for_each(|cache| cache.review_exact(&mut dead));
                let mut others = enlisted.iter().filter(|of| **of != slot).map(|of| self.shards.get(*of));
                // Another thread that settles must wait for us. Relaxed: published by the locks.
                own.freeing.store(!dead.is_empty(), Ordering::Relaxed);
                others.find(|shard| shard.is_freeing())
            };
            if !dead.is_empty() {
                free(&mut dead);
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

fn free(dead: &mut Vec<Object>) {
    for object in dead.drain(..) {
        // SAFETY: moved to `dead` once, out of the one review queue that held it, by a review that found it dead.
        unsafe { object.free() };
    }
}
