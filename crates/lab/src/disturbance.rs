//! Disturbances: what may have spoilt a measurement, in words that stand beside its figures.
//!
//! A warning begins with its kind and a colon. Rows have the warnings of their own runs; where all rows are shown, each kind has
//! one line.

use crate::distance;
use sluice_console::machine;
use sluice_sync::cpu;

/// Disturbances between the runs of a measurement.
#[derive(Default)]
pub(crate) struct Disturbances {
    /// The most tasks of others that were running where there was no CPU left for them.
    others_max: u64,
    /// How far the CPUs in use were from each other, in nanoseconds.
    distances: Vec<f64>,
}

impl Disturbances {
    /// Disturbances by this many tasks of other programs, with these distances between CPUs.
    #[cfg(test)]
    pub(crate) fn of(others_max: u64, distances: &[f64]) -> Disturbances {
        Disturbances { others_max, distances: distances.to_vec() }
    }

    /// Looks at the machine before a run on the CPUs numbered `cpus`, while nothing of ours runs but this thread.
    pub(crate) fn look(&mut self, cpus: &[usize]) {
        if let Some(running) = machine::running_tasks() {
            let others = running.saturating_sub(1);
            let room = (cpu::count() as u64).saturating_sub(cpus.len() as u64);
            if others > room {
                self.others_max = self.others_max.max(others);
            }
        }
        if let [first, .., last] = cpus {
            self.distances.extend(distance::between(*first, *last));
        }
    }

    /// Forgets the tasks of others, and keeps the distances: a row after a move differs from those before it.
    pub(crate) fn begin_row(&mut self) {
        self.others_max = 0;
    }

    /// In words; none on a quiet machine.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let busy = (self.others_max > 0).then(|| {
            let count = self.others_max;
            let tasks = if count == 1 { "another task".to_owned() } else { format!("{count} other tasks") };
            format!("busy machine: {tasks} ran beside the benchmark; repeat on an idle one")
        });
        busy.into_iter().chain(distance::warning(&self.distances)).collect()
    }
}

/// The subject of a warning.
fn kind(warning: &str) -> &str {
    warning.split(':').next().unwrap_or_default()
}

/// Adds to `warnings` those of other runs of the same row; of each kind the last one stays.
pub(crate) fn join(warnings: &mut Vec<String>, others: &[String]) {
    for other in others {
        match warnings.iter_mut().find(|warning| kind(warning) == kind(other)) {
            Some(warning) => warning.clone_from(other),
            None => warnings.push(other.clone()),
        }
    }
}

/// A line for each kind of warning that rows have: its last one, and how many rows have one. `rows` are the warnings of each row.
pub fn warnings_of<'a>(rows: impl IntoIterator<Item = &'a Vec<String>>) -> Vec<String> {
    let mut kinds: Vec<(&str, &str, usize)> = Vec::new();
    let mut all = 0;
    for warnings in rows {
        all += 1;
        for warning in warnings {
            match kinds.iter_mut().find(|(other, ..)| *other == kind(warning)) {
                Some((_, last, count)) => (*last, *count) = (warning, *count + 1),
                None => kinds.push((kind(warning), warning, 1)),
            }
        }
    }
    kinds.into_iter().map(|(_, last, count)| format!("{last} (in {count} of {all} rows)")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_warning_has_one_line_however_many_rows_have_it() {
        let row = |warnings: &[&str]| warnings.iter().map(|&text| text.to_owned()).collect::<Vec<String>>();
        let mut rows: Vec<Vec<String>> =
            (0..12).map(|n| row(&[&format!("busy machine: {n} other tasks")])).collect();
        rows.push(row(&["the CPUs were moved: far", "busy machine: 40 other tasks"]));
        rows.push(row(&[]));
        assert_eq!(
            warnings_of(&rows),
            ["busy machine: 40 other tasks (in 13 of 14 rows)", "the CPUs were moved: far (in 1 of 14 rows)"]
        );
        assert!(warnings_of(&rows[13..]).is_empty());
    }

    #[test]
    fn a_row_is_told_what_met_its_own_runs_and_that_the_cpus_moved_before() {
        let mut met = Disturbances::of(2, &[20.0, 190.0]);
        let warnings = met.warnings();
        assert!(
            warnings[0].starts_with("busy machine: 2 other tasks ran beside the benchmark"),
            "{warnings:?}"
        );
        met.begin_row();
        assert_eq!(met.warnings(), warnings[1..]);
        assert!(Disturbances::default().warnings().is_empty());
        let mut joined = warnings.clone();
        join(&mut joined, &met.warnings());
        assert_eq!(joined, warnings);
        join(&mut joined, &["busy machine: 9".into(), "new: 1".into()]);
        assert_eq!(joined, ["busy machine: 9", &warnings[1], "new: 1"]);
    }
}
