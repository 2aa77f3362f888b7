//! The same seed gives the same counts, whatever addresses the objects have: again, and in other processes.

use sluice_machine::Machine;
use sluice_sync_sim::refcache::{Ref, settle};

/// Cycles, operations and accesses of CPUs that count more objects than a cache has room for, made by all of them.
fn counts() -> (u64, u64, u64) {
    let machine = Machine::named("opteron-32").seed(7);
    let shared: Vec<_> = machine.prepare(1, || (0..3_000).map(Ref::new).collect());
    let report = machine.run(8, |cpu| {
        let mut own = Vec::new();
        for round in 0..4_000 {
            own.push(Ref::new(round));
            own.push(shared[cpu.random(3_000) as usize].clone());
            if own.len() > 500 {
                own.swap_remove(cpu.random(500) as usize);
            }
            cpu.count_op();
        }
    });
    drop(shared);
    settle();
    (report.cycles, report.ops(), report.accesses())
}

#[test]
fn counts_of_scalable_references_are_the_same_in_every_process() {
    crate::processes::agree("replay::counts_of_scalable_references_are_the_same_in_every_process", counts);
}
