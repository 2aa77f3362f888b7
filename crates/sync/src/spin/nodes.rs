//! Queue nodes for locks that need one from acquisition to release: a few per thread, named by number.

use crate::face::atomic::{AtomicPtr, AtomicU32, Ordering};
use crate::face::{CachePadded, SlotTable, global, thread};
use std::marker::PhantomData;

/// How many queue locks one thread may hold at a time.
const NESTING: u32 = if cfg!(feature = "loom") { 2 } else { 8 };

/// A waiter's node. What the fields mean is up to the lock.
pub(crate) struct Node {
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
    /// What the waiter wants done, in a combining lock.
    pub(crate) task: AtomicPtr<()>,
}

impl Default for Node {
    fn default() -> Self {
        Node {
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
    nodes: [CachePadded<Node>; NESTING as usize],
}

global! {
    static THREADS: SlotTable<Thread> = SlotTable::new();
}

/// The node called `name`.
pub(crate) fn node(name: u32) -> &'static Node {
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
