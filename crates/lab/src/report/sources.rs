//! Sources: the page that sets every experiment beside the public discussion it comes from.

use super::page::{Cell, Page, escape, table};
use super::{Named, facts, name, sections};
use crate::bench::Listener;
use crate::experiment::{EXPERIMENTS, Findings};
use crate::failure::Result;
use crate::interrupt::Interrupt;
use crate::row::Row;

/// A public discussion, and the experiments that show what it said.
struct Source {
    title: &'static str,
    about: &'static str,
    experiments: &'static [&'static str],
}

const SOURCES: &[Source] = &[
    Source {
        title: "File locking (2013)",
        about: "One lock around every file lock gave way to a lock per inode, a hash table of blocked requests and a \
                list per CPU.",
        experiments: &["file-locks"],
    },
    Source {
        title: "Sleeping locks and directories (2016)",
        about: "A mutex that became an rwsem lost throughput and idled, and readers of one directory stood in each \
                other's way.",
        experiments: &["rwsem", "readdir"],
    },
    Source {
        title: "A cluster's lock manager (2006)",
        about: "A table of one page made every lookup longer as locks were cached.",
        experiments: &["dlm-hash"],
    },
    Source {
        title: "Scaling the VFS (2009)",
        about: "Five global locks let 64 CPUs do less than one.",
        experiments: &["vfs"],
    },
    Source {
        title: "Queued spin locks and the journal (2015)",
        about: "In a guest the queued spin lock fell back to bare test-and-set, and the journal's commit stood still.",
        experiments: &["spin", "journal"],
    },
];

/// Runs every experiment that is there, and makes the page.
///
/// # Errors
/// Those of the experiments, and of drawing.
pub fn of_sources(listener: &mut dyn Listener, interrupt: &Interrupt) -> Result<String> {
    let mut chapters = Vec::new();
    for source in SOURCES {
        let mut parts = Vec::new();
        let named = |name: &&str| EXPERIMENTS.iter().find(|experiment| experiment.name == *name);
        for experiment in source.experiments.iter().filter_map(named).filter(|one| one.steps() > 0) {
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
    let all: Vec<Row> =
        chapters.iter().flat_map(|(_, parts)| parts.iter().flat_map(|(_, rows)| rows.clone())).collect();
    let mut page = Page::new("What five discussions said about locks, and what is seen here", facts(&all));
    for (source, parts) in chapters {
        page.section(source.title, summary(source, parts));
    }
    for (_, parts) in chapters {
        for (_, rows) in parts {
            sections(&mut page, rows.iter().map(|row| Named { name: name(row), row }).collect())?;
        }
    }
    Ok(page.finish())
}

/// The claims of one source: its figures, ours, and a sentence on whether they agree.
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
            Cell::Words(verdict.source.clone()),
            Cell::Words(verdict.seen.clone()),
            Cell::Marked(word.to_owned(), class),
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
        let html = page(&[(&SOURCES[0], vec![(findings, Vec::new())]), (&SOURCES[2], Vec::new())]).unwrap();
        assert!(html.contains("1 of 2 claims") && html.contains("class=\"missed\""));
        assert!(html.contains("No experiment of this version"));
    }
}
