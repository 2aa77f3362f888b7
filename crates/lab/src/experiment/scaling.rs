//! Scaling: whether what CPUs do to different things, this library does in proportion to their number; and if not, what is known
//! of why.
//!
//! A thousand operations of each CPU are counted, after as many: with a hundred, nothing that was removed is freed yet.

use super::curves::Curves;
use super::library::Load;
use super::loss::Loss;
use super::verdict::Verdict;
use crate::simulated_fs::On;

/// With so many CPUs as the last of each machine, against the first.
const MACHINES: &[(&str, &[usize])] = &[("power7-64", &[1, 16, 64]), ("milan-2s", &[1, 64, 256])];
/// So many operations of each CPU.
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
/// The operations on lists, where an operation reads about a thousand names.
const LISTS: u64 = 20;
const OPS_ON_LISTS: &[&str] = &["readdir", "MRDL", "MRDM"];
/// The workloads that also run over a store.
const OVER_A_STORE: &[&str] = &["fsmark", "creat-unlink"];
/// The share of its rate that a CPU should keep.
const WANTED: f64 = 0.9;
/// One run of each tells: the CPUs' operations are many.
pub(super) const SEED: &[u64] = &[7];

const COLD: &str = "what is removed is free again after an epoch of all CPUs, the later the more they are, and until then memory \
    is touched that no CPU has had: less in a longer run";
const ONE_TABLE: &str = "the names of all CPUs are in one table, where each finds its bucket, and the names beside its own, as \
    another CPU wrote them";
const CUT: &str = "once in 1,024 blocks the file is cut to nothing, which waits for a grace period: here all CPUs do so at nearly \
    the same time, and while they cut none passes, so that each interrupts all others";

/// Why `workload` may keep less than is wanted, as far as is known.
fn why_less(workload: &str) -> Option<&'static str> {
    match workload {
        "MWCM" | "MWUM" => Some(ONE_TABLE),
        "DWAL" => Some(CUT),
        "fsmark" | "creat-unlink" | "creat-unlink-same" | "rename-same" | "MWCL" | "MWUL" | "DWTL" => {
            Some(COLD)
        }
        _ => None,
    }
}

fn judged() -> impl Iterator<Item = (&'static str, u64)> {
    let of = |names: &'static [&'static str], ops| names.iter().map(move |&name| (name, ops));
    of(OPS_ON_NAMES, OPS).chain(of(OPS_ON_LISTS, LISTS))
}

/// The loads to run.
pub(super) fn loads() -> impl Iterator<Item = Load> {
    let in_memory = MACHINES.iter().flat_map(|&(machine, cpus)| {
        judged().map(move |(workload, ops)| Load { workload, machine, on: On::Ram, cpus, ops })
    });
    in_memory.chain(over_a_store())
}

fn over_a_store() -> impl Iterator<Item = Load> {
    let (machine, cpus) = MACHINES[0];
    OVER_A_STORE.iter().map(move |&workload| Load { workload, machine, on: On::Store, cpus, ops: OPS })
}

/// The verdicts on all loads.
pub(super) fn verdicts(curves: &Curves<'_>) -> Vec<Verdict> {
    loads().map(|load| verdict(curves, &load)).collect()
}

/// Whether a load is done in proportion to the CPUs, and if not, why.
fn verdict(curves: &Curves<'_>, &Load { workload, machine, on, cpus, .. }: &Load) -> Verdict {
    let (&few, &many) = cpus.first().zip(cpus.last()).expect("every machine has numbers of CPUs");
    let target = on.target(machine);
    let share = curves.share(workload, &target, "ours", few, many);
    let is_met = share >= WANTED;
    let mut seen = format!(
        "simulated, {target}, {workload}: ours keeps {:.1}% per CPU at {many} (wanted: {:.0}%)",
        100.0 * share,
        100.0 * WANTED
    );
    let row = |cpus| curves.at(workload, &target, "ours", cpus);
    if let (false, Some((one, many))) = (is_met, row(few).zip(row(many))) {
        let why = why_less(workload).unwrap_or("why is not known");
        seen += &format!("; {}; {why}", Loss::between(machine, one, many));
    }
    Verdict::new("operations that commute write no shared line, so they scale with the CPUs", seen, is_met)
}
