//! Patience: how long to spin for a sleeping lock before sleeping.
//!
//! # Theory
//! Spinning pays while the owner runs: it will unlock sooner than a sleeper could be woken. On the simulated
//! machine that is known ([`thread::running`]) and a spinner stays until the owner is seen not running.
//! Natively nobody can tell, so a spinner spins a bounded time, about as long as sleeping and being woken
//! costs: then at worst it wastes as much as it could have won (the ski-rental argument: within twice the best).

use crate::face::{SHRUNK, hint, thread};

/// Turns of spinning where nobody knows whether the owner runs.
const TURNS_MAX: u32 = if SHRUNK { 1 } else { 100 };

/// Turns between two looks at the lock, at most.
const PAUSE_MAX: u32 = 32;

/// What [`Patience::spin`] advises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Look at the lock again.
    Again,
    /// Sleep.
    Sleep,
}

/// One thread's patience with one lock.
pub(crate) struct Patience {
    turns: u32,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Patience { turns: 0 }
    }

    /// Spins one turn for the lock that `owner` has (none: it is just changing hands).
    pub(crate) fn spin(&mut self, owner: Option<u32>) -> Verdict {
        match owner.and_then(thread::running) {
            Some(false) => return Verdict::Sleep,
            // Until the lock's line changes, or the owner stops running.
            Some(true) => hint::spin_loop(),
            None => {
                if self.turns >= TURNS_MAX {
                    return Verdict::Sleep;
                }
                // Ever rarer looks: each takes the line away from an owner who may be about to lock again.
                let pause = (self.turns + 1).min(PAUSE_MAX);
                self.turns += pause;
                hint::pause(pause);
            }
        }
        Verdict::Again
    }
}
