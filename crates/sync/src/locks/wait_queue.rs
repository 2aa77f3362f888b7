//! Wait queue: the threads that sleep until a lock is theirs to take, first come first.
//!
//! # Theory
//! A queue is three words in the lock: its own small lock, first, last. The links are thread slots; the node
//! of a slot lives for ever in a [`SlotTable`], because a thread waits for one lock at a time. A waiter
//! either is *signalled* (it is first and should try again; it stays queued) or *granted* (it left the
//! queue and has the lock).
//!
//! ```text
//!   enqueue          signal                    try fails
//!   ------> WAITING ---------> SIGNALLED ----------------> WAITING
//!              |                   | try succeeds: leaves the queue
//!              | grant (readers)   v
//!              +--------------> holds the lock
//! ```
//!
//! # Invariants
//! - Q1 links, first, last and `bypassed` change only under the queue's lock;
//! - Q2 only the first waiter is ever signalled, so only the first tries again;
//! - Q3 a node's state leaves `WAITING`/`PARKED` only by a wake-up meant for it: a late futex wake is spurious.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | wake | [`LockedQueue::signal`], [`Chain::grant`] | [`park`] | all that the waker did before |
//!
//! Links and `bypassed` are published by the queue's lock, a [`RawSmallMutex`].

use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::{CachePadded, SlotTable, const_new, futex, global, hint};
use crate::small_mutex::RawSmallMutex;

const WAITING: u32 = 0;
const PARKED: u32 = 1;
const WOKEN: u32 = 2;

/// The mode that a waiter wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// To hold the lock alone.
    Write = 0,
    /// To share it with other readers.
    Read = 1,
}

#[derive(Default)]
struct WaitNode {
    /// `WAITING`, `PARKED` (asleep) or `WOKEN`. *atomic (wake)*
    state: AtomicU32,
    /// The next waiter's slot plus one, or 0. *protected by the queue's lock*
    next: AtomicU32,
    /// A [`Want`]. *protected by the queue's lock*
    want: AtomicU32,
}

global! {
    /// The node of every thread.
    static NODES: SlotTable<CachePadded<WaitNode>> = SlotTable::new();
}

/// The waiters of one lock.
pub(crate) struct WaitQueue {
    lock: RawSmallMutex,
    /// The first waiter's slot plus one, or 0. *protected by `lock`*
    first: AtomicU32,
    /// The last waiter's slot plus one; stale when `first` is 0. *protected by `lock`*
    last: AtomicU32,
    /// How often the lock went to somebody else while the first waiter waited. *protected by `lock`*
    bypassed: AtomicU32,
}

impl WaitQueue {
    const_new! {
        /// A queue without waiters.
        pub(crate) fn new() -> Self {
            WaitQueue {
                lock: RawSmallMutex::new(),
                first: AtomicU32::new(0),
                last: AtomicU32::new(0),
                bypassed: AtomicU32::new(0),
            }
        }
    }

    /// Locks the queue itself.
    pub(crate) fn lock(&self) -> LockedQueue<'_> {
        self.lock.lock();
        LockedQueue { queue: self }
    }
}

/// A queue whose lock the caller holds.
pub(crate) struct LockedQueue<'a> {
    queue: &'a WaitQueue,
}

impl Drop for LockedQueue<'_> {
    fn drop(&mut self) {
        self.queue.lock.unlock();
    }
}

// Relaxed throughout: the queue's lock orders these accesses (Q1).
impl LockedQueue<'_> {
    /// The first waiter's slot.
    pub(crate) fn first(&self) -> Option<u32> {
        self.queue.first.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Appends the calling thread; it must then [`park`]. True if it is the first.
    pub(crate) fn enqueue(&mut self, slot: u32, want: Want) -> bool {
        let node = NODES.get(slot);
        node.next.store(0, Ordering::Relaxed);
        node.want.store(want as u32, Ordering::Relaxed);
        node.state.store(WAITING, Ordering::Relaxed);
        let empty = self.first().is_none();
        if empty {
            self.queue.first.store(slot + 1, Ordering::Relaxed);
            self.queue.bypassed.store(0, Ordering::Relaxed);
        } else {
            let last = self.queue.last.load(Ordering::Relaxed) - 1;
            NODES.get(last).next.store(slot + 1, Ordering::Relaxed);
        }
        self.queue.last.store(slot + 1, Ordering::Relaxed);
        empty
    }

    /// Takes the first waiter out of the queue. True if others are left.
    pub(crate) fn dequeue(&mut self) -> bool {
        let Some(first) = self.first() else { return false };
        let next = NODES.get(first).next.load(Ordering::Relaxed);
        self.queue.first.store(next, Ordering::Relaxed);
        self.queue.bypassed.store(0, Ordering::Relaxed);
        next != 0
    }

    /// Whether anybody would be left if the first waiter went.
    pub(crate) fn more_than_one(&self) -> bool {
        self.first().is_some_and(|first| NODES.get(first).next.load(Ordering::Relaxed) != 0)
    }

    /// Notes that the lock went to somebody else. True when that has happened `max` times, so that the lock should be
    /// handed to the first waiter.
    pub(crate) fn bypass(&mut self, max: u32) -> bool {
        let bypassed = self.queue.bypassed.load(Ordering::Relaxed).saturating_add(1);
        self.queue.bypassed.store(bypassed, Ordering::Relaxed);
        bypassed >= max
    }

    /// The calling thread, which is first, found the lock taken and will [`park`] again.
    pub(crate) fn wait_again(&mut self, slot: u32) {
        debug_assert_eq!(self.first(), Some(slot), "only the first waiter is signalled (Q2)");
        NODES.get(slot).state.store(WAITING, Ordering::Relaxed);
    }

    /// Unlocks the queue and tells the first waiter to try.
    pub(crate) fn signal(self) {
        let Some(first) = self.first() else { return };
        let node = NODES.get(first);
        // Release(wake): pairs with Acquire(wake) in park().
        let before = node.state.swap(WOKEN, Ordering::Release);
        // Unlock before the system call: the waiter's first step is to lock the queue. It may be gone, and
        // waiting for another lock, when the call comes; then the wake-up is spurious there (Q3).
        drop(self);
        if before == PARKED {
            futex::wake(&node.state, 1);
        }
    }

    /// How many readers wait, wherever they stand between the writers.
    pub(crate) fn readers(&self) -> u32 {
        let mut count = 0;
        let mut at = self.queue.first.load(Ordering::Relaxed);
        while at != 0 {
            count += u32::from(wants(at - 1) == Want::Read);
            at = NODES.get(at - 1).next.load(Ordering::Relaxed);
        }
        count
    }

    /// Whether no writer waits.
    pub(crate) fn only_readers(&self) -> bool {
        let mut at = self.queue.first.load(Ordering::Relaxed);
        while at != 0 && wants(at - 1) == Want::Read {
            at = NODES.get(at - 1).next.load(Ordering::Relaxed);
        }
        at == 0
    }

    /// Takes every reader out of the queue, leaving the writers in their order: readers that a writer
    /// separates would otherwise hold the lock one small group after the other.
    pub(crate) fn take_readers(&mut self) -> Chain {
        let (mut readers, mut writers) = (Links::default(), Links::default());
        let mut at = self.queue.first.load(Ordering::Relaxed);
        while at != 0 {
            let next = NODES.get(at - 1).next.swap(0, Ordering::Relaxed);
            match wants(at - 1) {
                Want::Read => readers.append(at),
                Want::Write => writers.append(at),
            }
            at = next;
        }
        self.queue.first.store(writers.first, Ordering::Relaxed);
        self.queue.last.store(writers.last, Ordering::Relaxed);
        self.queue.bypassed.store(0, Ordering::Relaxed);
        Chain(readers)
    }
}

/// The mode that the waiter in `slot` wants. The caller holds the lock of its queue.
pub(crate) fn wants(slot: u32) -> Want {
    // Relaxed: protected by the queue's lock (Q1).
    if NODES.get(slot).want.load(Ordering::Relaxed) == Want::Read as u32 { Want::Read } else { Want::Write }
}

/// A list of waiters under construction, as slots plus one; 0 is none.
#[derive(Default)]
struct Links {
    first: u32,
    last: u32,
}

impl Links {
    fn append(&mut self, waiter: u32) {
        match self.last {
            0 => self.first = waiter,
            // Relaxed: protected by the queue's lock (Q1).
            last => NODES.get(last - 1).next.store(waiter, Ordering::Relaxed),
        }
        self.last = waiter;
    }
}

/// Readers that left a queue and sleep until they are [`grant`](Self::grant)ed the lock.
#[must_use]
pub(crate) struct Chain(Links);

impl Chain {
    /// Wakes them all. The lock must already be theirs. Call it with the queue unlocked.
    pub(crate) fn grant(self) {
        let mut at = self.0.first;
        while at != 0 {
            let node = NODES.get(at - 1);
            // Relaxed: the node is ours until its thread sees WOKEN, so the link is read before.
            at = node.next.load(Ordering::Relaxed);
            // Release(wake): pairs with Acquire(wake) in park().
            if node.state.swap(WOKEN, Ordering::Release) == PARKED {
                futex::wake(&node.state, 1);
            }
        }
    }
}

/// Sleeps until the calling thread, which is in a queue, is signalled or granted; after `turns` turns of spinning for
/// that.
pub(crate) fn park(slot: u32, turns: u32) {
    let state = &NODES.get(slot).state;
    // Acquire(wake): pairs with Release(wake) in signal() and grant().
    let woken = hint::spin_until_for(state, turns, Ordering::Acquire, |state| state == WOKEN);
    if woken.is_some() {
        return;
    }
    // Relaxed on success: nothing is published by going to sleep. Acquire(wake) on failure: woken already.
    if state.compare_exchange(WAITING, PARKED, Ordering::Relaxed, Ordering::Acquire).is_err() {
        return;
    }
    loop {
        futex::wait(state, PARKED, None);
        // Acquire(wake): pairs with Release(wake) in signal() and grant().
        if state.load(Ordering::Acquire) == WOKEN {
            return;
        }
    }
}
