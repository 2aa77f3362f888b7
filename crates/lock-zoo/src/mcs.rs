//! MCS lock: waiters queue, each spinning on a line of its own.
//!
//! # Theory
//! ```text
//!   tail --------------------+
//!   owner -> waiter -> waiter    unlock: the owner tells the next waiter, and only that line moves
//! ```
//! One remote transfer per hand-over however many wait; strictly first come, first served.
//!
//! # Ordering
//! As in [`crate::nodes`].
//!
//! # Sources
//! J. Mellor-Crummey and M. Scott, "Algorithms for scalable synchronization on shared-memory
//! multiprocessors", 1991.

use crate::RawSpinLock;
use crate::nodes::{Queue, Token, give_back, node};
use sluice_sync::face::atomic::Ordering;
use sluice_sync::face::const_new;

/// MCS queue lock.
#[derive(Debug)]
pub struct Mcs {
    queue: Queue,
}

impl Mcs {
    const_new! {
        /// A free lock.
        pub fn new() -> Self {
            Mcs { queue: Queue::new() }
        }
    }
}

impl Default for Mcs {
    fn default() -> Self {
        Self::new()
    }
}

impl RawSpinLock for Mcs {
    const NAME: &'static str = "mcs";
    type Token = Token;

    fn lock(&self) -> Token {
        self.queue.enter(|_| ()).0
    }

    fn try_lock(&self) -> Option<Token> {
        self.queue.try_enter(|_| ())
    }

    fn unlock(&self, token: Token) {
        if let Some(next) = self.queue.leave(&token, || 0) {
            // Release(unlock): the protected data; pairs with Acquire(unlock) in enter().
            node(next).go.store(1, Ordering::Release);
        }
        give_back(token);
    }
}
