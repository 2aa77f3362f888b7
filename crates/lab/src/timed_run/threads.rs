//! Threads: the tasks of a run as threads of this process.

use super::task::{Part, perform};
use super::{Crew, Setting};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::machine;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::{Barrier, Mutex, thread};

/// What the tasks and their conductor share.
struct Shared {
    ready: Barrier,           // immutable
    start: Barrier,           // immutable
    stop: Interrupt,          // raised by the conductor
    failed: AtomicBool,       // atomic (failed): set by tasks before `ready`, read after it
    numbers: Mutex<Vec<u32>>, // filled by tasks before `ready`, read after it
}

/// The tasks of a run as threads.
pub(super) struct Threads<'scope, 'run> {
    shared: &'run Shared,
    tasks: Vec<thread::ScopedJoinHandle<'scope, Result<Part>>>,
}

/// Starts a thread for each task of the run, and lets `conduct` lead them.
pub(super) fn with_crew<T>(
    setting: &Setting<'_>,
    conduct: impl FnOnce(Threads<'_, '_>) -> Result<T>,
) -> Result<T> {
    let shared = Shared {
        // The conductor waits too.
        ready: Barrier::new(setting.tasks + 1),
        start: Barrier::new(setting.tasks + 1),
        stop: Interrupt::new(),
        failed: AtomicBool::new(false),
        numbers: Mutex::new(Vec::new()),
    };
    thread::scope(|scope| {
        let shared = &shared;
        let tasks = (0..setting.tasks)
            .map(|index| {
                scope.spawn(move || {
                    perform(setting, index, &shared.stop, |prepared| {
                        if !prepared {
                            // Release(failed): pairs with the load after the barrier.
                            shared.failed.store(true, Ordering::Release);
                        }
                        shared.numbers.lock().push(machine::task_number());
                        shared.ready.wait();
                        shared.start.wait();
                    })
                })
            })
            .collect();
        conduct(Threads { shared, tasks })
    })
}

impl Crew for Threads<'_, '_> {
    fn ready(&mut self) -> Result<Vec<u32>> {
        self.shared.ready.wait();
        // Acquire(failed): pairs with the store before the barrier.
        if self.shared.failed.load(Ordering::Acquire) {
            self.stop();
        }
        Ok(std::mem::take(&mut *self.shared.numbers.lock()))
    }

    fn begin(&mut self) {
        self.shared.start.wait();
    }

    fn misses_one(&mut self) -> bool {
        self.tasks.iter().any(thread::ScopedJoinHandle::is_finished)
    }

    fn stop(&mut self) {
        self.shared.stop.raise();
    }

    fn has_ended(&mut self) -> bool {
        self.tasks.iter().all(thread::ScopedJoinHandle::is_finished)
    }

    fn parts(self) -> Result<Vec<Part>> {
        let panicked = |_| Err(Failure::Failed("a task panicked".into()));
        self.tasks.into_iter().map(|task| task.join().unwrap_or_else(panicked)).collect()
    }
}
