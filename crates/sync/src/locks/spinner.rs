//! Spinner queue: of the threads that spin for one sleeping lock for long, only the first looks at the lock.
//!
//! # Theory
//! Optimistic spinning pays when the owner will let go soon; but ten spinners on one word slow the owner
//! down and rob each other. They therefore line up as in an MCS lock, each spinning on its own line, and the
//! first spins on the lock. Unlike in an MCS lock a spinner may give up in mid-queue: when it has spun long
//! enough it unlinks itself, and then sleeps in the lock's wait queue.
//!
//! ```text
//!   tail ------------------------+        C gives up:  1. B.next = none (nobody passes the turn to C)
//!   A (first) -> B -> C -> D <---+                     2. C.next stands still, or C is the tail: tail = B
//!       looks at the lock                              3. B.next = D, D.prev = B
//! ```
//!
//! Nodes are named by thread slot and live for ever: a thread spins for one lock at a time.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | line | the swap of `tail` | the next swap of `tail` | the node behind the slot number |
//! | turn | `turn.store` in `SpinnerQueue::leave` | `turn.load` in `SpinnerQueue::join` | which spinner is first |
//!
//! The lock's own data is not published here: spinners still take the lock by its own word.
//!
//! # Cost
//! A spinner writes `tail` twice and its neighbours' nodes once each. Unlinking waits only for a neighbour
//! that is itself between two steps of linking or unlinking.
//!
//! # Sources
//! The kernel's cancellable MCS lock, kernel/locking/osq_lock.c, for the three steps of unlinking.

use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::{CachePadded, SlotTable, const_new, global, hint, thread};
use crate::spin_policy::{Pace, SpinPatience};

#[derive(Default)]
struct SpinnerNode {
    /// The slot plus one of the spinner behind, or 0. *atomic (line)*
    next: AtomicU32,
    /// The slot plus one of the spinner in front. *atomic (line)*
    prev: AtomicU32,
    /// 1 when this spinner is first. *atomic (turn)*
    turn: AtomicU32,
}

global! {
    /// The node of every thread.
    static NODES: SlotTable<CachePadded<SpinnerNode>> = SlotTable::new();
}

fn node(name: u32) -> &'static SpinnerNode {
    NODES.get(name - 1)
}

/// The result of a look at the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It was free, and is now the caller's.
    Taken,
    /// Look again.
    Again,
    /// Spinning does not pay.
    GiveUp,
}

/// Which spinner looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePlace {
    /// One of any number.
    Alone,
    /// The single thread at the head of the line.
    First,
}

/// The line of spinners of one lock: the slot plus one of the last, or 0.
pub(crate) struct SpinnerQueue {
    /// *atomic (line)*
    tail: AtomicU32,
}

impl SpinnerQueue {
    const_new! {
        /// A line without spinners.
        pub(crate) fn new() -> Self {
            SpinnerQueue { tail: AtomicU32::new(0) }
        }
    }

    /// Spins for the lock, at which `look` looks once, takes it if it can, and else is patient for a turn: first alone,
    /// then in line. True if it was taken.
    pub(crate) fn spin(
        &self,
        pace: Pace,
        mut look: impl FnMut(&mut SpinPatience, QueuePlace) -> Look,
    ) -> bool {
        let mut patience = SpinPatience::new(pace);
        while patience.is_young() {
            match look(&mut patience, QueuePlace::Alone) {
                Look::Again => {}
                end => return end == Look::Taken,
            }
        }
        let slot = thread::slot();
        if !self.join(slot, pace.turns_in_line) {
            return false;
        }
        let taken = loop {
            match look(&mut patience, QueuePlace::First) {
                Look::Again => {}
                end => break end == Look::Taken,
            }
        };
        self.leave(slot);
        taken
    }

    /// Lines up and waits to be first, for `turns` turns where it is not known which threads run. False if the wait got too long;
    /// otherwise call [`leave`](Self::leave).
    fn join(&self, slot: u32, turns: u32) -> bool {
        let name = slot + 1;
        let own = node(name);
        // Relaxed: published by the swap below.
        own.next.store(0, Ordering::Relaxed);
        own.turn.store(0, Ordering::Relaxed);
        // Release(line): our node's reset; Acquire(line): the node of the one in front. Pairs with itself.
        let front = self.tail.swap(name, Ordering::AcqRel);
        if front == 0 {
            return true;
        }
        // Relaxed: only its owner and its rear neighbour, in its step 3, write `prev`.
        own.prev.store(front, Ordering::Relaxed);
        // Release(line): `prev` is set before anybody can find us; pairs with Acquire(line) in wait_next().
        node(front).next.store(name, Ordering::Release);
        Self::wait_in_line(own, turns) || self.give_up(name)
    }

    /// Waits to become first: while the one in front runs, if that can be known, else for a bounded time.
    fn wait_in_line(own: &SpinnerNode, turns: u32) -> bool {
        loop {
            // Acquire(turn): pairs with Release(turn) in leave().
            if own.turn.load(Ordering::Acquire) == 1 {
                return true;
            }
            // Relaxed: a hint; the one in front may leave the line at any time.
            match thread::running(own.prev.load(Ordering::Relaxed) - 1) {
                Some(true) => hint::spin_loop(),
                Some(false) => return false,
                // Acquire(turn): as above.
                None => {
                    let is_first = |turn| turn == 1;
                    return hint::spin_until_for(&own.turn, turns, Ordering::Acquire, is_first).is_some();
                }
            }
        }
    }

    /// Takes `name` out of the middle or the end of the line. True if it became first meanwhile.
    #[cold]
    fn give_up(&self, name: u32) -> bool {
        let own = node(name);
        let mut front;
        // Step 1: keep the one in front from passing the turn to us, or see that it has.
        loop {
            // Acquire(line): the front neighbour's node; pairs with Release(line) in its give_up() step 3.
            front = own.prev.load(Ordering::Acquire);
            // Release/Acquire(line): the link changes hands. A failure is looked into below.
            let unlinked =
                node(front).next.compare_exchange(name, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if unlinked {
                break;
            }
            // Acquire(turn): pairs with Release(turn) in leave().
            if own.turn.load(Ordering::Acquire) == 1 {
                return true;
            }
            // The one in front is unlinking itself: our `prev` is about to change.
            hint::spin_loop();
        }
        // Step 2 and 3.
        if let Some(rear) = self.wait_next(name, front) {
            // Release(line): pairs with Acquire(line) in step 1 of the rear neighbour.
            node(rear).prev.store(front, Ordering::Release);
            // Release(line): pairs with Acquire(line) in wait_next().
            node(front).next.store(rear, Ordering::Release);
        }
        false
    }

    /// Lets the next in line be first.
    fn leave(&self, slot: u32) {
        let name = slot + 1;
        // Release(line): hands the empty line on; pairs with Acquire(line) in join().
        if self.tail.compare_exchange(name, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
        if let Some(rear) = self.wait_next(name, 0) {
            // Release(turn): pairs with Acquire(turn) in join().
            node(rear).turn.store(1, Ordering::Release);
        }
    }

    /// The spinner behind `name`, cut off from it so that it stands still; or none, and `tail` is `front`.
    fn wait_next(&self, name: u32, front: u32) -> Option<u32> {
        let own = node(name);
        loop {
            // Release(line): as in leave(); Acquire is not needed to go away.
            if self.tail.load(Ordering::Relaxed) == name
                && self.tail.compare_exchange(name, front, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                return None;
            }
            // The rear neighbour is between its swap of `tail` and its store to our `next`, or is cutting
            // its own link (its step 1) and will put its rear neighbour there (its step 3).
            if own.next.load(Ordering::Relaxed) != 0 {
                // Acquire(line): the rear neighbour's node; pairs with Release(line) in join().
                let rear = own.next.swap(0, Ordering::Acquire);
                if rear != 0 {
                    return Some(rear);
                }
            }
            hint::spin_loop();
        }
    }
}
