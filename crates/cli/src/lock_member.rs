//! Lock member: the process that is a member of the lock manager for one `sluice lock`. See `cluster_lock.rs`.

use crate::args::WantedLock;
use crate::cluster_place::{listening, place, warn_of_loose_keys};
use crate::descendants::{is_below, is_marked, kill_all, mark_of};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use sluice_cluster::Cluster;
use sluice_console::failure::{Failure, Result};
use sluice_dlm::{Config, Dlm, Held, LockError, Masters, Mode, NAME_MAX, Submitted, Token, Want};
use sluice_membership::now;
use sluice_sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use sluice_sync::time::{Duration, Instant, nanoseconds};
use sluice_sync::{Arc, thread};
use std::io::{self, BufRead, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A command whose member is lost is killed after such a part of a lease, ...
const KILL: u64 = 4;
/// ... and the locks of a dead member stay taken for such a part: until long after that.
const GRACE: u32 = 2;
/// How often is looked whether the lease was renewed, in its length.
const LOOKS: u32 = 16;
/// So many leases a process tries to become a member: many others may, at an etcd that has little time.
const JOINING: u32 = 4;
/// How often a member that waits looks whether it is still to wait.
const WAIT: Duration = Duration::from_millis(20);
/// How long a command may wait: a lease that is not bounded by it ends first.
const LONG: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The messages from `sluice lock`.
enum HolderWord {
    /// The process of the command.
    Pid(Pid),
    /// The lock is used no more.
    Done,
}

/// Has the lock, and says so, until standard input ends.
///
/// # Errors
/// When it does not get the lock.
pub(crate) fn hold_lock(request: &WantedLock) -> Result<u8> {
    let shown = request.name.display();
    if !(1..=NAME_MAX).contains(&request.name.len()) {
        return Err(Failure::Usage(format!("{shown}: the name of a lock has 1 to {NAME_MAX} bytes")));
    }
    let timeout = request.timeout.map(|seconds| Duration::try_from_secs_f64(seconds).map_err(|_| seconds));
    let timeout = timeout.transpose().map_err(|seconds| {
        Failure::Usage(format!("--timeout {seconds}: give the seconds to wait, 0 or more"))
    })?;
    let deadline = Instant::now() + timeout.unwrap_or(LONG).min(LONG);
    // They may be sent to all processes of a service: the command decides when it ends, and so when the lock does.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let words = listen();
    let place = place(&request.cluster)?;
    let cluster = Cluster::open(&place)?;
    let keys = request.identity.clone().unwrap_or_else(|| place.keys());
    warn_of_loose_keys(&keys);
    let ttl = cluster.ttl();
    let mut joined_by = deadline.min(Instant::now() + ttl * JOINING);
    loop {
        let listen = listening(&place, request.listen)?;
        let dlm = match join(&cluster, &keys, listen) {
            Err(error)
                if may_end(&error)
                    && Instant::now() < joined_by
                    && matches!(words.try_recv(), Err(TryRecvError::Empty)) =>
            {
                thread::sleep(WAIT);
                continue;
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let text = format!("--listen {listen}: {error}: give port 0, or one that nobody uses");
                return Err(Failure::Usage(text));
            }
            joined => joined?,
        };
        joined_by = deadline.min(Instant::now() + ttl * JOINING);
        let is_try = timeout == Some(Duration::ZERO);
        // An attempt is decided by another process, which may be a while away.
        let deadline = if is_try { Instant::now() + ttl } else { deadline };
        let want = Want { is_try, ..Want::new(if request.shared { Mode::Pr } else { Mode::Ex }) };
        match take(&dlm, request, &want, deadline, &words) {
            Ok(Some(held)) => {
                let outcome = match held.token() {
                    Some(token) => keep(&dlm, &held, token, ttl, &words).map(|()| Some(0)),
                    // The lease ended just now.
                    None => Ok(None),
                };
                dlm.node().unlock(now(), held);
                if let Some(status) = outcome? {
                    return Ok(status);
                }
            }
            Ok(None) => return Ok(1),
            Err(LockError::Busy | LockError::TimedOut) => {
                let seconds = timeout.unwrap_or_default().as_secs_f64();
                return Err(Failure::Failed(format!(
                    "{shown}: not locked within {seconds} s: others have the lock, or had it when they died; \
                     `sluice dlm status` lists them"
                )));
            }
            // It joins again, behind those that wait.
            Err(LockError::NotMember) => {}
            Err(error) => return Err(Failure::Failed(format!("{shown}: {error}"))),
        }
    }
}

/// Becomes a member.
fn join(cluster: &Cluster, keys: &Path, listen: SocketAddr) -> io::Result<Dlm> {
    Dlm::join_now(Config {
        listen,
        grace: cluster.ttl() / GRACE,
        masters: Masters::Oldest,
        ..Config::local(cluster.name(), cluster.identity(keys)?, cluster.lock_membership()?)
    })
}

/// Whether it may be otherwise the next time: etcd has no time, or the connection to it broke.
fn may_end(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, Other, TimedOut, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | Other | TimedOut | UnexpectedEof)
}

/// The messages on standard input.
fn listen() -> Receiver<HolderWord> {
    let (tell, words) = channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            let word = match line.split_once(' ') {
                Some(("pid", pid)) => pid.parse().ok().and_then(Pid::from_raw).map(HolderWord::Pid),
                _ => Some(HolderWord::Done),
            };
            word.into_iter().for_each(|word| drop(tell.send(word)));
        }
    });
    words
}

/// Takes the lock. None if nobody waits for it any more.
fn take(
    dlm: &Dlm,
    request: &WantedLock,
    want: &Want,
    deadline: Instant,
    words: &Receiver<HolderWord>,
) -> std::result::Result<Option<Held>, LockError> {
    let key = dlm.key(request.name.as_bytes())?;
    let ticket = match dlm.node().lock(now(), &key, want)? {
        Submitted::Granted(held) => return Ok(Some(held)),
        Submitted::Waiting(ticket) => ticket,
    };
    let mut is_left = false;
    while !is_left
        && ticket.sleep(Some(deadline.min(Instant::now() + WAIT))).is_none()
        && Instant::now() < deadline
    {
        is_left = !matches!(words.try_recv(), Err(TryRecvError::Empty));
    }
    let (outcome, held) = dlm.node().finish(now(), ticket);
    match outcome {
        Ok(()) => Ok(held),
        Err(LockError::Cancelled) if is_left => Ok(None),
        Err(LockError::Cancelled) => Err(LockError::TimedOut),
        Err(error) => Err(error),
    }
}

/// Has the lock until the command has ended.
fn keep(dlm: &Dlm, held: &Held, token: Token, ttl: Duration, words: &Receiver<HolderWord>) -> Result<()> {
    let token = token.as_number().ok_or_else(|| io::Error::from(Errno::OVERFLOW))?;
    if held.mode() == Mode::Ex {
        let system = rustix::system::uname();
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
        // For `sluice dlm status`: without it the lock is as good.
        let _ = dlm
            .node()
            .set_value(held, format!("{} {parent}", system.nodename().to_string_lossy()).as_bytes());
    }
    // A reader that has ended is noticed by standard input.
    let say = |line: String| drop(io::stdout().write_all(line.as_bytes()));
    let lines = |until| format!("until {until} {}\n", until + nanoseconds(ttl) / KILL);
    let (mut told, mut command, mut is_lost) = (dlm.valid_until(), None, false);
    say(lines(told) + &format!("held {token}\n"));
    loop {
        let until = dlm.valid_until();
        if !is_lost && until <= now() {
            // The membership hears nothing before the command has ended.
            is_lost = true;
            say("lost\n".into());
        } else if !is_lost && until != told {
            told = until;
            say(lines(until));
        }
        match words.recv_timeout(ttl / LOOKS) {
            // Not reaped yet: afterwards the number may be another process's.
            Ok(HolderWord::Pid(pid)) => {
                command = pidfd_open(pid, PidfdFlags::empty()).ok().map(|of| (pid, of))
            }
            Ok(HolderWord::Done) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let own = mark_of(rustix::process::getpid());
                kill_all(|pid, parents| {
                    let is_its = |(root, handle): &(Pid, OwnedFd)| {
                        is_below(pid, *root, None, parents) && pidfd_send_signal(handle, Signal::STOP).is_ok()
                    };
                    if command.as_ref().is_some_and(is_its) { Some(true) } else { is_marked(pid, &own) }
                });
                return Ok(());
            }
        }
    }
}
