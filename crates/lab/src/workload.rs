//! Workload: the registry of what `sluice bench` can run, one entry per name.
//!
//! # Theory
//! A [`Workload`] makes one [`Task`] per seat of a run. A task sets itself up in a directory of its own, works
//! step by step, checks at the end what its steps have left behind, and tidies up. The same task serves the
//! benchmark and, with a handful of steps, the unit test, so that none rots.
//!
//! [`Shape`] says how steps are timed. *Steady* tasks repeat one operation until they are told to stop. *Passes*
//! work through something finite (a tree) that has to be prepared again, outside the timing, before the next pass.

mod block_io;
mod creat_unlink;
mod file_lock;
mod open_close;
mod readdir;
mod stat;
mod tree;

use crate::corpus::Corpus;
use crate::failure::{Failure, Result};
use crate::target::{CallResult, Calls, Target};
use sluice_sync::Arc;

/// One task of a run.
pub trait Task {
    /// Makes the next pass possible. Not timed. Called once before steady tasks.
    ///
    /// # Errors
    /// Those of its calls.
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()>;

    /// One operation. `false` when it was the last of its pass.
    ///
    /// # Errors
    /// Those of its calls.
    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool>;

    /// Checks that the steps did what they claim. Not timed.
    ///
    /// # Errors
    /// What is wrong.
    fn verify(&mut self, calls: &mut dyn Calls, target: &dyn Target) -> Result<()>;

    /// Removes what the task has made, but for its directory. Not timed.
    ///
    /// # Errors
    /// Those of its calls.
    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()>;
}

/// What a task is given.
pub struct Seat {
    /// The task's own directory, which exists and is empty.
    pub dir: String,
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
    /// What one operation is.
    pub about: &'static str,
    /// How it is timed.
    pub shape: Shape,
    /// Tasks when none are asked for; `None`: one per CPU.
    pub tasks: Option<usize>,
    /// Makes one task.
    pub task: fn(Seat) -> Box<dyn Task>,
}

/// Every workload.
pub static WORKLOADS: &[Workload] = &[
    Workload {
        name: "open-close",
        about: "open and close a file of one's own",
        shape: Shape::Steady,
        tasks: None,
        task: open_close::task,
    },
    Workload {
        name: "creat-unlink",
        about: "create, close and unlink a file in a directory of one's own",
        shape: Shape::Steady,
        tasks: None,
        task: creat_unlink::task,
    },
    Workload {
        name: "stat",
        about: "stat a file of one's own",
        shape: Shape::Steady,
        tasks: None,
        task: stat::task,
    },
    Workload {
        name: "readdir",
        about: "list a directory of 1,000 names of one's own (the whole list is one operation)",
        shape: Shape::Steady,
        tasks: None,
        task: readdir::task,
    },
    Workload {
        name: "posix02",
        about: "lock and unlock a file of one's own with fcntl (POSIX)",
        shape: Shape::Steady,
        tasks: Some(128),
        task: file_lock::posix,
    },
    Workload {
        name: "flock02",
        about: "lock and unlock a file of one's own with flock",
        shape: Shape::Steady,
        tasks: Some(128),
        task: file_lock::flock,
    },
    Workload {
        name: "read4k",
        about: "read 4 KiB, in turn through a file of 1 MiB of one's own",
        shape: Shape::Steady,
        tasks: None,
        task: block_io::read,
    },
    Workload {
        name: "write4k",
        about: "overwrite 4 KiB, in turn through a file of 1 MiB of one's own",
        shape: Shape::Steady,
        tasks: None,
        task: block_io::write,
    },
    Workload {
        name: "untar",
        about: "unpack a source tree (one file, directory or link is one operation)",
        shape: Shape::Passes,
        tasks: None,
        task: tree::untar,
    },
    Workload {
        name: "rmtree",
        about: "remove a source tree (one file, directory or link is one operation)",
        shape: Shape::Passes,
        tasks: None,
        task: tree::rmtree,
    },
    Workload {
        name: "footprint",
        about: "memory for each of 1,000,000 empty files in one directory, in process (target lib only)",
        shape: Shape::Footprint,
        tasks: Some(1),
        task: creat_unlink::task,
    },
];

/// The workload called `name`.
///
/// # Errors
/// [`Failure::Usage`] with all the names when there is none.
pub fn find(name: &str) -> Result<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name).ok_or_else(|| {
        let names: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
        Failure::Usage(format!("workload {name}: unknown; use one of {}", names.join(", ")))
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
    use crate::target::with_task;

    /// Two passes, or 40 steps, of the workload, then its check.
    fn tiny_run(name: &str) {
        let workload = find(name).unwrap();
        let body = |target: &dyn Target| {
            with_task(target, |calls| {
                let corpus = Arc::new(Corpus::generated(60));
                calls.mkdir("seat")?;
                let mut task = (workload.task)(Seat { dir: "seat".into(), corpus });
                for _ in 0..2 {
                    task.prepare(calls)?;
                    for _ in 0..if workload.shape == Shape::Steady { 40 } else { usize::MAX } {
                        if !task.step(calls)? {
                            break;
                        }
                    }
                    task.verify(calls, target)?;
                    if workload.shape == Shape::Steady {
                        break;
                    }
                }
                task.tidy(calls)?;
                calls.rmdir("seat")?;
                Ok(())
            })
            .unwrap_or_else(|failure| panic!("{name}: {failure}"));
        };
        if name == "posix02" { on_every_target_with_lock_owners(body) } else { on_every_target(body) }
    }

    #[test]
    fn open_close_opens_its_file() {
        tiny_run("open-close");
    }

    #[test]
    fn creat_unlink_leaves_nothing() {
        tiny_run("creat-unlink");
    }

    #[test]
    fn stat_sees_the_attributes() {
        tiny_run("stat");
    }

    #[test]
    fn readdir_lists_every_name_once() {
        tiny_run("readdir");
    }

    #[test]
    fn posix02_excludes_others() {
        tiny_run("posix02");
    }

    #[test]
    fn flock02_excludes_others() {
        tiny_run("flock02");
    }

    #[test]
    fn read4k_reads_what_was_written() {
        tiny_run("read4k");
    }

    #[test]
    fn write4k_writes_what_is_read_back() {
        tiny_run("write4k");
    }

    #[test]
    fn untar_unpacks_the_tree_to_the_byte() {
        tiny_run("untar");
    }

    #[test]
    fn rmtree_removes_the_whole_tree() {
        tiny_run("rmtree");
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let Err(Failure::Usage(line)) = find("fly") else { panic!() };
        assert!(line.contains("creat-unlink"), "{line}");
    }
}
