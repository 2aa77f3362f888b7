//! Vfs: open and close, create and unlink, through the locks of 2009, as the source split them, and ours; and all that ours
//! should do in proportion to the CPUs.
//!
//! *before* and *source* are models (see [`vfs_2009`](crate::history::vfs_2009)) with the cost of their time; *ours* is
//! the library itself on the simulated machine, which charges what is shared and not what is computed. So each is compared with
//! itself at one CPU, and never one with another. The models run on this computer too, from the same source.
//!
//! A thousand operations of each CPU are counted, after as many: with a hundred, nothing that was removed is freed yet.

use super::curves::Curves;
use super::library::{self, Load};
use super::loss::Loss;
use super::simulated::{self, contend};
use super::verdict::Verdict;
use super::{Findings, Session, native};
use crate::failure::Result;
use crate::history::on_host;
use crate::history::vfs_2009::{Design, Vfs2009};
use crate::row::Row;
use sluice_machine::Cpu;

const SEEDS: &[u64] = &[7, 8, 9];
const OLD: &str = "power7-64";
const OLD_CPUS: &[usize] = &[1, 2, 4, 8, 16, 32, 64];
const NEW: &str = "milan-2s";

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

/// The same on this computer.
const HOST_MODELS: &[(&str, HostOperation, bool)] = &[
    ("open-close", on_host::vfs_2009::Vfs2009::open_close, false),
    ("creat-unlink", on_host::vfs_2009::Vfs2009::create_unlink, false),
    ("creat-unlink-same", on_host::vfs_2009::Vfs2009::create_unlink, true),
];
const HOST_DESIGNS: &[(&str, on_host::vfs_2009::Design)] =
    &[("before", on_host::vfs_2009::Design::Before), ("source", on_host::vfs_2009::Design::Source)];

/// What ours should do in proportion to the CPUs: with so many as the last, on each machine, ...
const LARGE: &[(&str, &[usize])] = &[(OLD, &[1, 16, 64]), (NEW, &[1, 64, 256])];
/// ... and so many operations of each.
const OPS: u64 = 1_000;
const OPS_ON_NAMES: &[&str] = &[
    "open-close",
    "open-close-same",
    "stat-same",
    "creat-unlink",
    "creat-unlink-same",
    "rename-same",
    "write4k-same",
    "MWCL",
    "MWCM",
    "MWUL",
    "MWUM",
    "MWRL",
    "MWRM",
    "MRPL",
    "MRPM",
    "MRPH",
    "DRBL",
    "DRBM",
    "DRBH",
    "DWOL",
    "DWOM",
    "DWAL",
    "DWTL",
];
/// Of these, each operation is about a thousand names.
const LISTS: u64 = 20;
const OPS_ON_LISTS: &[&str] = &["readdir", "MRDL", "MRDM"];
/// The share of its rate that a CPU should keep.
const WANTED: f64 = 0.9;
/// One run tells: the CPUs' operations are many.
const SEED: &[u64] = &[7];

const COLD: &str = "what is removed is free again after an epoch of all CPUs, the later the more they are, and until then memory \
    is touched that no CPU has had: less in a longer run";
const ONE_TABLE: &str = "the names of all CPUs are in one table, where each finds its bucket, and the names beside its own, as \
    another CPU wrote them";
const CUT: &str = "once in 1,024 blocks the file is cut to nothing, which waits for a grace period: each CPU interrupts all others";

const VISITS: &str = "who waits for an epoch for two flushes flushes the caches of those who are late, and hundreds that have much to \
    free wait for him: none of this is physical";

/// Why `workload` may keep less than is wanted on `machine`, as far as is known.
fn why_less(workload: &str, machine: &str) -> Option<&'static str> {
    match (workload, machine) {
        ("MWUM", NEW) => Some(VISITS),
        ("MWCM" | "MWUM", _) => Some(ONE_TABLE),
        ("DWAL", _) => Some(CUT),
        ("creat-unlink" | "creat-unlink-same" | "rename-same" | "MWCL" | "MWUL" | "DWTL", _) => Some(COLD),
        _ => None,
    }
}

fn judged() -> impl Iterator<Item = (&'static str, u64)> {
    let of = |names: &'static [&'static str], ops| names.iter().map(move |&name| (name, ops));
    of(OPS_ON_NAMES, OPS).chain(of(OPS_ON_LISTS, LISTS))
}

fn loads() -> impl Iterator<Item = Load> {
    LARGE.iter().flat_map(|&(machine, cpus)| {
        judged().map(move |(workload, ops)| Load { workload, machine, cpus, ops })
    })
}

pub(super) fn steps() -> usize {
    let models = OLD_CPUS.len() + native::steps_in_turn(native::RUNS);
    MODELS.len() * DESIGNS.len() * models + loads().map(|load| load.cpus.len()).sum::<usize>()
}

fn run_natively(session: &mut Session<'_>) -> Result<Vec<Row>> {
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

pub(super) fn run(session: &mut Session<'_>) -> Result<Findings> {
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
    for load in loads() {
        rows.extend(library::rows(session, &load, SEED)?);
    }
    let (curves, host) = (Curves(&rows), run_natively(session)?);
    Ok(Findings { tables: curves.tables() + &Curves(&host).tables(), verdicts: verdicts(&curves) })
}

fn verdicts(curves: &Curves<'_>) -> Vec<Verdict> {
    let kept = |workload: &str, machine: &str, variant: &str, cpus: usize| {
        let target = format!("sim:{machine}");
        let rate = |cpus| curves.rate(workload, &target, variant, cpus) / cpus as f64;
        rate(cpus) / rate(1)
    };
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
        let share = kept(workload, OLD, "before", 64);
        verdicts.push(Verdict::new(
            source,
            format!("simulated, {OLD}, {workload}: before keeps a {:.0}th of its rate per CPU (wanted: a 100th or less)", 1.0 / share),
            share <= 0.01,
        ));
    }
    let share = kept("open-close", OLD, "source", 64);
    verdicts.push(Verdict::new(
        "per-CPU lists, counts and mount locks: 164,055 by each of all CPUs of a POWER7, of 355,924 by one (46%)",
        format!("simulated, {OLD}, open-close: source keeps {:.0}% per CPU at 64", 100.0 * share),
        share >= 0.4,
    ));
    let share = kept("creat-unlink-same", OLD, "source", 64);
    verdicts.push(Verdict::new(
        "in one directory its mutex is left: 181 by each of all CPUs, of 104,301 by one (0.17%)",
        format!("simulated, {OLD}, creat-unlink-same: source keeps {:.1}% per CPU at 64", 100.0 * share),
        share <= 0.05,
    ));
    verdicts.extend(LARGE.iter().flat_map(|&(machine, cpus)| {
        judged().map(move |(workload, _)| verdict_of_ours(curves, workload, machine, cpus))
    }));
    verdicts
}

/// Whether `workload` is done on `machine` in proportion to the CPUs, and if not, why.
fn verdict_of_ours(curves: &Curves<'_>, workload: &str, machine: &str, cpus: &[usize]) -> Verdict {
    let row = |cpus: usize| curves.at(workload, &format!("sim:{machine}"), "ours", cpus);
    let ends = cpus.first().zip(cpus.last()).and_then(|(&few, &many)| row(few).zip(row(many)));
    let share = ends.map_or(0.0, |(one, many)| per_cpu(many) / per_cpu(one));
    let mut seen = format!(
        "simulated, {machine}, {workload}: ours keeps {:.1}% per CPU at {} (wanted: {:.0}%)",
        100.0 * share,
        cpus.last().unwrap_or(&0),
        100.0 * WANTED
    );
    if let Some((one, many)) = ends
        && share < WANTED
    {
        let why = why_less(workload, machine).unwrap_or("why is not known");
        seen += &format!("; {}; {why}", Loss::between(machine, one, many));
    }
    Verdict::new(
        "operations that commute write no shared line, so they scale with the CPUs",
        seen,
        share >= WANTED,
    )
}

fn per_cpu(row: &Row) -> f64 {
    row.ops_per_s.unwrap_or_default() / row.cpus as f64
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
