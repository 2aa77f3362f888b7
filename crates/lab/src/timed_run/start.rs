//! Start: the moment from which all tasks of a run work.
//!
//! # Theory
//! A byte in a pipe that nobody takes. Tasks poll for it, and a single write makes all of them ready to run, without
//! help from other tasks. A barrier does not, nor does a byte for each: a woken task has a lock to pass or a byte to
//! take, and the next is woken after that. With many tasks on each CPU that is a queue in which each waits for its turn
//! on a CPU whose other tasks work already, milliseconds each, while the tasks of another CPU sleep, and it with them,
//! for seconds.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use sluice_console::failure::Result;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;

/// Gives the start. Dropping it before that is a start that never comes.
pub(super) struct Start(PipeWriter);

/// A start, and what tasks wait on for it.
///
/// # Errors
/// The operating system's, when there are too many open files.
pub(super) fn start() -> Result<(Start, PipeReader)> {
    let (gate, start) = io::pipe()?;
    Ok((Start(start), gate))
}

impl Start {
    /// Lets all waiting tasks begin, and those that come later.
    pub(super) fn give(mut self) {
        // If all readers are gone, no task waits.
        let _ = self.0.write_all(b"!");
    }
}

/// Waits for the start. False: there will be none.
pub(super) fn wait(gate: impl AsFd) -> bool {
    let mut gate = [PollFd::new(&gate, PollFlags::IN)];
    let polled = retry_on_intr(|| poll(&mut gate, None));
    polled.is_ok() && gate[0].revents().contains(PollFlags::IN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_console::machine::task_number;
    use sluice_sync::atomic::{AtomicBool, Ordering};
    use sluice_sync::{cpu, mpsc, thread};

    /// The state of a thread of this process, as the kernel abbreviates it: R runs or is ready to, S sleeps.
    fn state(task: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{task}/stat")).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        rest.chars().next().unwrap()
    }

    #[test]
    fn all_tasks_are_ready_to_run_when_the_start_has_been_given() {
        const TASKS: usize = 64;
        let (start, gate) = start().unwrap();
        let over = AtomicBool::new(false);
        let (said, hear) = mpsc::channel();
        let only = cpu::allowed()[0];
        thread::scope(|scope| {
            for _ in 0..TASKS {
                let (said, gate, over) = (said.clone(), &gate, &over);
                scope.spawn(move || {
                    // All tasks share one CPU: there a task cannot pass anything on before its turn.
                    let _ = cpu::pin(only);
                    said.send(task_number()).unwrap();
                    assert!(wait(gate));
                    while !over.load(Ordering::SeqCst) {
                        std::hint::spin_loop();
                    }
                });
            }
            let tasks: Vec<u32> = hear.iter().take(TASKS).collect();
            while tasks.iter().any(|&task| state(task) != 'S') {
                thread::yield_now();
            }
            start.give();
            let asleep = tasks.iter().filter(|&&task| state(task) == 'S').count();
            over.store(true, Ordering::SeqCst);
            assert_eq!(asleep, 0, "of {TASKS} tasks");
        });
    }

    #[test]
    fn a_start_that_never_comes_is_told() {
        let (never, gate) = start().unwrap();
        drop(never);
        assert!(!wait(&gate));
        let (given, gate) = start().unwrap();
        given.give();
        assert!(wait(&gate) && wait(&gate), "and a task that comes late begins at once");
    }
}
