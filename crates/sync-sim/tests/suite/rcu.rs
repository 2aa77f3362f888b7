//! RCU on the simulated multiprocessor: threads that defer share grace periods, and a thread that waits for readers at work interrupts
//! none.
//!
//! Every figure here is simulated.

use sluice_machine::{Machine, machines};
use sluice_sync_sim::rcu::{Domain, domain};

/// The pieces of work that each CPU defers.
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

#[test]
fn readers_who_work_are_waited_for_without_an_interrupt() {
    const PERIODS: usize = 100;
    const SECTIONS: usize = 2_000;
    // The busy time of a CPU that reads, while another waits for it or not.
    let busy = |periods: usize| {
        let domain: &Domain = domain();
        let report = Machine::named("power7-64").seed(1).run(2, |cpu| match cpu.id() {
            0 => {
                for _ in 0..SECTIONS {
                    drop(domain.read());
                    cpu.work(1_000);
                }
            }
            _ => (0..periods).for_each(|_| domain.synchronize()),
        });
        report.cpus[0].busy
    };
    let cost = (busy(PERIODS) - busy(0)) / PERIODS as u64;
    println!("simulated: a grace period costs a CPU that reads {cost} cycles");
    let interrupt = machines::find("power7-64").expect("a named machine").costs.interrupt;
    assert!(cost < interrupt.into(), "as much as an interrupt: {cost}");
}
