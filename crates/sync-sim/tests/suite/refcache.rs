//! Scalable references on the simulated multiprocessor: taking and dropping one writes no shared line.
//!
//! Every figure here is simulated.

use sluice_machine::Machine;
use sluice_sync_sim::refcache::{Ref, settle};

#[test]
fn taking_and_dropping_one_reference_on_64_cpus_shares_no_written_line() {
    let shared = Ref::new([7u64; 4]);
    let report = Machine::named("power7-64").seed(1).run(64, |cpu| {
        // The first use takes the thread's cache into service.
        drop(shared.clone());
        cpu.watch(|| {
            for _ in 0..100 {
                let mine = shared.clone();
                assert_eq!(mine[cpu.id() % 4], 7);
            }
        });
    });
    assert!(report.conflicts.is_empty(), "{}", report.conflicts);
    assert!(report.conflicts.lines_touched >= 64, "they were watched");
}

#[test]
fn taking_and_dropping_one_reference_reaches_for_few_words() {
    let shared = Ref::new(());
    let accesses = |times: usize| {
        let report = Machine::named("uma-2").run(1, |_| (0..times).for_each(|_| drop(shared.clone())));
        report.accesses()
    };
    // The first use takes the cache into service, and gives the object a place in it.
    accesses(1);
    // Each of the two counts: going in, three looks at a cache that lies in two lines, going out.
    assert_eq!(accesses(101) - accesses(1), 100 * 2 * (2 + 3 * 2 + 1));
}

#[test]
fn what_stands_is_not_given_up_for_what_passes() {
    let shared = Ref::standing([7u64; 4]);
    // So many that every way of a cache has been taken by one of them.
    let others: Vec<Ref<usize>> = (0..4 * 1024).map(Ref::new).collect();
    let report = Machine::named("skylake-4").seed(1).run(4, |cpu| {
        let held = shared.clone();
        cpu.watch(|| {
            for other in &others[cpu.id() * 1024..][..1024] {
                drop((shared.clone(), other.clone()));
            }
        });
        drop(held);
    });
    let conflicts = report.conflicts.to_string();
    // All flush, and count that; but the others' objects are read and written by one CPU each, and the shared one by none.
    assert!(!conflicts.contains("object.rs"), "{conflicts}");
}

#[test]
fn a_value_outlives_references_that_hop_between_cpus_and_dies_with_the_last() {
    use sluice_sync_sim::Mutex;
    use sluice_sync_sim::atomic::{AtomicUsize, Ordering};
    static ENDS: AtomicUsize = AtomicUsize::new(0);
    struct Noted;
    impl Drop for Noted {
        fn drop(&mut self) {
            ENDS.fetch_add(1, Ordering::Relaxed);
        }
    }
    let place = Mutex::new(Ref::new(Noted));
    for seed in 0..20 {
        Machine::named("opteron-32").seed(seed).run(8, |_| {
            for _ in 0..3_000 {
                let next = place.lock().clone();
                drop(std::mem::replace(&mut *place.lock(), next));
            }
            assert_eq!(ENDS.load(Ordering::Relaxed), 0, "dropped under a reference");
        });
    }
    drop(place);
    settle();
    assert_eq!(ENDS.load(Ordering::Relaxed), 1);
}

#[test]
fn a_busy_thread_frees_what_it_made_and_others_free_that_of_an_idle_one() {
    use sluice_machine::cpu;
    use sluice_sync_sim::atomic::{AtomicUsize, Ordering};
    static FREED_BY_OTHERS: AtomicUsize = AtomicUsize::new(0);
    struct MadeOn(usize);
    impl Drop for MadeOn {
        fn drop(&mut self) {
            if cpu() != self.0 {
                FREED_BY_OTHERS.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Machine::named("power7-64").seed(1).run(4, |cpu| {
        let slow = cpu.id() == 0;
        for _ in 0..if slow { 6_000 } else { 60_000 } {
            drop(Ref::new(MadeOn(cpu.id())));
            cpu.work(if slow { 1_500 } else { 500 });
        }
        if slow {
            assert_eq!(FREED_BY_OTHERS.load(Ordering::Relaxed), 0, "while all are busy, if one at a third");
        }
    });
    assert!(FREED_BY_OTHERS.load(Ordering::Relaxed) > 0, "the slow thread has been idle");
    settle();
}
