//! The layer of virtual CPUs: preemption, halting, stealing.

use std::cell::Cell;

use sluice_machine::atomic::{AtomicU32, Ordering};
use sluice_machine::cell::OwnLine;
use sluice_machine::{
    Machine, Parked, VcpuOptions, cpu, halt, is_running, kick, membarrier, park, random, spin_loop,
    spin_until, spin_until_for, unpark, work,
};

fn options(physical: usize) -> VcpuOptions {
    VcpuOptions {
        physical,
        quantum: 10_000,
        switch: 100,
        wakeup_granularity: 1_000,
        steal_per_mille: 0,
        steal: 0,
    }
}

fn guest(physical: usize) -> Machine {
    Machine::named("opteron-32").jitter(false).vcpus(options(physical))
}

#[test]
fn two_on_one_physical_cpu_take_turns() {
    let report = guest(1).run(2, |_| work(100_000));
    assert!((200_000..205_000).contains(&report.cycles), "{}", report.cycles);
    assert!(report.cpus.iter().all(|cpu| cpu.busy == 100_000));
    let preempted: u64 = report.cpus.iter().map(|cpu| cpu.preempted).sum();
    assert!((170_000..205_000).contains(&preempted), "{preempted}");
}

#[test]
fn enough_physical_cpus_mean_no_preemption() {
    let report = guest(8).run(8, |_| work(100_000));
    assert_eq!((report.cycles, report.preempted()), (100_000, 0.0));
}

#[test]
fn a_preempted_lock_holder_holds_everybody_up() {
    let lock = Box::new(OwnLine(AtomicU32::new(1)));
    let body = |cpu: usize| match cpu {
        0 => {
            work(30_000);
            lock.store(0, Ordering::Release);
        }
        _ => assert_eq!(spin_until(&**lock, |value| value == 0), 0),
    };
    let bare = Machine::named("opteron-32").jitter(false).run(4, |cpu| body(cpu.id()));
    lock.store(1, Ordering::Relaxed);
    let guest = guest(1).run(4, |cpu| body(cpu.id()));
    assert!(bare.cycles < 31_000);
    // The three that wait burn whole quanta in which the holder cannot run: at least six of 10,000 cycles.
    assert!(guest.cycles > 85_000, "{}", guest.cycles);
    assert!(guest.cpus[0].preempted > 50_000);
    assert!(guest.cpus[1].spinning > 10_000);
}

#[test]
fn a_halted_cpu_frees_its_physical_one_and_a_kick_brings_it_back() {
    let woken = Cell::new(0);
    let report = guest(1).run(2, |cpu| match cpu.id() {
        0 => {
            halt();
            woken.set(cpu.now());
        }
        _ => {
            work(50_000);
            kick(0);
        }
    });
    assert!(report.cpus[0].idle > 40_000, "{:?}", report.cpus[0]);
    assert!(woken.get() > 50_000);
    // CPU 1 was alone on the physical CPU while CPU 0 was halted.
    assert!(report.cpus[1].preempted < 15_000, "{:?}", report.cpus[1]);
}

#[test]
fn a_kick_before_the_halt_is_kept() {
    let report = Machine::named("opteron-32").jitter(false).run(2, |cpu| match cpu.id() {
        0 => kick(1),
        _ => {
            work(100_000);
            halt();
        }
    });
    assert_eq!(report.cpus[1].idle, 0);
}

#[test]
fn a_woken_cpu_soon_preempts_a_running_one() {
    let word = Box::new(OwnLine(AtomicU32::new(0)));
    let report =
        Machine::named("opteron-32").vcpus(VcpuOptions { quantum: 10_000_000, ..options(1) }).run(2, |cpu| {
            match cpu.id() {
                0 => assert_eq!(park(&word, 0, None), Parked::Woken),
                _ => {
                    work(50_000);
                    unpark(&word, 1);
                    work(1_000_000);
                }
            }
        });
    assert!(report.cpus[0].cycles < 10_000_000 / 4 + 200_000, "{}", report.cpus[0].cycles);
    assert!(report.cpus[0].cycles < report.cpus[1].cycles);
}

#[test]
fn spinners_learn_that_the_owner_was_preempted() {
    let done = Box::new(OwnLine(AtomicU32::new(0)));
    let seen = Cell::new(false);
    guest(2).run(3, |cpu| match cpu.id() {
        0 => {
            work(60_000);
            done.store(1, Ordering::Release);
        }
        1 => {
            while done.load(Ordering::Acquire) == 0 {
                seen.set(seen.get() || !is_running(0));
                spin_loop();
            }
        }
        _ => work(60_000),
    });
    assert!(seen.get());
}

#[test]
fn other_guests_steal_time() {
    let stolen = VcpuOptions { steal_per_mille: 1000, steal: 5_000, ..options(4) };
    let report = Machine::named("opteron-32").vcpus(stolen).run(4, |_| work(100_000));
    for cpu in &report.cpus {
        assert_eq!(cpu.busy, 100_000);
        assert!((45_000..60_000).contains(&cpu.preempted), "{cpu:?}");
    }
}

#[test]
fn stolen_spinners_wake_up_all_the_same() {
    let flag = Box::new(OwnLine(AtomicU32::new(0)));
    let stolen = VcpuOptions { steal_per_mille: 500, steal: 25_000, ..options(3) };
    let report = Machine::named("opteron-32").vcpus(stolen).run(4, |cpu| match cpu.id() {
        0 => {
            work(200_000);
            flag.store(1, Ordering::Release);
        }
        _ => assert_eq!(spin_until(&**flag, |value| value == 1), 1),
    });
    for cpu in &report.cpus {
        assert_eq!(cpu.busy + cpu.spinning + cpu.idle + cpu.preempted, cpu.cycles);
    }
    assert!(report.preempted() > 0.0);
}

#[test]
fn whatever_cpus_do_everyone_finishes_and_the_times_add_up() {
    let words: Vec<OwnLine<AtomicU32>> = (0..4).map(|_| OwnLine::default()).collect();
    let body = || {
        for _ in 0..60 {
            let word = &words[(random() % 4) as usize];
            match random() % 8 {
                0 => {
                    let seen = word.load(Ordering::Relaxed);
                    if park(word, seen, Some(random() % 30_000)) == Parked::Changed {
                        assert_ne!(word.load(Ordering::Relaxed), seen);
                    }
                }
                1 => assert!(unpark(word, 2) <= 2),
                2 => kick((random() % 9) as usize),
                3 => {
                    let found = spin_until_for(&**word, random() % 40_000, |value| value % 7 == 0);
                    assert!(found.is_none_or(|value| value % 7 == 0));
                }
                4 => membarrier(),
                5 => assert!(is_running(cpu())),
                6 => assert!(word.fetch_add(1, Ordering::Relaxed) < 1_000_000),
                _ => work(random() % 20_000),
            }
        }
    };
    for seed in 0..60 {
        let physical = 1 + seed as usize % 9;
        let stealing = VcpuOptions { steal_per_mille: 300, steal: 7_000, ..options(physical) };
        for vcpus in [options(physical), stealing] {
            let machine = Machine::named("opteron-32").seed(seed).vcpus(vcpus);
            let report = machine.run(9, |_| body());
            for cpu in &report.cpus {
                assert_eq!(cpu.busy + cpu.spinning + cpu.idle + cpu.preempted, cpu.cycles);
                assert!(cpu.busy > 60, "{cpu:?}");
            }
        }
    }
}
