//! Waits: tickets, completions, and the slot in which a blocked thread sleeps.

use crate::lock_class::WAIT_SLOT;
use crate::{Kind, LockError, Range};
use sluice_sync::time::Instant;
use sluice_sync::{Arc, Condvar, Mutex, thread};
use std::mem;
use std::task::{Context, Poll, Waker};

/// The callback with the outcome of a request that had to wait.
pub type Done = Box<dyn FnOnce(Result<(), LockError>) + Send>;

/// Whether a waiting request takes part in deadlock detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Detection {
    /// If its owner is a process.
    ByOwner,
    /// No: it is an open file description's, although the owner may be called a process. That is for clients that
    /// cannot tell the two apart when a lock is granted at once.
    Off,
}

/// Where to find a waiting request. The older one is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WaiterPlace {
    pub(crate) number: u64,
    pub(crate) range: Range,
    pub(crate) kind: Kind,
}

impl WaiterPlace {
    /// The bytes that the requests of its group want.
    pub(crate) fn group(&self) -> (u64, u64) {
        (self.range.start(), self.range.end())
    }
}

/// Names a waiting request of a file, for [`crate::FileLocks::cancel`]. Never used again for that file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    pub(crate) place: WaiterPlace,
    /// In which of the file's spaces.
    pub(crate) is_flock: bool,
}

/// The state of a submitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The lock is held; the completion was dropped uncalled.
    Granted,
    /// The request waits; its completion will tell the outcome.
    Waiting(Ticket),
}

/// How a waiting request goes on.
pub(crate) enum Then {
    /// It is granted on the spot, and `done` is called: no thread waits for it.
    Tell { done: Done, detection: Detection },
    /// Its thread or task is woken, and takes the lock itself when it runs.
    Call(Arc<WaitSlot>),
}

impl Then {
    /// Delivers the outcome.
    pub(crate) fn tell(self, outcome: Result<(), LockError>) {
        match self {
            Then::Tell { done, .. } => done(outcome),
            Then::Call(slot) => slot.rouse(|state| state.outcome = Some(outcome)),
        }
    }

    /// Whether a request that goes on so takes part in deadlock detection.
    pub(crate) fn detection(&self) -> Detection {
        match self {
            Then::Tell { detection, .. } => *detection,
            Then::Call(_) => Detection::ByOwner,
        }
    }
}

/// How often a thread whose request must wait lets others run and asks again before it sleeps, while locks are granted in
/// between. Such locks are held for less time than sleeping and being woken takes, and a sleeper that an unlock wakes
/// mostly comes too late ...
const LOOKS: u32 = 32;
/// ... and how often while nothing moves. An owner that lost its CPU while it had the lock gets it back so.
const LOOKS_IN_VAIN: u32 = 2;
/// Before each look it yields twice as often as before the last, up to so many times, a power of two: each look takes the
/// lock's lines away from the thread that locks and unlocks on another CPU.
const MOST_YIELDS: u32 = 16;

/// The history of a thread since it first asked for a lock.
#[derive(Default)]
pub(crate) struct Patience {
    looks: u32,
    /// The last of these, between which no lock was granted.
    in_vain: u32,
    grants: u64,
}

impl Patience {
    /// Looks once more, when `grants` locks of the space were granted: true if it is time to sleep.
    pub(crate) fn is_over(&mut self, grants: u64) -> bool {
        self.in_vain = if grants == self.grants { self.in_vain + 1 } else { 0 };
        (self.looks, self.grants) = (self.looks + 1, grants);
        self.looks > LOOKS || self.in_vain >= LOOKS_IN_VAIN
    }

    /// How often to let others run before the next look.
    fn yields(&self) -> u32 {
        1 << self.looks.saturating_sub(1).min(MOST_YIELDS.ilog2())
    }

    /// Lets others run until it is time for the next look.
    pub(crate) fn pause(&self) {
        for _ in 0..self.yields() {
            thread::yield_now();
        }
    }
}

/// Where one blocked thread or task waits until its request is called, decided or cancelled.
pub(crate) struct WaitSlot {
    /// *protected by its own mutex, a leaf*
    state: Mutex<SlotState>,
    changed: Condvar,
}

#[derive(Default)]
struct SlotState {
    outcome: Option<Result<(), LockError>>,
    is_called: bool,
    is_interrupted: bool,
    /// The waker of the waiting task, if the waiter is no thread.
    waker: Option<Waker>,
}

impl Default for WaitSlot {
    fn default() -> Self {
        WaitSlot { state: Mutex::with_class(&WAIT_SLOT, SlotState::default()), changed: Condvar::new() }
    }
}

impl WaitSlot {
    /// Changes the state, and wakes the thread or task that waits.
    fn rouse(&self, change: impl FnOnce(&mut SlotState)) {
        let waker = {
            let mut state = self.state.lock();
            change(&mut state);
            state.waker.take()
        };
        self.changed.notify_one();
        // Unlocked: it may run anything.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Has the sleeper look again whether it may go on.
    pub(crate) fn call(&self) {
        self.rouse(|state| state.is_called = true);
    }

    /// Asks the sleeper to give up.
    pub(crate) fn interrupt(&self) {
        self.rouse(|state| state.is_interrupted = true);
    }

    /// The outcome, which `claim` finds when the request is called. Without one, the task of `context` is woken when
    /// it is worth asking again.
    pub(crate) fn poll(
        &self,
        context: &Context<'_>,
        claim: impl Fn() -> Option<Result<(), LockError>>,
    ) -> Poll<Result<(), LockError>> {
        loop {
            let mut state = self.state.lock();
            if let Some(outcome) = state.outcome.take() {
                return Poll::Ready(outcome);
            }
            if !mem::take(&mut state.is_called) {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            drop(state);
            if let Some(outcome) = claim() {
                return Poll::Ready(outcome);
            }
        }
    }

    /// Sleeps until there is an outcome, which `claim` finds when the request is called, or until it is interrupted or
    /// `deadline` is over and `withdraw` succeeds. If `withdraw` fails the request was decided at the same moment: that outcome is on
    /// its way, and counts.
    pub(crate) fn sleep(
        &self,
        deadline: Option<Instant>,
        claim: impl Fn() -> Option<Result<(), LockError>>,
        withdraw: impl FnOnce() -> bool,
    ) -> Result<(), LockError> {
        let mut withdraw = Some(withdraw);
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            if mem::take(&mut state.is_called) {
                drop(state);
                if let Some(outcome) = claim() {
                    return outcome;
                }
                state = self.state.lock();
                continue;
            }
            let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let reason = match remaining {
                _ if state.is_interrupted => Some(LockError::Interrupted),
                Some(remaining) if remaining.is_zero() => Some(LockError::TimedOut),
                _ => None,
            };
            state = match (reason, remaining, withdraw.take()) {
                (Some(reason), _, Some(withdraw)) => {
                    drop(state);
                    if withdraw() {
                        return Err(reason);
                    }
                    self.state.lock()
                }
                (None, Some(remaining), unused) => {
                    withdraw = unused;
                    self.changed.wait_timeout(state, remaining).0
                }
                (_, _, unused) => {
                    withdraw = unused;
                    self.changed.wait(state)
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(mut patience: Patience, mut grants: impl FnMut() -> u64) -> u32 {
        while !patience.is_over(grants()) {}
        patience.looks
    }

    #[test]
    fn a_waiter_that_sees_locks_change_hands_stays_awake_and_one_that_sees_none_sleeps_soon() {
        assert_eq!(looks(Patience::default(), || 7), 1 + LOOKS_IN_VAIN);
        let mut grants = 0;
        let next = || {
            grants += 1;
            grants
        };
        assert_eq!(looks(Patience::default(), next), 1 + LOOKS);
        let mut last = [1, 1, 2, 2, 3].into_iter();
        assert_eq!(looks(Patience::default(), || last.next().unwrap_or(3)), 5 + LOOKS_IN_VAIN);
    }

    #[test]
    fn looks_become_rarer_up_to_a_bound() {
        let mut patience = Patience::default();
        let yields: Vec<_> = (1..=u64::from(LOOKS))
            .map(|grants| {
                assert!(!patience.is_over(grants));
                patience.yields()
            })
            .collect();
        assert_eq!(yields[..6], [1, 2, 4, 8, MOST_YIELDS, MOST_YIELDS]);
        assert_eq!(yields.iter().max(), Some(&MOST_YIELDS));
    }
}
