//! Workload: the registry of what `sluice bench` can run, one entry per name.
//!
//! # Theory
//! A [`Workload`] makes one [`Task`] per seat of a run. A task sets itself up in a directory of its own, works
//! step by step, checks at the end what its steps have left behind, and tidies up. The same task serves the
//! benchmark and, with a handful of steps, the unit test, so that none rots.
//!
//! [`Shape`] says how steps are timed. *Steady* tasks repeat one operation until they are told to stop. *Passes*
//! work through something finite (a tree) that has to be prepared again, outside the timing, before the next pass.

mod batch;
mod block_io;
mod creat_unlink;
mod descriptor;
mod file_lock;
mod lease;
mod length;
mod mixes;
mod open_close;
mod place;
mod readdir;
mod registry;
mod rename;
mod stat;
mod stream;
mod tree;

pub use registry::WORKLOADS;

use crate::target::{CallResult, Calls, Target};
use sluice_console::corpus::Corpus;
use sluice_console::failure::{Failure, Result};
use sluice_sync::Arc;

/// Entries of the source tree that `untar` and `rmtree` work on.
pub(crate) const TREE_ENTRIES: usize = 2000;

/// One task of a run.
pub trait Task {
    /// Makes the next pass possible. Not timed. Called once before steady tasks.
    ///
    /// # Errors
    /// Errors of its calls.
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()>;

    /// One operation. `false` when it was the last of its pass.
    ///
    /// # Errors
    /// Errors of its calls.
    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool>;

    /// Checks that the steps did what they claim. Not timed.
    ///
    /// # Errors
    /// The step that went wrong.
    fn verify(&mut self, calls: &mut dyn Calls, target: &dyn Target) -> Result<()>;

    /// Removes all files of the task, except for its directory. Not timed.
    ///
    /// # Errors
    /// Errors of its calls.
    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()>;
}

/// The directories and files that a task is given.
pub struct Seat {
    /// The task's own directory, which exists and is empty.
    pub dir: String,
    /// The directory of all tasks, which exists and goes with the run.
    pub shared: String,
    /// The task's number, from 0.
    pub index: usize,
    /// Files to unpack.
    pub corpus: Arc<Corpus>,
}

/// How the steps of a workload are timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One operation, again and again.
    Steady,
    /// Finite passes; a run times whole passes only, at least one.
    Passes,
    /// Not a load on a target: the memory taken by a million files, see [`crate::footprint`].
    Footprint,
}

/// An entry of the registry.
pub struct Workload {
    /// The name on the command line and in results.
    pub name: &'static str,
    /// The description of one operation.
    pub about: &'static str,
    /// How it is timed.
    pub shape: Shape,
    /// Tasks when none are asked for; `None`: one per CPU.
    pub tasks: Option<usize>,
    /// Whether it unpacks or removes the source tree.
    pub tree: bool,
    /// Makes one task.
    pub task: fn(Seat) -> Box<dyn Task>,
}

/// The workloads called so; `all` stands for every load on a target.
///
/// # Errors
/// Errors of [`find`].
pub fn select(names: &[String]) -> Result<Vec<&'static Workload>> {
    let mut selected = Vec::new();
    for name in names {
        if name == "all" {
            selected.extend(WORKLOADS.iter().filter(|workload| workload.shape != Shape::Footprint));
        } else {
            selected.push(find(name)?);
        }
    }
    Ok(selected)
}

/// The workload called `name`, today or formerly.
///
/// # Errors
/// [`Failure::Usage`] for an unknown name, with a list of the known names.
pub fn find(name: &str) -> Result<&'static Workload> {
    let renamed = registry::FORMER_NAMES.iter().find(|(former, _)| *former == name);
    let name = renamed.map_or(name, |(_, today)| today);
    WORKLOADS.iter().find(|workload| workload.name == name).ok_or_else(|| {
        let names: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
        Failure::Usage(format!("workload {name}: unknown; use all, or some of {}", names.join(", ")))
    })
}

/// An error that names what a check expected and found.
fn wrong<T>(what: impl std::fmt::Display) -> Result<T> {
    Err(Failure::Failed(format!("wrong result: {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::{on_every_target, on_every_target_with_lock_owners};
    use crate::target::{remove_tree, with_task};
    use std::cell::Cell;

    /// Two tasks of the workload in turn, each for two passes or 40 steps, then their checks.
    fn tiny_run(workload: &Workload, target: &dyn Target) -> Result<()> {
        with_task(target, |calls| {
            calls.mkdir("shared")?;
            let corpus = Arc::new(Corpus::generated(60));
            let mut tasks = Vec::new();
            for index in 0..2 {
                let dir = format!("seat-{index}");
                calls.mkdir(&dir)?;
                let seat = Seat { dir, shared: "shared".into(), index, corpus: corpus.clone() };
                tasks.push((workload.task)(seat));
            }
            let (passes, steps) = if workload.shape == Shape::Passes { (2, usize::MAX) } else { (1, 40) };
            for _ in 0..passes {
                tasks.iter_mut().try_for_each(|task| task.prepare(calls))?;
                for task in &mut tasks {
                    for _ in 0..steps {
                        if !task.step(calls)? {
                            break;
                        }
                    }
                    task.verify(calls, target)?;
                }
            }
            tasks.iter_mut().try_for_each(|task| task.tidy(calls))?;
            (0..2).try_for_each(|index| calls.rmdir(&format!("seat-{index}")))?;
            Ok(remove_tree(calls, "shared")?)
        })
    }

    fn may_be_missing(name: &str) -> bool {
        name.starts_with("lease") || name.ends_with("-direct") || ["read3", "read4"].contains(&name)
    }

    #[test]
    fn every_workload_does_what_it_says_on_every_target() {
        for workload in WORKLOADS {
            let done = Cell::new(0);
            let body = |target: &dyn Target| {
                match tiny_run(workload, target) {
                    Ok(()) => done.set(done.get() + 1),
                    // A directory has no leases, for want of a safe call, and not every file system has direct I/O.
                    Err(Failure::Unsupported(_)) if may_be_missing(workload.name) => {}
                    Err(failure) => panic!("{}: {failure}", workload.name),
                }
            };
            if ["posix01", "posix02", "lock1", "lock2"].contains(&workload.name) {
                on_every_target_with_lock_owners(body);
            } else {
                on_every_target(body);
            }
            assert!(done.get() > 0, "{} runs nowhere", workload.name);
        }
    }

    #[test]
    fn every_name_is_there_once() {
        let mut names: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), WORKLOADS.len());
        let fxmark = names.iter().filter(|name| name.len() == 4 && **name == name.to_uppercase());
        assert_eq!(fxmark.count(), 19);
    }

    #[test]
    fn a_former_name_finds_the_workload() {
        assert_eq!(find("creat-fsync").map(|workload| workload.name), Ok("create-fsync"));
        assert!(registry::FORMER_NAMES.iter().all(|(former, today)| find(today).is_ok() && former != today));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let Err(Failure::Usage(line)) = find("fly") else { panic!() };
        assert!(line.contains("creat-unlink"), "{line}");
    }
}
