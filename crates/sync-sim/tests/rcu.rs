//! RCU on the simulated multiprocessor: threads that defer share grace periods.
//!
//! Every figure here is simulated.

use sluice_machine::Machine;
use sluice_sync_sim::rcu::{Domain, domain};

/// What each CPU defers.
const PIECES: usize = 4_096;

#[test]
fn deferring_scales_with_its_grace_periods_included() {
    let per_cpu = |cpus: usize| {
        let domain: &Domain = domain();
        let report = Machine::named("power7-64").seed(1).run(cpus, |cpu| {
            for _ in 0..PIECES {
                // A removal in a structure, of a microsecond.
                drop(domain.read());
                cpu.work(4_000);
                domain.defer(|| ());
                cpu.count_op();
            }
        });
        domain.flush();
        report.ops_per_s() / cpus as f64
    };
    let kept = per_cpu(64) / per_cpu(1);
    println!("simulated: one of 64 CPUs defers {kept:.3} times as often as one alone");
    assert!(kept > 0.9, "{kept:.3}");
}
