//! Spin: every spin lock against CPUs, on bare metal, in an overcommitted guest, and natively.
//!
//! # Sources
//! The report of 2015 on queued spin locks and XFS in a guest of 16 virtual CPUs: fs_mark made 312,594 files a
//! second before and 114,144 with the guest's test-and-set fallback. For bare metal: Anderson 1990,
//! Mellor-Crummey and Scott 1991.

use super::curves::Curves;
use super::native;
use super::simulated::{self, Load, Protected, Run, contend};
use super::verdict::Verdict;
use super::{ExperimentSession, Findings};
use crate::row::Row;
use sluice_console::failure::Result;
use sluice_machine::Machine;
use sluice_sync::CachePadded;
use {sluice_lock_zoo as here, sluice_lock_zoo_sim as there};

/// Seeds of the simulated runs; the median counts.
const SEEDS: &[u64] = &[7, 8, 9];

struct SpinMachine {
    machine: &'static str,
    cpus: &'static [usize],
    until: u64,
}

/// A slice of a virtual CPU is 6.6 million cycles, so a guest must run for longer.
const PLACES: &[SpinMachine] = &[
    SpinMachine { machine: "opteron-32", cpus: &[1, 2, 4, 8, 16, 32], until: 8_000_000 },
    SpinMachine { machine: "westmere-160", cpus: &[1, 2, 10, 20, 40, 80, 160], until: 16_000_000 },
    SpinMachine { machine: "vm-16", cpus: &[1, 2, 4, 8, 12, 16], until: 60_000_000 },
];

/// Critical sections: name, cycles inside, lines written inside, cycles outside.
const SECTIONS: &[(&str, u64, usize, u64)] = &[("spin-short", 100, 1, 200), ("spin-long", 2_000, 4, 1_000)];

struct SpinContender {
    name: &'static str,
    simulated: fn(&Machine, usize, &Load) -> Run,
    native: fn(usize, &Load) -> Result<native::NativeRun>,
}

macro_rules! locks {
    ($($lock:ident $(< $mode:ident >)?,)*) => {
        &[$(SpinContender {
            name: <there::$lock $(<there::$mode>)? as there::RawSpinLock>::NAME,
            simulated: on_machine::<there::$lock $(<there::$mode>)?>,
            native: on_this_computer::<here::$lock $(<here::$mode>)?>,
        },)*]
    };
}

const LOCKS: &[SpinContender] = locks![
    Tas,
    Ttas,
    TicketLock,
    Mcs,
    Queued<BareMetal>,
    Queued<Paravirtual>,
    Queued<VirtualTestAndSet>,
    Cna,
];

fn on_machine<R: there::RawSpinLock>(machine: &Machine, cpus: usize, load: &Load) -> Run {
    let (lock, data) = (CachePadded::new(R::default()), Protected::new(load.lines));
    contend(machine, cpus, load, |cpu| {
        let token = lock.lock();
        data.write(cpu, load);
        lock.unlock(token);
    })
}

fn on_this_computer<R: here::RawSpinLock>(cpus: usize, load: &Load) -> Result<native::NativeRun> {
    let lock = CachePadded::new(R::default());
    native::contend(cpus, native::TIME, || {
        let token = lock.lock();
        native::compute(load.inside);
        lock.unlock(token);
        native::compute(load.outside);
    })
}

pub(super) fn steps() -> usize {
    let points: usize = PLACES.iter().map(|place| place.cpus.len()).sum();
    SECTIONS.len() * LOCKS.len() * (points + native::steps_in_turn(native::RUNS))
}

pub(super) fn run(session: &mut ExperimentSession<'_>) -> Result<Findings> {
    let mut rows = Vec::new();
    for place in PLACES {
        for &(section, inside, lines, outside) in SECTIONS {
            let load = Load { inside, lines, outside, until: place.until };
            for &cpus in place.cpus {
                for lock in LOCKS {
                    let what = format!("{section} on {}, {} with {cpus} CPUs", place.machine, lock.name);
                    let row = session.step(&what, || {
                        simulated::row(place.machine, section, lock.name, cpus, SEEDS, |machine| {
                            (lock.simulated)(machine, cpus, &load)
                        })
                    })?;
                    session.row(&row)?;
                    rows.push(row);
                }
            }
        }
    }
    let mut text = Curves(&rows).tables();
    let native = run_natively(session)?;
    text.push_str(&Curves(&native).tables());
    Ok(Findings { tables: text, verdicts: verdicts(&Curves(&rows)) })
}

fn run_natively(session: &mut ExperimentSession<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &(section, inside, lines, outside) in SECTIONS {
        let load = Load { inside, lines, outside, until: 0 };
        let run = |lock: &SpinContender, cpus| (lock.native)(cpus, &load);
        rows.extend(native::in_turn(session, (section, native::RUNS), LOCKS, |lock| lock.name, run)?);
    }
    Ok(rows)
}

fn verdicts(curves: &Curves<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (target, few, many) in [("sim:opteron-32", 2, 32), ("sim:westmere-160", 2, 160)] {
        let kept = |lock| {
            curves.rate("spin-short", target, lock, many) / curves.rate("spin-short", target, lock, few)
        };
        // The number of waiters does not matter to a queue, but how many hand-overs cross nodes does.
        let flat = |lock| {
            curves.rate("spin-short", target, lock, many) / curves.rate("spin-short", target, lock, many / 2)
        };
        verdicts.push(Verdict::new(
            "test-and-set collapses as CPUs are added (Anderson 1990)",
            format!("simulated, {target}: tas keeps {:.0}% from {few} to {many} CPUs", 100.0 * kept("tas")),
            kept("tas") < 0.15,
        ));
        verdicts.push(Verdict::new(
            "a ticket lock decays with CPUs: each hand-over moves the line to all waiters",
            format!(
                "simulated, {target}: ticket keeps {:.0}% from {few} to {many} CPUs, and {:.0}% of the last doubling",
                100.0 * kept("ticket"),
                100.0 * flat("ticket")
            ),
            kept("ticket") < 0.6 && flat("ticket") < 0.8,
        ));
        for lock in ["mcs", "queued"] {
            verdicts.push(Verdict::new(
                format!("{lock} stays flat: one line moves for each hand-over, however many wait"),
                format!(
                    "simulated, {target}: {lock} keeps {:.0}% of the last doubling, to {many} CPUs ({:.0}% from {few}; \
                     counted as flat: 75%, the rest is distance)",
                    100.0 * flat(lock),
                    100.0 * kept(lock)
                ),
                flat(lock) >= 0.75,
            ));
        }
    }
    verdicts.extend(in_the_guest(curves));
    verdicts
}

fn in_the_guest(curves: &Curves<'_>) -> Vec<Verdict> {
    let target = "sim:vm-16";
    let mut verdicts = Vec::new();
    for &(section, ..) in SECTIONS {
        let rate = |lock| curves.rate(section, target, lock, 16);
        let best = LOCKS.iter().map(|lock| rate(lock.name)).fold(0.0, f64::max);
        let part = |lock| 100.0 * rate(lock) / best;
        verdicts.push(Verdict::new(
            "a ticket lock falls apart when virtual CPUs are preempted: the next in line does not run",
            format!("simulated, {target}, {section}, 16 CPUs: ticket has {:.1}% of the best", part("ticket")),
            part("ticket") < 20.0,
        ));
        if section == "spin-short" {
            let loss = 100.0 * (1.0 - rate("queued-tas-fallback") / rate("ttas"));
            verdicts.push(Verdict::new(
                "fs_mark in a guest of 16 virtual CPUs: 312,594 files/s, 114,144 with the test-and-set fallback (-63%)",
                format!(
                    "simulated, {target}, {section}, 16 CPUs: the fallback loses {loss:.0}% against ttas with back-off \
                     (wanted: 60% or more)"
                ),
                loss >= 60.0,
            ));
        }
        verdicts.push(Verdict::new(
            "the paravirtual queued lock is within 5% of the best",
            format!(
                "simulated, {target}, {section}, 16 CPUs: queued-pv has {:.1}% of the best",
                part("queued-pv")
            ),
            part("queued-pv") >= 95.0,
        ));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::median;

    const SHORT: Load = Load { inside: 100, lines: 1, outside: 200, until: 400_000 };

    /// The median of the seeds: each is another history of preemptions.
    fn rate(machine: &str, name: &str, cpus: usize, load: &Load) -> f64 {
        let lock = LOCKS.iter().find(|lock| lock.name == name).expect("a lock of that name");
        let rate = |&seed| (lock.simulated)(&Machine::named(machine).seed(seed), cpus, load).ops_per_s();
        median(&SEEDS.iter().map(rate).collect::<Vec<f64>>()).expect("a run of each seed")
    }

    #[test]
    fn every_lock_is_listed_once_under_the_name_that_tools_parse() {
        let names: Vec<_> = LOCKS.iter().map(|lock| lock.name).collect();
        assert_eq!(
            names,
            ["tas", "ttas", "ticket", "mcs", "queued", "queued-pv", "queued-tas-fallback", "cna"]
        );
    }

    #[test]
    fn test_and_set_collapses_where_a_queue_does_not() {
        let kept = |lock| rate("opteron-32", lock, 16, &SHORT) / rate("opteron-32", lock, 2, &SHORT);
        let (tas, ticket, mcs) = (kept("tas"), kept("ticket"), kept("mcs"));
        assert!(tas < 0.2 && ticket < 0.35 && mcs > 0.5, "tas {tas:.2}, ticket {ticket:.2}, mcs {mcs:.2}");
    }

    #[test]
    fn the_fallback_of_a_guest_loses_most_of_what_back_off_has() {
        let load = Load { until: 40_000_000, ..SHORT };
        let [fallback, ttas, ticket, pv] =
            ["queued-tas-fallback", "ttas", "ticket", "queued-pv"].map(|lock| rate("vm-16", lock, 16, &load));
        assert!(fallback < 0.4 * ttas, "fallback {fallback:.0}, ttas {ttas:.0}");
        assert!(ticket < 0.1 * pv, "ticket {ticket:.0}, queued-pv {pv:.0}");
    }

    #[test]
    fn the_cycles_are_the_same_in_every_process() {
        let cycles = |name: &str| {
            let lock = LOCKS.iter().find(|lock| lock.name == name).expect("a lock of that name");
            (lock.simulated)(&Machine::named("opteron-32").seed(7), 4, &SHORT).report.cycles
        };
        assert_eq!(["tas", "ticket", "mcs"].map(cycles), [401_250, 401_746, 401_379]);
    }

    #[test]
    fn native_runs_count_what_every_thread_did() {
        for lock in LOCKS {
            let run = (lock.native)(1, &SHORT).expect("a CPU to pin to");
            assert!(run.ops.len() == 1 && run.total() > 0 && run.ops_per_s() > 0.0, "{}", lock.name);
        }
    }
}
