//! CallingProcess: the process that has a thread, as `/proc` tells.

use crate::proc_stat::{fields, stat_of};
use std::fs;

/// Ticks of the clock in `/proc` in a second.
const TICKS: u64 = 100;
/// Which field of `/proc/PID/stat`, behind the name, tells when the process was started.
const STARTED: usize = 19;

/// A process of this machine, with its start time: another process may get its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallingProcess {
    id: u32,
    /// In ticks since the machine was started.
    started: u64,
}

impl CallingProcess {
    /// The process of a thread, if it lives.
    pub fn of(thread: u32) -> Option<CallingProcess> {
        if thread == 0 {
            return None;
        }
        let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        let id = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
        let started = fields(&stat_of(id)?)?.nth(STARTED)?.parse().ok()?;
        Some(CallingProcess { id, started })
    }

    /// Whether it has not ended.
    pub fn lives(&self) -> bool {
        CallingProcess::of(self.id).as_ref() == Some(self)
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.id
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
        assert_eq!(own.id(), std::process::id());
        assert!(own.lives() && own.was_there(u64::MAX) && !own.was_there(0));
        assert!(!CallingProcess { started: own.started + 1, ..own }.lives(), "another of that number");
        assert!(CallingProcess::of(0).is_none() && CallingProcess::of(u32::MAX).is_none());
    }
}
