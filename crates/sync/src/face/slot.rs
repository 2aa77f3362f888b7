//! Thread slots: a small number for every live thread, so that per-thread memory is an array index.
//!
//! # Then
//! - two live threads never have the same slot; the slot of an ended thread is given out again;
//! - the lowest free number is given out, so tables indexed by slot stay as small as the crowd was large.
//!
//! A thread that asks again after its destructors of thread-local values have run gets a fresh slot,
//! which is then never given back.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};

struct Slots {
    /// Slots of ended threads, lowest first. *protected by `SLOTS`*
    free: BinaryHeap<Reverse<u32>>,
    /// The lowest number never given out. *protected by `SLOTS`*
    next: u32,
}

static SLOTS: Mutex<Option<Slots>> = Mutex::new(None);

/// Gives the slot back when the thread ends.
struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        let slot = SLOT.replace(0);
        if slot != 0 {
            let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(slots) = slots.as_mut() {
                slots.free.push(Reverse(slot - 1));
            }
        }
    }
}

thread_local! {
    /// The calling thread's slot plus one, 0 while it has none. *owner only*
    static SLOT: Cell<u32> = const { Cell::new(0) };
    static LEASE: Lease = const { Lease };
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
        let slots = slots.get_or_insert_with(|| Slots { free: BinaryHeap::new(), next: 0 });
        if let Some(Reverse(slot)) = slots.free.pop() {
            slot
        } else {
            slots.next += 1;
            slots.next - 1
        }
    };
    SLOT.set(slot + 1);
    // Touching the lease arms its destructor; when that has already run, the slot stays taken.
    let _ = LEASE.try_with(|_| ());
    slot
}

#[cfg(test)]
mod tests {
    use super::current;

    #[test]
    fn live_threads_have_different_slots() {
        let barrier = std::sync::Barrier::new(8);
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

    #[test]
    fn a_slot_is_given_out_again_after_its_thread_ended() {
        // Other tests take slots meanwhile, so look at the size of the range, not at single numbers.
        let (threads, range) = if cfg!(miri) { (100, 60) } else { (2_000, 1_000) };
        let highest = (0..threads).map(|_| std::thread::spawn(current).join().expect("ends")).max();
        assert!(highest < Some(range));
    }
}
