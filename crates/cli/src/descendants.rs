//! Descendants: the processes that a command has started, and their end.

use crate::processes::{is_over, parent_of, stat_fields};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;

/// How often is looked whether those that were killed have ended.
const LOOK: Duration = Duration::from_millis(1);

/// The time for which a process is asked about again while the answer is unknown.
const UNKNOWN_MAX: Duration = Duration::from_secs(2);

/// The variable that names the members for whose locks a process runs: of the innermost `sluice lock`, and of those around it.
pub(crate) const MEMBERS_VARIABLE: &str = "SLUICE_LOCK_MEMBERS";

/// The mark of this process as a member, in the [`MEMBERS_VARIABLE`]: no two processes have had the same.
pub(crate) fn mark_of(member: Pid) -> String {
    // When it began, in ticks since the machine was started.
    let began = stat_fields(member).and_then(|fields| fields.split_whitespace().nth(19).map(str::to_owned));
    format!("{}.{}", member.as_raw_nonzero(), began.as_deref().unwrap_or("0"))
}

/// Whether the process was started by a command that runs for the lock of the member with this mark, or is that command. None while it
/// executes a program: it has no environment then.
pub(crate) fn is_marked(pid: Pid, mark: &str) -> Option<bool> {
    let Ok(environment) = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())) else {
        // It has ended, or is another user's.
        return Some(false);
    };
    if environment.is_empty() && stat_fields(pid).is_some_and(|fields| is_executing(&fields)) {
        return None;
    }
    let of_members = |entry: &[u8]| {
        let entry = str::from_utf8(entry).ok()?;
        Some(entry.strip_prefix(MEMBERS_VARIABLE)?.strip_prefix('=')?.split(' ').any(|other| other == mark))
    };
    Some(environment.split(|byte| *byte == 0).any(|entry| of_members(entry) == Some(true)))
}

/// Whether a process with these [fields](stat_fields) is about to execute a program: not a thread of the kernel, not over, and without an
/// environment, not even an empty one.
fn is_executing(fields: &str) -> bool {
    const STATE: usize = 0;
    const FLAGS: usize = 6;
    const ENVIRONMENT_END: usize = 48;
    /// A thread of the kernel.
    const PF_KTHREAD: u64 = 0x0020_0000;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let is_over = matches!(fields.get(STATE), None | Some(&"Z" | &"X"));
    !is_over
        && number(FLAGS).is_some_and(|flags| flags & PF_KTHREAD == 0)
        && number(ENVIRONMENT_END) == Some(0)
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
/// shell goes on with its script because the child that it waited for is dead. A process for which `is_meant` says nothing is asked about again, for
/// [`UNKNOWN_MAX`] at most.
pub(crate) fn kill_all(is_meant: impl Fn(Pid, &HashMap<Pid, Pid>) -> Option<bool>) {
    let end = Instant::now() + UNKNOWN_MAX;
    // Processes of earlier rounds, too: the death of a parent makes another process the parent of its children, while they still die.
    let mut killed: Vec<OwnedFd> = Vec::new();
    loop {
        let parents = running();
        let open = |pid: Pid| {
            let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // The number may have become another process's.
            (parent_of(pid) == parents.get(&pid).copied()).then_some(handle)
        };
        let mut handles = Vec::new();
        let mut are_all_known = true;
        for &pid in parents.keys() {
            match is_meant(pid, &parents) {
                Some(true) => match open(pid) {
                    Some(handle) => handles.push(handle),
                    // It has ended, or has another parent since.
                    None => are_all_known = false,
                },
                Some(false) => {}
                None => are_all_known = false,
            }
        }
        for signal in [Signal::STOP, Signal::KILL] {
            handles.retain(|handle| pidfd_send_signal(handle, signal) != Err(Errno::PERM));
        }
        killed.append(&mut handles);
        killed.retain(|handle| !is_over(handle));
        if killed.is_empty() && (are_all_known || Instant::now() >= end) {
            return;
        }
        thread::sleep(LOOK);
    }
}

/// The processes that run, and the parent of each.
fn running() -> HashMap<Pid, Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter_map(|pid| Some((pid, parent_of(pid)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// `/proc/PID/environ` is empty while a process executes a program, and its parent may just have died.
    #[test]
    fn a_marked_process_ends_though_it_executes_one_program_after_the_other() {
        let script = "exec sh -c \"$0\" \"$0\"";
        for round in 0..20 {
            let mark = format!("{}.{round}", std::process::id());
            let mut shell = Command::new("sh");
            let mut marked = shell.args(["-c", script, script]).env(MEMBERS_VARIABLE, &mark).spawn().unwrap();
            kill_all(|pid, _| is_marked(pid, &mark));
            assert!(marked.try_wait().unwrap().is_some(), "round {round}");
        }
        let fields = |state: &str, flags: &str, end: &str| {
            let mut fields = vec!["7"; 50];
            (fields[0], fields[6], fields[48]) = (state, flags, end);
            is_executing(&fields.join(" "))
        };
        assert!(fields("R", "4194304", "0") && !fields("R", "4194304", "140000000"));
        assert!(!fields("S", "2097152", "0") && !fields("Z", "4194304", "0") && !is_executing(""));
    }

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
        kill_all(|one, parents| Some(is_below(one, pid(meant.id()), None, parents)));
        assert!(!meant.wait().unwrap().success());
        assert!(children.into_iter().all(|child| parent_of(child).is_none()));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
