//! Turns: which requests were read before another one, and whether they are served.
//!
//! # Theory
//! The kernel hands requests out in the order in which they were made, but workers serve them side by side. A client
//! usually waits for the answer to a request before it makes a dependent one. RELEASE is an exception: nobody waits for it. A
//! program that closes the last descriptor of an open file and then asks for a lock that the open file had may be
//! refused, because the worker that has read its RELEASE is still on the way. So a request that a lock is in the way of
//! is looked at again when everything that was read before it is served (`second_look`).
//!
//! Each worker says at which *stage* it is: it stands by, it asks the kernel for a request, it serves one that may free
//! locks though nobody waits for it, which is RELEASE alone, or it serves another. A request that a worker has read
//! earlier is either being served, or has just come from the kernel and is not begun. From outside the latter looks
//! like a worker that waits for the kernel; but such a one sleeps, and `/proc` says so.
//!
//! Requests that come from elsewhere than `/dev/fuse` are read by a thread that does not serve them: a RELEASE among them counts
//! as served from the moment it was read on ([`Releasing`]).
//!
//! # Limits
//! The kernel itself holds back a RELEASE while many reads ahead and writes back are under way: it is then made later than
//! the lock request, and not waited for. Without `/proc` only what a worker has begun is waited for.
//!
//! # Ordering
//! All SeqCst. A worker says that it has served a request, then looks whether anybody waits for that; a request begins to
//! wait, then its worker looks once more whether the others have served theirs. One of the two sees the other.
//!
//! # Cost
//! Two stores to the worker's own line for each request. A request that is about to be refused costs a call to `/proc` for each
//! other worker that asks the kernel: while one client is at work there is none.

use crate::abi::opcode;
use crate::lock_class::TURNS;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, CachePadded, Mutex, thread};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The workers of one mount.
pub(crate) struct Turns(Mutex<Vec<Arc<WorkerStage>>>);

struct WorkerStage {
    /// How often it has changed, times [`STAGES`], and the stage. *atomic (no label: SeqCst)*
    stage: CachePadded<AtomicU64>,
    /// The thread's number, or 0 if it is not needed. *immutable*
    thread: i32,
    /// The thread's `stat` file in `/proc`, if `/proc` is mounted. *immutable*
    stat: Option<File>,
}

/// One thread's part in [`Turns`], until it is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    worker: Arc<WorkerStage>,
}

/// Earlier requests of other workers that were not served at some moment, each with the worker's stage.
pub(crate) struct Earlier(Vec<(Arc<WorkerStage>, u64)>);

/// Stages: the worker has no unserved request, or has ended.
const STANDS_BY: u64 = 0;
/// Asks the kernel for a request, or has just got one.
const ASKS: u64 = 1;
/// Serves what its client waits for, or what frees no lock.
const SERVES: u64 = 2;
/// Serves RELEASE.
const RELEASES: u64 = 3;
const STAGES: u64 = 4;
/// How often a thread lets others run before it sleeps, for so long, while another is about to do something.
const YIELDS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(100);

impl Default for Turns {
    fn default() -> Self {
        Turns(Mutex::with_class(&TURNS, Vec::new()))
    }
}

impl Turns {
    /// The calling thread reads and serves requests from now on.
    pub(crate) fn join(&self) -> Turn<'_> {
        let thread = this_thread();
        let stat = File::open(format!("/proc/self/task/{thread}/stat")).ok();
        Turn { turns: self, worker: self.add(ASKS, thread, stat) }
    }

    fn add(&self, stage: u64, thread: i32, stat: Option<File>) -> Arc<WorkerStage> {
        let stage = CachePadded::new(AtomicU64::new(stage));
        let worker = Arc::new(WorkerStage { stage, thread, stat });
        self.0.lock().push(worker.clone());
        worker
    }

    /// A RELEASE was read that another thread serves.
    pub(crate) fn releasing(self: &Arc<Self>) -> Releasing {
        Releasing { turns: self.clone(), worker: self.add(RELEASES, 0, None) }
    }

    fn end(&self, ended: &Arc<WorkerStage>) {
        ended.enter(STANDS_BY);
        self.0.lock().retain(|worker| !Arc::ptr_eq(worker, ended));
    }

    /// How many workers serve a request.
    pub(crate) fn serving(&self) -> usize {
        let serves = |worker: &&Arc<WorkerStage>| {
            matches!(worker.stage.load(Ordering::SeqCst) % STAGES, SERVES | RELEASES)
        };
        self.0.lock().iter().filter(serves).count()
    }

    /// How often a worker's stage has changed: the sum grows with each request that is served.
    pub(crate) fn served(&self) -> u64 {
        self.0.lock().iter().map(|worker| worker.stage.load(Ordering::SeqCst) / STAGES).sum()
    }

    /// Requests that other workers read before the calling thread's request.
    pub(crate) fn earlier(&self) -> Earlier {
        let (workers, me) = (self.0.lock().clone(), this_thread());
        let others = workers.into_iter().filter(|worker| worker.thread != me);
        Earlier(others.filter_map(|worker| worker.releasing().map(|stage| (worker, stage))).collect())
    }
}

impl Turn<'_> {
    /// Serves a request with this opcode that was just read.
    pub(crate) fn during(&self, opcode: u32, serve: impl FnOnce()) {
        self.at(if opcode == opcode::RELEASE { RELEASES } else { SERVES }, serve);
    }

    /// Does `wait`, in which no request is read.
    pub(crate) fn standing_by(&self, wait: impl FnOnce()) {
        self.at(STANDS_BY, wait);
    }

    fn at(&self, stage: u64, act: impl FnOnce()) {
        self.worker.enter(stage);
        act();
        self.worker.enter(ASKS);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.end(&self.worker);
    }
}

/// A RELEASE that one thread has read and another serves, from the one to the end of the other.
pub struct Releasing {
    turns: Arc<Turns>,
    worker: Arc<WorkerStage>,
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.turns.end(&self.worker);
    }
}

impl Earlier {
    /// True if the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if all of it is served.
    pub(crate) fn is_served(&self) -> bool {
        self.0.iter().all(|(worker, stage)| worker.stage.load(Ordering::SeqCst) != *stage)
    }
}

impl WorkerStage {
    /// Only one thread does this at a time.
    fn enter(&self, next: u64) {
        // Relaxed: what this thread wrote, or got with the worker.
        let changes = self.stage.load(Ordering::Relaxed) / STAGES + 1;
        self.stage.store(changes * STAGES + next, Ordering::SeqCst);
    }

    /// The stage at which it serves a RELEASE that it has read. `None`: there is none. Waits while that cannot be told, because
    /// the thread runs and has not begun: it does not depend on the caller for its next step.
    fn releasing(&self) -> Option<u64> {
        let mut looks = 0;
        loop {
            let stage = self.stage.load(Ordering::SeqCst);
            match stage % STAGES {
                RELEASES => return Some(stage),
                ASKS if !self.sleeps() || self.stage.load(Ordering::SeqCst) != stage => pause(&mut looks),
                _ => return None,
            }
        }
    }

    /// True if its thread waits, except for memory. Without `/proc` that is taken for granted.
    fn sleeps(&self) -> bool {
        let mut stat = [0; 64];
        let read = self.stat.as_ref().and_then(|file| file.read_at(&mut stat, 0).ok());
        // Number, name of 15 bytes at most in brackets, state. The name may have brackets in it.
        let stat = read.map_or(&[][..], |len| &stat[..len]);
        let state = stat.iter().rposition(|&byte| byte == b')').and_then(|end| stat.get(end + 2));
        state.is_none_or(|&state| state == b'S')
    }
}

/// Lets others run, the longer the more often this was called.
pub(crate) fn pause(looks: &mut u32) {
    *looks += 1;
    if *looks < YIELDS { thread::yield_now() } else { thread::sleep(PAUSE) }
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode::{GETATTR, RELEASE};
    use sluice_sync::mpsc;

    /// Another worker, which serves one request for each opcode sent to it, and reports its begin.
    fn with_worker(
        body: impl FnOnce(&Turns, &mpsc::Sender<u32>, &mpsc::Receiver<()>, &mpsc::Sender<()>),
    ) -> Turns {
        let kept = Turns::default();
        let turns = &kept;
        let ((read, requests), (begin, begun), (end, ends)) =
            (mpsc::channel(), mpsc::channel(), mpsc::channel());
        thread::scope(|scope| {
            scope.spawn(move || {
                let turn = turns.join();
                begin.send(()).expect("the test listens");
                while let Ok(opcode) = requests.recv() {
                    turn.during(opcode, || {
                        begin.send(()).expect("the test listens");
                        ends.recv().expect("the test says when");
                    });
                }
            });
            begun.recv().expect("the worker runs");
            body(turns, &read, &begun, &end);
            drop(read);
        });
        kept
    }

    #[test]
    fn a_worker_that_waits_for_a_request_has_read_nothing() {
        with_worker(|turns, _, _, _| assert!(turns.earlier().is_empty()));
    }

    #[test]
    fn what_was_read_before_is_served_when_that_request_is_and_not_the_next() {
        let turns = with_worker(|turns, read, begun, end| {
            read.send(RELEASE).expect("the worker runs");
            begun.recv().expect("the worker runs");
            let earlier = turns.earlier();
            assert!(!earlier.is_empty() && !earlier.is_served());
            read.send(RELEASE).expect("the worker runs");
            end.send(()).expect("the worker runs");
            begun.recv().expect("the worker runs");
            assert!(earlier.is_served() && !turns.earlier().is_served());
            end.send(()).expect("the worker runs");
        });
        assert!(turns.earlier().is_empty());
    }

    #[test]
    fn what_somebody_waits_for_is_not_waited_for_again() {
        with_worker(|turns, read, begun, end| {
            read.send(GETATTR).expect("the worker runs");
            begun.recv().expect("the worker runs");
            assert!(turns.earlier().is_empty());
            end.send(()).expect("the worker runs");
        });
    }

    /// The worker runs all the time: from outside it looks as if it may have read a request.
    #[test]
    fn a_worker_that_stands_by_is_not_asked_for() {
        let turns = Turns::default();
        let (stands, standing) = mpsc::channel();
        let ended = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                turns.join().standing_by(|| {
                    stands.send(()).expect("the test listens");
                    while ended.load(Ordering::SeqCst) == 0 {
                        thread::yield_now();
                    }
                });
            });
            standing.recv().expect("it was sent");
            let earlier = turns.earlier();
            ended.store(1, Ordering::SeqCst);
            assert!(earlier.is_empty());
        });
    }

    #[test]
    fn the_callers_own_request_is_not_earlier_than_itself() {
        let turns = Turns::default();
        let turn = turns.join();
        turn.during(RELEASE, || assert!(turns.earlier().is_empty()));
    }

    #[test]
    fn a_worker_that_ends_has_served_all() {
        let turns = Turns::default();
        let (earlier, told) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let turn = turns.join();
                turn.during(RELEASE, || {
                    earlier
                        .send(thread::scope(|scope| {
                            scope.spawn(|| turns.earlier()).join().expect("no panic")
                        }))
                        .expect("the test listens")
                });
            });
        });
        assert!(told.recv().expect("it was sent").is_served());
    }
}
