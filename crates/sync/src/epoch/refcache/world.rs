//! Worlds: the caches that count one set of objects, and the epochs in which all of them are flushed.

use super::cache::{Cache, Keepers, turns};
use super::object::Object;
use super::rounds::{Epoch, Round, Rounds};
use super::shard::{CacheShard, CacheShards, Freeing};
use super::{Passing, Stay};
use crate::face::atomic::{AtomicBool, Ordering, fence};
use crate::face::{
    CachePadded, Host, Mutant, PerHost, SHRUNK, const_new, global, near_table, seeded, thread,
};
use crate::lock_debug::{Ask, LockClass, Watch};
use crate::owner_lock::{Held, Inside, OwnerLock};
use crate::{Mutex, drain};
use std::collections::VecDeque;
use std::vec::Drain;

/// The first flush of a cache comes later by so many counts for each slot: threads that begin together and do the same would
/// also flush together, and meet at the objects that all of them count.
const TURNS_APART: u32 = if SHRUNK { 0 } else { 797 };

/// All caches that may hold counts of an object.
pub(super) struct CacheWorld {
    /// *each protected by its lock*
    shards: CacheShards,
    /// The rounds of the caches that take part.
    pub(super) rounds: CachePadded<Rounds>,
    /// The slots of all caches that ever took part. A cache takes part for the first time after it is noted here, so the
    /// holder of this lock knows them all. *protected by itself*
    known: Mutex<Vec<u32>>,
    /// The holder of `known` waits for owners that are counting. *written under `known`; read by threads that join (hint)*
    waiting: CachePadded<AtomicBool>,
}

global! {
    static WORLDS: PerHost<CacheWorld> = PerHost::new(CacheWorld::new());
}

/// A thread that counts may free what is dead, and take the locks of its destructors: to those who watch the order of locks each
/// count is a lock of this class.
static DEAD: LockClass = LockClass::new("refcache.dead");
static WATCH: Watch = Watch::class(&DEAD);

/// The world that counts the objects made at `home`.
#[inline]
pub(super) fn world(home: Host) -> &'static CacheWorld {
    WORLDS.get(home)
}

impl CacheWorld {
    const_new! {
        fn new() -> Self {
            CacheWorld {
                shards: near_table!(CacheShard::new()),
                rounds: CachePadded::new(Rounds::new()),
                known: Mutex::new(Vec::new()),
                waiting: CachePadded::new(AtomicBool::new(false)),
            }
        }
    }

    /// Counts `delta` references of `object`, one of this world, in the calling thread's cache.
    #[inline]
    pub(super) fn count<S: Stay>(&self, object: Object, delta: i64) {
        self.count_found::<S>(delta, || Some(object));
    }

    /// Counts `delta` references of the object that `find` finds, if it does, under the lock of the calling thread's
    /// cache.
    #[inline]
    pub(super) fn count_found<S: Stay>(&self, delta: i64, find: impl FnOnce() -> Option<Object>) {
        WATCH.about_to_lock(Ask::WRITE);
        // Whatever is out of the ordinary is left to a call from which nothing comes back here.
        match self.shards.near(thread::ready_slot()) {
            Some(shard) => self.count_in::<S>(shard, delta, find),
            None => self.count_far::<S>(delta, find),
        }
    }

    /// The variant of [`count_found`](Self::count_found) for a thread with a high slot, or without a slot yet.
    #[inline(never)]
    fn count_far<S: Stay>(&self, delta: i64, find: impl FnOnce() -> Option<Object>) {
        match self.shards.peek(thread::ready_slot()) {
            Some(shard) => self.count_in::<S>(shard, delta, find),
            None => self.count_slowly::<S>(delta, find),
        }
    }

    /// [`count_found`](Self::count_found) in `shard`, the calling thread's; its slot is ready.
    #[inline]
    fn count_in<S: Stay>(&self, shard: &CacheShard, delta: i64, find: impl FnOnce() -> Option<Object>) {
        // SAFETY: as in own(); and the slot is ready.
        let Some(mut cache) = (unsafe { shard.cache.try_lock() }) else {
            return self.count_slowly::<S>(delta, find);
        };
        if !cache.is_enlisted() {
            drop(cache);
            return self.count_slowly::<S>(delta, find);
        }
        match find() {
            Some(object) if !cache.count::<S>(object, delta) => {
                self.count_anew::<S>(shard, cache, object, delta)
            }
            _ => self.finish(shard, cache),
        }
    }

    /// [`count_found`](Self::count_found), when the calling thread's cache is visited, or not enlisted.
    #[cold]
    #[inline(never)]
    fn count_slowly<S: Stay>(&self, delta: i64, find: impl FnOnce() -> Option<Object>) {
        let shard = self.shard();
        let mut cache = self.own(shard);
        if !cache.is_enlisted() {
            drop(cache);
            cache = self.enlist(shard);
        }
        match find() {
            Some(object) if !cache.count::<S>(object, delta) => {
                self.count_anew::<S>(shard, cache, object, delta)
            }
            _ => self.finish(shard, cache),
        }
    }

    /// Counts `delta` references of `object`, which `cache`, that of `shard`, holds no count of.
    #[inline(never)]
    fn count_anew<S: Stay>(
        &self,
        shard: &CacheShard,
        mut cache: Inside<'_, Cache>,
        object: Object,
        delta: i64,
    ) {
        cache.count_anew::<S>(object, delta);
        self.finish(shard, cache);
    }

    /// Ends a counting in `cache`, that of `shard`.
    #[inline]
    fn finish(&self, shard: &CacheShard, cache: Inside<'_, Cache>) {
        let due = cache.is_due();
        drop(cache);
        if due {
            self.maintain(shard);
        }
    }

    /// Keeps the calling thread's cache, which takes part, from being flushed until the result is dropped. The thread may
    /// count meanwhile, and do this again.
    #[inline]
    pub(super) fn hold(&self) -> Held<'_, Cache> {
        match self.shards.near(thread::ready_slot()).and_then(|shard| self.try_hold(shard)) {
            Some(held) => held,
            None => self.hold_far(),
        }
    }

    /// The slow path of [`hold`](Self::hold), for a thread with a high slot, or when the fast path fails.
    #[inline(never)]
    fn hold_far(&self) -> Held<'_, Cache> {
        let far = self.shards.peek(thread::ready_slot()).and_then(|shard| self.try_hold(shard));
        far.unwrap_or_else(|| self.hold_slowly())
    }

    /// Holds the cache of `shard`, that of the calling thread, whose slot is ready; not if it is visited, not enlisted or to be
    /// flushed.
    #[inline]
    fn try_hold<'a>(&self, shard: &'a CacheShard) -> Option<Held<'a, Cache>> {
        // SAFETY: as in own(), and the slot is ready. A guard of the lock that is made meanwhile is dropped before the call
        // that made it returns, and the caller drops the result in the call that asked for it.
        let mut held = unsafe { shard.cache.try_hold() }?;
        // SAFETY: we are not inside, and the reference is gone at the end of this statement.
        unsafe { held.value() }.take_turn().then_some(held)
    }

    /// [`hold`](Self::hold), whatever the state of the cache.
    #[cold]
    #[inline(never)]
    fn hold_slowly(&self) -> Held<'_, Cache> {
        let shard = self.shard();
        if !seeded(Mutant::BorrowedUnlisted) {
            // Lets it take part, and flushes it if that is due.
            self.count_slowly::<Passing>(0, || None);
        }
        let mut cache = self.own(shard);
        if !cache.is_enlisted() && !seeded(Mutant::BorrowedUnlisted) {
            // Another thread has retired it since.
            drop(cache);
            cache = self.enlist(shard);
        }
        cache.take_turn();
        // SAFETY: as in try_hold(), and we are inside.
        let held = unsafe { shard.cache.hold() };
        drop(cache);
        held
    }

    /// The calling thread's shard.
    #[inline]
    pub(super) fn shard(&self) -> &CacheShard {
        self.shards.get(thread::slot())
    }

    /// The calling thread's cache, locked; `shard` is its shard. A thread that has its cache locked must not call this.
    #[inline]
    pub(super) fn own<'a>(&self, shard: &'a CacheShard) -> Inside<'a, Cache> {
        // SAFETY: one thread at a time has a slot, and the next one gets it when the kernel knows this one no more. All
        // calls are in this file, in `idle.rs` and in `weak.rs`, and none is made while an earlier one's guard is there: under it nothing
        // runs but what `Cache` does, the load of a slot, and the start of a thread.
        unsafe { shard.cache.lock() }
    }

    /// Lets the calling thread's cache take part in flushes from now on; returns it locked.
    #[cold]
    pub(super) fn enlist<'a>(&self, shard: &'a CacheShard) -> Inside<'a, Cache> {
        // Relaxed: a hint.
        if self.waiting.load(Ordering::Relaxed) {
            // The thread that is waited for needs the CPU, and more garbage does not help.
            drop(self.known.lock());
        }
        let mut cache = self.own(shard);
        if !cache.is_known {
            drop(cache);
            // Without the cache: a thread that settles holds this lock and waits for caches.
            self.known.lock().push(thread::slot());
            cache = self.own(shard);
            cache.is_known = true;
        }
        let now = self.rounds.join();
        let turns = turns(now.members());
        cache.enlist(turns + thread::slot().wrapping_mul(TURNS_APART) % turns);
        shard.set_flushed(Some(now.epoch().previous()));
        // SeqCst(ask): pairs with the fence in Switch::rest(). The last look of a drain is at the members.
        fence(Ordering::SeqCst);
        drain::ask();
        cache
    }

    /// Flushes the cache of `shard`, which takes part and which the caller has locked, `now`; returns the round after that.
    pub(super) fn flush(&self, shard: &CacheShard, cache: &mut Cache, now: Round) -> Round {
        cache.flush(Keepers::of(now.members()), &self.rounds);
        if shard.was_flushed_in(now.epoch()) {
            cache.again += 1;
            now
        } else {
            cache.again = 0;
            shard.set_flushed(Some(now.epoch()));
            self.rounds.flushed()
        }
    }

    /// Flushes the calling thread's cache, helps the epoch to its end, and frees what is found dead.
    #[cold]
    fn maintain(&self, shard: &CacheShard) {
        // Relaxed: our own. While it is held, a flush would let what is borrowed die, and others may wait for us. The next to
        // count does it.
        if shard.freeing.load(Ordering::Relaxed)
            || (shard.cache.is_held() && !seeded(Mutant::FlushedWhileHeld))
        {
            return;
        }
        let mut cache = self.own(shard);
        if !cache.is_enlisted() {
            // Somebody has retired it since it was due.
            return;
        }
        let members = self.rounds.now().members();
        cache.begin_turns(members);
        let (now, found) = self.flush_and_review(shard, &mut cache);
        let (is_out_of_patience, is_crowded) = (cache.is_out_of_patience(members), cache.is_crowded(members));
        drop(cache);
        if is_out_of_patience {
            // The threads that have not flushed may be idle.
            self.flush_laggards(shard, now.epoch(), is_crowded);
        }
        found.free(self);
    }

    /// Flushes the cache of `shard`, the calling thread's, which is enlisted; returns the round after that, and what is found
    /// dead, to be freed once the cache is unlocked.
    pub(super) fn flush_and_review<'a>(
        &self,
        shard: &'a CacheShard,
        cache: &mut Cache,
    ) -> (Round, FoundDead<'a>) {
        // Relaxed: published by the lock, under which settle() looks.
        shard.freeing.store(true, Ordering::Relaxed);
        let freeing = Freeing(shard);
        let now = self.flush(shard, cache, self.rounds.now());
        let mut dead = std::mem::take(&mut cache.dead);
        cache.review(now, &mut dead);
        (now, FoundDead { dead, freeing })
    }

    /// Flushes the caches that have not been flushed in `epoch`, if it is not over, for their threads. With `waits`, it
    /// waits for threads in the middle of counting, and for another thread that flushes laggards. Reviews of the
    /// laggards stay with them, so that memory stays with the thread that made it. But the caller, whose shard is
    /// `own`, takes over from threads that have counted nothing in the whole epoch. Retired caches are not waited for
    /// until their threads count again.
    pub(super) fn flush_laggards(&self, own: &CacheShard, epoch: Epoch, waits: bool) {
        let known = match waits {
            true => self.known.lock(),
            false => match self.known.try_lock() {
                Some(known) => known,
                // Another thread does it.
                None => return,
            },
        };
        if self.rounds.now().epoch() != epoch {
            // The thread that had the lock before us did it for all; in the next epoch every cache is late.
            return;
        }
        let before = epoch.previous();
        let shards = known.iter().map(|slot| self.shards.get(*slot));
        let laggards: Vec<_> = shards.filter(|shard| shard.was_flushed_in(before)).collect();
        if laggards.is_empty() {
            return;
        }
        let caches = laggards.iter().map(|shard| &shard.cache);
        let visits = match waits {
            true => self.wait_for_all(caches),
            false => OwnerLock::visit_free(caches),
        };
        let mut reviews = VecDeque::new();
        for (shard, visit) in laggards.iter().zip(visits) {
            let Some(mut cache) = visit else { continue };
            if !shard.was_flushed_in(before) {
                // By its owner, meanwhile.
                continue;
            }
            if cache.is_idle() && !shard.is_freeing() {
                cache.flush(Keepers::NONE, &self.rounds);
                shard.set_flushed(None);
                self.rounds.leave();
                reviews.append(&mut cache.retire());
            } else {
                self.flush(shard, &mut cache, self.rounds.now());
            }
        }
        // Still under `known`: a thread that settles finds them all.
        self.own(own).adopt(reviews);
    }

    /// Visits `caches`, all of them, while threads that join wait. The caller holds `known`.
    fn wait_for_all<'a>(
        &self,
        caches: impl Iterator<Item = &'a OwnerLock<Cache>> + Clone,
    ) -> Vec<Option<Inside<'a, Cache>>> {
        // Relaxed, both: a hint.
        self.waiting.store(true, Ordering::Relaxed);
        let visits = OwnerLock::visit_all(caches).into_iter().map(Some).collect();
        self.waiting.store(false, Ordering::Relaxed);
        visits
    }

    /// Calls `look` with all caches, locked. The caller holds no cache of this world.
    pub(super) fn visit_known<R>(&self, look: impl FnOnce(&[Inside<'_, Cache>]) -> R) -> R {
        let known = self.known.lock();
        look(&OwnerLock::visit_all(known.iter().map(|slot| &self.shards.get(*slot).cache)))
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
        if self.is_freeing() || own.cache.is_held() {
            return;
        }
        let enlisted = self.own(own).is_enlisted();
        if !enlisted {
            drop(self.enlist(own));
        }
        loop {
            let mut dead = Vec::new();
            let other = {
                let known = self.known.lock();
                let mut caches = OwnerLock::visit_all(known.iter().map(|slot| &self.shards.get(*slot).cache));
                caches.iter_mut().for_each(|cache| cache.flush(Keepers::NONE, &self.rounds));
                caches.iter_mut().for_each(|cache| cache.review_exact(&mut dead));
                let mut others = known.iter().filter(|of| **of != slot).map(|of| self.shards.get(*of));
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

impl CacheWorld {
    /// For each object, whether it had exactly one reference at a moment in which no thread counted. No to all where
    /// [`settle`](Self::settle) does nothing.
    pub(super) fn sole(&self, objects: &mut dyn Iterator<Item = Object>) -> Vec<bool> {
        let own = self.shard();
        if self.is_freeing() || own.cache.is_held() {
            return objects.map(|_| false).collect();
        }
        let enlisted = self.own(own).is_enlisted();
        if !enlisted {
            drop(self.enlist(own));
        }
        let known = self.known.lock();
        let mut caches = OwnerLock::visit_all(known.iter().map(|slot| &self.shards.get(*slot).cache));
        caches.iter_mut().for_each(|cache| cache.flush(Keepers::NONE, &self.rounds));
        objects.map(|object| object.is_one()).collect()
    }
}

impl Default for CacheWorld {
    fn default() -> Self {
        CacheWorld::new()
    }
}

/// Objects that the owner of a shard has found dead. Until it is freed the owner is freeing.
pub(super) struct FoundDead<'a> {
    dead: Vec<Object>,
    freeing: Freeing<'a>,
}

impl FoundDead<'_> {
    /// Frees it; returns how much it was. The caller's cache, one of `world`, is unlocked.
    pub(super) fn free(mut self, world: &CacheWorld) -> usize {
        let count = self.dead.len();
        free(&mut self.dead);
        // Its memory.
        world.own(self.freeing.0).dead = self.dead;
        count
    }
}

/// Objects that were found dead and are not freed yet.
struct Dead<'a>(Drain<'a, Object>);

impl Dead<'_> {
    fn free(&mut self) {
        for object in &mut self.0 {
            if object.end_weak() && !seeded(Mutant::FollowedMeanwhile) {
                // One may have been followed since the object was found dead.
                world(object.home()).review_anew(object);
                continue;
            }
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
    use super::super::cache::{PATIENCE, TURNS};
    use super::super::tests::Noted;
    use super::super::{Passing, Ref};
    use super::*;
    use crate::atomic::AtomicUsize;
    use crate::{Arc, Barrier};

    fn object(shared: &Ref<()>) -> Object {
        Object::of(shared.counted)
    }

    #[test]
    fn a_thread_that_counts_no_more_is_not_waited_for() {
        let (world, shared) = (CacheWorld::new(), Ref::new(()));
        let count = || world.count::<Passing>(object(&shared), 0);
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
            let waited_for = || world.rounds.now().members();
            assert_eq!(waited_for(), 1);
            steps.wait();
            steps.wait();
            assert_eq!(waited_for(), 2, "it counts again");
        });
    }

    #[test]
    fn a_thread_that_only_borrows_takes_part() {
        let (world, shared, steps) = (CacheWorld::new(), Ref::new(()), Barrier::new(2));
        let rounds = 4 * (PATIENCE + 2);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..rounds {
                    drop(world.hold());
                    steps.wait();
                    steps.wait();
                }
            });
            for _ in 0..rounds {
                steps.wait();
                (0..TURNS).for_each(|_| world.count::<Passing>(object(&shared), 0));
                assert_eq!(world.rounds.now().members(), 2);
                steps.wait();
            }
        });
        // By now its owner has been absent for long.
        (0..2 * (PATIENCE + 2) * TURNS).for_each(|_| world.count::<Passing>(object(&shared), 0));
        assert_eq!(world.rounds.now().members(), 1);
    }

    #[test]
    fn a_thread_that_took_over_much_frees_it_in_parts() {
        let (rounds, mut cache, mut dead) = (Rounds::new(), Cache::default(), Vec::new());
        let began = rounds.join().epoch();
        let taken_over = (0..5 * TURNS).map(|_| {
            let object = object(&std::mem::ManuallyDrop::new(Ref::new(())));
            assert!(object.add(-1), "the only reference is gone");
            (began, object)
        });
        cache.adopt(taken_over.collect());
        let mut parts = Vec::new();
        for _ in 0..5 {
            cache.review(rounds.flushed(), &mut dead);
            parts.push(dead.len());
            free(&mut dead);
        }
        let turns = TURNS as usize;
        assert_eq!(parts, [0, 2 * turns, 2 * turns, turns, 0]);
    }

    #[test]
    fn a_cache_that_was_retired_since_it_was_due_is_not_flushed() {
        let world = CacheWorld::new();
        let before = world.rounds.now().epoch();
        world.maintain(world.shard());
        drop(world.enlist(world.shard()));
        assert_eq!((world.rounds.now().members(), world.rounds.now().epoch()), (1, before));
    }

    #[test]
    fn what_a_slow_thread_drops_is_freed_though_a_busy_one_flushes_it_each_time() {
        let (world, shared, steps) = (CacheWorld::new(), Ref::new(()), Barrier::new(2));
        let ends = Arc::new(AtomicUsize::new(0));
        // As much as a cache is not flushed for by its owner, four times, and each time a little.
        let (at_once, rounds) = ((TURNS / 256).max(1), 4 * TURNS.min(256));
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..rounds {
                    for _ in 0..at_once {
                        let dropped = std::mem::ManuallyDrop::new(Ref::new(Noted(ends.clone())));
                        world.count::<Passing>(Object::of(dropped.counted), -1);
                    }
                    steps.wait();
                    steps.wait();
                }
            });
            for _ in 0..rounds {
                steps.wait();
                (0..(PATIENCE + 1) * TURNS).for_each(|_| world.count::<Passing>(object(&shared), 0));
                steps.wait();
            }
        });
        let freed = ends.load(Ordering::Relaxed);
        assert!(freed >= TURNS as usize, "{freed} of {}", rounds * at_once);
        // Nobody else ever frees what is under review in a world of its own.
        world.settle();
        assert_eq!(ends.load(Ordering::Relaxed), (rounds * at_once) as usize);
    }
}
