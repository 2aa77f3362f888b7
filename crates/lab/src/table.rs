//! Table: results for a person, in columns.

use crate::row::Row;
use crate::stats::median;
use std::fmt::Write as _;

/// Lines of cells, printed in columns as wide as they need: the first to the left, the others to the right.
#[derive(Default)]
pub struct Table {
    lines: Vec<Vec<String>>,
    left: usize,
}

impl Table {
    /// An empty table whose first `left` columns are words.
    pub fn with_left_columns(left: usize) -> Table {
        Table { lines: Vec::new(), left }
    }

    /// Adds a line.
    pub fn line<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.lines.push(cells.into_iter().map(Into::into).collect());
    }

    /// The text, a newline after each line.
    pub fn render(&self) -> String {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in &self.lines {
            let mut row = String::new();
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                // Writing to a String cannot fail.
                let _ = if column < self.left {
                    write!(row, "{gap}{cell:<width$}")
                } else {
                    write!(row, "{gap}{cell:>width$}")
                };
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    }
}

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

/// What timing each operation would have cost the rates, had it not had a pass of its own.
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

/// A whole number with commas: `1,234,567`.
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0.0 { format!("-{text}") } else { text }
}

/// Nanoseconds in a unit that keeps the number short: `870 ns`, `12.3 us`, `4.6 ms`, `2.0 s`.
pub fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Origin;

    #[test]
    fn numbers_are_grouped_and_times_get_a_unit() {
        assert_eq!(
            [0.0, 999.0, 1000.0, 1_234_567.4, -1500.0].map(grouped),
            ["0", "999", "1,000", "1,234,567", "-1,500"]
        );
        assert_eq!([870.0, 12_340.0, 4.6e6, 2e9].map(duration), ["870 ns", "12.3 us", "4.6 ms", "2.0 s"]);
    }

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
