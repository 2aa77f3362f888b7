//! Waits: tickets, completions, and the slot in which a blocked thread sleeps.

use crate::file::FileState;
use crate::waiters::Place;
use crate::{Cancel, LockError};
use sluice_sync::time::Instant;
use sluice_sync::{Arc, Condvar, Mutex};
use std::collections::VecDeque;

/// What is called with the outcome of a request that had to wait.
pub type Done = Box<dyn FnOnce(Result<(), LockError>) + Send>;

/// Names a waiting request of a file, for [`crate::FileLocks::cancel`]. Never used again for that file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    pub(crate) place: Place,
    /// In which of the file's spaces.
    pub(crate) is_flock: bool,
}

/// A waiting request of any file.
#[derive(Clone)]
pub(crate) struct Wait {
    pub(crate) file: Arc<FileState>,
    pub(crate) ticket: Ticket,
}

/// What became of a submitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The lock is held; the completion was dropped uncalled.
    Granted,
    /// The request waits; its completion will tell the outcome.
    Waiting(Ticket),
}

/// What was found out under the file lock, to be acted on after it is released.
#[derive(Default)]
pub(crate) struct Outcomes {
    /// Completions to be called, oldest first.
    pub(crate) completions: Vec<(Done, Result<(), LockError>)>,
    /// Waits that may have closed a cycle, to be looked into in this order.
    pub(crate) suspects: VecDeque<Wait>,
}

impl Outcomes {
    /// Notes that `done` is to be told `outcome`.
    pub(crate) fn add(&mut self, done: Done, outcome: Result<(), LockError>) {
        self.completions.push((done, outcome));
    }
}

/// Where one blocked thread sleeps until its request is decided or cancelled.
#[derive(Default)]
pub(crate) struct Slot {
    state: Mutex<SlotState>,
    changed: Condvar,
}

#[derive(Default)]
struct SlotState {
    outcome: Option<Result<(), LockError>>,
    interrupted: bool,
}

impl Slot {
    /// Delivers the outcome.
    pub(crate) fn finish(&self, outcome: Result<(), LockError>) {
        self.state.lock().outcome = Some(outcome);
        self.changed.notify_one();
    }

    /// Asks the sleeper to give up.
    pub(crate) fn interrupt(&self) {
        self.state.lock().interrupted = true;
        self.changed.notify_one();
    }

    /// Sleeps until there is an outcome, or until `cancel` says so and `withdraw` succeeds. If `withdraw` fails
    /// the request was decided at the same moment: that outcome is on its way, and counts.
    pub(crate) fn sleep(
        slot: &Arc<Slot>,
        cancel: &Cancel,
        withdraw: impl FnOnce() -> bool,
    ) -> Result<(), LockError> {
        let _registration = cancel.register(slot);
        let mut withdraw = Some(withdraw);
        let mut state = slot.state.lock();
        loop {
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            let remaining = cancel.deadline().map(|at| at.saturating_duration_since(Instant::now()));
            let reason = match remaining {
                _ if state.interrupted => Some(LockError::Interrupted),
                Some(remaining) if remaining.is_zero() => Some(LockError::TimedOut),
                _ => None,
            };
            state = match (reason, remaining, withdraw.take()) {
                (Some(reason), _, Some(withdraw)) => {
                    drop(state);
                    if withdraw() {
                        return Err(reason);
                    }
                    slot.state.lock()
                }
                (None, Some(remaining), unused) => {
                    withdraw = unused;
                    slot.changed.wait_timeout(state, remaining).0
                }
                (_, _, unused) => {
                    withdraw = unused;
                    slot.changed.wait(state)
                }
            };
        }
    }
}
