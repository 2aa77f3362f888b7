//! Dlm-hash: the lookup of one of many cached locks in a cluster lock manager's table, and ten untars.

use super::curves::Curves;
use super::simulated::{self, Load, contend};
use super::verdict::Verdict;
use super::{ExperimentSession, Findings, native};
use crate::history::dlm_hash::{DESIGNS, Design, Resources};
use crate::history::on_host::{self, dlm_hash as host};
use crate::row::Row;
use sluice_console::failure::Result;
use sluice_sync::CachePadded;
use sluice_sync::atomic::{AtomicU64, Ordering};

const SEEDS: &[u64] = &[7];
const MACHINE: &str = "opteron-32";
const CPUS: &[usize] = &[1, 8, 32];
/// Locks in the table, with the workload's name.
const SIZES: &[(u64, &str)] = &[
    (1_000, "lookup-1000"),
    (10_000, "lookup-10000"),
    (100_000, "lookup-100000"),
    (1_000_000, "lookup-1000000"),
];
const LOAD: Load = Load { inside: 0, lines: 0, outside: 1_000, until: 12_000_000 };

/// The locks that an untar of a kernel of 2006 leaves cached.
const PER_UNTAR: u64 = 20_000;
const UNTARS: &[&str] = &[
    "untar-1", "untar-2", "untar-3", "untar-4", "untar-5", "untar-6", "untar-7", "untar-8", "untar-9",
    "untar-10",
];

pub(super) fn steps() -> usize {
    DESIGNS.len() * (SIZES.len() * (CPUS.len() + native::steps_in_turn(native::RUNS)) + UNTARS.len())
}

pub(super) fn run(session: &mut ExperimentSession<'_>) -> Result<Findings> {
    let mut rows = Vec::new();
    for &(count, workload) in SIZES {
        for (design, variant) in DESIGNS {
            for &cpus in CPUS {
                rows.push(simulate(session, (workload, variant), cpus, (design, count))?);
            }
        }
    }
    // The table is as full as it is in the middle of each untar.
    for (number, workload) in (1..).zip(UNTARS) {
        for (design, variant) in DESIGNS {
            let count = PER_UNTAR * number - PER_UNTAR / 2;
            rows.push(simulate(session, (workload, variant), 1, (design, count))?);
        }
    }
    let host = run_natively(session)?;
    let (curves, natively) = (Curves(&rows), Curves(&host));
    let verdicts = verdicts(&curves, &natively);
    Ok(Findings { tables: curves.tables() + &natively.tables(), verdicts })
}

fn simulate(
    session: &mut ExperimentSession<'_>,
    (workload, variant): (&str, &str),
    cpus: usize,
    (design, count): (Design, u64),
) -> Result<Row> {
    let row = session.step(&format!("{workload} on {MACHINE}, {variant} with {cpus} CPUs"), || {
        simulated::row(MACHINE, workload, variant, cpus, SEEDS, |machine| {
            let table = Resources::new(design, count);
            contend(machine, cpus, &LOAD, |cpu| table.look_up(cpu, cpu.random(count)))
        })
    })?;
    session.row(&row)?;
    Ok(row)
}

fn run_natively(session: &mut ExperimentSession<'_>) -> Result<Vec<Row>> {
    const DESIGNS: [host::Design; 4] =
        [host::Design::Page, host::Design::Mebibyte, host::Design::FsDlm, host::Design::Ours];
    let name = |design: &host::Design| {
        host::DESIGNS.iter().find(|(other, _)| other == design).map_or("", |(_, name)| name)
    };
    let mut rows = Vec::new();
    for &(count, workload) in SIZES {
        let tables = DESIGNS.map(|design| host::Resources::new(design, count));
        let places: Vec<_> = (0..DESIGNS.len()).collect();
        let run = |&at: &usize, cpus| {
            let turns: Vec<_> = (0..cpus).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
            native::contend_as((cpus, cpus), native::TIME, |task| {
                // Relaxed: a number of this thread's own.
                let turn = turns[task].fetch_add(1, Ordering::Relaxed);
                tables[at].look_up(&on_host::Cpu, sluice_sync::fibonacci(turn + task as u64) % count);
            })
        };
        rows.extend(native::in_turn(
            session,
            (workload, native::RUNS),
            &places,
            |&at| name(&DESIGNS[at]),
            run,
        )?);
    }
    Ok(rows)
}

fn verdicts(curves: &Curves<'_>, natively: &Curves<'_>) -> Vec<Verdict> {
    let target = format!("sim:{MACHINE}");
    let rate = |workload: &str, variant: &str, cpus| curves.rate(workload, &target, variant, cpus);
    let slower = |variant: &str| rate("lookup-1000", variant, 1) / rate("lookup-1000000", variant, 1);
    let (before, ours) = (slower("before"), slower("ours"));
    let host = |workload: &str| natively.rate(workload, "lib", "ours", 1);
    let here = host("lookup-1000") / host("lookup-1000000");
    let late = |variant: &str| rate("untar-1", variant, 1) / rate("untar-10", variant, 1);
    let gain = rate("lookup-1000000", "ours", 32) / rate("lookup-1000000", "before", 32);
    vec![
        Verdict::new(
            "a table of one page makes each lookup longer as locks are cached",
            format!(
                "simulated, {MACHINE}: with a million locks a lookup takes {before:.0} times as long as with a thousand"
            ),
            before > 10.0,
        ),
        Verdict::new(
            "the lookup does not depend on the number of locks, but for what their lines cost to fetch",
            format!(
                "simulated, {MACHINE}: ours takes {ours:.2} times as long; natively {here:.2} times (wanted: below 4)"
            ),
            ours < 4.0 && here < 4.0,
        ),
        Verdict::new(
            "each untar takes longer than the one before; the tenth should cost what the first did",
            format!(
                "simulated, {MACHINE}: a lookup of the tenth takes {:.1} times that of the first before, {:.2} ours",
                late("before"),
                late("ours")
            ),
            late("before") > 3.0 && late("ours") < 1.5,
        ),
        Verdict::new(
            "lookups by several CPUs do not wait for each other",
            format!(
                "simulated, {MACHINE}, 32 CPUs, a million locks: ours does {gain:.0} times the lookups of before"
            ),
            gain > 32.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_machine::Machine;

    #[test]
    fn every_design_finds_its_locks_on_both_grounds() {
        let load = Load { until: 400_000, ..LOAD };
        for (design, variant) in DESIGNS {
            let table = Resources::new(design, 3_000);
            let run = contend(&Machine::named(MACHINE).seed(7), 2, &load, |cpu| {
                table.look_up(cpu, cpu.random(3_000))
            });
            assert!(run.report.ops() > 0, "{variant}");
        }
        for (design, _) in host::DESIGNS {
            let table = host::Resources::new(design, 3_000);
            (0..table.count()).for_each(|key| table.look_up(&on_host::Cpu, key));
        }
    }

    #[test]
    fn a_page_of_buckets_gets_slower_with_more_locks_and_our_table_hardly() {
        let load = Load { until: 2_000_000, ..LOAD };
        let rate = |design, count| {
            let table = Resources::new(design, count);
            let machine = Machine::named(MACHINE).seed(7);
            contend(&machine, 1, &load, |cpu| table.look_up(cpu, cpu.random(count))).ops_per_s()
        };
        let slower = |design| rate(design, 500) / rate(design, 50_000);
        let (before, ours) = (slower(Design::Page), slower(Design::Ours));
        assert!(before > 3.0 && ours < 2.0, "{before:.1} {ours:.1}");
    }
}
