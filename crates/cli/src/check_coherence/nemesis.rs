//! Nemesis: a command that runs beside the programs of a check, to break what they work on.

use crate::run_in_mount::as_a_shell_says;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use sluice_coherence::monotonic_ns;
use sluice_console::failure::{Context, Result};
use sluice_sync::thread;
use sluice_sync::time::Duration;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A command that is asked to end has so many milliseconds for it.
const PATIENCE_MS: u32 = 2_000;

pub(super) struct Nemesis {
    child: Child,
    command: String,
    begun_ns: u64,
    /// The time and the status of its end.
    ended: Option<(u64, u8)>,
}

/// The run of a nemesis.
#[derive(Serialize)]
pub(super) struct NemesisRun {
    pub(super) command: String,
    /// Times of the monotonic clock, as in the calls.
    begun_ns: u64,
    ended_ns: u64,
    /// None if it was ended at the end of the check.
    pub(super) status: Option<u8>,
}

impl Nemesis {
    /// Starts `script` in a shell.
    ///
    /// # Errors
    /// There is no shell.
    pub(super) fn start(script: &OsStr) -> Result<Nemesis> {
        // Standard output is for the report.
        let said = std::io::stderr().as_fd().try_clone_to_owned()?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).stdin(Stdio::null()).stdout(said).process_group(0);
        let begun_ns = monotonic_ns();
        let child = command.spawn().context(|| "cannot run sh for --nemesis")?;
        let command = script.to_string_lossy().into_owned();
        Ok(Nemesis { child, command, begun_ns, ended: None })
    }

    /// Notes its end.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn look(&mut self) -> Result<()> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?.map(|status| (monotonic_ns(), as_a_shell_says(status)));
        }
        Ok(())
    }

    /// Its run, which ends now.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn stop(mut self) -> Result<NemesisRun> {
        self.look()?;
        Ok(NemesisRun {
            command: std::mem::take(&mut self.command),
            begun_ns: self.begun_ns,
            ended_ns: self.ended.map_or_else(monotonic_ns, |(at, _)| at),
            status: self.ended.map(|(_, status)| status),
        })
    }
}

impl Drop for Nemesis {
    /// Asks the shell and its children to end, and then makes them. Children of a shell that has ended go on: they may be servers.
    fn drop(&mut self) {
        let group = Pid::from_child(&self.child);
        for signal in [Signal::TERM, Signal::KILL] {
            if self.ended.is_some() || !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            let _ = kill_process_group(group, signal);
            for _ in 0..PATIENCE_MS {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
