//! Experiments: what the sources say about locking, shown on simulated machines, and natively where 2 CPUs show it.
//!
//! # How to read the results
//! Figures of the simulated machine are labelled *simulated* and compared with each other only; native ones
//! stand apart. After the tables each claim of a source is set beside what is seen, with a verdict. A miss is
//! printed as a miss, and does not change the exit status: it is a result.

mod calibrate;
mod curves;
mod dlm;
mod dlm_hash;
mod file_locks;
mod file_locks_on_host;
mod journal;
mod library;
mod loss;
pub(crate) mod native;
mod readdir;
mod rwsem;
mod scaling;
mod simulated;
mod spin;
mod verdict;
mod vfs;

pub use verdict::Verdict;

use crate::bench::Listener;
use crate::disturbance::Disturbances;
use crate::row::{Origin, Row};
use sluice_console::failure::{Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_sync::cpu;

/// One experiment, by name.
pub struct Experiment {
    /// As users type it.
    pub name: &'static str,
    /// Its subject, for a person.
    pub about: &'static str,
    parts: Parts,
}

struct Parts {
    steps: fn() -> usize,
    run: fn(&mut ExperimentSession<'_>) -> Result<Findings>,
}

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "spin",
        about: "spin locks on bare metal and in an overcommitted virtual machine",
        parts: Parts { steps: spin::steps, run: spin::run },
    },
    Experiment {
        name: "rwsem",
        about: "mutex, the rwsem of 2016 and ours under create and unlink in one directory",
        parts: Parts { steps: rwsem::steps, run: rwsem::run },
    },
    Experiment {
        name: "calibrate",
        about: "the simulated machine against published curves",
        parts: Parts { steps: calibrate::steps, run: calibrate::run },
    },
    Experiment {
        name: "file-locks",
        about: "file locks under one global lock, as of 2013 and ours; many waiters, many ranges",
        parts: Parts { steps: file_locks::steps, run: file_locks::run },
    },
    Experiment {
        name: "readdir",
        about: "all CPUs read one directory, alone and beside unlink: the cursors of 2016, and ours",
        parts: Parts { steps: readdir::steps, run: readdir::run },
    },
    Experiment {
        name: "dlm-hash",
        about: "looking up a cached lock in a cluster lock manager's table: of 2006, as mended, fs/dlm's and ours",
        parts: Parts { steps: dlm_hash::steps, run: dlm_hash::run },
    },
    Experiment {
        name: "dlm",
        about: "a lock between two nodes: cached, remote, fought for, beside a lock in etcd and a TCP round trip",
        parts: Parts { steps: dlm::steps, run: dlm::run },
    },
    Experiment {
        name: "vfs",
        about: "open and close, create and unlink: the global locks of 2009, as the source split them, and ours",
        parts: Parts { steps: vfs::steps, run: vfs::run },
    },
    Experiment {
        name: "journal",
        about: "commits of the store as they are, in one list under each spin lock, and in a list for each CPU",
        parts: Parts { steps: journal::steps, run: journal::run },
    },
];

/// The experiment called `name`.
///
/// # Errors
/// [`Failure::Usage`] when there is none.
pub fn find(name: &str) -> Result<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name).ok_or_else(|| {
        let there = EXPERIMENTS.iter().map(|experiment| experiment.name).collect::<Vec<_>>().join(", ");
        Failure::Usage(format!("no experiment is called {name}; there are {there}"))
    })
}

/// The runs of all experiments together.
pub fn total_steps() -> usize {
    EXPERIMENTS.iter().map(Experiment::steps).sum()
}

impl Experiment {
    /// How many runs it has, for a progress bar.
    pub fn steps(&self) -> usize {
        (self.parts.steps)()
    }

    /// Carries it out. Rows go to the listener as they are completed; what they show is returned.
    ///
    /// # Errors
    /// Errors of the listener, and [`Failure::Interrupted`].
    pub fn run(&self, listener: &mut dyn Listener, interrupt: &Interrupt) -> Result<Findings> {
        let (origin, met) = (Origin::here(), Disturbances::default());
        (self.parts.run)(&mut ExperimentSession { listener, interrupt, origin, met })
    }
}

/// The results of an experiment.
#[derive(Default)]
pub struct Findings {
    /// Its rows, as tables for a person.
    pub tables: String,
    /// The claims of the sources, beside the observations here.
    pub verdicts: Vec<Verdict>,
}

impl Findings {
    /// All of it, for a person.
    pub fn text(&self) -> String {
        if self.verdicts.is_empty() {
            return self.tables.clone();
        }
        format!("{}{}", self.tables, verdict::text(&self.verdicts))
    }
}

/// The listener and the facts that an experiment has while it runs.
struct ExperimentSession<'a> {
    listener: &'a mut dyn Listener,
    interrupt: &'a Interrupt,
    origin: Origin,
    /// Between native runs.
    met: Disturbances,
}

impl ExperimentSession<'_> {
    /// Does one step of [`Experiment::steps`].
    fn step<T>(&mut self, what: &str, work: impl FnOnce() -> T) -> Result<T> {
        self.interrupt.check()?;
        self.listener.run_begins(what);
        let done = work();
        self.listener.run_ends();
        Ok(done)
    }

    /// As [`step`](Self::step), natively, on so many CPUs of this computer.
    fn native_step<T>(&mut self, what: &str, cpus: usize, work: impl FnOnce() -> T) -> Result<T> {
        let allowed = cpu::allowed();
        self.met.look(allowed.get(..cpus).unwrap_or(&allowed));
        self.step(what, work)
    }

    /// Hands a row on, with warnings if it is native.
    fn row(&mut self, row: &Row) -> Result<()> {
        if row.simulated {
            return self.listener.row(row);
        }
        let warnings = self.met.warnings();
        self.listener.row(&Row { warnings, ..row.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_rows_have_the_warnings_and_simulated_ones_none() {
        struct Kept(Vec<Row>);
        impl Listener for Kept {
            fn run_begins(&mut self, _: &str) {}
            fn run_ends(&mut self) {}
            fn row(&mut self, row: &Row) -> Result<()> {
                self.0.push(row.clone());
                Ok(())
            }
            fn note(&mut self, _: &str) {}
        }
        let (mut listener, origin) = (Kept(Vec::new()), Origin::here());
        let row = Row::new(&origin, "spin-short", "lib".into(), 1, 1);
        let met = Disturbances::of(3, &[20.0, 200.0]);
        let mut session =
            ExperimentSession { listener: &mut listener, interrupt: &Interrupt::new(), origin, met };
        session.row(&row).unwrap();
        session.row(&Row { simulated: true, ..row }).unwrap();
        let warnings: Vec<usize> = listener.0.iter().map(|row| row.warnings.len()).collect();
        assert_eq!(warnings, [2, 0]);
    }

    #[test]
    fn an_unknown_experiment_is_refused_in_one_line_that_says_which_there_are() {
        assert!(
            matches!(find("spinn"), Err(Failure::Usage(text)) if text.contains("spin, rwsem, calibrate, file-locks"))
        );
        assert!(find("dlm-hash").is_ok());
    }
}
