//! Mounted: a file system of ours, in memory or in a store, on a private directory, served by a child process, unmounted on drop.
//!
//! # Theory
//! The child is `sluice mount --foreground --attached DIR`. It writes `ready` to its standard output once the mount
//! answers, and unmounts and ends when its standard input ends. That happens when we close it and, the kernel
//! sees to it, when we die in whatever way: no mount outlives its user. The child makes a session of its own. So Ctrl-C in a
//! terminal reaches us alone and the mount stays until we let it go; and its threads may give way to its clients' (`policy` of
//! `sluice-fuse`).

use crate::failure::{Context, Failure, Result};
use crate::private_dir::{PrivateDir, runtime_dir};
use sluice_fuse::Users;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A mount that lasts as long as this value.
pub struct Mounted {
    point: PathBuf,   // immutable
    child: Child,     // owner only
    _dir: PrivateDir, // holds the mount point; dropped last
}

/// The message of the serving process once its mount answers.
pub const READY: &str = "ready";
/// The exit status of a program that refuses its arguments.
const USAGE: i32 = 2;

impl Mounted {
    /// Mounts a fresh RAM file system, with the further `options` of `sluice mount`, in a private directory.
    ///
    /// # Errors
    /// The error of the serving process when it cannot mount, with the cure if known.
    pub fn start(program: &Path, options: &[&OsStr]) -> Result<Mounted> {
        Mounted::start_on(program, None, options)
    }

    /// Mounts the file system in `store`, or a fresh RAM file system, in a private directory.
    ///
    /// # Errors
    /// Errors of [`start`](Self::start).
    pub fn start_on(program: &Path, store: Option<&Path>, options: &[&OsStr]) -> Result<Mounted> {
        Mounted::start_through(&[], &[], program, store, options)
    }

    /// Mounts as [`start_on`](Self::start_on) does. The command `through` gets the program's command line and executes it; the
    /// server also gets `environment`.
    ///
    /// # Errors
    /// Errors of [`start`](Self::start).
    pub fn start_through(
        through: &[OsString],
        environment: &[(&str, &str)],
        program: &Path,
        store: Option<&Path>,
        options: &[&OsStr],
    ) -> Result<Mounted> {
        let dir = PrivateDir::below(&runtime_dir())?;
        let point = dir.path().join("mnt");
        std::fs::create_dir(&point)?;
        let mut words = through.iter().map(OsString::as_os_str).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or(program.as_os_str()));
        command
            .envs(environment.iter().copied())
            .args(words)
            .args(["mount", "--foreground", "--attached"])
            .args(options)
            .args(store)
            .arg(&point);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context(|| format!("cannot run {}", program.display()))?;
        await_ready(&mut child)?;
        Ok(Mounted { point, child, _dir: dir })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// The serving process.
    pub fn server_pid(&self) -> u32 {
        self.child.id()
    }

    /// Unmounts and waits until the serving process has ended.
    ///
    /// # Errors
    /// When the serving process reports a failure.
    pub fn unmount(mut self) -> Result<()> {
        self.stop()
    }

    fn stop(&mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        if status.success() {
            return Ok(());
        }
        // The mount point is already free unless the server was killed.
        let _ = sluice_fuse::unmount_at(&self.point, Users::LetFinish);
        Err(Failure::Failed(
            last_words(&mut self.child).unwrap_or_else(|| format!("the mount's server: {status}")),
        ))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After unmount() both are no-ops.
        let _ = self.stop();
    }
}

/// Waits until `child` has said [`READY`]. Each earlier line of the child, such as the reason of a wait, goes to standard error.
///
/// # Errors
/// Its last line on standard error if it ends without having said it; the signal that ended it.
pub fn await_ready(child: &mut Child) -> Result<()> {
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        match line? {
            line if line == READY => return Ok(()),
            line => eprintln!("sluice: {line}"),
        }
    }
    let words = last_words(child).unwrap_or_else(|| "the mount's server ended early".into());
    // Its standard error was read to the end: it has ended, or is about to.
    let status = child.wait()?;
    Err(match (status.signal(), status.code()) {
        (Some(signal), _) => Failure::Failed(format!(
            "signal {signal} ended the mount's server ({words}): look at the store with `sluice fsck`"
        )),
        (None, Some(USAGE)) => Failure::Usage(words),
        (None, _) => Failure::Failed(words),
    })
}

/// The last line that an ended `sluice` has written to its standard error, without the program's name.
fn last_words(child: &mut Child) -> Option<String> {
    let mut complaint = String::new();
    child.stderr.take()?.read_to_string(&mut complaint).ok()?;
    let last = complaint.lines().rfind(|line| !line.trim().is_empty())?;
    Some(last.strip_prefix("sluice: ").unwrap_or(last).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a server was not ready that does this.
    fn failure_of(script: &str) -> Failure {
        let mut server = Command::new("sh");
        server.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        await_ready(&mut server.spawn().unwrap()).unwrap_err()
    }

    #[test]
    fn a_server_that_fails_is_quoted() {
        let failure = failure_of("echo 'sluice: no /dev/fuse' >&2; exit 1");
        assert_eq!(failure, Failure::Failed("no /dev/fuse".into()));
        let refused = failure_of("echo 'sluice: mount option x: give y' >&2; exit 2");
        assert_eq!(refused, Failure::Usage("mount option x: give y".into()));
    }

    #[test]
    fn a_server_that_waits_says_so_before_it_is_ready() {
        let waits = "echo 'st: waits for a node'; echo ready";
        let mut server = Command::new("sh");
        server.args(["-c", waits]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = server.spawn().unwrap();
        assert_eq!(await_ready(&mut server), Ok(()));
        server.wait().unwrap();
    }

    #[test]
    fn a_server_that_a_signal_ends_leads_to_fsck() {
        let failure = failure_of("echo aborting >&2; kill -ABRT $$").to_string();
        let tells = |what| failure.contains(what);
        assert!(tells("signal 6") && tells("aborting") && tells("sluice fsck"), "{failure}");
    }

    #[test]
    fn a_missing_program_is_an_error_and_leaves_nothing() {
        assert!(Mounted::start(Path::new("/no/such/sluice"), &[]).is_err());
    }
}
