//! Conflicts: lines that activities on different CPUs shared while at least one wrote.
//!
//! # Theory
//! Operations that commute can be implemented so that they do not conflict, and then they scale (Clements and
//! others, "The scalable commutativity rule", SOSP 2013). So the test is yes or no, per line. It is complete
//! for what the machine sees: atomics, tracked cells and touched spans. Plain data is reachable only through
//! those.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

use crate::cpu_set::CpuSet;
use crate::engine::{Engine, LINE_BYTES};
use crate::label::text_of;
use crate::spec::Kind;
use crate::watch::Touch;

/// The accesses of one place in the source to a line in conflict.
#[derive(Clone, Debug)]
pub struct Toucher {
    /// The CPU that touched the line.
    pub cpu: usize,
    /// The kind of the access.
    pub kind: Kind,
    /// Where in the line it begins, in bytes.
    pub offset: usize,
    /// How many bytes.
    pub length: usize,
    /// The label of the bytes, or empty.
    pub label: String,
    /// The place in the source.
    pub site: &'static Location<'static>,
    /// How often.
    pub count: u64,
}

/// A line that watched activities shared and at least one wrote.
#[derive(Clone, Debug)]
pub struct Conflict {
    /// The number of the line, in the order of first touch.
    pub line: u32,
    /// Which CPU did what, in the order of first touch.
    pub touchers: Vec<Toucher>,
}

impl Conflict {
    /// Whether the activities shared the line, but no byte that one of them wrote: padding cures it.
    pub fn is_false_sharing(&self) -> bool {
        let meet =
            |a: &Toucher, b: &Toucher| a.offset < b.offset + b.length && b.offset < a.offset + a.length;
        let clash =
            |a: &Toucher| a.kind.writes() && self.touchers.iter().any(|b| a.cpu != b.cpu && meet(a, b));
        !self.touchers.iter().any(clash)
    }

    /// The labels of the fields involved, each once.
    pub fn labels(&self) -> Vec<&str> {
        let mut labels: Vec<&str> = Vec::new();
        for toucher in &self.touchers {
            if !toucher.label.is_empty() && !labels.contains(&toucher.label.as_str()) {
                labels.push(&toucher.label);
            }
        }
        labels
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_false_sharing() { "false sharing" } else { "conflict" };
        write!(f, "line {}: {kind}", self.line)?;
        for label in self.labels() {
            write!(f, " {label}")?;
        }
        // One line of text per place in the source, with all the CPUs that it ran on.
        let mut rows = BTreeMap::new();
        for toucher in &self.touchers {
            let site = toucher.site;
            let key = (site.file().to_owned(), site.line(), toucher.offset, toucher.kind.writes());
            let (cpus, count, _) = rows.entry(key).or_insert((CpuSet::default(), 0, toucher));
            cpus.insert(toucher.cpu);
            *count += toucher.count;
        }
        for (cpus, count, toucher) in rows.values() {
            let verb = if toucher.kind.writes() { "write" } else { "read" };
            let what = if toucher.label.is_empty() { "bytes" } else { &toucher.label };
            let (offset, site) = (toucher.offset, toucher.site);
            write!(f, "\n  cpu {cpus} {verb} {what} at +{offset} x{count}, {site}")?;
        }
        Ok(())
    }
}

/// All conflicts of a run's watched activities.
#[derive(Clone, Debug, Default)]
pub struct Conflicts {
    /// In the order in which the lines were first touched.
    pub lines: Vec<Conflict>,
    /// How many lines the activities touched at all: 0 means that nothing was watched.
    pub lines_touched: usize,
}

impl Conflicts {
    pub(crate) fn of(engine: &Engine) -> Conflicts {
        let lines = engine.watch.conflicts().map(|(line, touches)| Conflict {
            line,
            touchers: touches.iter().map(|touch| toucher(engine, line, touch)).collect(),
        });
        Conflicts { lines: lines.collect(), lines_touched: engine.watch.lines() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "simulated: {} of {} lines in conflict", self.lines.len(), self.lines_touched)?;
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

fn toucher(engine: &Engine, line: u32, touch: &Touch) -> Toucher {
    let (access, offset) = (&touch.access, usize::from(touch.access.offset));
    Toucher {
        cpu: access.cpu,
        kind: access.kind,
        offset,
        length: access.length.into(),
        label: name_at(engine, line, offset),
        site: access.site,
        count: touch.count,
    }
}

/// The name of what lies at `offset` in a line, or empty.
pub(crate) fn name_at(engine: &Engine, line: u32, offset: usize) -> String {
    let tag = engine.statistics[line as usize].tag;
    if let Some(cpu) = Engine::run_state_of(tag) {
        return format!("(run state of cpu {cpu})");
    }
    text_of(tag as usize * LINE_BYTES + offset)
}
