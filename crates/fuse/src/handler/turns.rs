//! Turns: which requests were read before another one, and whether they are served.
//!
//! # Theory
//! The kernel hands requests out in the order in which they were made, but workers serve them side by side. Most
//! requests that depend on each other are made one after the other is answered. RELEASE is not: nobody waits for it. A
//! program that closes the last descriptor of an open file and then asks for a lock that the open file had may be
//! refused, because the worker that has read its RELEASE is still on the way. So a request that a lock is in the way of
//! is looked at again when everything that was read before it is served (`second_look`).
//!
//! Each worker counts its *stage*: even while it asks the kernel for a request, odd while it serves one. What a worker
//! has read before another one reads a request, it is serving then, or has just got from the kernel and not begun.
//! From outside the latter looks like a worker that waits for the kernel; but such a one sleeps, and `/proc` says so.
//!
//! Requests that come from elsewhere than `/dev/fuse` are read by a thread that does not serve them ([`Begun`]): such a
//! one is served from the moment it was read on.
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
//! Two additions on the worker's own line for each request.

use crate::connection::Connection;
use crate::lock_class::TURNS;
use sluice_sync::atomic::{AtomicI32, AtomicU64, Ordering};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, CachePadded, Mutex, thread};

/// The workers of one mount.
pub(crate) struct Turns(Mutex<Vec<Arc<Worker>>>);

struct Worker {
    /// Even: asks the kernel for a request. Odd: serves one. *atomic (no label: SeqCst)*
    stage: CachePadded<AtomicU64>,
    /// The thread that serves, 0 for one that is not known yet. *atomic (no label: SeqCst)*
    thread: AtomicI32,
}

/// One thread's part in [`Turns`], until it is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    worker: Arc<Worker>,
}

/// What other workers had read at some moment and not served, each with the stage from which on it is.
pub(crate) struct Earlier(Vec<(Arc<Worker>, u64)>);

/// The stage of a worker that has ended.
const ENDED: u64 = u64::MAX;
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
        Turn { turns: self, worker: self.add(0, this_thread()) }
    }

    fn end(&self, ended: &Arc<Worker>) {
        ended.stage.store(ENDED, Ordering::SeqCst);
        self.0.lock().retain(|worker| !Arc::ptr_eq(worker, ended));
    }

    fn add(&self, stage: u64, thread: i32) -> Arc<Worker> {
        let stage = CachePadded::new(AtomicU64::new(stage));
        let worker = Arc::new(Worker { stage, thread: AtomicI32::new(thread) });
        self.0.lock().push(worker.clone());
        worker
    }

    /// What others have read before the request that the calling thread serves.
    pub(crate) fn earlier(&self) -> Earlier {
        let (workers, me) = (self.0.lock().clone(), this_thread());
        let others = workers.into_iter().filter(|worker| worker.thread.load(Ordering::SeqCst) != me);
        Earlier(others.filter_map(|worker| worker.is_idle_from().map(|stage| (worker, stage))).collect())
    }
}

impl Turn<'_> {
    /// Serves a request that was just read.
    pub(crate) fn during(&self, serve: impl FnOnce()) {
        let stage = &self.worker.stage;
        // Nobody else writes it.
        stage.fetch_add(1, Ordering::SeqCst);
        serve();
        stage.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.end(&self.worker);
    }
}

/// A request that one thread has read and another serves, from the one to the end of the other.
pub(crate) struct Begun {
    connection: Arc<Connection>,
    worker: Arc<Worker>,
}

impl Begun {
    /// A request was read.
    pub(crate) fn new(connection: &Arc<Connection>) -> Begun {
        Begun { connection: connection.clone(), worker: connection.turns.add(1, 0) }
    }

    /// The calling thread serves it.
    pub(crate) fn serve(&self) {
        self.worker.thread.store(this_thread(), Ordering::SeqCst);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.connection.turns.end(&self.worker);
    }
}

impl Earlier {
    /// True if there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if all of it is served.
    pub(crate) fn is_served(&self) -> bool {
        self.0.iter().all(|(worker, stage)| worker.stage.load(Ordering::SeqCst) >= *stage)
    }
}

impl Worker {
    /// From which stage on it has served what it has read. `None`: it has read nothing. Waits while that cannot be told,
    /// because the thread runs and has not begun: it does not depend on the caller for its next step.
    fn is_idle_from(&self) -> Option<u64> {
        let mut looks = 0;
        loop {
            let stage = self.stage.load(Ordering::SeqCst);
            if stage == ENDED {
                return None;
            }
            if !stage.is_multiple_of(2) {
                return Some(stage + 1);
            }
            if sleeps(self.thread.load(Ordering::SeqCst)) && self.stage.load(Ordering::SeqCst) == stage {
                return None;
            }
            pause(&mut looks);
        }
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

/// True if `thread` of this process waits for something, other than for memory.
fn sleeps(thread: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")) else { return true };
    // Number, name in brackets, state. The name may have brackets in it.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sync::mpsc;

    /// Another worker, which serves one request for each message, and says that it has begun.
    fn with_worker(body: impl FnOnce(&Turns, &mpsc::Sender<()>, &mpsc::Receiver<()>, &mpsc::Sender<()>)) {
        let turns = &Turns::default();
        let ((read, requests), (begin, begun), (end, ends)) =
            (mpsc::channel(), mpsc::channel(), mpsc::channel());
        thread::scope(|scope| {
            scope.spawn(move || {
                let turn = turns.join();
                begin.send(()).expect("the test listens");
                while requests.recv().is_ok() {
                    turn.during(|| {
                        begin.send(()).expect("the test listens");
                        ends.recv().expect("the test says when");
                    });
                }
            });
            begun.recv().expect("the worker runs");
            body(turns, &read, &begun, &end);
            drop(read);
        });
        assert!(turns.earlier().is_empty());
    }

    #[test]
    fn a_worker_that_waits_for_a_request_has_read_nothing() {
        with_worker(|turns, _, _, _| assert!(turns.earlier().is_empty()));
    }

    #[test]
    fn what_was_read_before_is_served_when_that_request_is_and_not_the_next() {
        with_worker(|turns, read, begun, end| {
            read.send(()).expect("the worker runs");
            begun.recv().expect("the worker runs");
            let earlier = turns.earlier();
            assert!(!earlier.is_empty() && !earlier.is_served());
            read.send(()).expect("the worker runs");
            end.send(()).expect("the worker runs");
            begun.recv().expect("the worker runs");
            assert!(earlier.is_served() && !turns.earlier().is_served());
            end.send(()).expect("the worker runs");
        });
    }

    #[test]
    fn the_callers_own_request_is_not_earlier_than_itself() {
        let turns = Turns::default();
        let turn = turns.join();
        turn.during(|| assert!(turns.earlier().is_empty()));
    }

    #[test]
    fn a_worker_that_ends_has_served_all() {
        let turns = Turns::default();
        let (earlier, told) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let turn = turns.join();
                turn.during(|| {
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
