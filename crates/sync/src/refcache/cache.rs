//! Cache: what one thread has counted and not yet added to the global counts, and its queue of reviews.

use super::object::{Object, Verdict};
use crate::face::atomic::{AtomicU64, Ordering, fence};
use crate::face::{DETERMINISTIC, SHRUNK};
use std::collections::VecDeque;

/// How many objects a cache holds counts of: a power of two.
const WAYS: usize = if SHRUNK { 1 } else { 1024 };

/// A count of one object.
#[derive(Clone, Copy)]
struct Way {
    object: Option<Object>,
    delta: i64,
}

/// The counts and reviews of one thread.
pub(super) struct Cache {
    /// By [`spread`]; empty until the cache is enlisted.
    ways: Box<[Way]>,
    /// Which of them hold an object.
    used: Vec<u16>,
    /// The epoch in which each review began, oldest first.
    reviews: VecDeque<(u64, Object)>,
    /// The epoch in which the cache was last flushed.
    pub(super) flushed: u64,
    /// How often something was counted since.
    pub(super) turns: u32,
}

/// A number for the object at `addr` whose low bits choose its way.
fn spread(addr: usize) -> usize {
    if DETERMINISTIC || SHRUNK {
        // Which objects share a way must not depend on where the heap happens to lie.
        // Simulated CPUs allocate at like offsets of regions of their own, so higher bits count too.
        return (addr >> 4) ^ (addr >> 14) ^ (addr >> 24);
    }
    // Fibonacci hashing: the allocator's regular distances spread over all ways.
    ((addr as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

impl Cache {
    fn new() -> Cache {
        Cache { ways: Box::new([]), used: Vec::new(), reviews: VecDeque::new(), flushed: 0, turns: 0 }
    }

    pub(super) fn is_enlisted(&self) -> bool {
        !self.ways.is_empty()
    }

    /// Makes room for counts. The cache has yet to be flushed in epoch `now`.
    pub(super) fn enlist(&mut self, now: u64) {
        self.flushed = now.wrapping_sub(1);
        self.ways = vec![Way { object: None, delta: 0 }; WAYS].into();
        self.used = Vec::with_capacity(WAYS);
    }

    /// Counts `delta` references of `object`. The cache is enlisted.
    #[inline]
    pub(super) fn count(&mut self, object: Object, delta: i64, epoch: &AtomicU64) {
        self.turns = self.turns.wrapping_add(1);
        let at = spread(object.addr()) & (self.ways.len() - 1);
        let way = &mut self.ways[at];
        if way.object == Some(object) {
            way.delta += delta;
        } else {
            self.replace(at, Way { object: Some(object), delta }, epoch);
        }
    }

    #[cold]
    fn replace(&mut self, at: usize, new: Way, epoch: &AtomicU64) {
        match std::mem::replace(&mut self.ways[at], new) {
            Way { object: Some(object), delta } => self.give_up(object, delta, epoch),
            // Lossless: there are fewer than 2^16 ways.
            Way { object: None, .. } => self.used.push(at as u16),
        }
    }

    /// Adds `delta` to the object's global count.
    fn give_up(&mut self, object: Object, delta: i64, epoch: &AtomicU64) {
        if object.add(delta) {
            self.begin_review(object, epoch);
        }
    }

    fn begin_review(&mut self, object: Object, epoch: &AtomicU64) {
        // SeqCst(review): pairs with the fence in World::begin_epoch(). Either our load finds the epoch moved on, or
        // flushes in the next epoch find the object under review.
        fence(Ordering::SeqCst);
        // Relaxed: as above.
        self.reviews.push_back((epoch.load(Ordering::Relaxed), object));
    }

    /// Gives up all counts.
    pub(super) fn flush(&mut self, epoch: &AtomicU64) {
        self.turns = 0;
        while let Some(at) = self.used.pop() {
            let way = std::mem::replace(&mut self.ways[usize::from(at)], Way { object: None, delta: 0 });
            if let Some(object) = way.object {
                self.give_up(object, way.delta, epoch);
            }
        }
    }

    /// Moves to `dead` the objects that are dead by the end of epoch `now - 1`.
    pub(super) fn review(&mut self, now: u64, epoch: &AtomicU64, dead: &mut Vec<Object>) {
        while let Some((began, object)) = self.reviews.front().copied()
            && began + 2 <= now
        {
            self.reviews.pop_front();
            match object.review() {
                Verdict::Dead => dead.push(object),
                Verdict::Again => self.begin_review(object, epoch),
                Verdict::Live => {}
            }
        }
    }

    /// As [`review`](Self::review), for all, when every cache of the world is flushed and locked.
    pub(super) fn review_exact(&mut self, dead: &mut Vec<Object>) {
        let reviews = self.reviews.drain(..);
        dead.extend(
            reviews
                .filter_map(|(_, object)| matches!(object.review_exact(), Verdict::Dead).then_some(object)),
        );
    }
}

impl Default for Cache {
    fn default() -> Self {
        Cache::new()
    }
}
