//! The results of a run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::Location;

use crate::conflict::{Conflicts, name_at};
use crate::cpu_set::CpuSet;
use crate::engine::{Engine, SiteStatistics};
use crate::spec::Kind;
use crate::trace::TraceEntry;

/// How many lines the report lists.
const HOT_LINES_MAX: usize = 16;
/// How many places it lists.
const HOT_PLACES_MAX: usize = 64;
/// How many of the hot lines, and how many places of each, are printed.
const HOT_LINES_SHOWN: usize = 5;
const SITES_SHOWN: usize = 6;
/// How many of the costliest places are printed.
const HOT_PLACES_SHOWN: usize = 3;

/// The result of a run. Everything in it is *simulated*: compare it with other simulated figures of the same
/// machine, never with a measured one.
#[derive(Clone, Debug)]
pub struct Report {
    /// The machine's name.
    pub machine: &'static str,
    /// Cycles in a microsecond.
    pub mhz: u32,
    /// The seed.
    pub seed: u64,
    /// Cycles until the last CPU had finished.
    pub cycles: u64,
    /// The times and accesses of each CPU.
    pub cpus: Vec<CpuReport>,
    /// The lines for which CPUs stood still longest, hottest first; 16 at most.
    pub hottest: Vec<HotLine>,
    /// The places in the source where CPUs stood still longest, whatever the line, costliest first; 64 at most. They tell
    /// what many lines cost of which none is hot.
    pub places: Vec<HotPlace>,
    /// Conflicts between watched activities; empty without watches.
    pub conflicts: Conflicts,
    /// The last accesses, if the run was traced.
    pub trace: Vec<TraceEntry>,
}

/// The times and accesses of one CPU. Times are in cycles; `busy`, `spinning`, `idle` and `preempted` add up to `cycles`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuReport {
    /// When it finished.
    pub cycles: u64,
    /// Computing, or waiting for a line to arrive.
    pub busy: u64,
    /// In spin hints, and spinning on unchanged lines.
    pub spinning: u64,
    /// Parked or halted.
    pub idle: u64,
    /// Runnable, without a physical CPU.
    pub preempted: u64,
    /// Accesses to tracked memory.
    pub accesses: u64,
    /// Accesses that had to bring the line from another cache or from memory, or to invalidate other copies.
    pub misses: u64,
    /// Operations that the workload counted.
    pub ops: u64,
}

/// A line for which CPUs stood still.
#[derive(Clone, Debug)]
pub struct HotLine {
    /// Its number, in the order of first touch.
    pub line: u32,
    /// Accesses that missed.
    pub misses: u64,
    /// Cycles that CPUs spent in the line's queue or fetching it.
    pub stall: u64,
    /// Cycles in which CPUs spun until it changed.
    pub waited: u64,
    /// Cycles in which CPUs were parked on a word of it.
    pub parked: u64,
    /// The labels of the accessed objects in the line, each once.
    pub labels: Vec<String>,
    /// The CPUs that missed on it by writing.
    pub writers: CpuSet,
    /// The CPUs that spun or parked on it.
    pub waiters: CpuSet,
    /// The places in the source that missed on it, costliest first.
    pub sites: Vec<HotSite>,
}

/// One place in the source that missed on a hot line.
#[derive(Clone, Debug)]
pub struct HotSite {
    /// The place.
    pub site: &'static Location<'static>,
    /// The kind of the access.
    pub kind: Kind,
    /// The label of what it accessed, or empty.
    pub label: String,
    /// How often it missed.
    pub misses: u64,
    /// Cycles in which CPUs stood still there.
    pub stall: u64,
    /// Which CPUs.
    pub cpus: CpuSet,
}

/// One place in the source, and what all lines together cost there.
#[derive(Clone, Debug)]
pub struct HotPlace {
    /// The place.
    pub site: &'static Location<'static>,
    /// How many lines it missed on or waited for.
    pub lines: u64,
    /// How often it missed.
    pub misses: u64,
    /// Cycles in which CPUs queued for these lines or fetched them.
    pub stall: u64,
    /// Cycles in which CPUs spun or were parked there until another CPU changed a line.
    pub waited: u64,
}

impl HotPlace {
    /// Cycles in which CPUs stood still there, for whatever reason.
    pub fn cost(&self) -> u64 {
        self.stall + self.waited
    }
}

impl Report {
    pub(crate) fn of(engine: Engine, seed: u64) -> Report {
        let cpus: Vec<CpuReport> = (engine.cpus.iter())
            .map(|cpu| CpuReport {
                cycles: cpu.clock,
                busy: cpu.clock.saturating_sub(cpu.spinning + cpu.idle + cpu.preempted),
                spinning: cpu.spinning,
                idle: cpu.idle,
                preempted: cpu.preempted,
                accesses: cpu.accesses,
                misses: cpu.misses,
                ops: cpu.ops,
            })
            .collect();
        Report {
            machine: engine.spec.name,
            mhz: engine.spec.mhz,
            seed,
            cycles: cpus.iter().map(|cpu| cpu.cycles).max().unwrap_or(0),
            cpus,
            hottest: hottest(&engine),
            places: places(&engine),
            conflicts: Conflicts::of(&engine),
            trace: engine.trace.map_or_else(Vec::new, |trace| trace.into_entries()),
        }
    }

    fn sum(&self, of: impl Fn(&CpuReport) -> u64) -> u64 {
        self.cpus.iter().map(of).sum()
    }

    /// Accesses of all CPUs to tracked memory.
    pub fn accesses(&self) -> u64 {
        self.sum(|cpu| cpu.accesses)
    }

    /// Accesses of all CPUs that missed.
    pub fn misses(&self) -> u64 {
        self.sum(|cpu| cpu.misses)
    }

    /// Operations that the workload counted.
    pub fn ops(&self) -> u64 {
        self.sum(|cpu| cpu.ops)
    }

    /// Operations per second at the machine's clock.
    pub fn ops_per_s(&self) -> f64 {
        self.ops() as f64 * f64::from(self.mhz) * 1e6 / self.cycles.max(1) as f64
    }

    /// Operations of the CPU with the fewest, over those of the CPU with the most: 1 is fair, 0 is
    /// starvation. 1 when no operations were counted.
    pub fn fairness(&self) -> f64 {
        let most = self.cpus.iter().map(|cpu| cpu.ops).max().unwrap_or(0);
        let fewest = self.cpus.iter().map(|cpu| cpu.ops).min().unwrap_or(0);
        if most == 0 { 1.0 } else { fewest as f64 / most as f64 }
    }

    /// The share of the CPUs' time that `of` gives; a CPU that finishes early is idle to the end of the run.
    fn share(&self, cycles: u64) -> f64 {
        cycles as f64 / (self.cycles.max(1) as f64 * self.cpus.len() as f64)
    }

    /// The share of all CPU time that was idle: parked, halted or finished. 0 to 1.
    pub fn idle(&self) -> f64 {
        self.share(self.sum(|cpu| cpu.idle + (self.cycles - cpu.cycles)))
    }

    /// The share of all CPU time spent spinning. 0 to 1.
    pub fn spinning(&self) -> f64 {
        self.share(self.sum(|cpu| cpu.spinning))
    }

    /// The share of all CPU time in which a virtual CPU could run but had no physical one. 0 to 1.
    pub fn preempted(&self) -> f64 {
        self.share(self.sum(|cpu| cpu.preempted))
    }
}

fn hottest(engine: &Engine) -> Vec<HotLine> {
    let mut order: Vec<u32> = (0..engine.statistics.len() as u32).collect();
    let statistics = |line: u32| &engine.statistics[line as usize];
    order.retain(|&line| statistics(line).misses > 1);
    order.sort_by_key(|&line| (Reverse(statistics(line).stall), line));
    order.truncate(HOT_LINES_MAX);
    order.into_iter().map(|line| hot_line(engine, line)).collect()
}

fn places(engine: &Engine) -> Vec<HotPlace> {
    // By name: where a place lies in memory differs from run to run.
    let mut places: BTreeMap<(&str, u32, u32), HotPlace> = BTreeMap::new();
    for line in &engine.statistics {
        let mut seen = BTreeSet::new();
        let mut at = |site: &'static Location<'static>, misses: u64, stall: u64, waited: u64| {
            let name = (site.file(), site.line(), site.column());
            let new = HotPlace { site, lines: 0, misses: 0, stall: 0, waited: 0 };
            let place = places.entry(name).or_insert(new);
            place.misses += misses;
            place.stall += stall;
            place.waited += waited;
            place.lines += u64::from(seen.insert(name));
        };
        line.sites.iter().for_each(|of| at(of.site, of.misses, of.stall, 0));
        line.waits.iter().for_each(|&(site, cycles)| at(site, 0, 0, cycles));
    }
    let mut places: Vec<HotPlace> = places.into_values().collect();
    // Stable: places that cost the same stay in the order of their names.
    places.sort_by_key(|place| Reverse(place.cost()));
    places.truncate(HOT_PLACES_MAX);
    places
}

fn hot_line(engine: &Engine, line: u32) -> HotLine {
    let statistics = &engine.statistics[line as usize];
    let named = |site: &SiteStatistics| HotSite {
        site: site.site,
        kind: site.kind,
        label: name_at(engine, line, site.offset.into()),
        misses: site.misses,
        stall: site.stall,
        cpus: site.cpus,
    };
    let mut sites: Vec<HotSite> = statistics.sites.iter().map(named).collect();
    let mut labels = Vec::new();
    let mut writers = CpuSet::default();
    for site in &sites {
        if !site.label.is_empty() && !labels.contains(&site.label) {
            labels.push(site.label.clone());
        }
        if site.kind.writes() {
            writers = writers.union(&site.cpus);
        }
    }
    sites.sort_by_key(|site| (Reverse(site.stall), site.site.line()));
    HotLine {
        line,
        misses: statistics.misses,
        stall: statistics.stall,
        waited: statistics.waited,
        parked: statistics.parked,
        labels,
        writers,
        waiters: statistics.waiters,
        sites,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { machine, seed, cycles, .. } = self;
        writeln!(f, "simulated {machine}, {} CPUs, seed {seed}: {cycles} cycles", self.cpus.len())?;
        let percent = |share: f64| share * 100.0;
        let (accesses, misses) = (self.accesses(), self.misses());
        writeln!(
            f,
            "simulated: {accesses} accesses, {misses} misses; spinning {:.1}%, idle {:.1}%, preempted {:.1}%",
            percent(self.spinning()),
            percent(self.idle()),
            percent(self.preempted())
        )?;
        if self.ops() > 0 {
            let (ops, rate, fairness) = (self.ops(), self.ops_per_s(), self.fairness());
            writeln!(f, "simulated: {ops} ops, {rate:.0} ops/s, fairness (min/max) {fairness:.2}")?;
        }
        for line in self.hottest.iter().take(HOT_LINES_SHOWN) {
            write!(f, "{line}")?;
        }
        for HotPlace { site, lines, misses, stall, waited } in self.places.iter().take(HOT_PLACES_SHOWN) {
            writeln!(
                f,
                "{stall} cycles stalled, {waited} waited, {misses} misses on {lines} lines at {site}"
            )?;
        }
        if self.conflicts.lines_touched > 0 {
            write!(f, "{}", self.conflicts)?;
        }
        Ok(())
    }
}

impl fmt::Display for HotLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HotLine { line, misses, stall, waited, parked, writers, waiters, .. } = self;
        let name = if self.labels.is_empty() { "(no label)".to_owned() } else { self.labels.join(", ") };
        writeln!(f, "hot line {line} {name}: {stall} cycles stalled, {misses} misses")?;
        if !writers.is_empty() {
            writeln!(f, "  written by cpu {writers}")?;
        }
        if !waiters.is_empty() {
            writeln!(f, "  waited for by cpu {waiters}: {waited} cycles spinning, {parked} parked")?;
        }
        for site in self.sites.iter().take(SITES_SHOWN) {
            let HotSite { site, kind, misses, stall, cpus, .. } = site;
            let kind = format!("{kind:?}").to_lowercase();
            writeln!(f, "  {kind:<5} {stall:>12} cycles {misses:>9} misses at {site}, cpu {cpus}")?;
        }
        Ok(())
    }
}
