//! Deferred work on the simulated multiprocessor: hundreds of threads share grace periods, so that none waits long for the lines
//! that tell of them.
//!
//! Every figure here is simulated.

use sluice_machine::Machine;
use sluice_sync_sim::rcu::domain;

/// As long as a short operation of a file system takes.
const CYCLES: u64 = 1_000;
const ROUNDS: usize = 2_000;

#[test]
fn deferring_keeps_hundreds_of_cpus_from_waiting_for_each_other() {
    const CPUS: usize = 256;
    let report = Machine::named("milan-2s").seed(1).run(CPUS, |cpu| {
        for _ in 0..ROUNDS {
            let section = domain().read();
            cpu.work(CYCLES);
            drop(section);
            domain().defer(|| ());
        }
    });
    let waits = report.places.iter().map(|place| place.stall).sum::<u64>() / (CPUS * ROUNDS) as u64;
    println!("simulated: one of 256 CPUs waits {waits} cycles for lines each time that it defers");
    assert!(waits < CYCLES / 20, "{waits} of {CYCLES}");
}
