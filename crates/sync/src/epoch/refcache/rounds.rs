//! Rounds: the epochs, how many caches take part, and how many have not been flushed in the current one.
//!
//! # Theory
//! All of it is one word:
//!
//! ```text
//!   | epoch: 20 bits | members: 22 | pending: 22 |        a thread has a number below 2^22 in Linux
//! ```
//!
//! So a cache joins or leaves in one epoch and knows in which, and the last member to be flushed begins the next one.
//! No lock is taken for it: a member that loses its CPU holds up the epoch, but not the caches that join, leave or are
//! flushed.
//!
//! # Ordering
//! *flushed*, *epoch*: every change of the word is an acquire and a release, so a thread that sees an epoch sees all
//! flushes of the epochs before. *review*: see the module above.

use crate::face::atomic::{AtomicU64, Ordering, fence};
use crate::face::{Mutant, const_new, seeded};

const COUNT_BITS: u32 = 22;
const PENDING: u64 = 1;
const MEMBER: u64 = 1 << COUNT_BITS;
const EPOCH: u64 = 1 << (2 * COUNT_BITS);
const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// The number of an epoch; small numbers come again after the largest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Epoch(u32);

impl Epoch {
    const COUNT: u32 = 1 << (u64::BITS - 2 * COUNT_BITS);

    /// The epoch before.
    pub(super) fn previous(self) -> Epoch {
        Epoch(self.0.wrapping_sub(1) % Self::COUNT)
    }

    /// Whether this epoch begins after the end of the epoch that follows `began`. No if `began` is the later one: a thread that read
    /// the epoch before its flush may find a review that another epoch began during the flush. The order of two epochs more than half of
    /// [`COUNT`](Self::COUNT) apart is mistaken, and the answer may come too late, but never too early.
    pub(super) fn is_two_after(self, began: Epoch) -> bool {
        let since = self.0.wrapping_sub(began.0) % Self::COUNT;
        since >= 2 && (since < Self::COUNT / 2 || seeded(Mutant::EpochsUnordered))
    }

    /// A number for the epoch, other than [`u32::MAX`], to be kept in an atomic.
    pub(super) fn word(self) -> u32 {
        self.0
    }

    /// The epoch that `word` stands for.
    pub(super) fn from_word(word: u32) -> Epoch {
        Epoch(word)
    }
}

/// An epoch while it lasts.
#[derive(Clone, Copy)]
pub(super) struct Round(u64);

impl Round {
    pub(super) fn epoch(self) -> Epoch {
        // Lossless: 20 bits are left.
        Epoch((self.0 / EPOCH) as u32)
    }

    /// How many caches take part.
    pub(super) fn members(self) -> u32 {
        // Lossless: 22 bits are left.
        (self.0 / MEMBER) as u32 & COUNT_MASK
    }

    /// The cast keeps the lower bits.
    fn pending(self) -> u32 {
        // The lower bits are meant.
        self.0 as u32 & COUNT_MASK
    }

    /// The round after this one: the same members, all of them pending.
    fn next(self) -> Round {
        Round(self.0.wrapping_add(EPOCH) + u64::from(self.members()) * PENDING)
    }
}

/// The epochs of a world, and its caches that take part.
pub(super) struct Rounds(AtomicU64);

impl Rounds {
    const_new! {
        pub(super) fn new() -> Self {
            Rounds(AtomicU64::new(0))
        }
    }

    pub(super) fn now(&self) -> Round {
        // Acquire(epoch): all flushes of the epochs before; pairs with AcqRel(epoch) in end_if_all_flushed().
        Round(self.0.load(Ordering::Acquire))
    }

    /// [`now`](Self::now), for a caller with a fence of its own before.
    pub(super) fn now_after_fence(&self) -> Round {
        // Relaxed: by the fence.
        Round(self.0.load(Ordering::Relaxed))
    }

    /// Another member, yet to be flushed in the round that is returned.
    pub(super) fn join(&self) -> Round {
        // AcqRel(epoch): as in now(), and what end_if_all_flushed() says.
        Round(self.0.fetch_add(MEMBER + PENDING, Ordering::AcqRel))
    }

    /// A member was flushed for the first time in the epoch; returns the round as it is then.
    pub(super) fn flushed(&self) -> Round {
        self.count_down(PENDING)
    }

    /// A member was flushed for the first time in the epoch, and leaves.
    pub(super) fn leave(&self) {
        self.count_down(MEMBER + PENDING);
    }

    /// A member, last flushed in `flushed`, is one no more; it gives up nothing that it has counted since.
    pub(super) fn leave_flushed(&self, flushed: Epoch) {
        // A member is pending in each epoch until it is flushed there.
        let without = |now: u64| match Round(now).epoch() == flushed {
            true => now - MEMBER,
            false => now - MEMBER - PENDING,
        };
        // AcqRel(flushed): as in count_down().
        let update = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| Some(without(now)));
        // Not an error: there is always an update.
        let (Ok(before) | Err(before)) = update;
        self.end_if_all_flushed(Round(without(before)));
    }

    fn count_down(&self, by: u64) -> Round {
        // AcqRel(flushed): the counts that the member gave up, handed on to the last; pairs with itself.
        let before = self.0.fetch_sub(by, Ordering::AcqRel);
        self.end_if_all_flushed(Round(before - by))
    }

    /// Begins the next epoch if no cache is pending in `round` and it still lasts; returns the round after that. If it
    /// is over, either another cache has joined, and its thread ends the epoch later, or a cache was flushed after
    /// ours, and its thread ends the epoch now.
    fn end_if_all_flushed(&self, round: Round) -> Round {
        if round.pending() > 0 {
            return round;
        }
        let next = round.next();
        // AcqRel(epoch): all flushes of this epoch; pairs with itself and with Acquire(epoch) in now().
        if self.0.compare_exchange(round.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return round;
        }
        // SeqCst(review): pairs with the fence in Cache::flush().
        fence(Ordering::SeqCst);
        next
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_ends_with_the_last_flush_and_not_before_a_late_thread_is_flushed() {
        let rounds = Rounds::new();
        let now = || (rounds.now().epoch(), rounds.now().members(), rounds.now().pending());
        let first = rounds.join().epoch();
        assert_eq!((rounds.join().epoch(), now()), (first, (first, 2, 2)));
        rounds.flushed();
        assert_eq!(rounds.join().epoch(), first, "joined after others were flushed");
        rounds.flushed();
        assert_eq!(now(), (first, 3, 1));
        rounds.flushed();
        let second = rounds.now().epoch();
        assert_eq!((second.previous(), now()), (first, (second, 3, 3)));
        rounds.leave();
        rounds.leave();
        assert_eq!(now(), (second, 1, 1));
        rounds.leave();
        assert!(rounds.now().epoch().is_two_after(first) && rounds.now().members() == 0);
    }

    #[test]
    fn a_member_leaves_whether_it_was_flushed_in_the_epoch_or_not() {
        let rounds = Rounds::new();
        let first = rounds.join().epoch();
        rounds.join();
        rounds.flushed();
        rounds.leave_flushed(first);
        assert_eq!((rounds.now().epoch(), rounds.now().members(), rounds.now().pending()), (first, 1, 1));
        rounds.leave_flushed(first.previous());
        assert_eq!((rounds.now().epoch().previous(), rounds.now().members()), (first, 0));
    }

    #[test]
    fn numbers_of_epochs_come_round() {
        let rounds = Rounds::new();
        let mut before = rounds.join().epoch();
        for _ in 0..Epoch::COUNT {
            rounds.flushed();
            let now = rounds.now().epoch();
            assert_eq!((now.previous(), rounds.now().members()), (before, 1));
            assert!(!now.is_two_after(before) && now.is_two_after(before.previous()));
            assert!(!before.is_two_after(now) && !before.previous().is_two_after(now));
            before = now;
        }
        assert_eq!(before, Epoch(0));
    }
}
