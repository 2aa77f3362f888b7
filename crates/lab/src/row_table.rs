//! Row table: the rows of a benchmark as a table for a person.

use crate::row::Row;
use crate::stats::median;
use sluice_console::table::{Table, duration, grouped};
use std::fmt::Write as _;

/// The share of sleep that is told of.
const WORTH_A_LINE: f64 = 0.05;

/// The rows of a benchmark; each is compared with the first target's row of the same workload and CPUs.
pub fn of_rows(rows: &[Row]) -> String {
    let mut table = Table::with_left_columns(2);
    table.line([
        "workload", "target", "cpus", "tasks", "ops/s", "sd", "ratio", "mean", "p50", "p99", "max", "idle",
    ]);
    for row in rows {
        let first = rows
            .iter()
            .find(|other| (&other.workload, other.cpus, other.tasks) == (&row.workload, row.cpus, row.tasks));
        let ratio = first.and_then(|first| Some(row.ops_per_s? / first.ops_per_s?));
        let deviation = row.ops_per_s_sd.zip(row.ops_per_s).map(|(sd, rate)| 100.0 * sd / rate);
        table.line([
            row.workload.clone(),
            row.target.clone(),
            row.cpus.to_string(),
            row.tasks_in_words(),
            row.ops_per_s.map_or_else(unknown, grouped),
            deviation.map_or_else(unknown, |percent| format!("{percent:.0}%")),
            ratio.map_or_else(unknown, |ratio| format!("{ratio:.2}")),
            row.mean_ns.map_or_else(unknown, duration),
            row.p50_ns.map_or_else(unknown, |ns| duration(ns as f64)),
            row.p99_ns.map_or_else(unknown, |ns| duration(ns as f64)),
            row.max_ns.map_or_else(unknown, |ns| duration(ns as f64)),
            row.idle.map_or_else(unknown, |idle| format!("{:.0}%", 100.0 * idle)),
        ]);
    }
    let mut text = table.render();
    for row in rows.iter().filter(|row| row.simulated && row.cpus > 1) {
        for line in &row.hottest {
            let (wait, writers) = (grouped(line.wait_cycles_per_op), line.writers);
            let _ = writeln!(
                text,
                "{} on {}, {} CPUs (simulated): {wait} cycles an operation wait for {}, written by {writers} CPUs",
                row.workload, row.target, row.cpus, line.name
            );
        }
        for place in row.costliest_places() {
            let (wait, misses) = (grouped(place.wait_cycles_per_op), place.misses_per_op);
            let _ = writeln!(
                text,
                "{} on {}, {} CPUs (simulated): {wait} cycles an operation in all at {}, {misses:.2} misses on {} lines",
                row.workload, row.target, row.cpus, place.name, place.lines
            );
        }
    }
    for row in rows.iter().filter(|row| row.asleep.is_some_and(|share| share >= WORTH_A_LINE)) {
        let places = row.asleep_in.iter().map(|(place, share)| format!("{place} {:.0}%", 100.0 * share));
        let places: Vec<String> = places.collect();
        let _ = writeln!(
            text,
            "{} on {}, {} CPUs: tasks are asleep {:.0}% of their time; seen in {}",
            row.workload,
            row.target,
            row.cpus,
            100.0 * row.asleep.unwrap_or_default(),
            if places.is_empty() { "no place that the kernel names".to_owned() } else { places.join(", ") }
        );
    }
    for row in rows {
        let stalled = row.stalled.unwrap_or_default();
        for (share, what) in [(stalled.memory, "memory"), (stalled.io, "a device")] {
            if share >= WORTH_A_LINE {
                let _ = writeln!(
                    text,
                    "{} on {}, {} CPUs: for {:.0}% of the time some task stood still for {what}",
                    row.workload,
                    row.target,
                    row.cpus,
                    100.0 * share
                );
            }
        }
    }
    text.push_str(&of_timing(rows));
    for row in rows {
        if let Some(bytes) = row.bytes_per_file {
            let files = grouped(row.ops as f64 / row.runs.max(1) as f64);
            let _ = writeln!(
                text,
                "{}: {bytes:.0} bytes of memory per file ({files} {} in one directory)",
                row.workload,
                crate::footprint::subject(&row.workload)
            );
        }
    }
    text
}

/// The slowdown by timing each operation, which a separate pass avoids.
fn of_timing(rows: &[Row]) -> String {
    let slower = |row: &Row| Some(1.0 - row.timed_ops_per_s? / row.ops_per_s?);
    let costs: Vec<f64> = rows.iter().filter_map(slower).collect();
    let most = costs.iter().copied().fold(0.0, f64::max);
    median(&costs).map_or_else(String::new, |median| {
        format!(
            "p50, p99 and max are of a pass of their own after the counted one; its rate is {:.0}% lower (at most {:.0}%)\n",
            100.0 * median.max(0.0),
            100.0 * most
        )
    })
}

fn unknown() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Origin;

    #[test]
    fn the_ratio_is_to_the_first_target_of_the_same_workload_and_cpus() {
        let origin = Origin { machine: String::new(), kernel: String::new(), command: None };
        let row = |target: &str, cpus, rate| {
            let mut row = Row::new(&origin, "stat", target.into(), cpus, cpus);
            row.set_rates(1, &[rate]);
            row
        };
        let text = of_rows(&[
            row("lib", 1, 100.0),
            row("dir:/x", 1, 50.0),
            row("lib", 2, 400.0),
            row("dir:/x", 2, 100.0),
        ]);
        let ratios: Vec<_> =
            text.lines().skip(1).map(|line| line.split_whitespace().nth(6).unwrap()).collect();
        assert_eq!(ratios, ["1.00", "0.50", "1.00", "0.25"], "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()));
    }
}
