//! Cluster lock: `sluice lock`, a command that runs while a lock of a cluster is held.
//!
//! # Theory
//! ```text
//!   sluice lock ──────────── member: `sluice child lock-member`, in a process group of its own
//!     │      held, until, lost →   joins the lock manager, locks, renews its lease
//!     │      ← pid, done
//!     └── COMMAND
//! ```
//! Two processes: if one of them ends or stands still, the other keeps the promises of the lock:
//! - `sluice lock` stands still (a job that is stopped): the member goes on, and the lock is held, as the one of a stopped flock(1);
//! - `sluice lock` is killed: the kernel kills COMMAND (`become_locked`), the member what COMMAND has started, and then it unlocks;
//! - the member is killed, stands still or loses its lease: COMMAND gets SIGTERM when the lease is over by this machine's clock, and
//!   at `kill_at` SIGKILL with all it has started. Others wait longer than that (`GRACE` in `lock_member.rs`);
//! - both are killed: the kernel kills COMMAND, and others wait for lease and grace.
//!
//! Processes that COMMAND leaves behind at its end are no part of it. Orphans of a running COMMAND become children of `sluice lock`
//! (`PR_SET_CHILD_SUBREAPER`), which finds them by that when the lock is lost, and reaps them.

use crate::args::WantedLock;
use crate::descendants::{MEMBERS_VARIABLE, is_below, kill_all, mark_of};
use crate::processes::stat_fields;
use crate::run_in_mount::as_a_shell_says;
use rustix::io::{Errno, ioctl_fionread};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, set_parent_process_death_signal, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use sluice_console::failure::{Context, Failure, Result, in_words};
use sluice_console::program::{complain, this_program};
use sluice_membership::now;
use sluice_sync::mpsc::{Receiver, Sender, channel};
use sluice_sync::thread;
use sluice_sync::time::{Duration, nanoseconds};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// The variable in which the command finds its fencing token.
const TOKEN_VARIABLE: &str = "SLUICE_LOCK_TOKEN";
/// The exit status when the lock was lost while the command ran.
const LOST: u8 = 125;
/// How long it takes the thread that listens to the member to hand on a line that it has read.
const NEWS: Duration = Duration::from_millis(100);
/// How long this process sleeps at most before it looks at the clock.
const LOOK: Duration = Duration::from_secs(1);
/// How long the thread that reaps sleeps while there is no process to reap.
const NO_CHILD: Duration = Duration::from_millis(5);

/// The events of `sluice lock`.
enum LockEvent {
    /// The lock is held, with this token.
    Held(String),
    /// The member is one until the first time, by [`now`]; the command is to be dead at the second.
    Until(u64, u64),
    /// The member is none any more.
    Lost,
    Signal(i32),
    /// A process that it started has ended.
    Ended(Pid, ExitStatus),
}

/// Runs `command` while it holds the lock, and gives the exit status.
///
/// # Errors
/// When this process can start no other.
pub(crate) fn lock(request: &WantedLock, command: &[OsString]) -> Result<u8> {
    let program = this_program()?;
    let passed_on = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
    let ignored = ignored_signals();
    let mut signals = Signals::new(passed_on.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0))?;
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    let mut member = Command::new(&program)
        .args(["child", "lock-member"])
        .args(request.arguments())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .context(|| program.display().to_string())?;
    let (told, events) = channel();
    let tell = told.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            let _ = tell.send(LockEvent::Signal(signal));
        }
    });
    let pipes = member.stdin.take().zip(member.stdout.take());
    let Some(((to_member, from_member), member)) = pipes.zip(pid_of(member.id())) else {
        return Err(Failure::Interrupted);
    };
    // Before anybody reaps it: afterwards its number may be another process's.
    let member_handle = pidfd_open(member, PidfdFlags::empty()).map_err(io::Error::from)?;
    let tell = told.clone();
    let unread = from_member.as_fd().try_clone_to_owned()?;
    thread::spawn(move || listen(from_member, &tell));
    thread::spawn(move || reap(&told));
    let (until, kill_at) = (u64::MAX, u64::MAX);
    let holder = CommandHolder {
        member,
        member_handle,
        is_member_over: false,
        is_silent: false,
        to_member,
        unread,
        events,
        until,
        kill_at,
    };
    holder.run(&program, request, command)
}

/// The signals that this process was told to ignore, as nohup(1) does, and that the command is to ignore, too: a bit for each.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Takes in what the member says.
fn listen(from: ChildStdout, tell: &Sender<LockEvent>) {
    for line in BufReader::new(from).lines().map_while(io::Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let event = match words[..] {
            ["held", token] => Some(LockEvent::Held(token.to_owned())),
            ["until", until, kill_at] => until
                .parse()
                .ok()
                .zip(kill_at.parse().ok())
                .map(|(until, kill_at)| LockEvent::Until(until, kill_at)),
            _ => None,
        };
        let Some(event) = event else { break };
        let _ = tell.send(event);
    }
    let _ = tell.send(LockEvent::Lost);
}

/// Reaps the member, the command, and orphans that the command has left, for as long as this process runs.
fn reap(tell: &Sender<LockEvent>) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                let _ = tell.send(LockEvent::Ended(pid, ExitStatus::from_raw(status.as_raw())));
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => thread::sleep(NO_CHILD),
        }
    }
}

/// A `sluice lock`.
struct CommandHolder {
    member: Pid,
    member_handle: OwnedFd,
    is_member_over: bool,
    /// It has let the lease run out without a word.
    is_silent: bool,
    to_member: ChildStdin,
    /// Where the member's words come from.
    unread: OwnedFd,
    events: Receiver<LockEvent>,
    /// As the member said last.
    until: u64,
    kill_at: u64,
}

impl CommandHolder {
    fn run(mut self, program: &Path, request: &WantedLock, command: &[OsString]) -> Result<u8> {
        let token = loop {
            match self.next(None) {
                Some(LockEvent::Held(token)) => break token,
                Some(LockEvent::Until(until, kill_at)) => (self.until, self.kill_at) = (until, kill_at),
                // It has said why.
                Some(LockEvent::Ended(pid, status)) if pid == self.member => {
                    return Ok(as_a_shell_says(status));
                }
                Some(LockEvent::Signal(signal)) => {
                    self.leave();
                    return Ok(u8::try_from(128 + signal).unwrap_or(1));
                }
                _ => {}
            }
        };
        let mut members =
            std::env::var(MEMBERS_VARIABLE).map_or_else(|_| String::new(), |around| around + " ");
        members += &mark_of(self.member);
        // The thread that starts it is the one whose end it dies of.
        let started = Command::new(program)
            .args(["child", "locked", &getpid().as_raw_nonzero().to_string(), "--"])
            .args(command)
            .env(TOKEN_VARIABLE, token)
            .env(MEMBERS_VARIABLE, members)
            .spawn();
        let started = started.and_then(|child| {
            let pid = pid_of(child.id()).ok_or(ErrorKind::NotFound)?;
            Ok((pid, pidfd_open(pid, PidfdFlags::empty())?))
        });
        let outcome = started.context(|| program.display().to_string()).map(|(pid, handle)| {
            let _ = writeln!(self.to_member, "pid {}", pid.as_raw_nonzero());
            self.attend(pid, &handle)
        });
        let is_lost = outcome.as_ref().is_ok_and(|(_, is_lost)| *is_lost);
        if is_lost {
            self.kill();
        }
        if self.is_silent {
            // A process that stands still would not end.
            self.kill_member();
        }
        self.leave();
        let (status, _) = outcome?;
        if is_lost {
            let name = request.name.display();
            let text = format!(
                "{name}: the lock was lost while the command ran, which was ended: its lease was not renewed in time"
            );
            complain(&text, LOST);
            return Ok(LOST);
        }
        Ok(as_a_shell_says(status))
    }

    /// Waits for the end of the command: its status, and whether the lock was lost before.
    fn attend(&mut self, command: Pid, handle: &OwnedFd) -> (ExitStatus, bool) {
        let mut is_lost = false;
        // The command may have ended just now: then a signal has no receiver.
        let send = |signal| {
            let _ = pidfd_send_signal(handle, signal);
        };
        loop {
            let event = match self.next(Some(if is_lost { self.kill_at } else { self.until })) {
                None if !is_lost => {
                    // This process may have stood still while the member went on, and said so.
                    while ioctl_fionread(&self.unread).is_ok_and(|bytes| bytes > 0) {
                        thread::sleep(NO_CHILD);
                    }
                    self.next(Some(now() + nanoseconds(NEWS)))
                }
                event => event,
            };
            match event {
                Some(LockEvent::Ended(pid, status)) if pid == command => return (status, is_lost),
                Some(LockEvent::Until(until, kill_at)) if !is_lost => {
                    (self.until, self.kill_at) = (until, kill_at);
                }
                Some(LockEvent::Signal(signal)) => {
                    let is_from_terminal = matches!(signal, SIGINT | SIGQUIT) && is_in_foreground();
                    Signal::from_named_raw(signal).filter(|_| !is_from_terminal).into_iter().for_each(send);
                }
                Some(LockEvent::Lost) if !is_lost => {
                    is_lost = true;
                    let rest = self.kill_at.saturating_sub(self.until) / 2;
                    self.kill_at = self.kill_at.min(now() + rest);
                    send(Signal::TERM);
                }
                None if is_lost => self.kill(),
                None => {
                    (is_lost, self.is_silent) = (true, true);
                    send(Signal::TERM);
                }
                _ => {}
            }
        }
    }

    /// Kills the command and what it has started.
    fn kill(&self) {
        let own = getpid();
        kill_all(|pid, parents| Some(pid != own && is_below(pid, own, Some(self.member), parents)));
    }

    /// The next event; `None` at the time `due`.
    fn next(&mut self, due: Option<u64>) -> Option<LockEvent> {
        loop {
            let left = due.map_or(LOOK, |due| Duration::from_nanos(due.saturating_sub(now())));
            // A clock may stand still that does not while the machine sleeps.
            match self.events.recv_timeout(left.min(LOOK)) {
                Ok(event) => {
                    self.is_member_over |= matches!(event, LockEvent::Ended(pid, _) if pid == self.member);
                    return Some(event);
                }
                Err(_) if due.is_some_and(|due| due <= now()) => return None,
                Err(_) => {}
            }
        }
    }

    /// Lets the member unlock and leave. A signal that comes later says that the user does not wait for that, as when etcd does not answer.
    fn leave(&mut self) {
        let patient_until = now() + nanoseconds(LOOK);
        // It ends by that, or has ended.
        let _ = writeln!(self.to_member, "done");
        while !self.is_member_over {
            if let Some(LockEvent::Signal(_)) = self.next(None)
                && now() > patient_until
            {
                self.kill_member();
            }
        }
    }

    fn kill_member(&self) {
        // It may have ended just now.
        let _ = pidfd_send_signal(&self.member_handle, Signal::KILL);
    }
}

fn pid_of(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

/// Whether a terminal sends the signals of its keys to this process and to the command alike.
fn is_in_foreground() -> bool {
    let fields = stat_fields(getpid()).unwrap_or_default();
    let mut words = fields.split_whitespace();
    let group = words.nth(2);
    group.is_some() && words.nth(2) == group && File::open("/dev/tty").is_ok()
}

/// Becomes `command`, which the kernel kills when the thread that started this process ends.
///
/// # Errors
/// When there is no command.
pub(crate) fn become_locked(parent: i32, command: &[OsString]) -> Result<u8> {
    let Some((name, arguments)) = command.split_first() else {
        return Err(Failure::Usage("give a command to run, after --".into()));
    };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    if getppid() != Pid::from_raw(parent) {
        return Ok(128 + 9);
    }
    let error = Command::new(name).args(arguments).exec();
    let (status, why) = match error.kind() {
        ErrorKind::NotFound => (127, "no such command".to_owned()),
        _ => (126, in_words(&error.to_string())),
    };
    complain(&format!("{}: {why}", name.display()), status);
    Ok(status)
}
