//! Vfs: open and close, create and unlink, through the locks of 2009, as the source split them, and ours; and all that ours
//! should do in proportion to the CPUs ([`scaling`]).
//!
//! *before* and *source* are models (see [`vfs_2009`](crate::history::vfs_2009)) with the cost of their time; *ours* is
//! the library itself on the simulated machine, which charges what is shared and not what is computed. Each
//! design counts relative to its own rate on one CPU. The models run on this computer too, from the same source.

use super::curves::Curves;
use super::library;
use super::scaling;
use super::simulated::{self, contend};
use super::verdict::Verdict;
use super::{ExperimentSession, Findings, native};
use crate::history::on_host;
use crate::history::vfs_2009::{Design, Vfs2009};
use crate::row::Row;
use sluice_console::failure::Result;
use sluice_machine::Cpu;

const SEEDS: &[u64] = &[7, 8, 9];
const OLD: &str = "power7-64";
const OLD_CPUS: &[usize] = &[1, 2, 4, 8, 16, 32, 64];

/// Long enough for every CPU of a collapse to get some operations done.
const MODEL: simulated::Load = simulated::Load { inside: 0, lines: 0, outside: 500, until: 40_000_000 };

type Operation = fn(&Vfs2009, &Cpu);

/// A workload as the models do it, and whether all work in one directory.
const MODELS: &[(&str, Operation, bool)] = &[
    ("open-close", Vfs2009::open_close, false),
    ("creat-unlink", Vfs2009::create_unlink, false),
    ("creat-unlink-same", Vfs2009::create_unlink, true),
];
const DESIGNS: &[(&str, Design)] = &[("before", Design::Before), ("source", Design::Source)];

type HostOperation = fn(&on_host::vfs_2009::Vfs2009, &on_host::Cpu);

/// The models on this computer.
const HOST_MODELS: &[(&str, HostOperation, bool)] = &[
    ("open-close", on_host::vfs_2009::Vfs2009::open_close, false),
    ("creat-unlink", on_host::vfs_2009::Vfs2009::create_unlink, false),
    ("creat-unlink-same", on_host::vfs_2009::Vfs2009::create_unlink, true),
];
const HOST_DESIGNS: &[(&str, on_host::vfs_2009::Design)] =
    &[("before", on_host::vfs_2009::Design::Before), ("source", on_host::vfs_2009::Design::Source)];

pub(super) fn steps() -> usize {
    let models = OLD_CPUS.len() + native::steps_in_turn(native::RUNS);
    MODELS.len() * DESIGNS.len() * models + scaling::loads().map(|load| load.cpus.len()).sum::<usize>()
}

fn run_natively(session: &mut ExperimentSession<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &(workload, operation, one_directory) in HOST_MODELS {
        let run = |&(_, design): &(_, on_host::vfs_2009::Design), cpus| {
            let vfs = on_host::vfs_2009::Vfs2009::new(design, cpus, one_directory);
            native::contend(cpus, native::TIME, || operation(&vfs, &on_host::Cpu))
        };
        rows.extend(native::in_turn(session, (workload, native::RUNS), HOST_DESIGNS, |(name, _)| name, run)?);
    }
    Ok(rows)
}

pub(super) fn run(session: &mut ExperimentSession<'_>) -> Result<Findings> {
    let mut rows = Vec::new();
    for &(workload, operation, one_directory) in MODELS {
        for &(variant, design) in DESIGNS {
            for &cpus in OLD_CPUS {
                let row =
                    session.step(&format!("{workload} on {OLD}, {variant} with {cpus} CPUs"), || {
                        simulated::row(OLD, workload, variant, cpus, SEEDS, |machine| {
                            let vfs = Vfs2009::new(design, cpus, one_directory);
                            contend(machine, cpus, &MODEL, |cpu| operation(&vfs, cpu))
                        })
                    })?;
                session.row(&row)?;
                rows.push(row);
            }
        }
    }
    for load in scaling::loads() {
        rows.extend(library::rows(session, &load, scaling::SEED)?);
    }
    let (curves, host) = (Curves(&rows), run_natively(session)?);
    Ok(Findings { tables: curves.tables() + &Curves(&host).tables(), verdicts: verdicts(&curves) })
}

fn verdicts(curves: &Curves<'_>) -> Vec<Verdict> {
    let kept = |workload, variant| curves.share(workload, &format!("sim:{OLD}"), variant, 1, 64);
    let mut verdicts = Vec::new();
    for (workload, source) in [
        (
            "open-close",
            "close(open(path)) on 64 CPUs: 450 a second on each, where over 300,000 are possible (a 667th)",
        ),
        (
            "creat-unlink",
            "unlink(creat(path)) by all CPUs of a POWER7: 29.8 a second by each, of 145,891 by one alone",
        ),
    ] {
        let share = kept(workload, "before");
        verdicts.push(Verdict::new(
            source,
            format!("simulated, {OLD}, {workload}: before keeps a {:.0}th of its rate per CPU (wanted: a 100th or less)", 1.0 / share),
            share <= 0.01,
        ));
    }
    let share = kept("open-close", "source");
    verdicts.push(Verdict::new(
        "per-CPU lists, counts and mount locks: 164,055 by each of all CPUs of a POWER7, of 355,924 by one (46%)",
        format!("simulated, {OLD}, open-close: source keeps {:.0}% per CPU at 64", 100.0 * share),
        share >= 0.4,
    ));
    let share = kept("creat-unlink-same", "source");
    verdicts.push(Verdict::new(
        "in one directory its mutex is left: 181 by each of all CPUs, of 104,301 by one (0.17%)",
        format!("simulated, {OLD}, creat-unlink-same: source keeps {:.1}% per CPU at 64", 100.0 * share),
        share <= 0.05,
    ));
    verdicts.extend(scaling::verdicts(curves));
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_machine::Machine;

    /// The rate per CPU at `cpus` CPUs as a share of that of one.
    fn kept(design: Design, operation: Operation, cpus: usize) -> f64 {
        let load = simulated::Load { until: 4_000_000, ..MODEL };
        let rate = |cpus: usize| {
            let vfs = Vfs2009::new(design, cpus, false);
            contend(&Machine::named(OLD).seed(7), cpus, &load, |cpu| operation(&vfs, cpu)).ops_per_s()
                / cpus as f64
        };
        rate(cpus) / rate(1)
    }

    #[test]
    fn the_models_run_on_this_computer_too() {
        for &(workload, operation, one_directory) in HOST_MODELS {
            for &(_, design) in HOST_DESIGNS {
                let vfs = on_host::vfs_2009::Vfs2009::new(design, 2, one_directory);
                let run = native::contend(2, native::TIME, || operation(&vfs, &on_host::Cpu)).unwrap();
                assert!(run.ops.iter().all(|&ops| ops > 0), "{workload}: {:?}", run.ops);
            }
        }
    }

    #[test]
    fn global_locks_collapse_and_locks_per_cpu_do_not() {
        let before = kept(Design::Before, Vfs2009::open_close, 32);
        let source = kept(Design::Source, Vfs2009::open_close, 32);
        assert!(before < 0.05 && source > 0.9, "before keeps {before:.3}, source {source:.3}");
    }
}
