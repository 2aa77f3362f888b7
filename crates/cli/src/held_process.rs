//! HeldProcess: a server that a holder has started, and the socket to it.

use crate::holder_link::{HolderLink, HolderMessage};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use sluice_console::failure::{Context, Result};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// How the life of a server went.
#[derive(Default)]
pub(crate) struct ServerLife {
    /// It has got so far that it serves.
    pub(crate) served: bool,
    /// It has brought everything to the store for the next one.
    pub(crate) left: bool,
    /// It ends as it should.
    pub(crate) is_over: bool,
    /// It could not go on, and why.
    pub(crate) failure: Option<String>,
    /// It could not go on because the disk of the store is full.
    pub(crate) lacks_room: bool,
}

/// A child of the holder.
pub(crate) struct HeldProcess {
    pid: Pid,
    pub(crate) link: HolderLink,
    /// It may say more.
    pub(crate) hears: bool,
    pub(crate) life: ServerLife,
}

/// The command that runs `program`, an open file, or else this very program, also when its file was replaced.
pub(crate) fn command_of(program: Option<&OwnedFd>) -> Command {
    let path = program.map_or_else(|| "exe".into(), |program| format!("fd/{}", program.as_raw_fd()));
    let mut command = Command::new(format!("/proc/self/{path}"));
    command.arg0("sluice");
    command
}

impl HeldProcess {
    /// Starts a server with these arguments; its working directory is `place`, or the root if `place` has gone.
    ///
    /// # Errors
    /// The program cannot be executed.
    pub(crate) fn start(
        program: Option<&OwnedFd>,
        arguments: &[OsString],
        place: &Path,
    ) -> Result<HeldProcess> {
        let (link, theirs) = HolderLink::pair()?;
        let mut command = command_of(program);
        command.args(arguments).stdin(Stdio::from(theirs));
        command.current_dir(if place.is_dir() { place } else { Path::new("/") });
        let child = command.spawn().context(|| "cannot start the serving process")?;
        Ok(HeldProcess { pid: Pid::from_child(&child), link, hears: true, life: ServerLife::default() })
    }

    /// The one that serves, which this process has started as another program.
    pub(crate) fn known(pid: u32, link: OwnedFd) -> Option<HeldProcess> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let life = ServerLife { served: true, ..ServerLife::default() };
        Some(HeldProcess { pid, link: HolderLink::of(link), hears: true, life })
    }

    /// The socket, if it may say more.
    pub(crate) fn listening(&self) -> Option<&HolderLink> {
        self.hears.then_some(&self.link)
    }

    pub(crate) fn number(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Its status, if it has ended. To be asked until it has.
    pub(crate) fn ended(&self) -> io::Result<Option<ExitStatus>> {
        let ended = waitpid(Some(self.pid), WaitOptions::NOHANG)?;
        Ok(ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // A server that has ended already is reaped by the caller.
        let _ = kill_process(self.pid, signal);
    }

    /// The next message; none if it says no more.
    pub(crate) fn hear(&mut self) -> Option<HolderMessage> {
        let heard = if self.hears { self.link.hear().ok().flatten() } else { None };
        self.hears = heard.is_some();
        heard
    }

    /// How it ended, in words.
    pub(crate) fn end_in_words(&self, status: ExitStatus) -> String {
        self.life.failure.clone().unwrap_or_else(|| in_words(status))
    }
}

/// How a server ended.
fn in_words(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal} ended the server"),
        (None, code) => format!("the server ended with status {}", code.unwrap_or(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_server_is_told_in_words() {
        assert_eq!(in_words(ExitStatus::from_raw(9)), "signal 9 ended the server");
        assert_eq!(in_words(ExitStatus::from_raw(101 << 8)), "the server ended with status 101");
    }
}
