//! Scalable references on the simulated multiprocessor: the flushes of hundreds of threads do not queue for the line that counts
//! them.
//!
//! Every figure here is simulated.

use sluice_machine::Machine;
use sluice_sync_sim::refcache::Ref;

/// The part of a short operation of a file system that belongs to one of its references.
const CYCLES: u64 = 100;
const ROUNDS: usize = 10_000;

#[test]
fn counting_keeps_hundreds_of_cpus_from_waiting_for_each_other() {
    const CPUS: usize = 256;
    let (machine, shared) = (Machine::named("milan-2s").seed(1), Ref::new(()));
    // The first use takes each thread's cache into service.
    machine.run(CPUS, |_| drop(shared.clone()));
    let report = machine.run(CPUS, |cpu| {
        for _ in 0..ROUNDS {
            cpu.work(CYCLES);
            drop(shared.clone());
        }
    });
    let waits = report.places.iter().map(|place| place.stall).sum::<u64>() as f64 / (CPUS * ROUNDS) as f64;
    println!(
        "simulated: one of 256 CPUs waits {waits:.1} cycles for lines each time that it takes a reference"
    );
    assert!(waits < CYCLES as f64 / 20.0, "{waits:.1} of {CYCLES}");
}
