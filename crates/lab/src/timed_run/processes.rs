//! Processes: the tasks of a run as processes of their own, as `will-it-scale` and lockperf have them.
//!
//! # Theory
//! ```text
//!   conductor                         each worker: sluice child task ORDERS, in the target's directory
//!   reads a line from each    <----   "ready"
//!   gives the start           ---->   sees it in the input that all share, and works
//!   SIGTERM                    ---->  stops
//!   reads a line from each    <----   what it has done, or why not
//! ```
//! A worker has one thread, so that the kernel and the C library treat it as the one-thread process that it is. It hears
//! SIGTERM as soon as it is sent. When the conductor dies, however, the kernel sends it in the conductor's place
//! ([`set_parent_process_death_signal`]), and one that waits for the start reads the end of its input: no worker outlives
//! the run. Workers have a process group each, so that Ctrl-C reaches the conductor alone, which stops them.

use super::start::{Start, start, wait};
use super::task::{Part, perform};
use super::{Crew, Limit, Setting};
use crate::target::HostDir;
use crate::workload::{self, TREE_ENTRIES};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use sluice_console::corpus::Corpus;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_sync::Arc;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A worker's orders: a [`Setting`], and the number of its task.
#[derive(Serialize, Deserialize)]
struct Orders {
    workload: String,
    dir: String,
    cpus: Vec<usize>,
    tasks: usize,
    limit: Limit,
    index: usize,
}

/// The message of a worker that has set up.
const READY: &str = "ready";

/// The tasks of a run as processes. Dropping it ends them.
pub(super) struct Processes {
    workers: Vec<TaskProcess>,
    /// `None` once they have begun.
    start: Option<Start>,
    stopped: bool,
    /// The worker that was looked at last.
    looked_at: usize,
}

struct TaskProcess {
    child: Child,
    says: BufReader<ChildStdout>,
    /// Its error in place of being ready.
    refusal: Option<String>,
}

impl Processes {
    /// Starts a worker for each task of the run, as a process of `program`.
    ///
    /// # Errors
    /// When one cannot be started, or the target is no directory of the host's.
    pub(super) fn start(setting: &Setting<'_>, program: &Path) -> Result<Processes> {
        let no_place = || Failure::Usage("processes share no file system in memory".into());
        let place = setting.target.place().ok_or_else(no_place)?;
        let (start, input) = start()?;
        let mut crew = Processes { workers: Vec::new(), start: Some(start), stopped: false, looked_at: 0 };
        for index in 0..setting.tasks {
            let orders = Orders {
                workload: setting.workload.name.to_owned(),
                dir: setting.dir.to_owned(),
                cpus: setting.cpus.to_vec(),
                tasks: setting.tasks,
                limit: setting.limit,
                index,
            };
            let mut command = Command::new(program);
            command.args(["child", "task", &json(&orders)]).current_dir(place).process_group(0);
            command.stdin(input.try_clone()?).stdout(Stdio::piped());
            let mut child = command.spawn().context(|| format!("cannot run {}", program.display()))?;
            let says =
                child.stdout.take().ok_or_else(|| Failure::Failed("a worker without a voice".into()))?;
            crew.workers.push(TaskProcess { child, says: BufReader::new(says), refusal: None });
        }
        Ok(crew)
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}

impl TaskProcess {
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        Ok(line)
    }

    /// Its number, unless it has ended.
    fn running(&mut self) -> Option<Pid> {
        let running = matches!(self.child.try_wait(), Ok(None));
        Pid::from_raw(self.child.id().cast_signed()).filter(|_| running)
    }

    /// The part that the process has done. The process has ended after this.
    fn part(&mut self) -> Result<Part> {
        let line = if let Some(line) = self.refusal.take() { line } else { self.line()? };
        let status = self.child.wait()?;
        serde_json::from_str(&line).unwrap_or_else(|_| {
            Err(Failure::Failed(format!("the process {} of a task ended early: {status}", self.child.id())))
        })
    }
}

impl Crew for Processes {
    fn ready(&mut self) -> Result<Vec<u32>> {
        let mut failed = false;
        for worker in &mut self.workers {
            let line = worker.line()?;
            if line.trim_end() != READY {
                worker.refusal = Some(line);
                failed = true;
            }
        }
        if failed {
            self.stop();
        }
        Ok(self.workers.iter().map(|worker| worker.child.id()).collect())
    }

    fn begin(&mut self) {
        if let Some(start) = self.start.take() {
            start.give();
        }
    }

    /// One system call for each of many workers would be felt.
    fn misses_one(&mut self) -> bool {
        self.looked_at = (self.looked_at + 1) % self.workers.len();
        self.workers[self.looked_at].running().is_none()
    }

    fn stop(&mut self) {
        if std::mem::replace(&mut self.stopped, true) {
            return;
        }
        // The number of a reaped worker may belong to another process by now.
        for worker in self.workers.iter_mut().filter_map(TaskProcess::running) {
            // That it has just ended is no harm.
            let _ = kill_process(worker, Signal::TERM);
        }
    }

    fn has_ended(&mut self) -> bool {
        self.workers.iter_mut().all(|worker| worker.running().is_none())
    }

    fn parts(mut self) -> Result<Vec<Part>> {
        // All are waited for before the first failure is told.
        let parts: Vec<Result<Part>> = self.workers.iter_mut().map(TaskProcess::part).collect();
        parts.into_iter().collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        drop(self.start.take());
        self.stop();
        for worker in &mut self.workers {
            // The workers end by themselves; an error would have no reader.
            let _ = worker.child.wait();
        }
    }
}

/// A worker's life: one task of a run in the current directory, as `orders` say. Talks to its conductor on standard
/// input and output.
///
/// # Errors
/// When the orders are not of this version, or the conductor is gone. How the task fared is told to the conductor.
pub fn serve(orders: &str) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from)?;
    let stop = Interrupt::on_signals()?;
    let orders: Orders = serde_json::from_str(orders).map_err(|error| Failure::Usage(error.to_string()))?;
    let workload = workload::find(&orders.workload)?;
    let corpus = if workload.tree { Corpus::load(TREE_ENTRIES) } else { Corpus::generated(0) };
    let setting = Setting {
        workload,
        target: &HostDir::here(),
        dir: &orders.dir,
        cpus: &orders.cpus,
        tasks: orders.tasks,
        limit: orders.limit,
        corpus: &Arc::new(corpus),
        processes: None,
    };
    let answer = perform(&setting, orders.index, &stop, |prepared| {
        if prepared && (say(READY).is_err() || !wait(rustix::stdio::stdin())) {
            stop.raise();
        }
    });
    say(&json(&answer))
}

/// A line to the conductor.
fn say(line: &str) -> Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}
