//! Curves: rows as tables of one figure against CPUs, a line for each lock.

use crate::row::Row;
use sluice_console::table::{Table, grouped};
use std::fmt::Write as _;

/// The rows of one experiment.
pub(crate) struct Curves<'a>(pub(crate) &'a [Row]);

impl Curves<'_> {
    /// The row of these coordinates.
    pub(crate) fn at(&self, workload: &str, target: &str, variant: &str, cpus: usize) -> Option<&Row> {
        self.0.iter().find(|row| {
            (row.workload.as_str(), row.target.as_str(), row.cpus) == (workload, target, cpus)
                && row.variant.as_deref() == Some(variant)
        })
    }

    /// The throughput there; 0 when it was not measured.
    pub(crate) fn rate(&self, workload: &str, target: &str, variant: &str, cpus: usize) -> f64 {
        self.at(workload, target, variant, cpus).and_then(|row| row.ops_per_s).unwrap_or(0.0)
    }

    /// Which share of its throughput a CPU keeps where there are `many` instead of `few`; no number when one was not measured.
    pub(crate) fn share(&self, workload: &str, target: &str, variant: &str, few: usize, many: usize) -> f64 {
        let per_cpu = |cpus| self.rate(workload, target, variant, cpus) / cpus as f64;
        per_cpu(many) / per_cpu(few)
    }

    /// Throughput, fairness and idle share, a table each, for every workload and target in order.
    pub(crate) fn tables(&self) -> String {
        let mut text = String::new();
        for (workload, target) in distinct(self.0, |row| (row.workload.clone(), row.target.clone())) {
            let rows: Vec<&Row> =
                self.0.iter().filter(|row| row.workload == workload && row.target == target).collect();
            let kind = if rows.iter().all(|row| row.simulated) { "simulated" } else { "native" };
            let variants = distinct(&rows, |row| row.variant.clone().unwrap_or_default());
            let mut cpus = distinct(&rows, |row| row.cpus);
            cpus.sort_unstable();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{workload} on {target} ({kind})\n");
            for (title, cell) in FIGURES {
                let mut table = Table::with_left_columns(1);
                let head = cpus.iter().map(|cpus| format!("{cpus} CPU{}", if *cpus == 1 { "" } else { "s" }));
                table.line(std::iter::once(format!("{kind} {title}")).chain(head));
                for variant in &variants {
                    let cells = cpus.iter().map(|&cpus| {
                        self.at(&workload, &target, variant, cpus)
                            .and_then(cell)
                            .unwrap_or_else(|| "-".into())
                    });
                    table.line(std::iter::once(variant.clone()).chain(cells));
                }
                let _ = writeln!(text, "{}", table.render());
            }
        }
        text
    }
}

type CellOfRow = fn(&Row) -> Option<String>;

const FIGURES: [(&str, CellOfRow); 3] = [
    ("ops/s", |row| row.ops_per_s.map(grouped)),
    ("fairness, min/max per CPU", |row| row.fairness.map(|fairness| format!("{fairness:.2}"))),
    ("idle share", |row| row.idle.map(|idle| format!("{:.0}%", 100.0 * idle))),
];

/// The different values, in order of first appearance.
fn distinct<T, K: PartialEq>(rows: &[T], key: impl Fn(&T) -> K) -> Vec<K> {
    let mut keys = Vec::new();
    for row in rows {
        let key = key(row);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}
