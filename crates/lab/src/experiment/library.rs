//! Library: rows of this project's file system itself, for the experiments that set it beside older designs.

use super::ExperimentSession;
use crate::row::{Origin, Row};
use crate::simulated_fs::On;
use crate::target::simulated_run;
use crate::workload;
use sluice_console::corpus::Corpus;
use sluice_console::failure::Result;
use sluice_machine::Machine;
use sluice_sync::Arc;

/// A workload on a machine at several numbers of CPUs.
pub(super) struct Load {
    pub(super) workload: &'static str,
    pub(super) machine: &'static str,
    pub(super) on: On,
    pub(super) cpus: &'static [usize],
    /// Operations of each CPU.
    pub(super) ops: u64,
}

/// A row for each number of CPUs, with a run for each seed.
pub(super) fn rows(session: &mut ExperimentSession<'_>, load: &Load, seeds: &[u64]) -> Result<Vec<Row>> {
    let &Load { workload: name, machine, on, cpus, ops } = load;
    let (workload, plain, corpus) =
        (workload::find(name)?, Machine::named(machine), Arc::new(Corpus::generated(0)));
    let target = on.target(machine);
    let origin = Origin::simulated(plain.spec().title);
    let mut rows = Vec::new();
    for &cpus in cpus {
        let outcomes = session.step(&format!("{name} on {target}, ours with {cpus} CPUs"), || {
            let runs = seeds
                .iter()
                .map(|&seed| simulated_run(&plain.clone().seed(seed), on, workload, cpus, ops, &corpus));
            runs.collect::<Result<Vec<_>>>()
        })??;
        let mut row = Row::new(&origin, name, target.clone(), cpus, cpus);
        row.variant = Some("ours".to_owned());
        row.simulated = true;
        row.set_outcomes(&outcomes);
        session.row(&row)?;
        rows.push(row);
    }
    Ok(rows)
}
