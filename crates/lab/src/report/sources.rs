//! Sources: the page that sets every experiment beside the public discussion it comes from.

use super::page::{HtmlPage, TableCell, escape, table};
use super::plot::{CurveStyle, short};
use super::{Named, facts, groups, name};
use crate::bench::Listener;
use crate::experiment::{EXPERIMENTS, Findings};
use crate::row::Row;
use sluice_console::failure::Result;
use sluice_console::interrupt::Interrupt;
use sluice_console::table::grouped;
use std::fmt::Write as _;

/// A public discussion, and the experiments that show what it said.
struct Source {
    title: &'static str,
    about: &'static str,
    headline: Option<Headline>,
    experiments: &'static [&'static str],
}

/// The one figure of a discussion that says most.
struct Headline {
    /// The claim, with the source's own figures.
    claim: &'static str,
    /// The work of the workload, as the beginning of a sentence.
    doing: &'static str,
    /// The rows that show it, at the most CPUs there are.
    workload: &'static str,
    target: &'static str,
    before: &'static str,
    ours: &'static str,
}

const SOURCES: &[Source] = &[
    Source {
        title: "File locking (2013)",
        about: "One lock around every file lock gave way to a lock per inode, a hash table of blocked requests and a \
                list per CPU.",
        headline: Some(Headline {
            claim: "flock02 on 32 CPUs took 1,348.6 s under one lock, and 8.48 s with a lock per inode",
            doing: "Locking a file of one's own with flock",
            workload: "flock02",
            target: "sim:opteron-32",
            before: "before",
            ours: "ours",
        }),
        experiments: &["file-locks"],
    },
    Source {
        title: "A sleeping lock that stopped spinning (2016)",
        about: "A mutex that became an rwsem lost throughput and left CPUs idle.",
        headline: Some(Headline {
            claim: "unlink1 on 4 CPUs: 689,179 a second with the mutex, 498,325 with the rwsem (-27.7%)",
            doing: "Creating and unlinking in one directory under its lock",
            workload: "rwsem-unlink",
            target: "sim:skylake-4",
            before: "rwsem-2016",
            ours: "rwsem",
        }),
        experiments: &["rwsem"],
    },
    Source {
        title: "Reading one directory (2016)",
        about: "A cursor moved for each name, under a lock inside a lock, and readers of one directory stood in each \
                other's way.",
        headline: Some(Headline {
            claim: "parallel getdents of one directory collapses",
            doing: "Listing one directory of 1,000 names",
            workload: "MRDM",
            target: "sim:power7-64",
            before: "before",
            ours: "ours",
        }),
        experiments: &["readdir"],
    },
    Source {
        title: "A cluster's lock manager (2006)",
        about: "A table of one page made every lookup longer as locks were cached, so that each untar took longer than \
                the one before.",
        headline: Some(Headline {
            claim: "each untar of a kernel took more system time than the one before, as a table of one page filled",
            doing: "Looking up one of a million cached locks",
            workload: "lookup-1000000",
            target: "sim:opteron-32",
            before: "before",
            ours: "ours",
        }),
        experiments: &["dlm-hash", "dlm"],
    },
    Source {
        title: "Scaling the VFS (2009)",
        about: "Five global locks let 64 CPUs do less than one.",
        headline: Some(Headline {
            claim: "close(open(path)) on 64 CPUs: 450 a second on each, where over 300,000 are possible",
            doing: "Opening and closing a file of one's own",
            workload: "open-close",
            target: "sim:power7-64",
            before: "before",
            ours: "ours",
        }),
        experiments: &["vfs"],
    },
    Source {
        title: "Queued spin locks and the journal (2015)",
        about: "In a guest the queued spin lock fell back to bare test-and-set, and the journal's commit stood still. \
                The locks are shown, and the commit path of our own store: with one list under each of them, and as it is.",
        headline: Some(Headline {
            claim: "fs_mark in a guest of 16 virtual CPUs: 312,594 files a second, 114,144 with the fallback",
            doing: "Short critical sections in a guest whose virtual CPUs are preempted",
            workload: "spin-short",
            target: "sim:vm-16",
            before: "queued-tas-fallback",
            ours: "queued-pv",
        }),
        experiments: &["spin", "journal"],
    },
];

/// Runs every experiment that is there, and makes the page.
///
/// # Errors
/// Errors of the experiments, and of drawing.
pub fn of_sources(listener: &mut dyn Listener, interrupt: &Interrupt) -> Result<String> {
    let mut chapters = Vec::new();
    for source in SOURCES {
        let mut parts = Vec::new();
        let named = |name: &&str| EXPERIMENTS.iter().find(|experiment| experiment.name == *name);
        for experiment in source.experiments.iter().filter_map(named) {
            let mut keeper = Keeper { listener, rows: Vec::new() };
            let findings = experiment.run(&mut keeper, interrupt)?;
            parts.push((findings, keeper.rows));
        }
        chapters.push((source, parts));
    }
    page(&chapters)
}

type Chapter = (&'static Source, Vec<(Findings, Vec<Row>)>);

fn page(chapters: &[Chapter]) -> Result<String> {
    let rows = |parts: &[(Findings, Vec<Row>)]| -> Vec<Row> {
        parts.iter().flat_map(|(_, rows)| rows.clone()).collect()
    };
    let all: Vec<Row> = chapters.iter().flat_map(|(_, parts)| rows(parts)).collect();
    let mut page =
        HtmlPage::new("What five discussions said about locks, and what is seen here", facts(&all));
    page.section("At a glance", glance(chapters));
    for (source, parts) in chapters {
        let rows = rows(parts);
        let mut html = summary(source, parts);
        if let Some(seen) = source.headline.as_ref().and_then(|headline| headline.seen(&rows)) {
            // Writing to a String cannot fail.
            let _ = writeln!(html, "<p>{}</p>", escape(&seen.sentence()));
        }
        let figures =
            groups(rows.iter().map(|row| Named { name: name(row), row }).collect(), CurveStyle::alone)?;
        if !figures.is_empty() {
            let _ = writeln!(html, "<details><summary>Plots and tables of {} loads</summary>", figures.len());
            for (heading, figures) in figures {
                let _ = write!(html, "<h3>{}</h3>\n{figures}", escape(&heading));
            }
            html.push_str("</details>\n");
        }
        page.section(source.title, html);
    }
    Ok(page.finish())
}

/// The figures of the rows for a headline.
struct HeadlineRow<'a> {
    headline: &'a Headline,
    cpus: usize,
    before: f64,
    ours: f64,
}

impl Headline {
    fn seen(&self, rows: &[Row]) -> Option<HeadlineRow<'_>> {
        let of = |variant: &str, cpus: Option<usize>| {
            let rows = rows.iter().filter(|row| row.workload == self.workload && row.target == self.target);
            let rows = rows.filter(|row| row.variant.as_deref() == Some(variant));
            rows.filter(|row| cpus.is_none_or(|cpus| row.cpus == cpus)).max_by_key(|row| row.cpus)
        };
        let ours = of(self.ours, None)?;
        let before = of(self.before, Some(ours.cpus))?;
        Some(HeadlineRow {
            headline: self,
            cpus: ours.cpus,
            before: before.ops_per_s?,
            ours: ours.ops_per_s?,
        })
    }
}

impl HeadlineRow<'_> {
    fn sentence(&self) -> String {
        let HeadlineRow { headline: Headline { doing, target, .. }, cpus, before, ours } = self;
        let machine = target.trim_start_matches("sim:");
        format!(
            "{doing}: {cpus} CPUs of {machine} (simulated) do it {} times a second as it was before, and {} times as it \
             is here: {:.1} times as often.",
            grouped(*before),
            grouped(*ours),
            ours / before
        )
    }
}

/// A line for each discussion: what it claimed, before, after, verdict.
fn glance(chapters: &[Chapter]) -> String {
    let lines = chapters.iter().map(|(source, parts)| {
        let rows: Vec<Row> = parts.iter().flat_map(|(_, rows)| rows.clone()).collect();
        let seen = source.headline.as_ref().and_then(|headline| headline.seen(&rows));
        let verdicts: Vec<bool> =
            parts.iter().flat_map(|(findings, _)| &findings.verdicts).map(|verdict| verdict.met).collect();
        let met = verdicts.iter().filter(|met| **met).count();
        let (verdict, class) = match verdicts.len() {
            0 => ("not shown yet".to_owned(), ""),
            all if all == met => (format!("all {all} claims met"), "met"),
            all => (format!("{met} of {all} claims met"), "missed"),
        };
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| short(rate) + "/s");
        vec![
            TableCell::Words(source.title.to_owned()),
            TableCell::Words(source.headline.as_ref().map_or("-", |headline| headline.claim).to_owned()),
            rate(seen.as_ref().map(|seen| seen.before)).into(),
            rate(seen.as_ref().map(|seen| seen.ours)).into(),
            TableCell::Marked(verdict, class),
        ]
    });
    let heads = ["discussion", "its claim", "our before", "ours", "verdict"];
    table("Simulated rates, at the most CPUs of the machine", &heads, &lines.collect::<Vec<_>>())
}

/// The claims of one source: its figures, ours, and whether they agree.
fn summary(source: &Source, parts: &[(Findings, Vec<Row>)]) -> String {
    let verdicts: Vec<_> = parts.iter().flat_map(|(findings, _)| &findings.verdicts).collect();
    let about = format!("<p>{}</p>\n", escape(source.about));
    if verdicts.is_empty() {
        return format!("{about}<p class=\"facts\">No experiment of this version shows it.</p>\n");
    }
    let met = verdicts.iter().filter(|verdict| verdict.met).count();
    let lines = verdicts.iter().map(|verdict| {
        let (word, class) = if verdict.met { ("met", "met") } else { ("missed", "missed") };
        vec![
            TableCell::Words(verdict.source.clone()),
            TableCell::Words(verdict.seen.clone()),
            TableCell::Marked(word.to_owned(), class),
        ]
    });
    let table =
        table("Claim by claim", &["the source said", "seen here", "verdict"], &lines.collect::<Vec<_>>());
    format!("{about}<p>{met} of {} claims are seen here.</p>\n{table}", verdicts.len())
}

/// Keeps the rows that pass.
struct Keeper<'a> {
    listener: &'a mut dyn Listener,
    rows: Vec<Row>,
}

impl Listener for Keeper<'_> {
    fn run_begins(&mut self, what: &str) {
        self.listener.run_begins(what);
    }

    fn run_ends(&mut self) {
        self.listener.run_ends();
    }

    fn row(&mut self, row: &Row) -> Result<()> {
        self.rows.push(row.clone());
        self.listener.row(row)
    }

    fn note(&mut self, text: &str) {
        self.listener.note(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Verdict;
    use crate::row::Origin;

    #[test]
    fn every_experiment_belongs_to_a_source() {
        for experiment in EXPERIMENTS.iter().filter(|experiment| experiment.name != "calibrate") {
            let sources = SOURCES.iter().filter(|source| source.experiments.contains(&experiment.name));
            assert_eq!(sources.count(), 1, "{}", experiment.name);
        }
    }

    #[test]
    fn a_miss_is_shown_as_a_miss() {
        let verdict = |met| Verdict { source: "said".into(), seen: "seen".into(), met };
        let findings = Findings { verdicts: vec![verdict(true), verdict(false)], ..Findings::default() };
        const LATER: &Source = &Source { title: "later", about: "", headline: None, experiments: &[] };
        let html = page(&[(&SOURCES[0], vec![(findings, Vec::new())]), (LATER, Vec::new())]).unwrap();
        assert!(html.contains("1 of 2 claims met") && html.contains("class=\"missed\""));
        assert!(html.contains("No experiment of this version") && html.contains("not shown yet"));
    }

    #[test]
    fn a_headline_is_taken_from_the_rows_at_the_most_cpus() {
        let row = |variant: &str, cpus, rate| {
            let mut row = Row::new(&Origin::simulated("m"), "flock02", "sim:opteron-32".into(), cpus, cpus);
            row.variant = Some(variant.into());
            row.set_rates(1, &[rate]);
            row
        };
        let rows = [row("before", 32, 1e3), row("ours", 2, 5e3), row("ours", 32, 2e6), row("before", 2, 3e3)];
        let sentence = SOURCES[0].headline.as_ref().unwrap().seen(&rows).unwrap().sentence();
        assert!(sentence.contains("32 CPUs of opteron-32 (simulated)"), "{sentence}");
        assert!(sentence.contains("1,000 times") && sentence.contains("2000.0 times as often"), "{sentence}");
    }
}
