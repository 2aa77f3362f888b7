//! Tasks that lock and unlock files on the simulated machine, more of them than CPUs.
//!
//! # Theory
//! A CPU of the machine runs one body, so a CPU takes care of several tasks itself: it goes on with one until that
//! has to wait for a lock, then with another. A task that is woken, to try again, is put into the mailbox of its CPU, which
//! sleeps when it has nothing to do. Going on with a woken task costs a task switch.

use sluice_lock_zoo_sim::{Queued, SpinLock};
use sluice_machine::{Machine, Report};
use sluice_sync::Arc;
use sluice_sync::atomic as unseen;
use sluice_sync_sim::CachePadded;
use sluice_sync_sim::atomic::{AtomicU32, Ordering};
use sluice_sync_sim::face::futex;
use std::collections::VecDeque;

/// Which locks are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `fcntl`, of a process.
    Posix,
    /// `flock`.
    Flock,
}

/// Tasks of the source's tests.
pub(crate) const TASKS: usize = 128;
/// Tasks that wait for one lock.
pub(crate) const HERDS: &[usize] = &[20, 100, 1_000];
/// A test of the source: its name, the call, and whether all tasks use one file.
pub(crate) const TESTS: &[(&str, Form, bool)] = &[
    ("posix01", Form::Posix, true),
    ("posix02", Form::Posix, false),
    ("flock01", Form::Flock, true),
    ("flock02", Form::Flock, false),
];

/// A design of file locks, used by [`Tasks`].
pub trait Design {
    /// True if `task` has the lock of `file` now. If not, it is woken by [`Tasks::wake`].
    fn lock(&self, task: usize, file: usize) -> bool;

    /// Gives the lock of `file` that `task` has back.
    fn unlock(&self, task: usize, file: usize);
}

/// A system call around each lock and unlock, in cycles: at least half of it.
pub(super) const CALL: u64 = 300;
/// The cost of resuming a task that had waited, in cycles: scheduling, and a cold cache.
const SWITCH: u64 = 1_500;
/// The length of a run, in cycles, and the part of it for warming up.
const UNTIL: u64 = 12_000_000;
const WARM: u64 = UNTIL / 4;

/// The mailboxes of all CPUs.
pub struct Tasks {
    /// *immutable*
    count: usize,
    /// *immutable; each looks after itself*
    boxes: Vec<Mailbox>,
    /// Tasks woken. *atomic (a count the machine does not see)*
    wakes: unseen::AtomicU64,
    /// The run is over. *atomic (a flag the machine does not see)*
    over: unseen::AtomicBool,
}

#[derive(Default)]
struct Mailbox {
    /// Tasks that were woken. *protected by its lock*
    letters: CachePadded<SpinLock<VecDeque<usize>, Queued>>,
    /// 1: the CPU sleeps. *atomic (sleep)*
    asleep: CachePadded<AtomicU32>,
}

/// The results of a run.
pub struct Run {
    /// The report of the machine.
    pub report: Report,
    /// Operations (a lock and its unlock) per second at the machine's clock, after the warm-up.
    pub ops_per_s: f64,
    /// Tasks woken for each release.
    pub wakes_per_release: f64,
}

impl Tasks {
    /// How many CPUs there are.
    pub fn cpus(&self) -> usize {
        self.boxes.len()
    }

    /// How many tasks there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The CPU that takes care of `task`.
    pub fn cpu_of(&self, task: usize) -> usize {
        task % self.cpus()
    }

    /// Wakes `task`, which waits, to try again.
    pub fn wake(&self, task: usize) {
        // Relaxed: a count, read when the run is over.
        self.wakes.fetch_add(1, Ordering::Relaxed);
        let mailbox = &self.boxes[self.cpu_of(task)];
        mailbox.letters.lock().push_back(task);
        mailbox.rouse();
    }

    /// Ends the sleep of every CPU.
    fn end(&self) {
        // Relaxed: one host thread runs all CPUs.
        if !self.over.swap(true, Ordering::Relaxed) {
            self.boxes.iter().for_each(Mailbox::rouse);
        }
    }

    /// Takes the letters of `cpu`; sleeps until there are some if it `may_sleep`.
    fn receive(&self, cpu: usize, may_sleep: bool) -> VecDeque<usize> {
        let Mailbox { letters, asleep } = &self.boxes[cpu];
        loop {
            let received = std::mem::take(&mut *letters.lock());
            // Relaxed: as in `end`.
            if !received.is_empty() || !may_sleep || self.over.load(Ordering::Relaxed) {
                return received;
            }
            // SeqCst(sleep): a CPU that posts a letter after this sees that we sleep; an earlier one we see below.
            asleep.store(1, Ordering::SeqCst);
            if letters.lock().is_empty() && !self.over.load(Ordering::Relaxed) {
                futex::wait(asleep, 1, None);
            }
            asleep.store(0, Ordering::SeqCst);
        }
    }

    /// `tasks` tasks on `cpus` CPUs lock and unlock the file of each, again and again.
    pub fn run(
        machine: &Machine,
        (cpus, tasks): (usize, usize),
        file_of: fn(usize) -> usize,
        make: impl FnOnce(&Arc<Tasks>) -> Box<dyn Design>,
    ) -> Run {
        let (post, design) = machine.prepare(cpus, || {
            let boxes = (0..cpus).map(|_| Mailbox::default()).collect();
            let over = unseen::AtomicBool::new(false);
            let post = Arc::new(Tasks { count: tasks, boxes, wakes: unseen::AtomicU64::new(0), over });
            let design = make(&post);
            (post, design)
        });
        let releases = unseen::AtomicU64::new(0);
        let report = machine.run(cpus, |cpu| {
            let own = (cpu.id()..tasks).step_by(cpus);
            // Each with whether it had waited.
            let mut next: VecDeque<_> = own.map(|task| (task, false)).collect();
            cpu.work(cpu.random(WARM / 2));
            while cpu.now() < UNTIL {
                let letters = post.receive(cpu.id(), next.is_empty()).into_iter();
                next.extend(letters.map(|task| (task, true)));
                // Without letters the run is over.
                let Some((task, is_woken)) = next.pop_front() else { break };
                cpu.work(if is_woken { SWITCH } else { CALL / 2 + cpu.random(CALL) });
                if !design.lock(task, file_of(task)) {
                    continue;
                }
                cpu.work(CALL / 2 + cpu.random(CALL));
                design.unlock(task, file_of(task));
                // Relaxed: a count, read when the run is over.
                releases.fetch_add(1, Ordering::Relaxed);
                if cpu.now() >= WARM {
                    cpu.count_op();
                }
                next.push_back((task, false));
            }
            post.end();
        });
        let seconds = report.cycles.saturating_sub(WARM).max(1) as f64 / (f64::from(report.mhz) * 1e6);
        let releases = releases.into_inner().max(1);
        let wakes_per_release = post.wakes.load(Ordering::Relaxed) as f64 / releases as f64;
        Run { ops_per_s: report.ops() as f64 / seconds, wakes_per_release, report }
    }
}

impl Mailbox {
    fn rouse(&self) {
        // SeqCst(sleep): see `receive`.
        if self.asleep.swap(0, Ordering::SeqCst) == 1 {
            futex::wake(&self.asleep, 1);
        }
    }
}
