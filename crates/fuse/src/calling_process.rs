//! CallingProcess: the process that has a thread, as `/proc` tells.

use crate::proc_stat::{fields, stat_of_client};
use std::{fs, io};

/// Ticks of the clock in `/proc` in a second.
const TICKS: u64 = 100;
/// Which field of `/proc/PID/stat`, behind the name, tells when the process was started.
const STARTED: usize = 19;

/// A process of this machine, with its start time: another process may get its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallingProcess {
    id: u32,
    /// In ticks since the machine was started; 0 if it could not be found out, since the process executes another program.
    started: u64,
}

impl CallingProcess {
    /// The process of a thread, if it lives.
    pub fn of(thread: u32) -> Option<CallingProcess> {
        let id = CallingProcess::id_of(thread)?;
        let started = match stat_of_client(id) {
            Ok(stat) => fields(&stat)?.nth(STARTED)?.parse().ok()?,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => 0,
            Err(_) => return None,
        };
        Some(CallingProcess { id, started })
    }

    /// The number of a thread's process, if it lives.
    pub(crate) fn id_of(thread: u32) -> Option<u32> {
        if thread == 0 {
            return None;
        }
        let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
    }

    /// Whether it has not ended, as far as can be found out.
    pub fn lives(&self) -> bool {
        let now = CallingProcess::of(self.id);
        now.is_some_and(|now| now.started == self.started || now.started == 0 || self.started == 0)
    }

    /// Whether it was there at `time`, in nanoseconds since the machine was started.
    pub(crate) fn was_there(&self, time: u64) -> bool {
        self.started <= time / (1_000_000_000 / TICKS) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_threads_and_by_when_it_was_started() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let own = CallingProcess::of(thread).expect("it lives");
        assert_eq!(own.id, std::process::id());
        assert!(own.lives() && own.was_there(u64::MAX) && !own.was_there(0));
        assert!(!CallingProcess { started: own.started + 1, ..own }.lives(), "another of that number");
        assert!(CallingProcess::of(0).is_none() && CallingProcess::of(u32::MAX).is_none());
    }
}
