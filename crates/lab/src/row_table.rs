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
        let first = rows.iter().find(|other| {
            (&other.workload, &other.variant, other.cpus, other.tasks)
                == (&row.workload, &row.variant, row.cpus, row.tasks)
        });
        let ratio = first.and_then(|first| Some(row.ops_per_s? / first.ops_per_s?));
        let deviation = row.ops_per_s_sd.zip(row.ops_per_s).map(|(sd, rate)| 100.0 * sd / rate);
        table.line([
            row.workload.clone(),
            target_of(row),
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
                row.workload,
                target_of(row),
                row.cpus,
                line.name
            );
        }
        for place in row.costliest_places() {
            let (wait, misses) = (grouped(place.wait_cycles_per_op), place.misses_per_op);
            let _ = writeln!(
                text,
                "{} on {}, {} CPUs (simulated): {wait} cycles an operation in all at {}, {misses:.2} misses on {} lines",
                row.workload,
                target_of(row),
                row.cpus,
                place.name,
                place.lines
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
            target_of(row),
            row.cpus,
            100.0 * row.asleep.unwrap_or_default(),
            if places.is_empty() { "no place that the kernel names".to_owned() } else { places.join(", ") }
        );
    }
    text.push_str(&of_pressure(rows));
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

/// The target, and whose row it is if several programs have one.
fn target_of(row: &Row) -> String {
    let variant = row.variant.as_ref().map(|variant| format!(" ({variant})"));
    row.target.clone() + &variant.unwrap_or_default()
}

/// One line about what tasks stood still for, in whichever rows.
fn of_pressure(rows: &[Row]) -> String {
    let of = |what: &str, share: fn(&Row) -> f64| {
        let there: Vec<&Row> = rows.iter().filter(|row| share(row) >= WORTH_A_LINE).collect();
        let most = there.iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
        let (percent, count) = (100.0 * share(most), there.len());
        Some(format!(
            "{what} for up to {percent:.0}% of the time ({count} of {} rows, most in {} on {})",
            rows.len(),
            most.workload,
            most.target
        ))
    };
    let parts = [
        of("memory", |row| row.stalled.unwrap_or_default().memory),
        of("a device", |row| row.stalled.unwrap_or_default().io),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!("some task of the machine stood still for {}\n", parts.join(", for ")),
    }
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
    use sluice_console::machine::Stalled;

    #[test]
    fn pressure_has_one_line_however_many_rows_met_it() {
        let origin = Origin { machine: String::new(), kernel: String::new(), command: None };
        let row = |io: f64, memory: f64| Row {
            stalled: Some(Stalled { cpu: 1.0, memory, io }),
            ..Row::new(&origin, "stat", format!("dir:/{io}"), 1, 1)
        };
        let rows: Vec<Row> =
            (0..12).map(|n| row(f64::from(n) / 20.0, if n == 3 { 0.5 } else { 0.0 })).collect();
        assert_eq!(
            of_pressure(&rows),
            "some task of the machine stood still for memory for up to 50% of the time (1 of 12 rows, most in stat on dir:/0.15), \
             for a device for up to 55% of the time (11 of 12 rows, most in stat on dir:/0.55)\n"
        );
        assert_eq!(of_pressure(&rows[..1]), "");
        assert_eq!(of_rows(&rows).matches("stood still").count(), 1);
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
