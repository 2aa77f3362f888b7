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
//! As in [`super::mcs`]; the secondary queue is the owner's alone and travels with label *unlock*.
//!
//! # Sources
//! D. Dice and A. Kogan, "Compact NUMA-aware locks", EuroSys 2019. There the streak ends by a coin, here by a
//! counter that travels with the lock, so that bypassing is bounded.

use super::RawSpinLock;
use super::nodes::{Node, Token, give_back, node, take};
use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::{SHRUNK, const_new, cpu, hint};

/// Hand-overs within one memory node before the others get their turn.
const STREAK_MAX: u32 = if SHRUNK { 1 } else { 256 };
/// The value of `go` that means: the lock is yours, and nobody is in the secondary queue. A larger value is
/// one more than the name of the secondary queue's head.
const GO: u32 = 1;

/// Compact NUMA-aware queue lock.
#[derive(Debug)]
pub struct Cna {
    /// The name of the last waiter's or the owner's node, or 0. *atomic (queue, unlock)*
    tail: AtomicU32,
}

impl Cna {
    const_new! {
        /// A free lock.
        pub fn new() -> Self {
            Cna { tail: AtomicU32::new(0) }
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
        let token = take();
        let own = prepare(token.name);
        // Release(queue): our node; Acquire(queue, unlock): the node in front, or the last owner's data.
        let front = self.tail.swap(token.name, Ordering::AcqRel);
        if front == 0 {
            // Relaxed: read by ourselves alone.
            own.go.store(GO, Ordering::Relaxed);
        } else {
            // Release(queue): pairs with Acquire(queue) in unlock() and local_successor().
            node(front).next.store(token.name, Ordering::Release);
            // Acquire(unlock): pairs with Release(unlock) in unlock().
            hint::spin_until(&own.go, Ordering::Acquire, |go| go != 0);
        }
        token
    }

    fn try_lock(&self) -> Option<Token> {
        let token = take();
        // Relaxed: read by ourselves alone.
        prepare(token.name).go.store(GO, Ordering::Relaxed);
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
        // Relaxed: set before we got the lock, or by ourselves.
        let go = own.go.load(Ordering::Relaxed);
        if next == 0 {
            // Nobody in the main queue: the secondary one, if any, becomes the main one.
            // Relaxed: the secondary queue is the owner's, ordered by the lock itself.
            let tail = secondary(go).map_or(0, |head| node(head).last.load(Ordering::Relaxed));
            // Release(unlock): pairs with Acquire in the swap of tail.
            if self.tail.compare_exchange(token.name, tail, Ordering::Release, Ordering::Relaxed).is_ok() {
                if let Some(head) = secondary(go) {
                    pass(head, GO, 0);
                }
                return give_back(token);
            }
            // A waiter is between its swap and its store to our `next`. Acquire(queue): as above.
            next = hint::spin_until(&own.next, Ordering::Acquire, |next| next != 0);
        }
        // Relaxed: as `go`.
        let streak = own.streak.load(Ordering::Relaxed);
        if streak < STREAK_MAX
            && let Some(local) = local_successor(own, next)
        {
            // Relaxed: local_successor() may have changed it, on this thread.
            pass(local, own.go.load(Ordering::Relaxed), streak + 1);
        } else if let Some(head) = secondary(go) {
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

fn prepare(name: u32) -> &'static Node {
    let own = node(name);
    // Relaxed: published by the swap or exchange of tail.
    own.next.store(0, Ordering::Relaxed);
    own.go.store(0, Ordering::Relaxed);
    own.streak.store(0, Ordering::Relaxed);
    own.socket.store(u32::try_from(cpu::node()).unwrap_or(0), Ordering::Relaxed);
    own
}

/// Gives the lock to the waiter called `name`.
fn pass(name: u32, go: u32, streak: u32) {
    let waiter = node(name);
    // Relaxed: published by the next store.
    waiter.streak.store(streak, Ordering::Relaxed);
    // Release(unlock): the protected data and the secondary queue; pairs with Acquire(unlock) in lock().
    waiter.go.store(go, Ordering::Release);
}

/// The first waiter of the owner's memory node. Those in front of it join the secondary queue.
// Relaxed: sockets are published with the names (queue); the secondary queue is the owner's alone.
fn local_successor(own: &Node, next: u32) -> Option<u32> {
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
