//! Worlds: the caches that count one set of objects, and the epochs in which all of them are flushed.

use super::cache::{Cache, Keepers, TURNS};
use super::object::Object;
use crate::Mutex;
use crate::face::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::face::{CachePadded, Host, PerHost, SHRUNK, SlotTable, const_new, global, thread};
use crate::owner_lock::{Inside, OwnerLock};
use std::collections::VecDeque;
use std::vec::Drain;

/// The first flush of a cache comes later by so many counts for each slot: threads that begin together and do the same would
/// also flush together, and meet at the objects that all of them count.
const TURNS_APART: u32 = if SHRUNK { 0 } else { 797 };
/// A thread that has flushed its cache so often again in one epoch waits no longer for the others. It is not done at the
/// first time because the barrier that it takes interrupts every CPU.
const PATIENCE: u32 = if SHRUNK { 1 } else { 4 };

/// What one thread writes.
#[derive(Default)]
struct Shard {
    /// Others visit it to flush for an idle thread, or to know all counts. Taken by [`World::own`] only.
    cache: OwnerLock<Cache>,
    /// The epoch in which the cache was last flushed. *written under the lock of `cache`; read by those who look for
    /// laggards (hint)*
    flushed: AtomicU64,
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
    /// How many caches there are. *written under `enlisted`; read by who flushes (hint)*
    caches: CachePadded<AtomicUsize>,
    /// How many caches have not been flushed in the epoch. *atomic (flushed)*
    pending: CachePadded<AtomicUsize>,
    /// The slots of the caches that are in use. A cache joins under this lock, so who holds it knows them all.
    /// *protected by itself*
    enlisted: Mutex<Vec<u32>>,
}

impl Shard {
    /// Whether the owner is freeing objects.
    fn is_freeing(&self) -> bool {
        // Acquire(freed): what the destructors did; pairs with Release(freed) where Freeing ends.
        self.freeing.load(Ordering::Acquire)
    }
}

/// The owner of the shard is freeing objects, until this is dropped: also when a destructor panics, or others would
/// wait for ever.
struct Freeing<'a>(&'a Shard);

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        // Release(freed): pairs with Acquire(freed) in is_freeing().
        self.0.freeing.store(false, Ordering::Release);
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
                caches: CachePadded::new(AtomicUsize::new(0)),
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
        // Whatever is out of the ordinary is left to a call from which nothing comes back here.
        match self.shards.near(thread::ready_slot()) {
            Some(shard) => self.count_in(shard, delta, find),
            None => self.count_far(delta, find),
        }
    }

    /// As [`count_found`](Self::count_found), of one of many threads, or of one that has no slot yet.
    #[inline(never)]
    fn count_far(&self, delta: i64, find: impl FnOnce() -> Option<Object>) {
        match self.shards.peek(thread::ready_slot()) {
            Some(shard) => self.count_in(shard, delta, find),
            None => self.count_slowly(delta, find),
        }
    }

    /// As [`count_found`](Self::count_found); `shard` is that of the calling thread, whose slot is ready.
    #[inline]
    fn count_in(&self, shard: &Shard, delta: i64, find: impl FnOnce() -> Option<Object>) {
        // SAFETY: as in own(); and the slot is ready.
        let Some(mut cache) = (unsafe { shard.cache.try_lock() }) else {
            return self.count_slowly(delta, find);
        };
        if !cache.is_enlisted() {
            drop(cache);
            return self.count_slowly(delta, find);
        }
        match find() {
            Some(object) if !cache.count(object, delta) => self.count_anew(shard, cache, object, delta),
            _ => self.finish(shard, cache),
        }
    }

    /// As [`count_found`](Self::count_found), when the calling thread's cache is visited, or not enlisted.
    #[cold]
    #[inline(never)]
    fn count_slowly(&self, delta: i64, find: impl FnOnce() -> Option<Object>) {
        let shard = self.shard();
        let mut cache = self.own(shard);
        if !cache.is_enlisted() {
            drop(cache);
            cache = self.enlist(shard);
        }
        match find() {
            Some(object) if !cache.count(object, delta) => self.count_anew(shard, cache, object, delta),
            _ => self.finish(shard, cache),
        }
    }

    /// Counts `delta` references of `object`, which `cache`, that of `shard`, holds no count of.
    #[inline(never)]
    fn count_anew(&self, shard: &Shard, mut cache: Inside<'_, Cache>, object: Object, delta: i64) {
        cache.count_anew(object, delta);
        self.finish(shard, cache);
    }

    /// Ends a counting in `cache`, that of `shard`.
    #[inline]
    fn finish(&self, shard: &Shard, cache: Inside<'_, Cache>) {
        let due = cache.is_due();
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

    /// Lets the calling thread's cache take part in flushes from now on; returns it locked.
    #[cold]
    fn enlist<'a>(&self, shard: &'a Shard) -> Inside<'a, Cache> {
        let mut enlisted = self.enlisted.lock();
        let mut cache = self.own(shard);
        cache.enlist(thread::slot().wrapping_mul(TURNS_APART) % TURNS);
        // Relaxed, both: written under this lock. The cache has yet to be flushed in this epoch.
        shard.flushed.store(self.epoch.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
        // Relaxed: publishes nothing. If the last flush of this epoch was counted already, who did it waits for
        // this lock to begin the next epoch, and counts us in that.
        self.pending.fetch_add(1, Ordering::Relaxed);
        enlisted.push(thread::slot());
        self.note_caches(&enlisted);
        cache
    }

    /// Notes how many caches are `enlisted`.
    fn note_caches(&self, enlisted: &[u32]) {
        // Relaxed: a hint.
        self.caches.store(enlisted.len(), Ordering::Relaxed);
    }

    /// The caches that there are, for whom flushes.
    fn keepers(&self) -> Keepers {
        // Relaxed: a hint.
        Keepers::of(self.caches.load(Ordering::Relaxed))
    }

    /// Flushes the cache of `shard`, which the caller has locked.
    fn flush(&self, shard: &Shard, cache: &mut Cache, keepers: Keepers) -> Flushed {
        // Acquire(epoch): all flushes of the epochs before; pairs with Release(epoch) in begin_epoch().
        let now = self.epoch.load(Ordering::Acquire);
        cache.flush(keepers, &self.epoch);
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
        let (_freeing, flushed, mut dead) = {
            let mut cache = self.own(shard);
            // Relaxed: published by the lock, under which settle() looks.
            shard.freeing.store(true, Ordering::Relaxed);
            let freeing = Freeing(shard);
            let flushed = self.flush(shard, &mut cache, self.keepers());
            let mut dead = std::mem::take(&mut cache.dead);
            // Relaxed: written under the cache's lock. It is the epoch of this flush.
            cache.review(shard.flushed.load(Ordering::Relaxed), &mut dead);
            (freeing, flushed, dead)
        };
        match flushed {
            Flushed::First => {}
            Flushed::Last => self.begin_epoch(&self.enlisted.lock()),
            Flushed::Again(times) if times < PATIENCE => {}
            // We have counted many times `TURNS` since; whoever has not come by may be idle.
            Flushed::Again(_) => self.flush_laggards(shard),
        }
        free(&mut dead);
        self.own(shard).dead = dead;
    }

    /// Begins the next epoch if every cache has been flushed in this one. The caller holds `enlisted`.
    fn begin_epoch(&self, enlisted: &[u32]) {
        // Not if a cache was enlisted, or another thread has begun the epoch, since the caller counted down to 0.
        // Acquire(flushed): pairs with AcqRel(flushed) in flush().
        if self.pending.load(Ordering::Acquire) > 0 {
            return;
        }
        // Relaxed, both: published by the epoch, and nobody counts down before seeing that.
        self.pending.store(enlisted.len(), Ordering::Relaxed);
        let now = self.epoch.load(Ordering::Relaxed);
        // Release(epoch): pairs with Acquire(epoch) in flush().
        self.epoch.store(now + 1, Ordering::Release);
        // SeqCst(review): pairs with the fence in Cache::flush().
        fence(Ordering::SeqCst);
    }

    /// Flushes the caches that have not been flushed in this epoch, for their threads. What those have to review is left
    /// to them, so that memory stays with the thread that made it; but the caller, whose shard is `own`, takes over
    /// from threads that have counted nothing in the whole epoch. These are no more waited for until they count again.
    fn flush_laggards(&self, own: &Shard) {
        // Somebody else is at it.
        let Some(mut enlisted) = self.enlisted.try_lock() else { return };
        // Relaxed: written under this lock.
        let now = self.epoch.load(Ordering::Relaxed);
        // Relaxed: a hint; whoever is flushed by now has counted itself down.
        let lags = |shard: &Shard| shard.flushed.load(Ordering::Relaxed) != now;
        let laggards: Vec<_> = enlisted.iter().copied().filter(|slot| lags(self.shards.get(*slot))).collect();
        if laggards.is_empty() {
            return;
        }
        let shards = laggards.iter().map(|slot| &**self.shards.get(*slot));
        let mut caches = OwnerLock::visit_all(shards.clone().map(|shard| &shard.cache));
        let (mut ended, mut retired, mut reviews) = (false, Vec::new(), VecDeque::new());
        for ((slot, shard), cache) in laggards.iter().zip(shards).zip(&mut caches) {
            // Now its owner cannot flush it, which it may have done meanwhile.
            if lags(shard) {
                let is_idle = cache.is_idle() && !shard.is_freeing();
                let keepers = if is_idle { Keepers::NONE } else { self.keepers() };
                ended |= matches!(self.flush(shard, cache, keepers), Flushed::Last);
                if is_idle {
                    retired.push(*slot);
                    reviews.append(&mut cache.retire());
                }
            }
        }
        drop(caches);
        // Still under `enlisted`: whoever settles finds them all.
        self.own(own).adopt(reviews);
        enlisted.retain(|slot| !retired.contains(slot));
        self.note_caches(&enlisted);
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
                caches.iter_mut().for_each(|cache| cache.flush(Keepers::NONE, &self.epoch));
                caches.iter_mut().for_each(|cache| cache.review_exact(&mut dead));
                let mut others = enlisted.iter().filter(|of| **of != slot).map(|of| self.shards.get(*of));
                // Another thread that settles must wait for us. Relaxed: published by the locks.
                own.freeing.store(!dead.is_empty(), Ordering::Relaxed);
                others.find(|shard| shard.is_freeing())
            };
            if !dead.is_empty() {
                let _freeing = Freeing(own);
                free(&mut dead);
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

/// What is found dead and not yet freed.
struct Dead<'a>(Drain<'a, Object>);

impl Dead<'_> {
    fn free(&mut self) {
        for object in &mut self.0 {
            // SAFETY: moved to `dead` once, out of the one review queue that held it, by a review that found it dead.
            unsafe { object.free() };
        }
    }
}

impl Drop for Dead<'_> {
    /// As with the elements of a `Vec`, one destructor's panic does not spare the others.
    fn drop(&mut self) {
        self.free();
    }
}

fn free(dead: &mut Vec<Object>) {
    Dead(dead.drain(..)).free();
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::super::Ref;
    use super::*;
    use crate::Barrier;

    #[test]
    fn an_epoch_does_not_begin_before_a_cache_is_flushed_that_was_enlisted_late() {
        let world = World::new();
        drop(world.enlist(world.shard()));
        world.begin_epoch(&world.enlisted.lock());
        assert_eq!(world.epoch.load(Ordering::Relaxed), 0);
    }

    fn object(shared: &Ref<()>) -> Object {
        Object::of(shared.counted)
    }

    #[test]
    fn a_thread_that_counts_no_more_is_not_waited_for() {
        let (world, shared) = (World::new(), Ref::new(()));
        let count = || world.count(object(&shared), 0);
        let steps = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                count();
                steps.wait();
                steps.wait();
                count();
                steps.wait();
            });
            steps.wait();
            // Each of its last two flushes comes after so many of ours.
            (0..2 * (PATIENCE + 2) * TURNS).for_each(|_| count());
            let waited_for = || world.enlisted.lock().len();
            assert_eq!(waited_for(), 1);
            steps.wait();
            steps.wait();
            assert_eq!(waited_for(), 2, "it counts again");
        });
    }
}
