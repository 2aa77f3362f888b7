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
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | queue | swap of `tail`, store of `next` | swap of `tail`, load of `next` | the node behind the name |
//! | unlock | store of `go`, exchange of `tail` to 0 | load of `go`, swap of `tail` | the protected data |
//!
//! # Sources
//! J. Mellor-Crummey and M. Scott, "Algorithms for scalable synchronization on shared-memory
//! multiprocessors", 1991.

use super::RawSpinLock;
use super::nodes::{Token, give_back, node, take};
use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::{const_new, hint};

/// MCS queue lock.
#[derive(Debug)]
pub struct Mcs {
    /// The name of the last waiter's or the owner's node, or 0. *atomic (queue, unlock)*
    tail: AtomicU32,
}

impl Mcs {
    const_new! {
        /// A free lock.
        pub fn new() -> Self {
            Mcs { tail: AtomicU32::new(0) }
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
        let token = take();
        let own = node(token.name);
        // Relaxed: published by the swap.
        own.next.store(0, Ordering::Relaxed);
        own.go.store(0, Ordering::Relaxed);
        // Release(queue): our node; Acquire(queue, unlock): the node in front, or the last owner's data.
        let front = self.tail.swap(token.name, Ordering::AcqRel);
        if front != 0 {
            // Release(queue): pairs with Acquire(queue) in unlock().
            node(front).next.store(token.name, Ordering::Release);
            // Acquire(unlock): pairs with Release(unlock) in unlock().
            hint::spin_until(&own.go, Ordering::Acquire, |go| go != 0);
        }
        token
    }

    fn try_lock(&self) -> Option<Token> {
        let token = take();
        // Relaxed: published by the exchange.
        node(token.name).next.store(0, Ordering::Relaxed);
        // Release(queue), Acquire(unlock): as the swap in lock(). A failure publishes nothing.
        match self.tail.compare_exchange(0, token.name, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Some(token),
            Err(_) => {
                give_back(token);
                None
            }
        }
    }

    fn unlock(&self, token: Token) {
        let own = node(token.name);
        // Acquire(queue): the waiter's node; pairs with Release(queue) in lock().
        let mut next = own.next.load(Ordering::Acquire);
        if next == 0 {
            // Release(unlock): pairs with Acquire in the swap of tail.
            if self.tail.compare_exchange(token.name, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
                return give_back(token);
            }
            // A waiter is between its swap and its store to our `next`. Acquire(queue): as above.
            next = hint::spin_until(&own.next, Ordering::Acquire, |next| next != 0);
        }
        // Release(unlock): the protected data; pairs with Acquire(unlock) in lock().
        node(next).go.store(1, Ordering::Release);
        give_back(token);
    }
}
