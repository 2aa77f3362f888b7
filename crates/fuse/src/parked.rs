//! Parked: lock requests that wait, without a thread, until they are decided or interrupted.
//!
//! # Theory
//! A blocking lock request is submitted to the lock manager with a completion that answers it. Between
//! *begin* and *armed* it has no ticket yet, but its completion or its interrupt may come already:
//! ```text
//!   begin ──> starting ──arm──> armed ──claim (completion or interrupt)──> answered
//!                │ └──interrupt: noted, acted on by arm
//!                └──claim (completion)──> answered; arm finds nothing
//! ```
//! The thread that *claims* the entry answers the request, so it is answered exactly once.
//!
//! The kernel may deliver INTERRUPT to one worker while another has read the request and not begun it. Such
//! early interrupts are remembered: request numbers are never used again, so a remembered one does no harm
//! when it was meant for a request that is over or cannot wait. The oldest give way beyond [`EARLY_MAX`].

use crate::lock_class::PARKED;
use sluice_locks::Ticket;
use sluice_sync::Mutex;
use sluice_vfs::InodeRef;
use std::collections::{HashMap, VecDeque};

/// How many interrupts without a waiting request are remembered.
const EARLY_MAX: usize = 4096;

/// The waiting lock requests of one mount, by request number.
pub(crate) struct Parked(Mutex<WaitsByUnique>);

impl Default for Parked {
    fn default() -> Self {
        Parked(Mutex::with_class(&PARKED, WaitsByUnique::default()))
    }
}

#[derive(Default)]
struct WaitsByUnique {
    waiting: HashMap<u64, ParkedWait>,
    early: VecDeque<u64>,
}

enum ParkedWait {
    Starting { interrupted: bool },
    Armed(Withdrawal),
}

/// A wait that can be withdrawn.
#[derive(Clone)]
pub(crate) struct Withdrawal {
    pub(crate) inode: InodeRef,
    pub(crate) ticket: Ticket,
}

impl Parked {
    /// Request `unique` is about to be submitted.
    pub(crate) fn begin(&self, unique: u64) {
        let mut state = self.0.lock();
        let early = state.early.iter().position(|&early| early == unique);
        let interrupted = early.and_then(|at| state.early.remove(at)).is_some();
        state.waiting.insert(unique, ParkedWait::Starting { interrupted });
    }

    /// Request `unique` waits. True: it was interrupted before, and the caller must withdraw it.
    pub(crate) fn arm(&self, unique: u64, wait: Withdrawal) -> bool {
        match self.0.lock().waiting.get_mut(&unique) {
            None => false,
            Some(entry) => {
                let interrupted = matches!(entry, ParkedWait::Starting { interrupted: true });
                *entry = ParkedWait::Armed(wait);
                interrupted
            }
        }
    }

    /// The right to answer request `unique`: true once.
    pub(crate) fn claim(&self, unique: u64) -> bool {
        let entry = self.0.lock().waiting.remove(&unique);
        entry.is_some()
    }

    /// A signal came for request `unique`. `Some`: it waits, and the caller should withdraw it.
    pub(crate) fn interrupt(&self, unique: u64) -> Option<Withdrawal> {
        let mut state = self.0.lock();
        match state.waiting.get_mut(&unique) {
            Some(ParkedWait::Armed(wait)) => Some(wait.clone()),
            Some(ParkedWait::Starting { interrupted }) => {
                *interrupted = true;
                None
            }
            None => {
                if state.early.len() == EARLY_MAX {
                    state.early.pop_front();
                }
                state.early.push_back(unique);
                None
            }
        }
    }

    /// Takes every wait out of the table: the kernel is gone, and nobody is to be answered.
    pub(crate) fn drain(&self) -> Vec<Withdrawal> {
        let waiting = std::mem::take(&mut self.0.lock().waiting);
        waiting
            .into_values()
            .filter_map(|entry| match entry {
                ParkedWait::Armed(wait) => Some(wait),
                ParkedWait::Starting { .. } => None,
            })
            .collect()
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_claimed_once() {
        let parked = Parked::default();
        parked.begin(2);
        assert!(parked.claim(2));
        assert!(!parked.claim(2));
        assert_eq!(parked.len(), 0);
    }

    #[test]
    fn an_interrupt_that_overtakes_its_request_is_remembered_once() {
        let parked = Parked::default();
        assert!(parked.interrupt(2).is_none());
        parked.begin(2);
        let state = parked.0.lock();
        assert!(matches!(state.waiting[&2], ParkedWait::Starting { interrupted: true }));
        assert!(state.early.is_empty());
    }

    #[test]
    fn interrupts_of_requests_that_never_wait_do_not_pile_up() {
        let parked = Parked::default();
        for unique in 0..3 * EARLY_MAX as u64 {
            parked.interrupt(unique);
        }
        assert_eq!(parked.0.lock().early.len(), EARLY_MAX);
    }
}
