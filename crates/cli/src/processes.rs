//! Processes: what `/proc` and a handle tell of a process of this machine.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use std::fs;
use std::os::fd::OwnedFd;

/// The fields of `/proc/PID/stat` behind the name: state, parent, group, session, terminal, the terminal's group, ...
pub(crate) fn stat_fields(pid: Pid) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(')').map(|(_, fields)| fields.to_owned())
}

/// The parent of a process that has not ended.
pub(crate) fn parent_of(pid: Pid) -> Option<Pid> {
    let fields = stat_fields(pid)?;
    let mut words = fields.split_whitespace();
    let is_over = matches!(words.next()?, "Z" | "X");
    Pid::from_raw(words.next()?.parse().ok()?).filter(|_| !is_over)
}

/// The command line of a process, with a zero behind each argument. Empty if the process ends, or has ended.
pub(crate) fn command_of(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default()
}

/// Whether the process of a handle has ended.
pub(crate) fn is_over(process: &OwnedFd) -> bool {
    let mut handle = [PollFd::new(process, PollFlags::IN)];
    poll(&mut handle, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
}
