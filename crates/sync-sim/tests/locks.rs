//! The locks on the simulated multiprocessor: they exclude, they are fair within bounds, they keep their shapes.
//!
//! Every figure here is simulated. Seeds are fixed and the machine is deterministic, so nothing is timed.

use sluice_machine::{Machine, Report};
use sluice_sync_sim::CachePadded;
use sluice_sync_sim::spin::{BareMetal, Cna, Mcs, Paravirtual, Queued, RawSpinLock, Tas, Ticket, Ttas};
use sluice_sync_sim::{Mutex, RwLock};

/// Throughput of `section` on `cpus` CPUs, each doing it until the machine's clock says `cycles`.
fn drive(machine: &Machine, cpus: usize, cycles: u64, section: impl Fn()) -> Report {
    machine.run(cpus, |cpu| {
        while cpu.now() < cycles {
            section();
            cpu.count_op();
            cpu.work(200 + cpu.random(100));
        }
    })
}

fn spin<R: RawSpinLock>(machine: &Machine, cpus: usize, cycles: u64) -> Report {
    let lock = CachePadded::new(R::default());
    let report = drive(machine, cpus, cycles, || {
        let token = lock.lock();
        sluice_machine::work(100);
        lock.unlock(token);
    });
    assert!(lock.try_lock().is_some(), "{} is free after the run", R::NAME);
    report
}

#[test]
fn every_lock_excludes_on_32_cpus() {
    fn count<R: sluice_sync_sim::spin::MutualExclusion>() {
        let lock = CachePadded::new(sluice_sync_sim::spin::SpinLock::<u64, R>::new(0));
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
    count::<Ticket>();
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

#[test]
fn an_rwsem_in_write_mode_is_worth_a_mutex() {
    // Cycles of work with the lock and without it.
    for (inside, outside) in [(0, 300), (100, 200), (1_600, 1_500)] {
        for (machine, cpus) in [("skylake-4", 4), ("opteron-32", 32), ("westmere-160", 160)] {
            let machine = Machine::named(machine).seed(11);
            let mutex = CachePadded::new(Mutex::new(0u64));
            let rwsem = CachePadded::new(RwLock::new(0u64));
            let work = |value: &mut u64| {
                *value += 1;
                sluice_machine::work(inside);
            };
            let of_mutex = drive(&machine, cpus, 3_000_000, || {
                work(&mut mutex.lock());
                sluice_machine::work(outside);
            });
            let of_rwsem = drive(&machine, cpus, 3_000_000, || {
                work(&mut rwsem.write());
                sluice_machine::work(outside);
            });
            let ratio = of_rwsem.ops_per_s() / of_mutex.ops_per_s();
            println!(
                "simulated: {cpus} CPUs, {inside} + {outside} cycles, rwsem in write mode / mutex = {ratio:.3}"
            );
            println!("  idle {:.2} / {:.2}", of_rwsem.idle(), of_mutex.idle());
            assert!(ratio > 0.99, "{cpus} CPUs, {inside} + {outside} cycles: {ratio:.3}");
        }
    }
}

#[test]
fn neither_readers_nor_writers_of_an_rwsem_starve_the_other() {
    for (machine, cpus) in [("skylake-4", 4), ("opteron-32", 32), ("westmere-160", 160)] {
        for readers in [1, cpus - 1] {
            let lock = CachePadded::new(RwLock::new(0u64));
            let report = Machine::named(machine).seed(5).run(cpus, |cpu| {
                while cpu.now() < 3_000_000 {
                    if cpu.id() < readers {
                        drop(lock.read());
                    } else {
                        drop(lock.write());
                    }
                    cpu.count_op();
                    // Without a pause the owner takes the lock again before its line is gone.
                    cpu.work(200 + cpu.random(100));
                }
            });
            let least = report.cpus.iter().map(|cpu| cpu.ops).min().unwrap_or(0);
            println!("simulated: {machine}, {readers} readers of {cpus}: least {least}");
            assert!(least >= 2, "{machine}, {readers} readers of {cpus}: {least}");
        }
    }
}
