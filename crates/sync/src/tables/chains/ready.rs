//! Ready: when an array may be moved: once no reader is left in the chains of the one before it, whose links it needs.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | ready | [`ReadyWord::set`] | [`ReadyWord::take`] | that the array is the current one, and since when |

use crate::face::atomic::{AtomicU64, Ordering};
use crate::rcu::GracePeriod;

/// Nobody knows yet, or somebody is about to say or to move the array.
const UNKNOWN: u64 = 0;
/// No chain uses the other link.
const AT_ONCE: u64 = 1;

/// When an array may be moved.
pub(super) enum Ready {
    AtOnce,
    /// After a grace period of this number or a later one, whichever thread starts it.
    After(u64),
    /// When this grace period is over.
    When(GracePeriod),
}

/// A [`Ready`] in a word: [`AT_ONCE`], a period's number less 1, or the word of a period; or [`UNKNOWN`].
pub(super) struct ReadyWord(AtomicU64);

impl ReadyWord {
    pub(super) fn at_once() -> Self {
        ReadyWord(AtomicU64::new(AT_ONCE))
    }

    pub(super) fn unknown() -> Self {
        ReadyWord(AtomicU64::new(UNKNOWN))
    }

    /// When the array may be moved, said to one caller, until that says so again by [`set`](Self::set), or moves it.
    pub(super) fn take(&self) -> Option<Ready> {
        // Relaxed: a call in vain does not write the line.
        let word = self.0.load(Ordering::Relaxed);
        let ready = match word {
            UNKNOWN => return None,
            AT_ONCE => Ready::AtOnce,
            number if number.is_multiple_of(2) => Ready::After(number + 1),
            period => Ready::When(GracePeriod::from_word(period)),
        };
        // Acquire(ready): that the array is the current one, and a period started; pairs with Release(ready) in set().
        let taken = self.0.compare_exchange(word, UNKNOWN, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(ready)
    }

    /// Says when the array may be moved.
    pub(super) fn set(&self, ready: &Ready) {
        let word = match *ready {
            Ready::AtOnce => AT_ONCE,
            Ready::After(number) => number - 1,
            Ready::When(period) => period.word(),
        };
        // Release(ready): pairs with Acquire(ready) in take().
        self.0.store(word, Ordering::Release);
    }
}
