//! Wait: a request for a lock until it is decided, for a thread that sleeps or a task that is polled.

use crate::error::LockError;
use crate::lock_class::WAIT;
use sluice_sync::time::Instant;
use sluice_sync::{Arc, Condvar, Mutex, thread};
use std::task::{Context, Poll, Waker};

/// So often a thread lets others run before it sleeps. To be woken takes about as long as an answer does.
const YIELDS: u32 = 60;

/// The result of a request.
pub type Outcome = Result<(), LockError>;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Wait {
    state: Mutex<WaitState>,
    decided: Condvar,
}

#[derive(Debug, Default)]
struct WaitState {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Wait {
    pub(crate) fn new() -> Arc<Wait> {
        Arc::new(Wait { state: Mutex::with_class(&WAIT, WaitState::default()), decided: Condvar::new() })
    }

    /// Decides it, once. Returns what to wake when no lock is held.
    #[must_use]
    pub(crate) fn decide(&self, outcome: Outcome) -> Option<Waker> {
        let waker = {
            let mut state = self.state.lock();
            state.outcome.get_or_insert(outcome);
            state.waker.take()
        };
        self.decided.notify_all();
        waker
    }

    /// The result, if it is known.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.state.lock().outcome
    }

    /// Lets others run for about as long as a message and its answer take, then sleeps until it is decided, or until `deadline`.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) -> Option<Outcome> {
        for _ in 0..YIELDS {
            if let Some(outcome) = self.outcome() {
                return Some(outcome);
            }
            thread::yield_now();
        }
        let mut state = self.state.lock();
        while state.outcome.is_none() {
            let Some(deadline) = deadline else {
                state = self.decided.wait(state);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.decided.wait_timeout(state, left).0;
        }
        state.outcome
    }

    /// Resolves when it is decided.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.state.lock();
        if let Some(outcome) = state.outcome {
            return Poll::Ready(outcome);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
