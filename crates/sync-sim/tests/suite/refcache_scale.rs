//! Scalable references on the simulated multiprocessor: counting scales with the flushes that it takes.
//!
//! Every figure here is simulated.

use sluice_machine::Machine;
use sluice_sync_sim::refcache::Ref;

#[test]
fn counting_one_object_scales_with_its_flushes_included() {
    let per_cpu = |cpus: usize| {
        let (machine, shared) = (Machine::named("power7-64").seed(1), Ref::new(()));
        // The first use takes each thread's cache into service.
        machine.run(cpus, |_| drop(shared.clone()));
        let report = machine.run(cpus, |cpu| {
            for _ in 0..10_000 {
                drop(shared.clone());
                cpu.count_op();
            }
        });
        report.ops_per_s() / cpus as f64
    };
    let kept = per_cpu(64) / per_cpu(1);
    println!("simulated: one of 64 CPUs takes and drops references {kept:.3} times as often as one alone");
    assert!(kept > 0.9, "{kept:.3}");
}
