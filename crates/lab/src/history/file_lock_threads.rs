//! Threads that lock and unlock files on this computer, more of them than CPUs: what `file_lock_tasks` does on a machine.

use super::file_lock_tasks::{CALL, Design};
use crate::experiment::native::{NativeRun, compute, contend_as};
use sluice_console::failure::Result;
use sluice_sync::atomic::{AtomicU32, Ordering};
use sluice_sync::face::futex;
use sluice_sync::time::Duration;
use sluice_sync::{Arc, CachePadded};

/// The places where tasks sleep.
pub struct Tasks {
    /// *immutable*
    cpus: usize,
    /// For each task: 1 while it sleeps or is about to sleep. *atomic (sleep)*
    asleep: Vec<CachePadded<AtomicU32>>,
}

impl Tasks {
    /// How many CPUs there are.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// The CPU that `task` runs on.
    pub fn cpu_of(&self, task: usize) -> usize {
        task % self.cpus
    }

    /// Wakes `task`, which waits, to try again.
    pub fn wake(&self, task: usize) {
        // Release(sleep): pairs with Acquire(sleep) in lock(): a woken task sees why.
        if self.asleep[task].swap(0, Ordering::Release) == 1 {
            futex::wake(&self.asleep[task], 1);
        }
    }

    /// Has `task` lock `file`, and sleep until it can.
    fn lock(&self, design: &dyn Design, task: usize, file: usize) {
        let asleep = &self.asleep[task];
        loop {
            // Relaxed: the lock of the design orders it before the call that wakes the task.
            asleep.store(1, Ordering::Relaxed);
            if design.lock(task, file) {
                return;
            }
            // Acquire(sleep): pairs with Release(sleep) in wake().
            while asleep.load(Ordering::Acquire) == 1 {
                futex::wait(asleep, 1, None);
            }
        }
    }

    /// For `time`, `tasks` threads on the first `cpus` CPUs lock and unlock the file of each, again and again.
    ///
    /// # Errors
    /// When a thread cannot be pinned.
    pub fn run(
        (cpus, tasks): (usize, usize),
        time: Duration,
        file_of: fn(usize) -> usize,
        make: impl FnOnce(&Arc<Tasks>) -> Box<dyn Design + Sync>,
    ) -> Result<NativeRun> {
        let asleep = (0..tasks).map(|_| CachePadded::new(AtomicU32::new(0))).collect();
        let all = Arc::new(Tasks { cpus, asleep });
        let design = make(&all);
        contend_as((cpus, tasks), time, |task| {
            compute(CALL);
            all.lock(&*design, task, file_of(task));
            compute(CALL);
            design.unlock(task, file_of(task));
        })
    }
}
