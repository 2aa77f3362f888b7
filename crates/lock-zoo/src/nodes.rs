//! Queue nodes for locks that need one from acquisition to release: a few per thread, named by number; and the queue.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | queue | swap of `tail`, store of `next` | swap of `tail`, load of `next` | the node behind the name |
//! | unlock | store of `go`, exchange of `tail` | load of `go`, swap of `tail` | the protected data |

use sluice_sync::face::atomic::{AtomicPtr, AtomicU32, Ordering};
use sluice_sync::face::{CachePadded, SHRUNK, SlotTable, const_new, global, hint, thread};
use std::marker::PhantomData;

/// How many queue locks one thread may hold at a time.
const NESTING: u32 = if SHRUNK { 3 } else { 8 };

/// A waiter's node. The lock defines the meaning of the fields.
pub(crate) struct QueueNode {
    /// The name of the waiter behind, or 0.
    pub(crate) next: AtomicU32,
    /// 0 while waiting.
    pub(crate) go: AtomicU32,
    /// The memory node of the waiter.
    pub(crate) socket: AtomicU32,
    /// The last of a queue that this node heads.
    pub(crate) last: AtomicU32,
    /// How often the lock was handed on within the memory node.
    pub(crate) streak: AtomicU32,
    /// The waiter's task, in a combining lock.
    pub(crate) task: AtomicPtr<()>,
}

impl Default for QueueNode {
    fn default() -> Self {
        QueueNode {
            next: AtomicU32::new(0),
            go: AtomicU32::new(0),
            socket: AtomicU32::new(0),
            last: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            task: AtomicPtr::new(std::ptr::null_mut()),
        }
    }
}

#[derive(Default)]
struct Thread {
    /// Bit n: node n is in use. *owner only*
    used: AtomicU32,
    nodes: [CachePadded<QueueNode>; NESTING as usize],
}

global! {
    static THREADS: SlotTable<Thread> = SlotTable::new();
}

/// The node called `name`.
pub(crate) fn node(name: u32) -> &'static QueueNode {
    &THREADS.get((name - 1) / NESTING).nodes[((name - 1) % NESTING) as usize]
}

/// A node in use by the thread that took it; give it back with `unlock`.
#[derive(Debug)]
#[must_use = "the lock stays held until the token is given back"]
pub struct Token {
    pub(crate) name: u32,
    /// Nodes belong to threads.
    marker: PhantomData<*const ()>,
}

/// Takes a node of the calling thread.
///
/// # Panics
/// If the thread holds 8 queue locks already.
pub(crate) fn take() -> Token {
    let slot = thread::slot();
    let thread = THREADS.get(slot);
    // Relaxed: owner only.
    let used = thread.used.load(Ordering::Relaxed);
    let free = used.trailing_ones();
    assert!(free < NESTING, "a thread may hold at most {NESTING} queue spin locks at a time");
    thread.used.store(used | 1 << free, Ordering::Relaxed);
    Token { name: slot * NESTING + free + 1, marker: PhantomData }
}

/// Gives a node back. Nobody else may know its name any more.
pub(crate) fn give_back(token: Token) {
    let used = &THREADS.get((token.name - 1) / NESTING).used;
    // Relaxed: owner only.
    used.store(used.load(Ordering::Relaxed) & !(1 << ((token.name - 1) % NESTING)), Ordering::Relaxed);
}

/// The owner of a lock and the waiters for it, as Mellor-Crummey and Scott line them up: the owner's node, then the waiters'.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The name of the last node, or 0. *atomic (queue, unlock)*
    tail: AtomicU32,
}

impl Queue {
    const_new! {
        /// Nobody has the lock.
        pub(crate) fn new() -> Self {
            Queue { tail: AtomicU32::new(0) }
        }
    }

    /// Lines up behind the others, with a node that `prepare` has prepared, and waits for the lock. True if it was free.
    pub(crate) fn enter(&self, prepare: impl FnOnce(&QueueNode)) -> (Token, bool) {
        let token = new_node(prepare);
        // Release(queue): our node; Acquire(queue, unlock): the node in front, or the last owner's data.
        let front = self.tail.swap(token.name, Ordering::AcqRel);
        if front != 0 {
            // Release(queue): pairs with Acquire(queue) in leave() and where a lock walks the queue.
            node(front).next.store(token.name, Ordering::Release);
            // Acquire(unlock): pairs with Release(unlock) in the lock's unlock().
            hint::spin_until(&node(token.name).go, Ordering::Acquire, |go| go != 0);
        }
        (token, front == 0)
    }

    /// Takes the lock if it is free; else gives up without a place in the line.
    pub(crate) fn try_enter(&self, prepare: impl FnOnce(&QueueNode)) -> Option<Token> {
        let token = new_node(prepare);
        // Release(queue), Acquire(unlock): as the swap in enter(). A failure publishes nothing.
        match self.tail.compare_exchange(0, token.name, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Some(token),
            Err(_) => {
                give_back(token);
                None
            }
        }
    }

    /// The waiter behind the owner, whose node is `own`. If no waiter is behind, the lock has been left to the waiters
    /// whose last is `rest`, or is free if `rest` is 0.
    pub(crate) fn leave(&self, own: &Token, rest: impl FnOnce() -> u32) -> Option<u32> {
        let next = &node(own.name).next;
        // Acquire(queue): the waiter's node; pairs with Release(queue) in enter().
        let behind = next.load(Ordering::Acquire);
        if behind != 0 {
            return Some(behind);
        }
        // Release(unlock): pairs with Acquire in the swap of tail.
        if self.tail.compare_exchange(own.name, rest(), Ordering::Release, Ordering::Relaxed).is_ok() {
            return None;
        }
        // A waiter is between its swap and its store to our `next`. Acquire(queue): as above.
        Some(hint::spin_until(next, Ordering::Acquire, |next| next != 0))
    }
}

/// A node of the calling thread, to be published by an exchange of a tail.
fn new_node(prepare: impl FnOnce(&QueueNode)) -> Token {
    let token = take();
    let own = node(token.name);
    // Relaxed: published with the name.
    own.next.store(0, Ordering::Relaxed);
    own.go.store(0, Ordering::Relaxed);
    prepare(own);
    token
}
