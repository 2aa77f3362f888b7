//! Threads: the tasks of a run as threads of this process.

use super::start::{Start, start, wait};
use super::task::{Part, perform};
use super::{Crew, Setting};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::machine;
use sluice_sync::{mpsc, thread};
use std::io;

/// The tasks of a run as threads.
pub(super) struct Threads<'scope, 'run> {
    /// `None` once they have begun.
    start: Option<Start>,
    stop: &'run Interrupt,
    /// From each task once: its number, and whether it has set up.
    ready: mpsc::Receiver<(u32, bool)>,
    tasks: Vec<thread::ScopedJoinHandle<'scope, Result<Part>>>,
}

/// Starts a thread for each task of the run, and lets `conduct` lead them.
///
/// # Errors
/// When the system refuses so many threads; errors of `conduct`.
pub(super) fn with_crew<T>(
    setting: &Setting<'_>,
    conduct: impl FnOnce(Threads<'_, '_>) -> Result<T>,
) -> Result<T> {
    let (start, gate) = start()?;
    let (gate, stop) = (&gate, &Interrupt::new());
    let (say, ready) = mpsc::channel();
    thread::scope(|scope| {
        let task = |index| {
            let say = say.clone();
            let thread = thread::Builder::new();
            thread.spawn_scoped(scope, move || {
                perform(setting, index, stop, |prepared| {
                    // The conductor hears all before it does anything else.
                    let _ = say.send((machine::task_number(), prepared));
                    drop(say);
                    if !wait(gate) {
                        stop.raise();
                    }
                })
            })
        };
        let tasks = (0..setting.tasks).map(task).collect::<io::Result<Vec<_>>>();
        drop(say);
        match tasks.context(|| format!("{} threads; give fewer --tasks", setting.tasks)) {
            Ok(tasks) => conduct(Threads { start: Some(start), stop, ready, tasks }),
            Err(failure) => {
                // Started threads wait for this.
                drop(start);
                Err(failure)
            }
        }
    })
}

impl Crew for Threads<'_, '_> {
    fn ready(&mut self) -> Result<Vec<u32>> {
        // A thread that panics says nothing.
        let said: Vec<_> = self.ready.iter().collect();
        if said.len() < self.tasks.len() || said.iter().any(|&(_, prepared)| !prepared) {
            self.stop();
        }
        Ok(said.into_iter().map(|(number, _)| number).collect())
    }

    fn begin(&mut self) {
        if let Some(start) = self.start.take() {
            start.give();
        }
    }

    fn misses_one(&mut self) -> bool {
        self.tasks.iter().any(thread::ScopedJoinHandle::is_finished)
    }

    fn stop(&mut self) {
        self.stop.raise();
    }

    fn has_ended(&mut self) -> bool {
        self.tasks.iter().all(thread::ScopedJoinHandle::is_finished)
    }

    fn parts(self) -> Result<Vec<Part>> {
        let panicked = |_| Err(Failure::Failed("a task panicked".into()));
        self.tasks.into_iter().map(|task| task.join().unwrap_or_else(panicked)).collect()
    }
}
