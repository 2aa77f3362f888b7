//! Descendants: the processes that a command has started, and their end.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sluice_sync::thread;
use sluice_sync::time::Duration;
use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;

/// How often is looked whether those that were killed have ended.
const LOOK: Duration = Duration::from_millis(1);

/// The variable that names the members for whose locks a process runs: of the innermost `sluice lock`, and of those around it.
pub(crate) const MEMBERS_VARIABLE: &str = "SLUICE_LOCK_MEMBERS";

/// The mark of this process as a member, in the [`MEMBERS_VARIABLE`]: no two processes have had the same.
pub(crate) fn mark_of(member: Pid) -> String {
    // When it began, in ticks since the machine was started.
    let began = stat_fields(member).and_then(|fields| fields.split_whitespace().nth(19).map(str::to_owned));
    format!("{}.{}", member.as_raw_nonzero(), began.as_deref().unwrap_or("0"))
}

/// The fields of `/proc/PID/stat` behind the name: state, parent, group, session, terminal, the terminal's group, ...
pub(crate) fn stat_fields(pid: Pid) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(')').map(|(_, fields)| fields.to_owned())
}

/// Whether the process was started by a command that runs for the lock of the member with this mark, or is that command.
pub(crate) fn is_marked(pid: Pid, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
    let of_members = |entry: &[u8]| {
        let entry = str::from_utf8(entry).ok()?;
        Some(entry.strip_prefix(MEMBERS_VARIABLE)?.strip_prefix('=')?.split(' ').any(|other| other == mark))
    };
    environment.split(|byte| *byte == 0).any(|entry| of_members(entry) == Some(true))
}

/// Whether `pid` is `root` or below it, and not `spared` or below that.
pub(crate) fn is_below(pid: Pid, root: Pid, spared: Option<Pid>, parents: &HashMap<Pid, Pid>) -> bool {
    let mut at = Some(pid);
    // They are read one after the other, and might go in a circle.
    for _ in 0..=parents.len() {
        match at {
            Some(at) if Some(at) == spared => return false,
            Some(at) if at == root => return true,
            _ => at = at.and_then(|at| parents.get(&at).copied()),
        }
    }
    false
}

/// Kills the processes that are meant, which is said by their parents, until none runs that this user may kill. They are stopped first: no
/// shell goes on with its script because the child that it waited for is dead.
pub(crate) fn kill_all(is_meant: impl Fn(Pid, &HashMap<Pid, Pid>) -> bool) {
    // Processes of earlier rounds, too: the death of a parent makes another process the parent of its children, while they still die.
    let mut killed: Vec<OwnedFd> = Vec::new();
    loop {
        let parents = running();
        let open = |pid: Pid| {
            let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // The number may have become another process's.
            (parent_of(pid) == parents.get(&pid).copied()).then_some(handle)
        };
        let meant: Vec<_> = parents.keys().copied().filter(|&pid| is_meant(pid, &parents)).collect();
        let mut handles: Vec<_> = meant.iter().filter_map(|&pid| open(pid)).collect();
        for signal in [Signal::STOP, Signal::KILL] {
            handles.retain(|handle| pidfd_send_signal(handle, signal) != Err(Errno::PERM));
        }
        killed.append(&mut handles);
        killed.retain(|handle| !is_over(handle));
        if killed.is_empty() {
            return;
        }
        thread::sleep(LOOK);
    }
}

/// Whether the process of a handle has ended.
fn is_over(process: &OwnedFd) -> bool {
    let mut handle = [PollFd::new(process, PollFlags::IN)];
    poll(&mut handle, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
}

/// The processes that run, and the parent of each.
fn running() -> HashMap<Pid, Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter_map(|pid| Some((pid, parent_of(pid)?))).collect()
}

/// The parent of a process that has not ended.
fn parent_of(pid: Pid) -> Option<Pid> {
    let fields = stat_fields(pid)?;
    let mut words = fields.split_whitespace();
    let is_over = matches!(words.next()?, "Z" | "X");
    Pid::from_raw(words.next()?.parse().ok()?).filter(|_| !is_over)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_ends_with_all_below_it_and_no_other_does() {
        let start = |script| Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap();
        let (mut meant, mut other) = (start("sleep 600 & sleep 600; true"), start("exec sleep 600"));
        let pid = |id: u32| Pid::from_raw(id.try_into().unwrap()).unwrap();
        let below = |root| running().into_values().filter(|parent| *parent == root).count();
        while below(pid(meant.id())) < 2 {
            thread::sleep(LOOK);
        }
        let children: Vec<Pid> = running()
            .into_iter()
            .filter(|(_, parent)| *parent == pid(meant.id()))
            .map(|(pid, _)| pid)
            .collect();
        kill_all(|one, parents| is_below(one, pid(meant.id()), None, parents));
        assert!(!meant.wait().unwrap().success());
        assert!(children.into_iter().all(|child| parent_of(child).is_none()));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
