//! ProcessWait: patience with a process that works, and none with a process that stands still.

use super::process_at;
use crate::proc_stat::{fields, stat_of};
use sluice_sync::time::{Duration, Instant};
use std::fs;
use std::os::unix::net::UnixStream;

/// Ticks of `/proc` that count as work: a second of CPU time. A process that only wakes up now and then takes less.
const TICKS: u64 = 100;
/// The fields of `/proc/PID/stat` behind the name that count ticks in user mode and in the kernel.
const STAT_TICKS: std::ops::Range<usize> = 11..13;

/// A wait that is over when a process has done nothing for some time.
#[derive(Debug)]
pub struct ProcessWait {
    process: Option<u32>,
    patience: Duration,
    since: Instant,
    seen: ProcessWork,
}

/// The work of a process so far.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessWork {
    /// Calls that wrote, and bytes that went to a disk.
    writes: u64,
    /// CPU time.
    ticks: u64,
}

impl ProcessWait {
    /// A wait for `process` that ends when the process has been idle for `patience`. An unknown process counts as idle.
    pub fn new(process: Option<u32>, patience: Duration) -> ProcessWait {
        ProcessWait { process, patience, since: Instant::now(), seen: work_of(process) }
    }

    /// A wait for the process at the other end of `stream`.
    pub(super) fn for_peer(stream: &UnixStream, patience: Duration) -> ProcessWait {
        let process = process_at(stream).ok().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        ProcessWait::new(process, patience)
    }

    /// Whether the process has neither written nor computed for the whole patience. A process of another user counts as idle if `/proc` hides
    /// its work.
    pub fn is_over(&mut self) -> bool {
        let now = work_of(self.process);
        if now.writes != self.seen.writes || now.ticks >= self.seen.ticks + TICKS {
            (self.seen, self.since) = (now, Instant::now());
        }
        self.since.elapsed() >= self.patience
    }
}

fn work_of(process: Option<u32>) -> ProcessWork {
    let Some(process) = process else { return ProcessWork::default() };
    let io = fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let stat = stat_of(process).unwrap_or_default();
    let count = |line: &str| line.split_once(": ").and_then(|(_, count)| count.parse::<u64>().ok());
    let writes = io.lines().filter(|line| line.starts_with("syscw") || line.starts_with("write_bytes"));
    let ticks = fields(&stat).into_iter().flatten().skip(STAT_TICKS.start).take(STAT_TICKS.len());
    let ticks = ticks.filter_map(|field| field.parse::<u64>().ok());
    ProcessWork { writes: writes.filter_map(count).sum(), ticks: ticks.sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_process_that_writes_is_waited_for_and_one_that_sleeps_is_not() {
        let mut own = ProcessWait::new(Some(std::process::id()), Duration::from_secs(60));
        own.since = Instant::now().checked_sub(Duration::from_secs(70)).expect("the machine runs");
        fs::File::create("/dev/null").and_then(|mut null| null.write_all(b"work")).expect("it takes all");
        assert!(!own.is_over(), "it has written");
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().expect("it starts");
        let mut wait = ProcessWait::new(Some(sleeper.id()), Duration::from_secs(60));
        // It has begun to sleep.
        sluice_sync::thread::sleep(Duration::from_millis(200));
        let _ = wait.is_over();
        wait.since = own.since.checked_sub(Duration::from_secs(70)).expect("the machine runs");
        assert!(wait.is_over(), "it sleeps");
        sleeper.kill().and_then(|()| sleeper.wait()).expect("it was started");
        assert!(ProcessWait::new(None, Duration::ZERO).is_over());
        assert!(work_of(Some(std::process::id())).writes > 0);
    }
}
