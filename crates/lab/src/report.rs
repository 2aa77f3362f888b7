//! Report: results as one self-contained HTML page, for a screen, a phone, and a reader that speaks.
//!
//! Native and simulated figures never stand in one plot: rows are drawn together when they are of one workload and of
//! one machine.

mod figures;
mod page;
mod plot;
mod sources;

pub use sources::of_sources;

use crate::compare::{Comparison, Verdict, interval};
use crate::disturbance::warnings_of;
use crate::row::Row;
use figures::{Named, figures};
use page::{HtmlPage, TableCell, escape, table};
use plot::CurveStyle;
use sluice_console::failure::Result;
use sluice_console::table::grouped;

/// The page of one result.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn of_result(title: &str, rows: &[Row]) -> Result<String> {
    let mut page = HtmlPage::new(title, facts(rows));
    let rows: Vec<Named<'_>> = rows.iter().map(|row| Named { name: name(row), row }).collect();
    sections(&mut page, rows, CurveStyle::alone)?;
    Ok(page.finish())
}

/// The page of a comparison: the verdicts, then both versions in the same plots.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn of_comparison(comparison: &Comparison) -> Result<String> {
    let after: Vec<Row> = comparison.pairs.iter().map(|pair| pair.after.clone()).collect();
    let [first, second] = comparison.sides;
    let warned = comparison.warnings().into_iter().map(|(side, text)| format!("{side}: {text}"));
    let lead = warnings(warned.collect()) + &machines(&after);
    let mut page = HtmlPage::new("Before and after", lead);
    let lines = comparison.pairs.iter().map(|pair| {
        let class = match pair.verdict {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference | Verdict::MachineMoved => "",
        };
        vec![
            TableCell::from(pair.before.workload.clone()),
            pair.before.cpus.to_string().into(),
            TableCell::Marked(pair.verdict.to_string(), class),
            pair.before.ops_per_s.map_or_else(String::new, grouped).into(),
            pair.after.ops_per_s.map_or_else(String::new, grouped).into(),
            format!("{:.3}", pair.ratio).into(),
            interval(pair.interval).into(),
            name(&pair.before).into(),
        ]
    });
    let rates = comparison.sides.map(|side| format!("{side}, ops/s"));
    let heads = ["workload", "CPUs", "verdict", &rates[0], &rates[1], "ratio", "99% interval", "target"];
    let caption = format!("The rate {second} over that {first}; above 1 is faster");
    page.section("Verdicts", table(&caption, &heads, &lines.collect::<Vec<_>>()));
    let named = |side: &str, row| Named { name: format!("{side}: {}", name(row)), row };
    let rows =
        comparison.pairs.iter().flat_map(|pair| [named(first, &pair.before), named(second, &pair.after)]);
    sections(&mut page, rows.collect(), CurveStyle::of_a_pair)?;
    Ok(page.finish())
}

/// A section for each workload on each machine.
fn sections(page: &mut HtmlPage, rows: Vec<Named<'_>>, look: fn(usize) -> CurveStyle) -> Result<()> {
    for (heading, html) in groups(rows, look)? {
        page.section(heading, html);
    }
    Ok(())
}

/// A heading and the figures for each workload on each machine, in the order of the rows.
fn groups(rows: Vec<Named<'_>>, look: fn(usize) -> CurveStyle) -> Result<Vec<(String, String)>> {
    let mut groups: Vec<(String, Vec<Named<'_>>)> = Vec::new();
    for named in rows {
        let row = named.row;
        let place = if row.simulated { format!(" on {} (simulated)", row.target) } else { String::new() };
        let heading = format!("{}{place}", row.workload);
        match groups.iter_mut().find(|(other, _)| *other == heading) {
            Some((_, group)) => group.push(named),
            None => groups.push((heading, vec![named])),
        }
    }
    groups.into_iter().map(|(heading, group)| Ok((heading, figures(&group, look)?))).collect()
}

/// The name of a row among those it is drawn with.
fn name(row: &Row) -> String {
    row.variant.as_ref().map_or_else(|| row.target.clone(), |variant| format!("{variant}, {}", row.target))
}

/// The warnings, the machines, and the commands that repeat the measurement.
fn facts(rows: &[Row]) -> String {
    warnings(warnings_of(rows.iter().map(|row| &row.warnings))) + &machines(rows)
}

fn warnings(warnings: Vec<String>) -> String {
    let lines = warnings.iter().map(|text| format!("<p class=\"warning\">Warning: {}</p>\n", escape(text)));
    lines.collect()
}

/// The measured objects, the machines, and the commands.
fn machines(rows: &[Row]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for row in rows {
        let system = row.file_system.as_ref().map(|system| format!("{} is {system}", row.target));
        let command = row.command.as_ref().map(|command| format!("Made by: {command}"));
        let place = format!("{}; {}; sluicefs {}", row.machine, row.kernel, row.version);
        for line in [Some(place), system, command].into_iter().flatten() {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    let lines: String =
        lines.iter().map(|line| format!("<p class=\"facts\">{}</p>\n", escape(line))).collect();
    let simulated = if rows.iter().any(|row| row.simulated) {
        "<p>Simulated figures hold for the simulated machine, and are never set beside native ones.</p>\n"
    } else {
        ""
    };
    format!("{simulated}<details><summary>Machines and commands</summary>\n{lines}</details>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;
    use crate::hot_lines::{HotLine, HotPlace};
    use crate::row::Origin;

    fn rows(scale: f64) -> Vec<Row> {
        let origin =
            Origin { machine: "m".into(), kernel: "k".into(), command: Some("sluice bench x".into()) };
        let mut rows = Vec::new();
        for (target, simulated) in [("lib", false), ("sim:uma-2", true)] {
            for cpus in [1, 2] {
                let mut row = Row::new(&origin, "stat", target.into(), cpus, cpus);
                row.set_rates(9, &[1e6 * scale, 1.01e6 * scale, 0.99e6 * scale]);
                row.simulated = simulated;
                row.idle = Some(0.25);
                row.latency = vec![(128, 10), (256, 5)];
                row.hottest =
                    vec![HotLine { name: "Inode.attr".into(), writers: 2, wait_cycles_per_op: 40.0 }];
                let (name, lines) = ("vfs/src/inode.rs:7".into(), 1_234);
                row.places = vec![HotPlace { name, lines, misses_per_op: 0.5, wait_cycles_per_op: 60.0 }];
                rows.push(row);
            }
        }
        rows
    }

    /// Asserts the rules for every page.
    fn check(html: &str) {
        assert!(
            html.starts_with("<!doctype html>") && html.contains("lang=\"en\"") && html.contains("viewport")
        );
        for outside in ["http:", "https:", "src=", "@import", "url(", "<script"] {
            let html = html.replace("http://www.w3.org/2000/svg", "");
            assert!(!html.contains(outside), "the page needs {outside}");
        }
        let count = |what: &str| html.matches(what).count();
        assert!(count("<svg ") > 0);
        assert_eq!(count("<svg "), count("role=\"img\" aria-label="), "every plot has a label");
        assert_eq!(count("<figure>"), count("<figcaption>"));
        assert!(count("<table>") > 0 && count("<table>") == count("<caption>"));
        for tag in ["section", "figure", "details", "table", "svg", "ul", "div"] {
            let opened = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
            assert_eq!(opened, count(&format!("</{tag}>")), "{tag}");
        }
        assert!(html.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn a_report_keeps_native_and_simulated_figures_apart() {
        let html = of_result("Result", &rows(1.0)).unwrap();
        check(&html);
        assert_eq!(html.matches("<section ").count(), 2);
        assert!(html.contains("on sim:uma-2 (simulated)") && html.contains("Inode.attr"));
        assert!(html.contains("vfs/src/inode.rs:7") && html.contains("1,234"), "places beside lines");
        assert!(
            html.contains("Throughput") && html.contains("Idle time") && html.contains("Latency at 2 CPUs")
        );
        assert!(html.contains("sluice bench x") && !html.contains("class=\"warning\""));
    }

    #[test]
    fn warnings_stand_on_the_pages_outside_of_what_is_folded_away() {
        let mut busy = rows(1.0);
        busy[0].warnings = vec!["busy machine: <2> other tasks".into()];
        let warning =
            "<p class=\"warning\">Warning: busy machine: &lt;2&gt; other tasks (in 1 of 4 rows)</p>";
        let html = of_result("Result", &busy).unwrap();
        assert!(html.find(warning) < html.find("<details>") && html.contains(warning));
        let html = of_comparison(&compare(&busy, &rows(0.5)).unwrap()).unwrap();
        assert!(html.contains("Warning: before: busy machine: ") && !html.contains("Warning: after"));
    }

    #[test]
    fn a_comparison_shows_both_sides_and_the_verdicts() {
        let comparison = compare(&rows(1.0), &rows(0.5)).unwrap();
        let html = of_comparison(&comparison).unwrap();
        check(&html);
        assert_eq!(html.matches("class=\"slower\"").count(), 4);
        assert!(html.contains("before: lib") && html.contains("after: lib"));
    }
}
