//! Cache: what one thread has counted and not yet added to the global counts, and its queue of reviews.

use super::Stay;
use super::object::{Object, Review};
use super::rounds::{Epoch, Round, Rounds};
use crate::face::atomic::{Ordering, fence};
use crate::face::{SHRUNK, const_new, cpu};
use crate::fibonacci;
use std::collections::VecDeque;

/// How many objects that come and go a cache holds counts of: a power of two.
const WAYS: usize = if SHRUNK { 1 } else { 1024 };
/// How many standing ones, in ways behind those: a power of two.
const STANDING_WAYS: usize = if SHRUNK { 1 } else { 64 };
const ALL_WAYS: usize = WAYS + STANDING_WAYS;

/// After so many counts a thread flushes its cache, ...
pub(super) const TURNS: u32 = if SHRUNK { 2 } else { 1024 };
/// ... or after this many counts for each member thread, if that is more: the flushes of an epoch all write one cache line.
const TURNS_A_MEMBER: u32 = if SHRUNK { 0 } else { 8 };
/// A thread that has flushed so often since its first flush in an epoch waits no longer for the others. It is not done at the
/// second flush because the barrier that it takes interrupts every CPU.
pub(super) const PATIENCE: u32 = if SHRUNK { 1 } else { 4 };
/// Where each flush comes after more counts it is fewer flushes, at least so many: with one, all would be at the laggards all the time.
const PATIENCE_MIN: u32 = if SHRUNK { 1 } else { 2 };

/// How many caches may keep counts over their flushes.
#[derive(Clone, Copy)]
pub(super) struct Keepers(i64);

impl Keepers {
    /// None: every count is given up.
    pub(super) const NONE: Keepers = Keepers(0);

    /// Each of `caches`. One alone gains nothing by it.
    pub(super) fn of(caches: u32) -> Keepers {
        if caches > 1 { Keepers(i64::from(caches)) } else { Keepers::NONE }
    }

    fn keep(self, object: Object, delta: i64) -> bool {
        self.0 > 0 && object.spares(delta, self.0)
    }
}

/// After how many counts a thread flushes its cache, where there are so many members.
pub(super) fn turns(members: u32) -> u32 {
    // There are fewer members than 2^22.
    TURNS.max(members * TURNS_A_MEMBER)
}

/// How often a thread flushes again in an epoch until it waits no longer, where there are so many members. `cpus`, how many CPUs
/// there are, is asked among hundreds only: the first answer takes a file to be read.
fn patience(members: u32, cpus: impl FnOnce() -> usize) -> u32 {
    // Memory that waits to be freed is cold when it comes back: the bound is on counts.
    let by_counts = (PATIENCE * TURNS / turns(members)).max(PATIENCE_MIN);
    if by_counts < PATIENCE && members as usize > 2 * cpus() {
        // Most laggards have lost their CPU, and soon others will have.
        return PATIENCE;
    }
    by_counts
}

/// A count of one object.
#[derive(Clone, Copy)]
struct Way {
    object: Option<Object>,
    delta: i64,
}

impl Way {
    const EMPTY: Way = Way { object: None, delta: 0 };
}

/// The counts and reviews of one thread.
pub(super) struct Cache {
    /// By [`way_of`]; none until the cache is enlisted for the first time, all empty while it is not enlisted.
    ways: Option<Box<[Way; ALL_WAYS]>>,
    /// Which of the ways hold an object.
    used: Vec<u16>,
    /// The epoch in which each review began, oldest first.
    reviews: VecDeque<(Epoch, Object)>,
    /// Whose reviews begin with the next flush.
    to_review: Vec<Object>,
    /// How often something may be counted or borrowed before the owner flushes it; below 0 when that is late, and above it only
    /// while the cache is enlisted.
    turns_left: i32,
    /// How often it was at the last flush by anybody.
    turns_left_at_flush: i32,
    /// It takes part in epochs, and may hold counts.
    is_enlisted: bool,
    /// Its slot is in the world's list of known slots.
    pub(super) is_known: bool,
    /// How often the owner has flushed it again in the epoch of its last flush.
    pub(super) again: u32,
    /// Room for what a flush finds dead, empty between flushes.
    pub(super) dead: Vec<Object>,
}

/// The one way of each cache that may hold a count of `object`. See *what has ways of its own*.
#[inline]
fn way_of<S: Stay>(object: Object) -> usize {
    match S::STANDS {
        false => spread(object) & (WAYS - 1),
        true => WAYS + (spread(object) & (STANDING_WAYS - 1)),
    }
}

/// A number for `object`, to choose its way by.
fn spread(object: Object) -> usize {
    match object.birth().number() {
        // Which objects share a way must not depend on where the heap happens to lie.
        Some(number) => number,
        // The allocator's regular distances spread over all ways.
        None => (fibonacci(object.addr() as u64) >> 32) as usize,
    }
}

impl Cache {
    const_new! {
        pub(super) fn new() -> Self {
            Cache {
                ways: None,
                used: Vec::new(),
                reviews: VecDeque::new(),
                to_review: Vec::new(),
                turns_left: 0,
                turns_left_at_flush: 0,
                is_enlisted: false,
                is_known: false,
                again: 0,
                dead: Vec::new(),
            }
        }
    }

    pub(super) fn is_enlisted(&self) -> bool {
        self.is_enlisted
    }

    /// Makes room for counts. The first flush is due after `turns`.
    pub(super) fn enlist(&mut self, turns: u32) {
        self.turns_left = turns.cast_signed();
        self.turns_left_at_flush = self.turns_left;
        self.is_enlisted = true;
        self.ways.get_or_insert_with(|| Box::new([Way::EMPTY; ALL_WAYS]));
        self.used.reserve(ALL_WAYS);
    }

    /// Whether nothing was counted since the last flush.
    pub(super) fn is_idle(&self) -> bool {
        self.turns_left == self.turns_left_at_flush
    }

    /// Whether the owner, at a flush, has waited for the end of the epoch for as long as it should where there are so many members.
    pub(super) fn is_out_of_patience(&self, members: u32) -> bool {
        self.again >= patience(members, cpu::possible)
    }

    /// Whether more waits for the end of reviews than one of so many members should keep: with more, a thread waits for others
    /// that lost their CPU while they counted.
    pub(super) fn is_crowded(&self, members: u32) -> bool {
        // Hundreds have more at all times, since an epoch takes longer; and a thread that removes files counts little for each.
        self.reviews.len() > 2 * turns(2 * members) as usize
    }

    /// Whether the owner should flush it.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.turns_left <= 0
    }

    /// A borrow counts nothing, and makes the flush due as a count does: a thread that only borrows takes part too. False if
    /// it is due, or the cache is not enlisted.
    #[inline]
    pub(super) fn take_turn(&mut self) -> bool {
        self.turns_left = self.turns_left.wrapping_sub(1);
        self.turns_left > 0
    }

    /// The opposite of [`enlist`](Self::enlist), after a flush that has given up all counts; returns the reviews, which somebody
    /// must take over.
    pub(super) fn retire(&mut self) -> VecDeque<(Epoch, Object)> {
        self.stand_down();
        std::mem::take(&mut self.reviews)
    }

    /// [`retire`](Self::retire) for an owner that goes on with the reviews when it is enlisted again.
    pub(super) fn stand_down(&mut self) {
        debug_assert!(self.used.is_empty() && self.to_review.is_empty(), "flushed");
        (self.is_enlisted, self.turns_left) = (false, 0);
    }

    /// How many objects wait for the end of their review, or for its begin.
    pub(super) fn reviews(&self) -> usize {
        self.reviews.len() + self.to_review.len()
    }

    /// Takes over `reviews` of another cache. They may be older than the reviews in this queue, which come first; the
    /// delay is acceptable.
    pub(super) fn adopt(&mut self, reviews: VecDeque<(Epoch, Object)>) {
        self.reviews.extend(reviews);
    }

    /// Counts `delta` references of `object`, if its way is its own already. False if not.
    #[inline]
    pub(super) fn count<S: Stay>(&mut self, object: Object, delta: i64) -> bool {
        let Some(ways) = &mut self.ways else { return false };
        let way = &mut ways[way_of::<S>(object)];
        let here = way.object == Some(object);
        if here {
            way.delta += delta;
            self.turns_left = self.turns_left.wrapping_sub(1);
        }
        here
    }

    /// Counts `delta` references of `object`, for which what was counted in its way makes room. The cache is enlisted.
    pub(super) fn count_anew<S: Stay>(&mut self, object: Object, delta: i64) {
        let Some(ways) = &mut self.ways else { return };
        self.turns_left = self.turns_left.wrapping_sub(1);
        let at = way_of::<S>(object);
        match std::mem::replace(&mut ways[at], Way { object: Some(object), delta }) {
            Way { object: Some(object), delta } => self.give_up(object, delta),
            // Lossless: there are fewer than 2^16 ways.
            Way { object: None, .. } => self.used.push(at as u16),
        }
    }

    /// The next review of `object`, which a review has found dead, begins with the next flush. The cache is enlisted.
    pub(super) fn review_anew(&mut self, object: Object) {
        self.to_review.push(object);
    }

    /// Adds `delta` to the object's global count.
    fn give_up(&mut self, object: Object, delta: i64) {
        if object.add(delta) {
            self.to_review.push(object);
        }
    }

    /// The owner is about to flush it: for so many counts it need not again. (If another thread flushes it, the owner's turn
    /// comes nonetheless: only the owner looks at what is under review here.)
    pub(super) fn begin_turns(&mut self, members: u32) {
        self.turns_left = turns(members).cast_signed();
    }

    /// Adds each count to the global count of its object, except for counts that one of `caches` may keep.
    pub(super) fn flush(&mut self, caches: Keepers, rounds: &Rounds) {
        self.turns_left_at_flush = self.turns_left;
        let Some(mut ways) = self.ways.take() else { return };
        let mut used = std::mem::take(&mut self.used);
        used.retain(|at| {
            let way = &mut ways[usize::from(*at)];
            let Way { object: Some(object), delta } = *way else { return false };
            let is_kept = caches.keep(object, delta);
            if !is_kept {
                *way = Way::EMPTY;
                self.give_up(object, delta);
            }
            is_kept
        });
        (self.used, self.ways) = (used, Some(ways));
        if !self.to_review.is_empty() {
            // One fence serves all of them: a fence for each would dominate the cost here.
            // SeqCst(review): pairs with the fence in Rounds::end_if_all_flushed(). Either our load finds the epoch moved
            // on, or flushes in the next epoch find the objects under review.
            fence(Ordering::SeqCst);
            let now = rounds.now_after_fence().epoch();
            self.reviews.extend(self.to_review.drain(..).map(|object| (now, object)));
        }
    }

    /// Moves to `dead` objects that are dead by the end of the epoch before `now`: twice as many as the owner can drop between
    /// two flushes. It may have taken over those of hundreds of threads, and a thread that counts a reference cannot be held up
    /// until all these are freed.
    pub(super) fn review(&mut self, now: Round, dead: &mut Vec<Object>) {
        let dead_max = 2 * turns(now.members()) as usize;
        while dead.len() < dead_max
            && let Some((began, object)) = self.reviews.front().copied()
            && now.epoch().is_two_after(began)
        {
            self.reviews.pop_front();
            match object.review() {
                Review::Dead => dead.push(object),
                Review::Again => self.to_review.push(object),
                Review::Live => {}
            }
        }
    }

    /// Moves to `dead` all dead objects, when every cache of the world is flushed and locked; see [`review`](Self::review).
    pub(super) fn review_exact(&mut self, dead: &mut Vec<Object>) {
        let reviews = self.reviews.drain(..);
        dead.extend(
            reviews.filter_map(|(_, object)| matches!(object.review_exact(), Review::Dead).then_some(object)),
        );
    }
}

impl Default for Cache {
    fn default() -> Self {
        Cache::new()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn patience_is_for_so_many_counts_however_many_members_there_are() {
        let counts = |members| patience(members, || members as usize) * turns(members);
        assert_eq!(counts(2), PATIENCE * TURNS);
        assert_eq!(counts(256), PATIENCE * TURNS);
        assert_eq!(
            patience(4096, || 4096),
            PATIENCE_MIN,
            "with fewer, all would be at the laggards all the time"
        );
        assert_eq!(patience(256, || 2), PATIENCE, "most wait for a CPU");
    }
}
