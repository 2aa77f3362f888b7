//! The locks on the simulated multiprocessor: they exclude, they are fair within bounds, they keep their shapes.
//!
//! Every figure here is simulated. Seeds are fixed and the machine is deterministic, so nothing is timed.

use sluice_machine::{Machine, Report};
use sluice_sync_sim::CachePadded;
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
