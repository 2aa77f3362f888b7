//! CNA lock: a compact NUMA-aware MCS lock. One word, whatever the number of memory nodes.
//!
//! # Theory
//! As MCS, but the owner chooses its successor: the next waiter of its own memory node. Waiters of other nodes
//! that it passes over move to a secondary queue, whose head travels with the lock in the owner's node.
//!
//! ```text
//!   main:       owner(0) -> w(1) -> w(1) -> w(0) -> w(1)        (n): memory node
//!   unlock:     w(0) gets the lock, and with it the name of the secondary queue's head
//!   main:       w(0) -> w(1)          secondary:  w(1) -> w(1)
//! ```
//! After [`STREAK_MAX`] hand-overs within one node, or when no waiter of the node is left, the secondary queue is
//! put back in front of the main one: nobody waits for ever.
//!
//! # Ordering
//! As in [`crate::nodes`]; the secondary queue is the owner's alone and travels with label *unlock*.
//!
//! # Sources
//! D. Dice and A. Kogan, "Compact NUMA-aware locks", EuroSys 2019. There the streak ends by a coin, here by a
//! counter that travels with the lock, so that bypassing is bounded.

use crate::RawSpinLock;
use crate::nodes::{Queue, QueueNode, Token, give_back, node};
use sluice_sync::face::atomic::Ordering;
use sluice_sync::face::{SHRUNK, const_new, cpu};

/// Hand-overs within one memory node before the others get their turn.
const STREAK_MAX: u32 = if SHRUNK { 1 } else { 256 };
/// The value of `go` that means: the lock is yours, and nobody is in the secondary queue. A larger value is
/// one more than the name of the secondary queue's head.
const GO: u32 = 1;

/// Compact NUMA-aware queue lock.
#[derive(Debug)]
pub struct Cna {
    queue: Queue,
}

impl Cna {
    const_new! {
        /// A free lock.
        pub fn new() -> Self {
            Cna { queue: Queue::new() }
        }
    }
}

impl Default for Cna {
    fn default() -> Self {
        Self::new()
    }
}

/// The head of the secondary queue that a value of `go` brings.
fn secondary(go: u32) -> Option<u32> {
    (go > GO).then(|| go - 1)
}

impl RawSpinLock for Cna {
    const NAME: &'static str = "cna";
    type Token = Token;

    fn lock(&self) -> Token {
        let (token, free) = self.queue.enter(prepare);
        if free {
            alone(&token);
        }
        token
    }

    fn try_lock(&self) -> Option<Token> {
        let token = self.queue.try_enter(prepare)?;
        alone(&token);
        Some(token)
    }

    fn unlock(&self, token: Token) {
        let own = node(token.name);
        // Relaxed: set before we got the lock, or by ourselves.
        let head = secondary(own.go.load(Ordering::Relaxed));
        // If nobody is in the main queue, the secondary one, if any, becomes the main one.
        // Relaxed: the secondary queue is the owner's, ordered by the lock itself.
        let rest = || head.map_or(0, |head| node(head).last.load(Ordering::Relaxed));
        let Some(next) = self.queue.leave(&token, rest) else {
            if let Some(head) = head {
                pass(head, GO, 0);
            }
            return give_back(token);
        };
        // Relaxed: as `go`.
        let streak = own.streak.load(Ordering::Relaxed);
        if streak < STREAK_MAX
            && let Some(local) = local_successor(own, next)
        {
            // Relaxed: local_successor() may have changed it, on this thread.
            pass(local, own.go.load(Ordering::Relaxed), streak + 1);
        } else if let Some(head) = head {
            // The secondary queue goes in front of what is left of the main one. Relaxed: owner's alone;
            // published with the lock.
            node(node(head).last.load(Ordering::Relaxed)).next.store(next, Ordering::Release);
            pass(head, GO, 0);
        } else {
            pass(next, GO, 0);
        }
        give_back(token);
    }
}

fn prepare(own: &QueueNode) {
    // Relaxed: published with the name.
    own.streak.store(0, Ordering::Relaxed);
    own.socket.store(u32::try_from(cpu::node()).unwrap_or(0), Ordering::Relaxed);
}

/// The owner by `token` found the lock free.
fn alone(token: &Token) {
    // Relaxed: read by ourselves alone.
    node(token.name).go.store(GO, Ordering::Relaxed);
}

/// Gives the lock to the waiter called `name`.
fn pass(name: u32, go: u32, streak: u32) {
    let waiter = node(name);
    // Relaxed: published by the next store.
    waiter.streak.store(streak, Ordering::Relaxed);
    // Release(unlock): the protected data and the secondary queue; pairs with Acquire(unlock) in lock().
    waiter.go.store(go, Ordering::Release);
}

/// The first waiter of the owner's memory node. Waiters in front of it join the secondary queue.
// Relaxed: sockets are published with the names (queue); the secondary queue is the owner's alone.
fn local_successor(own: &QueueNode, next: u32) -> Option<u32> {
    let home = own.socket.load(Ordering::Relaxed);
    if node(next).socket.load(Ordering::Relaxed) == home {
        return Some(next);
    }
    let mut last = next;
    loop {
        // Acquire(queue): the waiter's node; pairs with Release(queue) in lock().
        let at = node(last).next.load(Ordering::Acquire);
        if at == 0 {
            return None;
        }
        if node(at).socket.load(Ordering::Relaxed) == home {
            // `next ..= last` are passed over. Nobody else touches their links: the waiters behind them have
            // linked themselves already.
            node(last).next.store(0, Ordering::Relaxed);
            let head = if let Some(head) = secondary(own.go.load(Ordering::Relaxed)) {
                node(node(head).last.load(Ordering::Relaxed)).next.store(next, Ordering::Relaxed);
                head
            } else {
                own.go.store(next + 1, Ordering::Relaxed);
                next
            };
            node(head).last.store(last, Ordering::Relaxed);
            return Some(at);
        }
        last = at;
    }
}
