//! ProcStat: `/proc/PID/stat`, of a process or a thread.

use std::fs;

/// The text of the file for the process or thread `id`. None if there is no such process.
pub(crate) fn stat_of(id: impl std::fmt::Display) -> Option<String> {
    fs::read_to_string(format!("/proc/{id}/stat")).ok()
}

/// The fields of `stat` behind the name, which may have anything in it: state, parent, group, session, ...
pub(crate) fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    stat.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace())
}
