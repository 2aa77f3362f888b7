//! Readdir: all CPUs read one directory, alone and beside unlink, with the cursors of 2016 and ours.

use super::curves::Curves;
use super::library::{self, Load};
use super::simulated::{self, contend};
use super::verdict::Verdict;
use super::{ExperimentSession, Findings, native};
use crate::history::on_host;
use crate::history::readdir_2016::Directory2016;
use crate::row::Row;
use crate::simulated_fs::On;
use sluice_console::failure::Result;
use sluice_machine::Cpu;

const SEEDS: &[u64] = &[7, 8];
const MACHINE: &str = "power7-64";
const CPUS: &[usize] = &[1, 2, 4, 8, 16, 32, 64];
const LARGE: &str = "milan-2s";
const LARGE_CPUS: &[usize] = &[1, 16, 64, 256];

/// Names in the directory, as the workloads of the library have it.
const NAMES: usize = 1000;
/// Time for at least a few lists by each of 64 CPUs that take turns for every name.
const MODEL: simulated::Load = simulated::Load { inside: 0, lines: 0, outside: 2_000, until: 120_000_000 };

type Operation = fn(&Directory2016, &Cpu);

const MODELS: &[(&str, Operation)] = &[("MRDM", Directory2016::list), ("readdir-unlink", list_or_unlink)];

fn list_or_unlink(directory: &Directory2016, cpu: &Cpu) {
    if cpu.random(2) == 0 { directory.list(cpu) } else { directory.unlink_create(cpu) }
}

type HostOperation = fn(&on_host::readdir_2016::Directory2016, &on_host::Cpu);

/// The same design on this computer, reading and changing in turn.
const HOST_MODELS: &[(&str, HostOperation)] = &[
    ("MRDM", on_host::readdir_2016::Directory2016::list),
    ("readdir-unlink", |directory, cpu| {
        directory.list(cpu);
        directory.unlink_create(cpu);
    }),
];

fn run_natively(session: &mut ExperimentSession<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &(workload, operation) in HOST_MODELS {
        let run = |_: &&str, cpus| {
            let directory = on_host::readdir_2016::Directory2016::new(NAMES);
            native::contend(cpus, native::TIME, || operation(&directory, &on_host::Cpu))
        };
        rows.extend(native::in_turn(session, (workload, native::RUNS), &["before"], |name| name, run)?);
    }
    Ok(rows)
}

fn loads() -> impl Iterator<Item = Load> {
    let on = |machine, cpus| {
        move |&(workload, _): &(&'static str, Operation)| Load {
            workload,
            machine,
            on: On::Ram,
            cpus,
            ops: 8,
        }
    };
    MODELS.iter().map(on(MACHINE, CPUS)).chain(MODELS.iter().map(on(LARGE, LARGE_CPUS)))
}

pub(super) fn steps() -> usize {
    MODELS.len() * (CPUS.len() + native::steps_in_turn(native::RUNS))
        + loads().map(|load| load.cpus.len()).sum::<usize>()
}

pub(super) fn run(session: &mut ExperimentSession<'_>) -> Result<Findings> {
    let mut rows = Vec::new();
    for &(workload, operation) in MODELS {
        for &cpus in CPUS {
            let row = session.step(&format!("{workload} on {MACHINE}, before with {cpus} CPUs"), || {
                simulated::row(MACHINE, workload, "before", cpus, SEEDS, |machine| {
                    let directory = Directory2016::new(NAMES);
                    contend(machine, cpus, &MODEL, |cpu| operation(&directory, cpu))
                })
            })?;
            session.row(&row)?;
            rows.push(row);
        }
    }
    for load in loads() {
        rows.extend(library::rows(session, &load, SEEDS)?);
    }
    let (curves, host) = (Curves(&rows), run_natively(session)?);
    Ok(Findings { tables: curves.tables() + &Curves(&host).tables(), verdicts: verdicts(&curves) })
}

fn verdicts(curves: &Curves<'_>) -> Vec<Verdict> {
    let rate = |workload: &str, machine: &str, variant: &str, cpus: usize| {
        curves.rate(workload, &format!("sim:{machine}"), variant, cpus)
    };
    let gain = rate("MRDM", MACHINE, "before", 64) / rate("MRDM", MACHINE, "before", 1);
    let mut verdicts = vec![Verdict::new(
        "a cursor moved for each name, with a lock inside a lock: parallel getdents collapses",
        format!("simulated, {MACHINE}, MRDM: before, 64 CPUs do {gain:.2} times the work of one"),
        gain < 1.0,
    )];
    for (machine, cpus) in [(MACHINE, 64), (LARGE, 256)] {
        let share = rate("MRDM", machine, "ours", cpus) / cpus as f64 / rate("MRDM", machine, "ours", 1);
        verdicts.push(Verdict::new(
            "finding the next live name takes no lock, and nothing is inserted into the directory for a reader",
            format!("simulated, {machine}, MRDM: ours keeps {:.1}% per CPU at {cpus} (wanted: 90%)", 100.0 * share),
            share >= 0.9,
        ));
    }
    let gain =
        |variant| rate("readdir-unlink", MACHINE, variant, 64) / rate("readdir-unlink", MACHINE, variant, 1);
    let (before, ours) = (gain("before"), gain("ours"));
    verdicts.push(Verdict::new(
        "readers beside unlink (find | xargs rm) must not be worse off than before",
        format!("simulated, {MACHINE}, readdir-unlink: 64 CPUs do {before:.2} times the work of one before, {ours:.2} ours"),
        ours >= before,
    ));
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_machine::Machine;

    #[test]
    fn the_model_runs_on_this_computer_too() {
        let directory = on_host::readdir_2016::Directory2016::new(100);
        for (workload, operation) in HOST_MODELS {
            let run = native::contend(2, native::TIME, || operation(&directory, &on_host::Cpu)).unwrap();
            assert!(run.total() > 0, "{workload}");
        }
    }

    #[test]
    fn readers_with_cursors_do_less_work_together_than_one_alone() {
        let load = simulated::Load { until: 6_000_000, ..MODEL };
        let rate = |cpus: usize| {
            let directory = Directory2016::new(100);
            contend(&Machine::named(MACHINE).seed(7), cpus, &load, |cpu| directory.list(cpu)).ops_per_s()
        };
        let gain = rate(16) / rate(1);
        assert!(gain < 1.0, "16 CPUs do {gain:.2} times the work of one");
    }
}
