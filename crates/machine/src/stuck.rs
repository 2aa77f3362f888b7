//! Why a run could not be finished.

use std::fmt;

use crate::conflict::name_at;
use crate::engine::{Doing, Engine, LINE_BYTES};

/// Why [`Machine::try_run`](crate::Machine::try_run) gave no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The machine has not that many CPUs.
    Cpus {
        /// How many were asked for.
        asked: usize,
        /// How many there are.
        max: usize,
        /// The machine.
        machine: &'static str,
    },
    /// Nobody can go on: a deadlock, or a lost wake-up.
    Stuck(Stuck),
    /// The limit of simulated time is reached: see [`Machine::cycles_max`](crate::Machine::cycles_max).
    TooLong {
        /// The limit.
        cycles_max: u64,
    },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Cpus { asked, max, machine } => {
                write!(f, "{machine} has 1 to {max} CPUs, not {asked}")
            }
            RunError::Stuck(stuck) => stuck.fmt(f),
            RunError::TooLong { cycles_max } => {
                write!(
                    f,
                    "not finished after {cycles_max} simulated cycles: endless? If not, raise cycles_max"
                )
            }
        }
    }
}

impl std::error::Error for RunError {}

/// Every CPU that has not finished waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Which CPUs wait, and for what.
    pub waiting: Vec<Waiting>,
}

/// The wait of one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The CPU that waits.
    pub cpu: usize,
    /// Since when, in cycles.
    pub since: u64,
    /// The kind of the wait.
    pub how: Wait,
}

/// How a CPU waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It spins until one of these lines changes.
    Spinning(Vec<WaitLine>),
    /// It is parked on a word of this line.
    Parked(WaitLine),
    /// It has halted and waits for a kick.
    Halted,
}

/// A line that somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitLine {
    /// Its number, in the order of first touch.
    pub line: u32,
    /// Labels and places in the source of the accesses that missed on it.
    pub known_by: Vec<String>,
}

impl Stuck {
    pub(crate) fn of(engine: &mut Engine) -> Stuck {
        let mut waiting = Vec::new();
        for cpu in 0..engine.cpus.len() {
            let how = match engine.cpus[cpu].doing {
                Doing::Spinning { .. } => {
                    let mut lines = engine.waits_on(cpu).to_vec();
                    lines.dedup();
                    Wait::Spinning(lines.into_iter().map(|line| wait_line(engine, line, None)).collect())
                }
                Doing::Parked { word } => {
                    let line = engine.line_at(word);
                    Wait::Parked(wait_line(engine, line, Some(word % LINE_BYTES)))
                }
                Doing::Halted => Wait::Halted,
                Doing::Ready | Doing::Queued | Doing::Finished => continue,
            };
            waiting.push(Waiting { cpu, since: engine.waits_since(cpu), how });
        }
        Stuck { waiting }
    }
}

fn wait_line(engine: &Engine, line: u32, offset: Option<usize>) -> WaitLine {
    let mut known_by = Vec::new();
    let mut know = |name: String| {
        if !name.is_empty() && !known_by.contains(&name) {
            known_by.push(name);
        }
    };
    if let Some(offset) = offset {
        know(name_at(engine, line, offset));
    }
    for site in &engine.statistics[line as usize].sites {
        know(name_at(engine, line, site.offset.into()));
    }
    for site in &engine.statistics[line as usize].sites {
        know(site.site.to_string());
    }
    WaitLine { line, known_by }
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stuck: each of {} simulated CPUs waits for another", self.waiting.len())?;
        for Waiting { cpu, since, how } in &self.waiting {
            write!(f, "\n  cpu {cpu} since cycle {since}: ")?;
            match how {
                Wait::Halted => f.write_str("halted, and nobody kicks it")?,
                Wait::Parked(line) => write!(f, "parked on {line}")?,
                Wait::Spinning(lines) => {
                    f.write_str("spinning on ")?;
                    for (index, line) in lines.iter().enumerate() {
                        write!(f, "{}{line}", if index > 0 { " and " } else { "" })?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for WaitLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} ({})", self.line, self.known_by.join(", "))
    }
}
