//! Word: what a node may give out of a lock by itself, and what it has given out, in one atomic word.
//!
//! # Theory
//! | bits | name | meaning |
//! |---|---|---|
//! | 0..4 | cached | 0: nothing is cached; else the number of the cached mode, plus 1 |
//! | 4 | `SHUT` | somebody waits, here or at another node: locks and unlocks ask the node |
//! | 5 | `USED` | was locked since the last look |
//! | 8..56 | counts | how many hold NL, CR, CW, PR: 12 bits each |
//! | 56, 57 | | whether somebody holds PW, EX |
//!
//! A lock is granted here by one exchange if the cached mode covers it, what is held here is compatible, and the word is not
//! shut. That is the whole cost of a lock that no other node wants.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | unlock | `put` | `take` | what was done under the lock |
//! | cache | `set_cached` | `take` | what other nodes did under the lock |

use crate::Mode;
use sluice_sync::atomic::{AtomicU64, Ordering};

const CACHED: u64 = 0xf;
const SHUT: u64 = 1 << 4;
const USED: u64 = 1 << 5;

/// The state of a lock on its node.
#[derive(Debug, Default)]
pub(crate) struct LockWord(AtomicU64);

/// The bit field that counts a mode: its lowest bit, and all its bits.
const fn count_of(mode: Mode) -> (u64, u64) {
    match mode {
        Mode::Pw => (1 << 56, 1 << 56),
        Mode::Ex => (1 << 57, 1 << 57),
        _ => {
            let shift = 8 + 12 * mode as u64;
            (1 << shift, 0xfff << shift)
        }
    }
}

/// For each mode, the counts of the modes that it conflicts with.
const CONFLICTS: [u64; 6] = {
    let mut masks = [0; 6];
    let mut a = 0;
    while a < 6 {
        let mut b = 0;
        while b < 6 {
            if !Mode::ALL[a].compatible(Mode::ALL[b]) {
                masks[a] |= count_of(Mode::ALL[b]).1;
            }
            b += 1;
        }
        a += 1;
    }
    masks
};

fn cached_in(word: u64) -> Option<Mode> {
    Mode::from_number(((word & CACHED) as u8).wrapping_sub(1))
}

/// The word with `mode` held in addition, after `holds` is given up; None if that cannot be.
fn with(word: u64, mode: Mode, holds: Option<Mode>) -> Option<u64> {
    let rest = word - holds.map_or(0, |held| count_of(held).0);
    let (one, all) = count_of(mode);
    let possible = cached_in(word).is_some_and(|cached| cached.covers(mode))
        && rest & CONFLICTS[mode as usize] == 0
        && rest & all != all;
    possible.then(|| (rest + one) | USED)
}

impl LockWord {
    /// Locks, if nobody has to be asked.
    #[inline]
    pub(crate) fn take(&self, mode: Mode) -> bool {
        let open = |word| if word & SHUT == 0 { with(word, mode, None) } else { None };
        // Acquire(unlock, cache): pairs with Release in put() and set_cached(). Relaxed: a failure publishes nothing.
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, open).is_ok()
    }

    /// Locks in place of `holds`, shut or not: for the owner of the slow state.
    pub(crate) fn take_shut(&self, mode: Mode, holds: Option<Mode>) -> bool {
        // As in take(); and Release(unlock): what was done under the lock that is converted.
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| with(word, mode, holds)).is_ok()
    }

    /// Unlocks. True if the node must be asked what follows.
    #[inline]
    #[must_use]
    pub(crate) fn put(&self, mode: Mode) -> bool {
        // Release(unlock): what was done under the lock; pairs with Acquire(unlock) in take().
        // Acquire: the thread that drains the lock hands on what all holders did.
        self.0.fetch_sub(count_of(mode).0, Ordering::AcqRel) & SHUT != 0
    }

    /// The cached mode.
    pub(crate) fn cached(&self) -> Option<Mode> {
        // Acquire(unlock): the owner of the slow state passes on what holders did.
        cached_in(self.0.load(Ordering::Acquire))
    }

    /// Makes `mode` the cached one: for the owner of the slow state.
    pub(crate) fn set_cached(&self, mode: Option<Mode>) {
        let number = mode.map_or(0, |mode| mode as u64 + 1);
        let set = |word| Some(word & !CACHED | number);
        // Release(cache): what other nodes did under the lock; pairs with Acquire(cache) in take(). It never fails.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, set);
    }

    /// Makes locks and unlocks ask, or not: for the owner of the slow state.
    pub(crate) fn set_shut(&self, shut: bool) {
        // AcqRel: an unlock that comes before is seen by the thread that shuts; one that comes after sees that it is shut.
        if shut {
            self.0.fetch_or(SHUT, Ordering::AcqRel);
        } else {
            self.0.fetch_and(!SHUT, Ordering::AcqRel);
        }
    }

    /// Whether a lock that is held conflicts with `wanted`.
    pub(crate) fn is_held_against(&self, wanted: Mode) -> bool {
        // Acquire(unlock): as in cached().
        self.0.load(Ordering::Acquire) & CONFLICTS[wanted as usize] != 0
    }

    /// The weakest mode that covers all that is held.
    pub(crate) fn held(&self) -> Option<Mode> {
        // Acquire(unlock): as in cached().
        let word = self.0.load(Ordering::Acquire);
        let held = Mode::ALL.into_iter().filter(|mode| word & count_of(*mode).1 != 0);
        held.reduce(Mode::join)
    }

    /// How many hold each mode.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (Mode, u64)> {
        // Relaxed: for a listing.
        let word = self.0.load(Ordering::Relaxed);
        let count = move |mode| {
            let (one, all) = count_of(mode);
            (mode, (word & all) / one)
        };
        Mode::ALL.into_iter().map(count).filter(|(_, count)| *count > 0)
    }

    /// Whether it was locked since the last call.
    pub(crate) fn was_used(&self) -> bool {
        // Relaxed: a hint.
        self.0.fetch_and(!USED, Ordering::Relaxed) & USED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_grants_what_the_cached_mode_covers_and_the_holders_allow() {
        for cached in Mode::ALL {
            for held in Mode::ALL {
                for wanted in Mode::ALL {
                    let word = LockWord::default();
                    assert!(!word.take(wanted), "nothing is cached");
                    word.set_cached(Some(cached));
                    assert_eq!(word.take(held), cached.covers(held));
                    if cached.covers(held) {
                        assert_eq!(word.is_held_against(wanted), !held.compatible(wanted));
                        let expected = cached.covers(wanted) && held.compatible(wanted);
                        assert_eq!(word.take(wanted), expected, "{cached:?} {held:?} {wanted:?}");
                        assert!(!expected || !word.put(wanted));
                        assert_eq!(word.held(), Some(held));
                        assert!(!word.put(held));
                        assert_eq!(word.held(), None);
                    }
                }
            }
        }
    }

    #[test]
    fn a_shut_word_grants_nothing_and_says_so_at_unlock() {
        let word = LockWord::default();
        word.set_cached(Some(Mode::Ex));
        assert!(word.take(Mode::Pr));
        word.set_shut(true);
        assert!(!word.take(Mode::Pr));
        assert!(word.take_shut(Mode::Ex, Some(Mode::Pr)), "a conversion by the owner of the slow state");
        assert!(word.put(Mode::Ex));
        assert!(word.was_used() && !word.was_used());
    }

    #[test]
    fn as_many_hold_a_mode_as_can_be_counted() {
        let word = LockWord::default();
        word.set_cached(Some(Mode::Ex));
        assert_eq!((0..5_000).filter(|_| word.take(Mode::Cr)).count(), 4_095);
        assert_eq!(word.holders().collect::<Vec<_>>(), [(Mode::Cr, 4_095)]);
    }
}
