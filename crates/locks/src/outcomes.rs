//! Outcomes: findings about requests, made while a file is locked and acted on afterwards.

use crate::LockError;
use crate::file_state::Wait;
use crate::wait::{Then, WaitSlot};
use sluice_sync::Arc;
use std::collections::VecDeque;

/// Findings under the file lock, to be acted on after its release. Mostly that is nothing.
#[derive(Default)]
pub(crate) struct Outcomes(Option<Box<Decisions>>);

#[derive(Default)]
struct Decisions {
    /// Requests with their outcome, oldest first.
    told: Vec<(Then, Result<(), LockError>)>,
    /// Threads and tasks to wake.
    called: Vec<Arc<WaitSlot>>,
    /// Waits that may have closed a cycle, to be looked into in this order.
    suspects: VecDeque<Wait>,
}

impl Outcomes {
    /// True if there is nothing to be done.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn found(&mut self) -> &mut Decisions {
        self.0.get_or_insert_default()
    }

    /// Notes that a request is decided.
    pub(crate) fn tell(&mut self, then: Then, outcome: Result<(), LockError>) {
        self.found().told.push((then, outcome));
    }

    /// Notes that a request may be claimed.
    pub(crate) fn call(&mut self, slot: &Arc<WaitSlot>) {
        self.found().called.push(slot.clone());
    }

    /// Notes that `wait` may have closed a cycle.
    pub(crate) fn suspect(&mut self, wait: Wait) {
        self.found().suspects.push_back(wait);
    }

    /// True if a wait may have closed a cycle.
    pub(crate) fn has_suspects(&self) -> bool {
        self.0.as_ref().is_some_and(|found| !found.suspects.is_empty())
    }

    /// The next wait to be looked into.
    pub(crate) fn next_suspect(&mut self) -> Option<Wait> {
        self.0.as_mut()?.suspects.pop_front()
    }

    /// Tells and calls them all. No lock of this crate may be held.
    pub(crate) fn deliver(&mut self) {
        let Some(found) = &mut self.0 else { return };
        for (then, outcome) in found.told.drain(..) {
            then.tell(outcome);
        }
        for slot in found.called.drain(..) {
            slot.call();
        }
    }
}
