//! The same seed gives the same cycle counts: again, in another process, under another address layout.

use crate::locks::{Mcs, Tas, Ticket, Ttas, contend};
use sluice_machine::atomic::{AtomicU32, Ordering};
use sluice_machine::cell::OwnLine;
use sluice_machine::{Machine, Report, park, unpark};

/// Workers take turns through a futex.
fn parking(machine: &Machine, cpus: usize) -> Report {
    let turn = Box::new(OwnLine(AtomicU32::new(0)));
    machine.run(cpus, |cpu| {
        for round in 0..20 {
            let mine = round * cpus as u32 + cpu.id() as u32;
            loop {
                let now = turn.load(Ordering::Acquire);
                if now == mine {
                    break;
                }
                park(&turn, now, None);
            }
            cpu.work(cpu.random(5_000));
            turn.store(mine + 1, Ordering::Release);
            unpark(&turn, cpus);
        }
    })
}

/// Cycles and operations of several runs.
fn counts(seed: u64) -> Vec<(u64, u64)> {
    let machine = |name: &str| Machine::named(name).seed(seed);
    let reports = [
        contend::<Tas>(&machine("opteron-32"), 32, 200_000, 100, 100),
        contend::<Ttas>(&machine("opteron-32"), 32, 200_000, 100, 100),
        contend::<Ticket>(&machine("westmere-160"), 160, 200_000, 100, 100),
        contend::<Mcs>(&machine("milan-2s"), 256, 200_000, 100, 100),
        contend::<Ttas>(&machine("vm-16"), 16, 8_000_000, 100, 1_000),
        parking(&machine("icelake-2s"), 12),
        parking(&machine("vm-16"), 16),
    ];
    reports.iter().map(|report| (report.cycles, report.ops() + report.accesses())).collect()
}

#[test]
fn the_same_seed_gives_the_same_counts_in_every_process() {
    crate::processes::agree("determinism::the_same_seed_gives_the_same_counts_in_every_process", || {
        counts(7)
    });
}

#[test]
fn another_seed_gives_other_counts() {
    assert_ne!(counts(7), counts(8));
}

#[test]
fn these_counts_change_only_with_the_model() {
    let machine = Machine::named("opteron-32").seed(7);
    let count = |report: Report| (report.cycles, report.ops(), report.accesses(), report.misses());
    let found = [
        count(contend::<Tas>(&machine, 16, 200_000, 100, 100)),
        count(contend::<Ticket>(&machine, 16, 200_000, 100, 100)),
        count(contend::<Mcs>(&machine, 16, 200_000, 100, 100)),
        count(contend::<Ttas>(&Machine::named("vm-16").seed(7), 16, 8_000_000, 100, 1_000)),
        count(parking(&machine, 8)),
    ];
    // A change of the model or of a machine's figures changes these: say so in the commit that does it.
    let expected = [
        (225463, 83, 3748, 1290),
        (212621, 188, 3635, 3075),
        (210434, 288, 2867, 2012),
        (8033523, 16463, 93719, 87614),
        (2026348, 0, 1708, 905),
    ];
    assert_eq!(found, expected);
}
