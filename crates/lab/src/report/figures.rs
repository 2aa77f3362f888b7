//! Figures: rows of one workload as plots with their tables: throughput and idle side by side, efficiency, latency.

use super::page::{TableCell, escape, table};
use super::plot::{Axes, CurveStyle, Plot, Point, Series, short};
use crate::row::{BUCKET_RATIO, Row};
use sluice_console::failure::Result;
use sluice_console::table::{duration, grouped};
use std::fmt::Write as _;

/// A wider span of throughputs is drawn in powers of ten.
const SPAN: f64 = 60.0;

/// A row, and under which name it is drawn.
pub(super) struct Named<'a> {
    pub(super) name: String,
    pub(super) row: &'a Row,
}

/// The plots and tables of rows that may be drawn together: of one workload, and of one machine. `look` says what is
/// drawn how, by number in the order of first appearance.
pub(super) fn figures(rows: &[Named<'_>], look: fn(usize) -> CurveStyle) -> Result<String> {
    let mut names: Vec<&str> = Vec::new();
    for named in rows {
        if !names.contains(&named.name.as_str()) {
            names.push(&named.name);
        }
    }
    let curves = Curves { rows, names, look };
    let mut html = String::new();
    if let Some(first) = rows.first() {
        let kind = if first.row.simulated { "simulated" } else { "native" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            html,
            "<p class=\"facts\"><span class=\"badge\">{kind}</span> {}</p>",
            escape(&first.row.machine)
        );
    }
    html.push_str(&curves.legend());
    html.push_str("<div class=\"plots\">\n");
    let rates = || rows.iter().filter_map(|named| named.row.ops_per_s);
    let (low, high) =
        rates().fold((f64::INFINITY, 0.0f64), |(low, high), rate| (low.min(rate), high.max(rate)));
    let axes = if high > SPAN * low { Axes::CpusAndPower } else { Axes::CpusAndAmount };
    html.push_str(&curves.figure("Throughput, operations per second", axes, "ops/s", |row| {
        let range = row.ops_per_s_low.zip(row.ops_per_s_high);
        Some((row.ops_per_s?, range))
    })?);
    html.push_str(&curves.figure("Idle time of the CPUs in use", Axes::CpusAndPercent, "idle", |row| {
        Some((100.0 * row.idle?, None))
    })?);
    if rows.iter().any(|named| named.row.cpus > 1) {
        html.push_str(&curves.figure(
            "Scaling: rate per CPU against one CPU",
            Axes::CpusAndPercent,
            "efficiency",
            |row| curves.efficiency(row).map(|share| (100.0 * share, None)),
        )?);
    }
    html.push_str(&curves.latency()?);
    html.push_str("</div>\n");
    html.push_str(&curves.table());
    html.push_str(&curves.hottest());
    Ok(html)
}

struct Curves<'a> {
    rows: &'a [Named<'a>],
    names: Vec<&'a str>,
    look: fn(usize) -> CurveStyle,
}

impl Curves<'_> {
    fn legend(&self) -> String {
        let mut html = String::from("<ul class=\"legend\" aria-label=\"Legend\">\n");
        for (number, name) in self.names.iter().enumerate() {
            let look = (self.look)(number);
            let _ = writeln!(
                html,
                "<li><span class=\"c{}\" aria-hidden=\"true\">{}</span> {}</li>",
                look.colour,
                look.mark(),
                escape(name)
            );
        }
        html + "</ul>\n"
    }

    /// A plot of `of` against CPUs; nothing where no row has it.
    fn figure(
        &self,
        caption: &str,
        axes: Axes,
        y_label: &str,
        of: impl Fn(&Row) -> Option<(f64, Option<(f64, f64)>)>,
    ) -> Result<String> {
        let series = self.names.iter().enumerate().map(|(number, name)| {
            let rows = self.rows.iter().filter(|named| named.name == *name);
            let mut points: Vec<Point> = rows
                .filter_map(|named| {
                    of(named.row).map(|(y, range)| Point { x: named.row.cpus as f64, y, range })
                })
                .collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            Series { look: (self.look)(number), points }
        });
        drawing(caption, axes, y_label, &series.collect::<Vec<_>>())
    }

    /// The distributions at the most CPUs.
    fn latency(&self) -> Result<String> {
        let Some(cpus) = self.rows.iter().map(|named| named.row.cpus).max() else { return Ok(String::new()) };
        let series = self.names.iter().enumerate().map(|(number, name)| {
            let row = self.rows.iter().find(|named| named.name == *name && named.row.cpus == cpus);
            let buckets = row.map(|named| &named.row.latency[..]).unwrap_or_default();
            let all: f64 = buckets.iter().map(|&(_, count)| count as f64).sum();
            let mut left = all;
            // Before the first bound there are all; after the last bound none is left, and the curve ends before it.
            let start = buckets.first().map(|&(bound, _)| (bound as f64 / BUCKET_RATIO, all));
            let curve = buckets.iter().take(buckets.len().saturating_sub(1)).map(|&(bound, count)| {
                left -= count as f64;
                (bound as f64, left)
            });
            let points = start.into_iter().chain(curve);
            let points = points.map(|(x, left)| Point { x, y: 100.0 * left / all, range: None });
            Series { look: (self.look)(number), points: points.collect() }
        });
        let caption = format!("Latency at {cpus} CPUs: operations that took longer");
        drawing(&caption, Axes::TimeAndTail, "share", &series.collect::<Vec<_>>())
    }

    fn efficiency(&self, row: &Row) -> Option<f64> {
        let name = &self.rows.iter().find(|named| std::ptr::eq(named.row, row))?.name;
        let one = self.rows.iter().find(|other| other.name == *name && other.row.cpus == 1)?;
        Some(row.ops_per_s? / row.cpus as f64 / one.row.ops_per_s?)
    }

    fn table(&self) -> String {
        let unknown = || "-".to_owned();
        let percent =
            |share: Option<f64>| share.map_or_else(unknown, |share| format!("{:.0}%", 100.0 * share));
        let time = |ns: Option<u64>| ns.map_or_else(unknown, |ns| duration(ns as f64));
        let lines = self.rows.iter().map(|Named { name, row }| {
            let interval = row.ops_per_s_low.zip(row.ops_per_s_high);
            vec![
                TableCell::from(name.clone()),
                row.cpus.to_string().into(),
                row.tasks_in_words().into(),
                row.runs.to_string().into(),
                row.ops_per_s.map_or_else(unknown, grouped).into(),
                interval
                    .map_or_else(unknown, |(low, high)| format!("{} - {}", short(low), short(high)))
                    .into(),
                percent(self.efficiency(row)).into(),
                time(row.p50_ns).into(),
                time(row.p99_ns).into(),
                time(row.max_ns).into(),
                percent(row.user).into(),
                percent(row.system).into(),
                percent(row.idle).into(),
                row.switches_per_op.map_or_else(unknown, |count| format!("{count:.4}")).into(),
            ]
        });
        let heads = [
            "",
            "CPUs",
            "tasks",
            "runs",
            "ops/s",
            "95% interval",
            "per CPU",
            "p50",
            "p99",
            "max",
            "user",
            "system",
            "idle",
            "switches/op",
        ];
        let table = table("The figures behind the plots", &heads, &lines.collect::<Vec<_>>());
        format!("<details><summary>Table</summary>\n{table}</details>\n")
    }

    /// Which lines CPUs waited for, and where in the source; only the simulated machine knows.
    fn hottest(&self) -> String {
        let rows = || self.rows.iter().filter(|named| named.row.cpus > 1);
        let of_row =
            |Named { name, row }: &Named<'_>| [TableCell::from(name.clone()), row.cpus.to_string().into()];
        let lines = rows().flat_map(|named| {
            named.row.hottest.iter().map(|line| {
                let (name, writers) = (TableCell::Words(line.name.clone()), line.writers.to_string().into());
                of_row(named)
                    .into_iter()
                    .chain([name, writers, grouped(line.wait_cycles_per_op).into()])
                    .collect()
            })
        });
        let places = rows().flat_map(|named| {
            named.row.costliest_places().iter().map(|place| {
                let (name, lines) =
                    (TableCell::Words(place.name.clone()), grouped(place.lines as f64).into());
                let misses = format!("{:.2}", place.misses_per_op).into();
                let of_place = [name, lines, misses, grouped(place.wait_cycles_per_op).into()];
                of_row(named).into_iter().chain(of_place).collect()
            })
        });
        let (lines, places): (Vec<Vec<_>>, Vec<Vec<_>>) = (lines.collect(), places.collect());
        let table_of = |caption: &str, heads: &[&str], lines: &[Vec<TableCell>]| {
            if lines.is_empty() { String::new() } else { table(caption, heads, lines) }
        };
        let of_lines = ["", "CPUs", "lock or field", "written by CPUs", "cycles waited per operation"];
        let of_places = [
            "",
            "CPUs",
            "place in the source",
            "lines",
            "misses per operation",
            "cycles waited per operation",
        ];
        let tables = table_of("What CPUs waited for (simulated)", &of_lines, &lines)
            + &table_of("Where they waited, whatever the line (simulated)", &of_places, &places);
        if tables.is_empty() {
            return tables;
        }
        format!("<details><summary>Locks and lines waited for</summary>\n{tables}</details>\n")
    }
}

fn drawing(caption: &str, axes: Axes, y_label: &str, series: &[Series]) -> Result<String> {
    if series.iter().all(|series| series.points.is_empty()) {
        return Ok(String::new());
    }
    let svg = Plot { axes, y_label, series }.svg()?;
    let caption = escape(caption);
    let svg = svg.replacen(
        "<svg ",
        &format!("<svg role=\"img\" aria-label=\"{caption}; the table below has the figures\" "),
        1,
    );
    Ok(format!("<figure>\n<figcaption>{caption}</figcaption>\n{svg}</figure>\n"))
}
