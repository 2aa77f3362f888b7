//! Seeded faults: a model that cannot find these proves nothing.

use crate::model::explore;
use loom::thread;
use sluice_lock_zoo_loom::{SpinLock, TicketLock};
use sluice_sync::face::{Mutant, seed_mutant};

/// The lock outlives its execution: a test that dies in mid-execution must not run loom's destructors.
fn two_threads_count_under_a_ticket_lock() {
    explore(2, || {
        let lock: &SpinLock<_, TicketLock> = Box::leak(Box::new(SpinLock::new(0)));
        let thread = thread::spawn(|| *lock.lock() += 1);
        *lock.lock() += 1;
        thread.join().expect("the thread ends");
    });
}

#[test]
fn the_ticket_lock_passes_without_a_fault() {
    seed_mutant(None);
    two_threads_count_under_a_ticket_lock();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_dropped_barrier_is_found() {
    seed_mutant(Some(Mutant::TicketWithoutBarrier));
    two_threads_count_under_a_ticket_lock();
}
