//! Models of the per-CPU reference count, which two CPUs' values for three threads make meet.

use crate::model::explore;
use loom::thread;
use sluice_lock_zoo_loom::PerCpuRef;
use sluice_sync::atomic::{AtomicUsize, Ordering};
use sluice_sync::face::{Mutant, seed_mutant};

/// One reference is handed from thread to thread, others come and go, while the count is killed.
fn references_come_and_go_while_the_count_is_killed(preemptions: usize) {
    explore(preemptions, || {
        let calls: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
        let count: &'static PerCpuRef = Box::leak(Box::new(PerCpuRef::new(|| {
            calls.fetch_add(1, Ordering::Relaxed);
        })));
        count.get();
        let user = thread::spawn(|| {
            count.get();
            assert_eq!(calls.load(Ordering::Relaxed), 0, "called back under a reference");
            count.put();
            count.put();
        });
        let taker = thread::spawn(|| {
            if let Some(_held) = count.try_get() {
                assert_eq!(calls.load(Ordering::Relaxed), 0, "called back under a reference");
            }
        });
        count.kill();
        assert!(count.try_get_live().is_none());
        [user, taker].into_iter().for_each(|thread| thread.join().expect("the thread ends"));
        assert_eq!(calls.load(Ordering::Relaxed), 1, "called back once");
        assert!(count.try_get().is_none());
    });
}

#[test]
fn the_count_is_exact_to_zero_and_calls_back_once() {
    seed_mutant(None);
    references_come_and_go_while_the_count_is_killed(2);
}

#[test]
#[should_panic(expected = "called back")]
fn closing_a_count_in_two_steps_is_found() {
    seed_mutant(Some(Mutant::KillInTwoSteps));
    references_come_and_go_while_the_count_is_killed(2);
}
