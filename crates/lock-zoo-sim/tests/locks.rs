//! The spin locks on the simulated multiprocessor: they exclude, and they keep their shapes.
//!
//! Every figure here is simulated. Seeds are fixed and the machine is deterministic, so nothing is timed.

use sluice_lock_zoo_sim::{
    BareMetal, Cna, Mcs, MutualExclusion, Paravirtual, Queued, RawSpinLock, SpinLock, Tas, TicketLock, Ttas,
};
use sluice_machine::{Machine, Report};
use sluice_sync::CachePadded;

fn spin<R: RawSpinLock>(machine: &Machine, cpus: usize, cycles: u64) -> Report {
    let lock = CachePadded::new(R::default());
    let report = machine.run(cpus, |cpu| {
        while cpu.now() < cycles {
            let token = lock.lock();
            cpu.work(100);
            lock.unlock(token);
            cpu.count_op();
            cpu.work(200 + cpu.random(100));
        }
    });
    assert!(lock.try_lock().is_some(), "{} is free after the run", R::NAME);
    report
}

#[test]
fn every_lock_excludes_on_32_cpus() {
    fn count<R: MutualExclusion>() {
        let lock = CachePadded::new(SpinLock::<u64, R>::new(0));
        let machine = Machine::named("opteron-32").seed(3);
        machine.run(32, |cpu| {
            (0..20).for_each(|_| {
                let mut value = lock.lock();
                let before = *value;
                cpu.work(50);
                *value = before + 1;
            })
        });
        assert_eq!(*lock.lock(), 32 * 20, "{}", R::NAME);
    }
    count::<Tas>();
    count::<Ttas>();
    count::<TicketLock>();
    count::<Mcs>();
    count::<Cna>();
    count::<Queued<BareMetal>>();
    count::<Queued<Paravirtual>>();
}

#[test]
fn queue_locks_stay_flat_where_test_and_set_collapses() {
    let machine = Machine::named("opteron-32").seed(7);
    let ratio = |two: Report, many: Report| many.ops_per_s() / two.ops_per_s();
    let tas = ratio(spin::<Tas>(&machine, 2, 2_000_000), spin::<Tas>(&machine, 32, 2_000_000));
    for (name, kept) in [
        ("mcs", ratio(spin::<Mcs>(&machine, 2, 2_000_000), spin::<Mcs>(&machine, 32, 2_000_000))),
        ("queued", ratio(spin::<Queued>(&machine, 2, 2_000_000), spin::<Queued>(&machine, 32, 2_000_000))),
        ("cna", ratio(spin::<Cna>(&machine, 2, 2_000_000), spin::<Cna>(&machine, 32, 2_000_000))),
    ] {
        println!("simulated: {name} keeps {kept:.2} of its throughput from 2 to 32 CPUs, tas {tas:.2}");
        assert!(kept > 2.0 * tas, "{name}: {kept:.2} against {tas:.2}");
    }
}
