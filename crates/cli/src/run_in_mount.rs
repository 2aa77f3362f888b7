//! Run in mount: a command on a file system of its own, which is gone when the command ends.

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sluice_console::failure::{Context, Failure, Result, in_words};
use sluice_console::mounted::Mounted;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

/// The variable in which the command finds where its file system is mounted.
pub(crate) const MOUNT_VARIABLE: &str = "SLUICE_MOUNT";

/// Mounts `store`, or a fresh file system in memory, runs `command` in the mount, unmounts, and gives the exit status
/// that a shell would give: that of the command, 128 + the number of the signal that ended it, 127 when there is no
/// such command, 126 when it may not be executed. Errors after the command's end are printed on standard error and do
/// not change the status. Processes that it left behind in the mount lose their files.
///
/// SIGTERM and SIGHUP are passed on to the command. SIGINT is not: a terminal sends it to both already, and it is
/// the command that decides what it means.
///
/// # Errors
/// When it cannot be mounted or the command cannot be started.
pub(crate) fn run_in_mount(
    program: &Path,
    store: Option<&Path>,
    options: &[&OsStr],
    command: &[OsString],
) -> Result<u8> {
    let Some((name, arguments)) = command.split_first() else {
        return Err(Failure::Usage("give a command to run, after --".into()));
    };
    // From here on no signal ends this process: the mount is always taken away below.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let mount = Mounted::start_on(program, store, options)?;
    let started = Command::new(name)
        .args(arguments)
        .current_dir(mount.path())
        .env(MOUNT_VARIABLE, mount.path())
        .env("PWD", mount.path())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let (status, why) = match error.kind() {
                ErrorKind::NotFound => (127, "no such command".to_owned()),
                ErrorKind::PermissionDenied => (126, in_words(&error.to_string())),
                _ => return Err(error).context(|| name.display().to_string()),
            };
            eprintln!("sluice: {}: {why}", name.display());
            return Ok(status);
        }
    };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = signals.handle();
    let status = sluice_sync::thread::scope(|scope| {
        scope.spawn(move || {
            for signal in signals.forever() {
                let passed_on = match signal {
                    SIGTERM => Some(Signal::TERM),
                    SIGHUP => Some(Signal::HUP),
                    _ => None,
                };
                if let (Some(pid), Some(signal)) = (pid, passed_on) {
                    // The command may have ended just now: then the signal has no receiver.
                    let _ = kill_process(pid, signal);
                }
            }
        });
        let status = child.wait();
        handle.close();
        status
    })?;
    if let Err(failure) = mount.unmount() {
        eprintln!("sluice: {failure}");
    }
    Ok(as_a_shell_says(status))
}

pub(crate) fn as_a_shell_says(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_command_nothing_is_mounted() {
        let refused = run_in_mount(Path::new("/none"), None, &[], &[]).expect_err("there is no command");
        assert_eq!(refused.to_string(), "give a command to run, after --");
    }

    #[test]
    fn an_exit_status_is_told_as_a_shell_tells_it() {
        let status = |script: &str| Command::new("sh").args(["-c", script]).status().unwrap();
        assert_eq!(as_a_shell_says(status("exit 7")), 7);
        assert_eq!(as_a_shell_says(status("kill -TERM $$")), 143);
    }
}
