//! Queued spin lock: one 32-bit word, an MCS queue that needs no node while the lock is held, three modes.
//!
//! # Theory
//! | bits | name | meaning |
//! |---|---|---|
//! | 16..32 | tail | the slot plus one of the last waiter in the queue, or 0 |
//! | 8 | `PENDING` | the first contender waits on the word itself, without a node |
//! | 1 | `HALTED` | the head of the queue sleeps: the unlocker must kick it (paravirtual) |
//! | 0 | `LOCKED` | |
//!
//! The halves are two 16-bit atomics: a tail that shares its word with the lock bit would have to be changed by
//! compare-and-exchange, and 32 CPUs that arrive at once would retry against each other (on the simulated
//! opteron-32 that cost 95% of the throughput). With a half of its own the tail is simply swapped.
//!
//! The second thread to come sets `PENDING` and spins on the word: no node is touched while only two compete.
//! The third and later ones queue as in an MCS lock; the head of the queue spins on the word for both bits.
//! A node is given up as soon as the lock is taken, so one node per thread is enough.
//!
//! The tail names threads up to slot [`QUEUED_MAX`]. A thread past that, which takes as many threads alive at once (on the
//! simulator: as many host threads as make that many CPUs), waits outside the queue, on the word: it excludes as the
//! others do, but nobody promises it a turn.
//!
//! Effects of a virtual machine on this lock, and the three [`QueuedMode`]s:
//! - [`BareMetal`]: as above. Strictly first come, first served after the pending one.
//! - [`VirtualTestAndSet`]: the fallback that Linux guests without paravirtual support used in 2015: bare
//!   compare-and-exchange in a loop, without looking first. It is here to be measured: the fs_mark regression.
//! - [`Paravirtual`]: a waiter that has spun long enough halts, so that its physical CPU can run the owner; it is
//!   kicked when its turn comes. New arrivals may steal the lock before they queue, because a queue stops while
//!   the CPU of its head is preempted. The head ends the stealing by setting `PENDING` when it has been robbed
//!   for long enough.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | unlock | taking `LOCKED` off | the access that sees it gone | the protected data |
//! | queue | the exchange of tail, store of `next` | the exchange of tail, load of `next` | the node |
//! | head | the store of `turn` | the load of `turn` | which node is head |
//!
//! # Sources
//! The kernel's kernel/locking/qspinlock.c and qspinlock_paravirt.h for the word and the pending bit. Two
//! differences: an unlock is a read-modify-write here, and lock and tail are never changed in one step, as Rust has
//! no accesses of mixed size; halted waiters are kicked when they become head, not only when the lock is free.

use crate::RawSpinLock;
use sluice_sync::face::atomic::{AtomicU16, AtomicU32, Ordering};
use sluice_sync::face::hint::{Waiting, spin_until};
use sluice_sync::face::{
    CachePadded, DETERMINISTIC, SHRUNK, SlotTable, const_new, global, hint, thread, vcpu,
};
use std::marker::PhantomData;

const LOCKED: u16 = 1 << 0;
const HALTED: u16 = 1 << 1;
const LOCKED_MASK: u16 = LOCKED | HALTED;
const PENDING: u16 = 1 << 8;

/// Turns that a paravirtual waiter spins before it halts, as many as the kernel's. Less than a queue's turn
/// around and everybody halts in a queue that moves: then each hand-over waits for a kick.
const TURNS_BEFORE_HALT: u32 = if SHRUNK { 1 } else { 1 << 15 };
/// Turns that newcomers may rob the head of a paravirtual queue.
const TURNS_OF_STEALING: u32 = if SHRUNK { 1 } else { 1 << 8 };

/// The highest slot whose thread can queue: the tail names it by one more, in 16 bits.
const QUEUED_MAX: u32 = u16::MAX as u32 - 1;

const WAIT: u32 = 0;
const GO: u32 = 1;
const ASLEEP: u32 = 2;

#[derive(Default)]
struct QueuedNode {
    /// The slot plus one of the waiter behind, or 0. *atomic (queue)*
    next: AtomicU32,
    /// `WAIT`, `GO`, or `ASLEEP` (paravirtual). *atomic (head)*
    turn: AtomicU32,
}

global! {
    /// A thread waits for one queued lock at a time.
    static NODES: SlotTable<CachePadded<QueuedNode>> = SlotTable::new();
}

/// Beds for halted heads of queues. Two locks may share one: then a kick for one is spurious for the other.
const BED_MASK: usize = if SHRUNK || DETERMINISTIC { 0 } else { 63 };

global! {
    static HEADS: SlotTable<CachePadded<AtomicU32>> = SlotTable::new();
}

/// How a [`Queued`] lock behaves in a virtual machine.
pub trait QueuedMode: Send + Sync + 'static {
    /// The lock's name in reports.
    const NAME: &'static str;
    /// Waiters halt, newcomers steal.
    const PARAVIRTUAL: bool = false;
    /// No queue at all.
    const TEST_AND_SET: bool = false;
}

/// Every virtual CPU is a CPU.
#[derive(Debug, Default)]
pub struct BareMetal;

/// The hypervisor can halt and kick virtual CPUs; natively, the parking facility does.
#[derive(Debug, Default)]
pub struct Paravirtual;

/// A guest without paravirtual support.
#[derive(Debug, Default)]
pub struct VirtualTestAndSet;

impl QueuedMode for BareMetal {
    const NAME: &'static str = "queued";
}

impl QueuedMode for Paravirtual {
    const NAME: &'static str = "queued-pv";
    const PARAVIRTUAL: bool = true;
}

impl QueuedMode for VirtualTestAndSet {
    const NAME: &'static str = "queued-tas-fallback";
    const TEST_AND_SET: bool = true;
}

/// Queued spin lock.
#[derive(Debug)]
#[repr(align(4))]
pub struct Queued<M: QueuedMode = BareMetal> {
    /// `LOCKED`, `HALTED`, `PENDING`. *atomic (unlock)*
    word: AtomicU16,
    /// The slot plus one of the last waiter, or 0. *atomic (queue)*
    tail: AtomicU16,
    mode: PhantomData<M>,
}

impl<M: QueuedMode> Queued<M> {
    const_new! {
        /// A free lock.
        pub fn new() -> Self {
            Queued { word: AtomicU16::new(0), tail: AtomicU16::new(0), mode: PhantomData }
        }
    }
}

impl<M: QueuedMode> Default for Queued<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: QueuedMode> RawSpinLock for Queued<M> {
    const NAME: &'static str = M::NAME;
    type Token = ();

    #[inline]
    fn lock(&self) {
        if self.try_lock().is_none() {
            self.lock_slow();
        }
    }

    #[inline]
    fn try_lock(&self) -> Option<()> {
        // Relaxed: manners only. A thread that queues in this very moment is overtaken by one.
        if !M::TEST_AND_SET && self.tail.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.steal().then_some(())
    }

    #[inline]
    fn unlock(&self, (): ()) {
        if M::PARAVIRTUAL {
            // Release(unlock): the protected data; pairs with Acquire(unlock) in lock().
            if self.word.fetch_and(!LOCKED_MASK, Ordering::Release) & HALTED != 0 {
                self.kick_head();
            }
        } else {
            // Release(unlock): as above.
            self.word.fetch_sub(LOCKED, Ordering::Release);
        }
    }
}

impl<M: QueuedMode> Queued<M> {
    #[cold]
    fn lock_slow(&self) {
        self.wait(thread::slot());
    }

    /// Waits for the lock, as the thread in `slot`.
    fn wait(&self, slot: u32) {
        if slot > QUEUED_MAX || M::TEST_AND_SET {
            return self.test_and_set();
        }
        let taken = if M::PARAVIRTUAL { self.steal() } else { self.wait_as_pending() };
        if !taken {
            // Lossless: by the bound.
            self.wait_in_queue(slot as u16 + 1);
        }
    }

    fn test_and_set(&self) {
        let mut waiting = Waiting::new();
        while !self.steal() {
            waiting.turn();
        }
    }

    /// Takes the lock if it is free, though others may queue for it.
    #[inline]
    fn steal(&self) -> bool {
        // Acquire(unlock): pairs with Release(unlock) in unlock(). A failure publishes nothing.
        self.word.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits on the word itself, if nobody else waits. False if somebody does.
    fn wait_as_pending(&self) -> bool {
        // Relaxed: manners only.
        if self.tail.load(Ordering::Relaxed) != 0 || self.word.load(Ordering::Relaxed) & PENDING != 0 {
            return false;
        }
        // Acquire(unlock): if the lock has just become free, this is our acquisition.
        let before = self.word.fetch_or(PENDING, Ordering::Acquire);
        if before & PENDING != 0 {
            return false;
        }
        let mut waiting = Waiting::new();
        let mut word = before;
        while word & LOCKED != 0 {
            waiting.turn();
            // Acquire(unlock): pairs with Release(unlock) in unlock().
            word = self.word.load(Ordering::Acquire);
        }
        // Relaxed: the lock is ours since the line above; PENDING becomes LOCKED in one step.
        self.word.fetch_sub(PENDING - LOCKED, Ordering::Relaxed);
        true
    }

    fn wait_in_queue(&self, name: u16) {
        let own = node(name);
        // Relaxed: published by the swap of tail.
        own.next.store(0, Ordering::Relaxed);
        own.turn.store(WAIT, Ordering::Relaxed);
        // Release(queue): our node; Acquire(queue): the node in front. Pairs with itself.
        let front = self.tail.swap(name, Ordering::AcqRel);
        if front != 0 {
            // Release(queue): pairs with Acquire(queue) below, in the one in front.
            node(front).next.store(name.into(), Ordering::Release);
            wait_for_turn::<M>(&own.turn);
        }
        if M::PARAVIRTUAL {
            self.take_as_head_or_halt();
        } else {
            self.take_as_head();
        }
        // Release(queue): lets go of our node; pairs with the swap. A failure publishes nothing.
        if self.tail.compare_exchange(name, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
        // The waiter behind us is there, or between its swap of tail and its store to our `next`.
        // Acquire(queue): its node; pairs with Release(queue) above.
        let next = spin_until(&own.next, Ordering::Acquire, |next| next != 0);
        let turn = &NODES.get(next - 1).turn;
        // Release(head): pairs with Acquire(head) in wait_for_turn().
        if turn.swap(GO, Ordering::Release) == ASLEEP {
            vcpu::kick(turn);
        }
    }

    /// Waits until the lock is free and nobody is pending, and takes it.
    fn take_as_head(&self) {
        let mut waiting = Waiting::new();
        loop {
            // Relaxed: only to see whether trying is worth it.
            if self.word.load(Ordering::Relaxed) == 0 && self.steal() {
                return;
            }
            waiting.turn();
        }
    }

    /// [`take_as_head`](Self::take_as_head), but lets newcomers steal for a while, and then halts.
    fn take_as_head_or_halt(&self) {
        let mut turns = 0;
        loop {
            // Relaxed: looked at again in the exchanges.
            let word = self.word.load(Ordering::Relaxed);
            turns += 1;
            if word & LOCKED_MASK == 0 {
                // PENDING, if set, is ours. Acquire(unlock): pairs with Release(unlock) in unlock().
                if self.word.compare_exchange(word, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
            } else if turns >= TURNS_OF_STEALING && word & PENDING == 0 {
                // Relaxed: the bit publishes nothing; it keeps newcomers from stealing.
                self.word.fetch_or(PENDING, Ordering::Relaxed);
            } else if turns >= TURNS_BEFORE_HALT {
                self.halt_as_head(word);
                turns = TURNS_OF_STEALING;
            }
            hint::pause(1);
        }
    }

    fn bed(&self) -> &'static AtomicU32 {
        let line = std::ptr::from_ref(self).addr() / 4;
        // Lossless: the mask is small.
        HEADS.get(((line ^ line >> 6) & BED_MASK) as u32)
    }

    /// Asks the owner to kick us, and halts.
    #[cold]
    fn halt_as_head(&self, word: u16) {
        let bed = self.bed();
        // Relaxed: the exchange below orders it before the unlocker's look at HALTED.
        let expected = bed.load(Ordering::Relaxed);
        // Release: the thread that takes the bit off makes the bed after our look. It is taken off in the step that
        // frees the lock, so either the unlocker sees the bit and kicks, or the exchange fails.
        if self.word.compare_exchange(word, word | HALTED, Ordering::Release, Ordering::Relaxed).is_ok() {
            vcpu::halt(bed, expected);
        }
    }

    #[cold]
    fn kick_head(&self) {
        let bed = self.bed();
        // Relaxed: parking compares under its own lock.
        bed.fetch_add(1, Ordering::Relaxed);
        vcpu::kick(bed);
    }
}

fn node(name: u16) -> &'static QueuedNode {
    NODES.get(u32::from(name) - 1)
}

/// Waits, or halts, until the one in front makes us head.
fn wait_for_turn<M: QueuedMode>(turn: &AtomicU32) {
    if !M::PARAVIRTUAL {
        // Acquire(head): pairs with Release(head) in wait_in_queue().
        spin_until(turn, Ordering::Acquire, |turn| turn == GO);
        return;
    }
    // Acquire(head): as above.
    if hint::spin_until_for(turn, TURNS_BEFORE_HALT, Ordering::Acquire, |turn| turn == GO).is_some() {
        return;
    }
    // Relaxed: going to sleep publishes nothing. Acquire(head) on failure: our turn has come.
    if turn.compare_exchange(WAIT, ASLEEP, Ordering::Relaxed, Ordering::Acquire).is_err() {
        return;
    }
    // Acquire(head): as above.
    while turn.load(Ordering::Acquire) != GO {
        vcpu::halt(turn, ASLEEP);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use sluice_sync::face::SHRUNK;
    use sluice_sync::thread;

    /// Locks as the thread in `slot`, which nobody else is.
    fn count<M: QueuedMode>(lock: &Queued<M>, counter: &AtomicU32, slot: u32, rounds: u32) {
        for _ in 0..rounds {
            if lock.try_lock().is_none() {
                lock.wait(slot);
            }
            // Relaxed: the lock orders it; two steps, so that a second owner would lose one.
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            lock.unlock(());
        }
    }

    fn threads_on_both_sides_of_the_bound_exclude_each_other<M: QueuedMode>() {
        let rounds = if SHRUNK { 5 } else { 2_000 };
        let (lock, counter) = (Queued::<M>::new(), AtomicU32::new(0));
        thread::scope(|scope| {
            for slot in QUEUED_MAX - 1..=QUEUED_MAX + 2 {
                let (lock, counter) = (&lock, &counter);
                scope.spawn(move || count(lock, counter, slot, rounds));
            }
        });
        assert_eq!(counter.into_inner(), 4 * rounds);
    }

    #[test]
    fn threads_past_the_tail_s_bits_wait_outside_the_queue_and_exclude_all_the_same() {
        threads_on_both_sides_of_the_bound_exclude_each_other::<BareMetal>();
        threads_on_both_sides_of_the_bound_exclude_each_other::<Paravirtual>();
    }
}
