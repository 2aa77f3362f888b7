//! Watchdog: a holder's look at a server that may hang (`-o watchdog=SECONDS`).
//!
//! # Theory
//! A server that is stopped or deadlocked answers nothing, and does not end. The holder looks for that only while a request waits:
//!
//! - *Idle.* The holder waits for the first request as a reader of `/dev/fuse` does, by poll(2), and reads nothing. That costs no wake-up as long as no
//!   program makes a call.
//! - *Watching.* From then on it asks the server four times in the limit how many requests it has answered, and how many it serves. If the server serves
//!   none, and the kernel has none for it, the mount is idle again.
//!
//! A server whose number of answers has not grown for as long as the limit, or that does not say it, hangs. The calls in which its threads wait go to the log,
//! as far as `/proc` tells, and the server is killed.
//!
//! # Cost
//! While programs make calls: four wake-ups of the holder and of a server's thread in the limit. A mount without requests wakes nobody.

use sluice_sync::time::{Duration, Instant};
use std::fs;

/// How often a holder looks within the limit.
const LOOKS: u32 = 4;
/// Threads of which the log is told.
const THREADS_MAX: usize = 64;
/// Frames of a thread's stack in the kernel of which the log is told.
const FRAMES_MAX: usize = 6;

/// The knowledge of a holder about the requests of its mount.
pub(crate) struct Watchdog {
    limit: Duration,
    state: WatchState,
}

enum WatchState {
    /// No request waits.
    Idle,
    /// Requests may wait.
    Watching {
        /// When the holder looks next.
        next: Instant,
        /// When the last answer was seen.
        since: Instant,
        /// How many requests were answered by then.
        answered: Option<u64>,
    },
}

/// The next step of the holder after a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WatchStep {
    /// It asks the server.
    Ask,
    /// It replaces the server, which hangs.
    Replace,
}

impl Watchdog {
    pub(crate) fn new(limit: Duration) -> Watchdog {
        Watchdog { limit, state: WatchState::Idle }
    }

    /// Whether the holder waits for the next request.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, WatchState::Idle)
    }

    /// When the holder looks next.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.state {
            WatchState::Idle => None,
            WatchState::Watching { next, .. } => Some(next),
        }
    }

    /// A server begins to serve, of which nothing is known.
    pub(crate) fn rest(&mut self) {
        self.state = WatchState::Idle;
    }

    /// A request has come.
    pub(crate) fn request_came(&mut self, now: Instant) {
        if self.is_idle() {
            self.state = WatchState::Watching { next: now + self.limit / LOOKS, since: now, answered: None };
        }
    }

    /// The server says how many requests it has answered. A server `is_busy` while it serves requests, or while the kernel has requests for it.
    pub(crate) fn heard(&mut self, number: u64, is_busy: bool, now: Instant) {
        match &mut self.state {
            WatchState::Watching { since, answered, .. } if is_busy => {
                if answered.replace(number) != Some(number) {
                    *since = now;
                }
            }
            _ => self.state = WatchState::Idle,
        }
    }

    /// It is time to look.
    pub(crate) fn look(&mut self, now: Instant) -> WatchStep {
        match &mut self.state {
            WatchState::Watching { next, since, .. } => {
                *next = now + self.limit / LOOKS;
                if now.saturating_duration_since(*since) >= self.limit {
                    WatchStep::Replace
                } else {
                    WatchStep::Ask
                }
            }
            WatchState::Idle => WatchStep::Ask,
        }
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.limit.as_secs()
    }
}

/// A line for each thread of a process: its name and state, the kernel's name of what it waits for, its system call, and its stack in the kernel, where
/// root asks.
pub(crate) fn threads_of(pid: u32) -> Vec<String> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let line = |thread: fs::DirEntry| {
        let read = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
        let call = read("syscall");
        let call = call.split_whitespace().next().unwrap_or("?");
        let stack = read("stack");
        let frame = |line: &str| {
            let name = line.rsplit_once("] ").map_or(line, |(_, name)| name);
            name.split('+').next().unwrap_or(name).to_owned()
        };
        let frames: Vec<String> = stack.lines().take(FRAMES_MAX).map(frame).collect();
        format!(
            "thread {} ({}): state {state}, waits in {}, system call {call}; kernel stack: {}",
            thread.file_name().display(),
            read("comm").trim(),
            Some(read("wchan"))
                .filter(|name| !name.is_empty() && name != "0")
                .as_deref()
                .unwrap_or("nothing"),
            if frames.is_empty() { "not told".into() } else { frames.join(" < ") }
        )
    };
    threads.flatten().take(THREADS_MAX).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);

    #[test]
    fn a_server_hangs_that_answers_nothing_while_requests_wait_and_no_other() {
        let mut dog = Watchdog::new(LIMIT);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert!(dog.is_idle() && dog.next().is_none());
        // A server that answers.
        dog.request_came(at(0));
        assert_eq!(dog.next(), Some(at(2)));
        for second in (2..40).step_by(2) {
            assert_eq!(dog.look(at(second)), WatchStep::Ask, "{second}");
            dog.heard(second, true, at(second));
        }
        dog.heard(38, false, at(39));
        assert!(dog.is_idle(), "it has answered all");
        // A server that says the same number; a server that says nothing.
        for says in [true, false] {
            dog.request_came(at(100));
            for second in [102, 104, 106] {
                assert_eq!(dog.look(at(second)), WatchStep::Ask, "{second}");
                if says {
                    dog.heard(9, true, at(100));
                }
            }
            assert_eq!(dog.look(at(108)), WatchStep::Replace);
            dog.rest();
            assert!(dog.is_idle());
        }
    }

    #[test]
    fn each_thread_of_a_process_is_told_of_in_a_line() {
        let lines = threads_of(std::process::id());
        let own = format!("thread {} (", rustix::thread::gettid().as_raw_nonzero());
        let line = lines.iter().find(|line| line.starts_with(&own)).expect("this thread");
        assert!(line.contains("state R, waits in") && line.contains("kernel stack: "), "{line}");
    }
}
