//! Stage: the one directory in which the workload and all checks run, each in a file system of its own.

use super::empty;
use crate::failures::mount_failure;
use crate::run_in_mount::{MOUNT_VARIABLE, as_a_shell_says};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::private_dir::{PrivateDir, runtime_dir};
use sluice_fuse::{Mount, MountOptions};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Mutex};
use sluice_vfs::{ChangeHistory, Fs, PastChange};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// The variable in which a check finds the file with the output of the workload.
const OUTPUT_VARIABLE: &str = "SLUICE_CRASH_OUTPUT";
/// How often is looked whether a child is late.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// The last bytes of a check's output that a report shows.
const SHOWN: usize = 2048;

/// The place of all runs.
pub(super) struct CrashStage<'i> {
    place: PrivateDir,
    timeout: Duration,
    interrupt: &'i Interrupt,
}

/// A workload that was run.
pub(super) struct RecordedRun {
    pub(super) history: ChangeHistory,
    pub(super) output: Vec<u8>,
    marks: Vec<Mark>,
}

/// Facts about an event: [`PastChange::stamp`] is its place.
struct Mark {
    /// Bytes that the workload had printed.
    printed: usize,
    /// The name of the process.
    name: String,
}

/// The outcome of a check.
pub(super) struct CheckVerdict(Option<String>);

impl CheckVerdict {
    /// Why the check failed.
    pub(super) fn failure(self) -> Option<String> {
        self.0
    }
}

impl RecordedRun {
    /// The output that the workload had printed before `next`; all of it before the end.
    pub(super) fn output_before(&self, next: Option<&PastChange>) -> &[u8] {
        let printed =
            next.and_then(|change| self.mark(change)).map_or(self.output.len(), |mark| mark.printed);
        &self.output[..printed]
    }

    /// The process that made `change`, in words.
    pub(super) fn process_of(&self, change: &PastChange) -> String {
        match (change.process, self.mark(change)) {
            (0, _) => "the kernel, for a shared mapping".to_owned(),
            (process, Some(mark)) => format!("{} (process {process})", mark.name),
            (process, None) => format!("process {process}"),
        }
    }

    fn mark(&self, change: &PastChange) -> Option<&Mark> {
        usize::try_from(change.stamp).ok().and_then(|at| self.marks.get(at))
    }
}

/// The output of a running workload, and the marks of its events.
struct OutputListener {
    pipe: PipeReader,
    output: Vec<u8>,
    marks: Vec<Mark>,
    names: HashMap<u32, String>,
}

impl OutputListener {
    /// Takes what is in the pipe; false at its end.
    fn drain(&mut self) -> bool {
        let mut buffer = [0; 8192];
        loop {
            match self.pipe.read(&mut buffer) {
                Ok(0) => return false,
                Ok(read) => self.output.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // WouldBlock: it is empty.
                Err(_) => return true,
            }
        }
    }

    fn mark(&mut self, process: u32) -> u64 {
        self.drain();
        // It waits in its call, and may have called exec since the last one.
        if let Ok(name) = fs::read_to_string(format!("/proc/{process}/comm")) {
            self.names.insert(process, name.trim_end().to_owned());
        }
        let name = self.names.get(&process).cloned().unwrap_or_else(|| "a process".to_owned());
        self.marks.push(Mark { printed: self.output.len(), name });
        self.marks.len() as u64 - 1
    }
}

impl<'i> CrashStage<'i> {
    /// A private directory.
    pub(super) fn new(timeout: u64, interrupt: &'i Interrupt) -> Result<CrashStage<'i>> {
        let place = PrivateDir::below(&runtime_dir())?;
        fs::create_dir(place.path().join("mnt"))?;
        Ok(CrashStage { place, timeout: Duration::from_secs(timeout), interrupt })
    }

    fn point(&self) -> PathBuf {
        self.place.path().join("mnt")
    }

    fn mount(&self, fs: &Fs) -> Result<Mount> {
        let options = MountOptions::default().fsname("crash-test");
        options.mount(fs.superblock(), self.point()).map_err(mount_failure)
    }

    /// Takes `mount` away, also from processes that were left behind.
    fn unmount(&self, mount: Mount) -> Result<()> {
        let outcome = mount.unmount().or_else(|_| mount.unmount_lazily());
        outcome.map_err(mount_failure)
    }

    fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.point())
            .env("PWD", self.point())
            .env(MOUNT_VARIABLE, self.point())
            .stdin(Stdio::null())
            // So that whatever it leaves behind can be ended with it.
            .process_group(0);
        command
    }

    fn shell(&self, script: &OsStr) -> Command {
        let mut command = self.command(OsStr::new("sh"));
        command.arg("-c").arg(script);
        command
    }

    /// Runs `setup` and then `workload` on a fresh file system, and records what the workload does.
    ///
    /// # Errors
    /// One of them fails, or cannot be started; the mount.
    pub(super) fn record(&self, setup: Option<&OsStr>, workload: &[OsString]) -> Result<RecordedRun> {
        let fs = empty();
        // Before the mount: after an fsync of the setup that had nothing to do, the kernel would send no later fsync.
        fs.track_crashes().map_err(std::io::Error::from)?;
        let mount = self.mount(&fs)?;
        let recorded = self.record_on(&fs, setup, workload);
        self.unmount(mount)?;
        recorded
    }

    fn record_on(&self, fs: &Fs, setup: Option<&OsStr>, workload: &[OsString]) -> Result<RecordedRun> {
        if let Some(script) = setup {
            let mut child = started(self.shell(script).stdout(Stdio::null()), "sh")?;
            require_success(self.await_end(&mut child, None, None)?, "--setup")?;
        }
        let [program, arguments @ ..] = workload else {
            return Err(Failure::Usage("give a workload to run, after --".into()));
        };
        let (pipe, output) = std::io::pipe()?;
        rustix::io::ioctl_fionbio(&pipe, true).map_err(std::io::Error::from)?;
        let listener = OutputListener { pipe, output: Vec::new(), marks: Vec::new(), names: HashMap::new() };
        let listener = Arc::new(Mutex::new(listener));
        fs.record_history({
            let listener = listener.clone();
            move |process| listener.lock().mark(process)
        })
        .map_err(std::io::Error::from)?;
        let child = started(self.command(program).args(arguments).stdout(output), &program.to_string_lossy());
        let status = child.and_then(|mut child| self.await_end(&mut child, None, Some(&listener)));
        require_success(status?, "the workload")?;
        let history = fs.history().map_err(std::io::Error::from)?;
        let mut listener = listener.lock();
        listener.drain();
        let (output, marks) = (std::mem::take(&mut listener.output), std::mem::take(&mut listener.marks));
        Ok(RecordedRun { history, output, marks })
    }

    /// Runs `check` in the root of `fs`, with what the workload had printed on its standard input.
    ///
    /// # Errors
    /// It cannot be run.
    pub(super) fn check(&self, fs: &Fs, check: &OsStr, printed: &[u8]) -> Result<CheckVerdict> {
        self.interrupt.check()?;
        let (input, output) = (self.place.path().join("printed"), self.place.path().join("check"));
        fs::write(&input, printed)?;
        let said = File::create(&output)?;
        let mount = self.mount(fs)?;
        let mut command = self.shell(check);
        command
            .env(OUTPUT_VARIABLE, &input)
            .stdin(File::open(&input)?)
            .stdout(said.try_clone()?)
            .stderr(said);
        let outcome = started(&mut command, "sh")
            .and_then(|mut child| self.await_end(&mut child, Some(self.timeout), None));
        self.unmount(mount)?;
        let why = match outcome? {
            Some(status) if status.success() => return Ok(CheckVerdict(None)),
            Some(status) => format!("exit status {}", as_a_shell_says(status)),
            None => format!("not done after {} s", self.timeout.as_secs()),
        };
        Ok(CheckVerdict(Some(match end_of(&output) {
            said if said.is_empty() => why,
            said => format!("{why}: {said}"),
        })))
    }

    /// Waits for `child`, and ends the processes that it left in its group. None if it was killed, since it took longer than `limit`.
    fn await_end(
        &self,
        child: &mut Child,
        limit: Option<Duration>,
        listener: Option<&Mutex<OutputListener>>,
    ) -> Result<Option<ExitStatus>> {
        let (begun, pid) = (Instant::now(), Pid::from_child(child));
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(std::io::Error::from)?;
        let pipe = listener.map(|listener| listener.lock().pipe.try_clone()).transpose()?;
        let mut is_open = pipe.is_some();
        let has_ended = loop {
            let mut events = vec![PollFd::new(&handle, PollFlags::IN)];
            events.extend(pipe.iter().filter(|_| is_open).map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            match poll(&mut events, Some(&LOOK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
            let is_ready =
                |event: Option<&PollFd<'_>>| event.is_some_and(|event| !event.revents().is_empty());
            if is_ready(events.first()) {
                break true;
            }
            if limit.is_some_and(|limit| begun.elapsed() > limit) || self.interrupt.is_raised() {
                break false;
            }
            if let (Some(listener), true) = (listener, is_ready(events.get(1))) {
                is_open = listener.lock().drain();
            }
        };
        // Before the child is reaped: until then no other process group has its number.
        let _ = kill_process_group(pid, Signal::KILL);
        let status = child.wait()?;
        self.interrupt.check()?;
        Ok(has_ended.then_some(status))
    }
}

fn started(command: &mut Command, name: &str) -> Result<Child> {
    command.spawn().context(|| format!("cannot run {name}"))
}

/// An error unless it ended with 0.
fn require_success(status: Option<ExitStatus>, what: &str) -> Result<()> {
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => {
            let text = format!(
                "{what} ended with status {}: a test needs a run that succeeds",
                as_a_shell_says(status)
            );
            Err(Failure::Failed(text))
        }
        None => Err(Failure::Interrupted),
    }
}

/// The last line of the file `output`.
fn end_of(output: &Path) -> String {
    let said = fs::read(output).unwrap_or_default();
    let shown = &said[said.len().saturating_sub(SHOWN)..];
    String::from_utf8_lossy(shown).trim().lines().last().unwrap_or_default().to_owned()
}
