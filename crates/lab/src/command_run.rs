//! Command run: a command of the shell as a load, whose operation is to run it once.
//!
//! # Theory
//! Each task starts `sh -c COMMAND` in the target's root, waits for its end, and starts the next. To start and to end a process
//! takes about a millisecond, which is in the figures. A command may use all the CPUs of its run. It has a process
//! group of its own: an interrupt ends all of it.

use crate::timed_run::{Limit, Outcome, latencies};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::machine::{CpuTime, Stalled};
use sluice_sync::time::{Instant, nanoseconds};
use sluice_sync::{cpu, thread};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

/// How long an interrupt may remain unseen.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A command, and where and how often it runs.
pub(crate) struct CommandSetting<'a> {
    pub(crate) command: &'a str,
    /// Its working directory.
    pub(crate) root: &'a Path,
    /// The numbers of the CPUs that it may use; none: all.
    pub(crate) cpus: Vec<usize>,
    /// How many run it at once.
    pub(crate) tasks: usize,
    /// When to start it no more.
    pub(crate) limit: Limit,
}

/// Runs the command until the limit is reached, once at least.
///
/// # Errors
/// The command cannot be started, or fails; [`Failure::Interrupted`].
pub(crate) fn command_run(setting: &CommandSetting<'_>, interrupt: &Interrupt) -> Result<Outcome> {
    let used = if setting.cpus.is_empty() { cpu::allowed() } else { setting.cpus.clone() };
    let (before, stalled, start) = (CpuTime::now(&used), Stalled::now(), Instant::now());
    let parts = thread::scope(|scope| {
        let task = || scope.spawn(|| repeat(setting, start, interrupt));
        let tasks: Vec<_> = (0..setting.tasks).map(|_| task()).collect();
        let panicked = |_| Err(Failure::Failed("a task panicked".into()));
        tasks.into_iter().map(|task| task.join().unwrap_or_else(panicked)).collect::<Result<Vec<_>>>()
    })?;
    let length = start.elapsed();
    let (after, after_stalled) = (CpuTime::now(&used), Stalled::now());
    let mut latency_ns = latencies();
    for part in &parts {
        latency_ns.add(part).expect("histograms of equal bounds add up");
    }
    let cpu_time = before.zip(after).map(|(before, after)| after.since(before));
    let ops = latency_ns.len();
    Ok(Outcome {
        latency_ns,
        idle: cpu_time.filter(|time| time.total > 0).map(|time| time.idle as f64 / time.total as f64),
        cpu_time,
        stalled: stalled.zip(after_stalled).map(|(before, after)| after.share_since(before, length)),
        ..Outcome::new(ops, ops as f64 / length.as_secs_f64().max(1e-9))
    })
}

/// One task: how long each of its commands took.
fn repeat(setting: &CommandSetting<'_>, start: Instant, interrupt: &Interrupt) -> Result<Histogram<u64>> {
    if !setting.cpus.is_empty() {
        // The thread hands its CPUs on to the processes that it starts.
        cpu::allow(&setting.cpus).context(|| "cannot use the CPUs")?;
    }
    let mut took = latencies();
    loop {
        let begun = Instant::now();
        let mut command = Command::new("sh");
        command.arg("-c").arg(setting.command).current_dir(setting.root);
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let mut child = command.spawn().context(|| "cannot run sh")?;
        let status = await_end(&mut child, interrupt)?;
        if !status.success() {
            return Err(Failure::Failed(format!("{status}; a command must succeed to be measured")));
        }
        took.saturating_record(nanoseconds(begun.elapsed()));
        let is_over = match setting.limit {
            Limit::Ops(ops) => took.len() >= ops,
            Limit::Time(time) => start.elapsed() >= time,
        };
        if is_over {
            return Ok(took);
        }
    }
}

/// Waits for the end of `child`, the first of a process group. An interrupt ends the group.
///
/// # Errors
/// [`Failure::Interrupted`]; the operating system's.
pub(crate) fn await_end(child: &mut Child, interrupt: &Interrupt) -> Result<ExitStatus> {
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
    while !interrupt.is_raised() {
        let mut event = [PollFd::new(&handle, PollFlags::IN)];
        match poll(&mut event, Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if !event[0].revents().is_empty() {
            return Ok(child.wait()?);
        }
    }
    // That it has just ended is no harm.
    let _ = kill_process_group(pid, Signal::TERM);
    child.wait()?;
    Err(Failure::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sync::time::Duration;

    #[test]
    fn an_interrupt_ends_a_command_with_what_it_started() {
        let place = sluice_console::private_dir::PrivateDir::below(&std::env::temp_dir()).unwrap();
        let interrupt = Interrupt::new();
        let started = place.path().join("started");
        let setting = CommandSetting {
            command: "sleep 1000 & touch started; wait",
            root: place.path(),
            cpus: vec![cpu::allowed()[0]],
            tasks: 2,
            limit: Limit::Time(Duration::from_secs(1000)),
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !started.exists() {
                    thread::sleep(Duration::from_millis(1));
                }
                interrupt.raise();
            });
            assert!(matches!(command_run(&setting, &interrupt), Err(Failure::Interrupted)));
        });
    }

    #[test]
    fn each_task_runs_the_command_and_a_limit_of_time_allows_one_at_least() {
        let root = std::env::temp_dir();
        let setting =
            |tasks, limit| CommandSetting { command: "true", root: &root, cpus: Vec::new(), tasks, limit };
        let ops =
            |setting: CommandSetting<'_>| command_run(&setting, &Interrupt::new()).map(|outcome| outcome.ops);
        assert_eq!(ops(setting(3, Limit::Ops(2))), Ok(6));
        assert_eq!(ops(setting(2, Limit::Time(Duration::ZERO))), Ok(2));
    }
}
