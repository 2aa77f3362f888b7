//! Thread slots: a small number for every live thread, so that per-thread memory is an array index.
//!
//! # Then
//! - two threads never have the same slot, until one of them has ended, its destructors of thread-local values
//!   included: they may still drop guards that know the slot;
//! - the lowest free number is given out, so tables indexed by slot stay as small as the crowd was large.
//!
//! # Theory
//! A thread cannot say "I have ended": whatever it runs last may be followed by another destructor. So it only says
//! that it is *ending*, and a thread that needs a slot asks the kernel whether such threads are gone. Should the kernel
//! have given a gone thread's number to a new one, the slot waits until that one is gone too.

use rustix::process::Pid;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};

struct Slots {
    /// Slots of threads that have ended, lowest first. *protected by `SLOTS`*
    free: BinaryHeap<Reverse<u32>>,
    /// Slots of threads that have begun to end, and the threads. *protected by `SLOTS`*
    ending: Vec<(u32, Pid)>,
    /// The lowest number never given out. *protected by `SLOTS`*
    next: u32,
}

static SLOTS: Mutex<Slots> = Mutex::new(Slots { free: BinaryHeap::new(), ending: Vec::new(), next: 0 });

/// Tells that its thread is ending.
struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(slot) = SLOT.get().checked_sub(1) {
            let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
            slots.ending.push((slot, thread_number()));
        }
    }
}

thread_local! {
    /// The calling thread's slot plus one, 0 while it has none. *owner only*
    static SLOT: Cell<u32> = const { Cell::new(0) };
    /// The calling thread's slot once it is taken, where membarrier(2) works; else [`NONE`]. *owner only*
    #[cfg(not(feature = "sim"))]
    static READY: Cell<u32> = const { Cell::new(NONE) };
    static LEASE: Lease = const { Lease };
}

/// No slot.
#[cfg(not(feature = "sim"))]
const NONE: u32 = u32::MAX;

/// The calling thread's slot if it was asked for before and [`membarrier`](super::membarrier) works: one load answers
/// both. Else a number past all slots.
#[cfg(not(feature = "sim"))]
#[inline]
pub(super) fn ready() -> u32 {
    READY.get()
}

/// The calling thread's slot.
#[inline]
pub(super) fn current() -> u32 {
    match SLOT.get() {
        0 => take(),
        taken => taken - 1,
    }
}

#[cold]
fn take() -> u32 {
    let slot = {
        let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let Slots { free, ending, next } = &mut *slots;
        free.extend(ending.extract_if(.., |(_, thread)| has_ended(*thread)).map(|(slot, _)| Reverse(slot)));
        free.pop().map_or_else(
            || {
                *next += 1;
                *next - 1
            },
            |Reverse(slot)| slot,
        )
    };
    SLOT.set(slot + 1);
    #[cfg(not(feature = "sim"))]
    READY.set(if super::membarrier_works() { slot } else { NONE });
    // Touching the lease arms its destructor. That it has run already cannot be: it leaves the slot set.
    LEASE.with(|_| ());
    slot
}

#[cfg(not(miri))]
fn thread_number() -> Pid {
    rustix::thread::gettid()
}

/// Whether the kernel knows a thread no more. Where it cannot be asked, nothing ends.
#[cfg(not(miri))]
fn has_ended(thread: Pid) -> bool {
    use rustix::process::test_kill_process;
    test_kill_process(thread) == Err(rustix::io::Errno::SRCH) && test_kill_process(thread_number()).is_ok()
}

/// The interpreter has no numbers for threads.
#[cfg(miri)]
fn thread_number() -> Pid {
    Pid::INIT
}

/// Under the interpreter slots are not given out again.
#[cfg(miri)]
fn has_ended(_thread: Pid) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::current;
    use std::cell::RefCell;
    use std::sync::Barrier;
    use std::sync::mpsc::{Sender, channel};

    #[test]
    fn live_threads_have_different_slots() {
        let barrier = Barrier::new(8);
        let mut slots: Vec<u32> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let slot = current();
                        assert_eq!(slot, current());
                        barrier.wait();
                        slot
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("ends")).collect()
        });
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), 8);
    }

    #[cfg(not(miri))]
    #[test]
    fn a_slot_is_given_out_again_after_its_thread_ended() {
        // Other tests take slots meanwhile, so look at the size of the range, not at single numbers.
        let highest = (0..2_000).map(|_| std::thread::spawn(current).join().expect("ends")).max();
        assert!(highest < Some(1_000));
    }

    /// When dropped, looks which slots a crowd of new threads gets while its own thread is ending.
    struct Last(u32, Sender<(u32, Vec<u32>)>);

    impl Drop for Last {
        fn drop(&mut self) {
            let barrier = Barrier::new(40);
            let others = std::thread::scope(|scope| {
                let slot = || {
                    let slot = current();
                    barrier.wait();
                    slot
                };
                let threads: Vec<_> = (0..40).map(|_| scope.spawn(slot)).collect();
                threads.into_iter().map(|thread| thread.join().expect("ends")).collect()
            });
            // The receiver waits for both.
            let _ = self.1.send((self.0, others));
        }
    }

    std::thread_local! {
        static EARLY: RefCell<Option<Last>> = const { RefCell::new(None) };
        static LATE: RefCell<Option<Last>> = const { RefCell::new(None) };
    }

    #[test]
    fn a_guard_that_outlives_the_lease_finds_its_slot_still_its_own() {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            // Destructors are registered before and after the slot's, so one of them runs after the slot's destructor.
            EARLY.with_borrow_mut(|early| {
                let slot = current();
                *early = Some(Last(slot, sender.clone()));
                LATE.set(Some(Last(slot, sender)));
            });
        });
        for (own, others) in receiver.iter().take(2) {
            assert!(!others.contains(&own), "slot {own} was given to another thread: {others:?}");
        }
    }
}
