//! Scalable references on the simulated multiprocessor: an idle thread that had counted holds nobody up, nor does a thread that finds
//! that out.
//!
//! Every figure here is simulated.

use sluice_machine::Machine;
use sluice_sync_sim::refcache::Ref;

/// The objects that each CPU drops: enough for the idle thread to be flushed by another, and retired, and for objects that waited
/// for that to be freed.
const OBJECTS: usize = 15_000;

#[test]
fn dropping_objects_scales_beside_a_thread_that_idles() {
    let per_cpu = |cpus: usize| {
        // This thread's cache takes part from now on, and it does not come back to flush it.
        drop(Ref::new(()));
        let report = Machine::named("power7-64").seed(1).run(cpus, |cpu| {
            for _ in 0..OBJECTS {
                drop(Ref::new(()));
                cpu.count_op();
            }
        });
        report.ops_per_s() / cpus as f64
    };
    let kept = per_cpu(32) / per_cpu(1);
    println!("simulated: one of 32 CPUs drops objects {kept:.3} times as often as one alone");
    assert!(kept > 0.9, "{kept:.3}");
}
