//! Crew: which of the workers that share the classic device read it, and on which CPU.
//!
//! # Theory
//! The kernel hands a request to the worker that has waited longest, and wakes it on a CPU that is idle if there is one.
//! Waking an idle CPU costs more than most requests. So while one client is at work one worker reads, the *reader*, and stays
//! on the CPU on which `/proc` shows its client; the others stand by. When requests of several clients come in turn, *several*
//! workers read, on any CPU: as many as the mount has threads, all but the [`SPARES`].
//!
//! `mix` tells the two apart: a request of another client than the last one moves it up, one of the same client down.
//!
//! A client that the scheduler moves leaves its reader behind. Then each request wakes another CPU, and comes *late*: long after the
//! last answer. A program that works for as long between two requests looks the same, so the reader looks in `/proc` when
//! some were late, and the less often the longer it finds its client where it was.
//!
//! A reader that is held up, by a disk or a lock, would hold up every client. So while requests come, one of the workers that stand
//! by, the *watcher*, looks at those that read from time to time. It takes the place of the one reader if that still serves the same
//! request. While several read it lets a spare read for each that does; a spare stands by again after some requests. After a time
//! without requests the watcher sleeps until a reader wakes it with the next one: an idle mount wakes no CPU.
//!
//! The look into `/proc` waits, on some kernels (Linux 6.18), while the client executes another program. Then the client may wait in turn: for
//! the answer to a FLUSH of a file that is closed by its exec. So a look counts as part of the request, so that the watcher takes the reader's
//! place, and no second worker looks meanwhile.
//!
//! # Ordering
//! All orderings are SeqCst, except `client`, `mix` and `is_looking`, which publish nothing. The reader counts a
//! request, then looks whether the watcher sleeps; the watcher says that it sleeps, then looks at the count. One of the
//! two sees the other.
//!
//! # Cost
//! Two additions on the worker's own line and two looks at the clock for each request, and a look into `/proc` for each [`FOLLOW`] of one
//! client, or for some late ones.

use crate::lock_class::CREW;
use crate::proc_stat::{fields, stat_of};
use sluice_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{CachePadded, Condvar, Mutex, MutexGuard, cpu};

/// In place of the reader's number: several workers read; none does.
const SEVERAL: usize = usize::MAX;
const NOBODY: usize = usize::MAX - 1;
/// How much a request of another client adds to `mix`; one of the same client takes 1 away. The mix rises only if more
/// than a third of the requests come from a different client than the request before.
const MIX_STEP: u32 = 2;
/// At this mix several workers read; at 0 a single one reads again.
const MIX_MANY: u32 = 32;
const MIX_MAX: u32 = 96;
/// How often the watcher looks.
const WATCH: Duration = Duration::from_millis(10);
/// Workers that read only while other workers are held up.
const SPARES: usize = 6;
/// After how many requests a spare stands by again.
const SPARE_REQUESTS: u32 = 1_000;
/// After how many requests of one client the reader looks where it is: so many first, then again after each `FOLLOW`.
const FOLLOW_FIRST: u32 = 16;
const FOLLOW: u32 = 128;
/// A request is late that comes so long after the last answer: about as long as it takes to wake another CPU.
const LATE: Duration = Duration::from_micros(20);
/// After how many late ones the reader looks: after so many at least, and twice as many each time that it finds its client where it was.
const LATE_LEAST: u32 = 2;
const LATE_MOST: u32 = 16;
/// The field of `/proc/PID/stat` that is the CPU, counted from the one after the name.
const STAT_CPU: usize = 36;

/// The workers of a mount that read the classic device.
pub struct Crew {
    /// The number of workers that read side by side when none is held up. *immutable*
    readers: usize,
    /// The number of the worker that reads, [`SEVERAL`] or [`NOBODY`]. *atomic (no label: SeqCst)*, written under `standby`
    reader: AtomicUsize,
    /// When several read, those whose numbers are lower. *atomic (no label: SeqCst)*, written under `standby`
    reading: AtomicUsize,
    /// The client of the last request. *atomic (no label: Relaxed, a guess)*
    client: AtomicU32,
    /// How much clients take turns. *atomic (no label: Relaxed, a guess)*
    mix: AtomicU32,
    /// A worker looks into `/proc`. *atomic (no label: Relaxed, it guards no data)*
    is_looking: AtomicBool,
    /// The watcher sleeps until it is woken. *atomic (no label: SeqCst)*
    asleep: AtomicBool,
    /// For each worker: odd while it serves a request. *atomic (no label: SeqCst)*
    stages: Vec<CachePadded<AtomicU64>>,
    standby: Mutex<Standby>,
    /// Workers on standby wait here for their turn to read.
    changed: Condvar,
    /// Where the watcher waits, so that a request wakes nobody else.
    watch: Condvar,
}

#[derive(Default)]
struct Standby {
    /// The workers that have joined.
    joined: usize,
    /// A worker on standby watches the readers.
    watched: bool,
}

/// A worker's part in a [`Crew`], until it is dropped.
pub struct Member<'a> {
    crew: &'a Crew,
    /// *immutable*
    number: usize,
    /// Where the worker may run. *immutable*
    allowed: Vec<usize>,
    /// Where it stays, as the reader.
    cpu: Option<usize>,
    /// The client of the last request it read, and how many came from it one after the other.
    client: u32,
    run: u32,
    /// When it had served the last request, how many were late since it last looked where the client is, and after how many it looks.
    served: Instant,
    late: u32,
    patience: u32,
    /// A spare's requests since it last stood by.
    relieved: u32,
}

/// The readers and their stages, as the watcher finds them.
#[derive(PartialEq, Eq)]
struct ReaderStages {
    first: usize,
    stages: Vec<u64>,
}

impl ReaderStages {
    /// How many serve the same request as `before`.
    fn held_up_since(&self, before: &ReaderStages) -> usize {
        let pairs = self.stages.iter().zip(&before.stages);
        if self.first == before.first {
            pairs.filter(|(now, before)| now == before && *now % 2 == 1).count()
        } else {
            0
        }
    }
}

impl Crew {
    /// The crew of a mount where up to `readers` workers read side by side.
    pub fn new(readers: usize) -> Crew {
        Crew {
            readers,
            reading: AtomicUsize::new(readers),
            reader: AtomicUsize::new(NOBODY),
            client: AtomicU32::new(0),
            mix: AtomicU32::new(0),
            is_looking: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            stages: (0..readers + SPARES).map(|_| CachePadded::default()).collect(),
            standby: Mutex::with_class(&CREW, Standby::default()),
            changed: Condvar::new(),
            watch: Condvar::new(),
        }
    }

    /// The number of workers that join, including the spares.
    pub fn workers(&self) -> usize {
        self.stages.len()
    }

    /// The calling thread is one of the workers from now on.
    pub fn join(&self) -> Member<'_> {
        let mut standby = self.standby.lock();
        let number = standby.joined;
        standby.joined += 1;
        Member {
            crew: self,
            number,
            allowed: cpu::allowed(),
            cpu: None,
            client: 0,
            run: 0,
            served: Instant::now(),
            late: 0,
            patience: LATE_LEAST,
            relieved: 0,
        }
    }

    fn set_reader(&self, _: &MutexGuard<'_, Standby>, reader: usize) {
        self.reader.store(reader, Ordering::SeqCst);
        // The next watcher may be among them.
        self.changed.notify_all();
        self.watch.notify_all();
    }

    /// So many workers read.
    fn set_several(&self, standby: &MutexGuard<'_, Standby>, reading: usize) {
        self.reading.store(reading, Ordering::SeqCst);
        self.set_reader(standby, SEVERAL);
    }

    /// The stages of the current readers.
    fn look(&self) -> ReaderStages {
        let (first, end) = match self.reader.load(Ordering::SeqCst) {
            SEVERAL => (0, self.reading.load(Ordering::SeqCst)),
            NOBODY => (0, 0),
            reader => (reader, reader + 1),
        };
        ReaderStages { first, stages: (first..end).map(|worker| self.stage(worker)).collect() }
    }

    /// Lets spares read beside the `held_up` of those that do, or `watcher`, which stands by, in place of the one
    /// reader. False if no spare is needed, or if all workers read.
    fn relieve(&self, standby: &MutexGuard<'_, Standby>, watcher: usize, held_up: usize) -> bool {
        let wanted = (self.readers + held_up).min(self.workers());
        match self.reader.load(Ordering::SeqCst) {
            _ if held_up == 0 => return false,
            SEVERAL if self.reading.load(Ordering::SeqCst) >= wanted => return false,
            SEVERAL => self.set_several(standby, wanted),
            _ => self.set_reader(standby, watcher),
        }
        true
    }

    fn stage(&self, worker: usize) -> u64 {
        self.stages[worker].load(Ordering::SeqCst)
    }
}

impl Member<'_> {
    /// Whether the worker may read at once.
    pub fn is_to_read(&self) -> bool {
        let crew = self.crew;
        match crew.reader.load(Ordering::SeqCst) {
            SEVERAL => self.number < crew.reading.load(Ordering::SeqCst) && self.cpu.is_none(),
            reader => reader == self.number,
        }
    }

    /// Waits until the worker is to read.
    pub fn await_turn(&mut self) {
        if self.crew.reader.load(Ordering::SeqCst) != self.number {
            self.leave_cpu();
            self.stand_by();
        }
    }

    /// The worker has read a request of `client`, a thread's number or 0, and serves it with `serve`.
    pub fn during(&mut self, client: u32, serve: impl FnOnce()) {
        self.during_looking(client, serve, cpu_of);
    }

    /// As [`during`](Self::during); `look` finds the CPU of a client.
    fn during_looking(&mut self, client: u32, serve: impl FnOnce(), look: impl FnOnce(u32) -> Option<usize>) {
        let stage = &self.crew.stages[self.number];
        stage.fetch_add(1, Ordering::SeqCst);
        self.late += u32::from(self.served.elapsed() >= LATE);
        if self.crew.asleep.load(Ordering::SeqCst) && self.crew.asleep.swap(false, Ordering::SeqCst) {
            // It waits by the time that the lock is free.
            drop(self.crew.standby.lock());
            self.crew.watch.notify_all();
        }
        serve();
        if client != 0 {
            self.note(client, look);
        }
        stage.fetch_add(1, Ordering::SeqCst);
        if self.number >= self.crew.readers {
            self.step_back();
        }
        self.served = Instant::now();
    }

    /// Decides how many read, and where.
    fn note(&mut self, client: u32, look: impl FnOnce(u32) -> Option<usize>) {
        let crew = self.crew;
        let reader = crew.reader.load(Ordering::SeqCst);
        // Relaxed: guesses; an update that is lost makes the decision come a little later.
        let mix = crew.mix.load(Ordering::Relaxed);
        let next = if crew.client.load(Ordering::Relaxed) == client {
            mix.saturating_sub(1)
        } else {
            // Relaxed: as above.
            crew.client.store(client, Ordering::Relaxed);
            (mix + MIX_STEP).min(MIX_MAX)
        };
        if next != mix {
            // Relaxed: as above.
            crew.mix.store(next, Ordering::Relaxed);
        }
        if reader == self.number && next >= MIX_MANY && crew.readers > 1 {
            crew.set_several(&crew.standby.lock(), crew.readers);
        } else if reader == SEVERAL && next == 0 {
            let standby = crew.standby.lock();
            if crew.reader.load(Ordering::SeqCst) == SEVERAL {
                crew.set_reader(&standby, self.number);
            }
        } else if reader == self.number {
            if client != self.client {
                (self.client, self.run, self.late, self.patience) = (client, 0, 0, LATE_LEAST);
            } else {
                self.run = self.run.wrapping_add(1);
            }
            if self.run % FOLLOW == FOLLOW_FIRST || self.late >= self.patience {
                // Relaxed: see the field; the swap is atomic.
                if !crew.is_looking.swap(true, Ordering::Relaxed) {
                    let there = look(client);
                    // Relaxed: as above.
                    crew.is_looking.store(false, Ordering::Relaxed);
                    self.follow(there);
                }
            }
        }
    }

    /// The spare has served a request; after many it is the next that reads no more. So the others are asked first whether they do.
    fn step_back(&mut self) {
        self.relieved += 1;
        if self.relieved >= SPARE_REQUESTS {
            self.relieved = 0;
            let (crew, standby) = (self.crew, self.crew.standby.lock());
            let is_last = crew.reading.load(Ordering::SeqCst) == self.number + 1;
            if is_last && crew.reader.load(Ordering::SeqCst) == SEVERAL {
                crew.set_several(&standby, self.number);
            }
        }
    }

    /// Goes to the CPU of its client, which is `there`.
    #[cold]
    fn follow(&mut self, there: Option<usize>) {
        self.late = 0;
        let Some(cpu) = there.filter(|&cpu| self.cpu != Some(cpu)) else {
            self.patience = (self.patience * 2).min(LATE_MOST);
            return;
        };
        self.patience = LATE_LEAST;
        // A CPU outside this process's set is no target.
        if self.allowed.contains(&cpu) && cpu::pin(cpu).is_ok() {
            self.cpu = Some(cpu);
        }
    }

    fn leave_cpu(&mut self) {
        if self.cpu.take().is_some() {
            // On an error the worker stays on its CPU, and serves from there.
            let _ = cpu::allow(&self.allowed);
        }
    }

    /// Waits until this worker is to read.
    #[cold]
    fn stand_by(&self) {
        let crew = self.crew;
        let mut standby = crew.standby.lock();
        // The stages at this worker's last look.
        let mut before: Option<ReaderStages> = None;
        while !self.is_to_read() {
            if crew.reader.load(Ordering::SeqCst) == NOBODY {
                return crew.set_reader(&standby, self.number);
            }
            if standby.watched {
                standby = crew.changed.wait(standby);
                continue;
            }
            let now = crew.look();
            let held_up = before.as_ref().map_or(0, |before| now.held_up_since(before));
            if crew.relieve(&standby, self.number, held_up) {
                before = None;
                continue;
            }
            standby.watched = true;
            if before.as_ref() == Some(&now) {
                crew.asleep.store(true, Ordering::SeqCst);
                if crew.look() == now {
                    standby = crew.watch.wait(standby);
                }
                crew.asleep.store(false, Ordering::SeqCst);
                before = None;
            } else {
                let timed_out;
                (standby, timed_out) = crew.watch.wait_timeout(standby, WATCH);
                before = timed_out.then_some(now);
            }
            standby.watched = false;
        }
    }
}

impl Drop for Member<'_> {
    /// The mount is gone, or this worker has failed: others must find out by reading.
    fn drop(&mut self) {
        self.crew.set_several(&self.crew.standby.lock(), self.crew.workers());
    }
}

/// The CPU on which thread `client` runs or last ran, where `/proc` tells.
fn cpu_of(client: u32) -> Option<usize> {
    parse_cpu(&stat_of(client)?)
}

fn parse_cpu(stat: &str) -> Option<usize> {
    fields(stat)?.nth(STAT_CPU)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sync::{mpsc, thread};

    const LONG: Duration = Duration::from_secs(60);

    fn reader(crew: &Crew) -> usize {
        crew.reader.load(Ordering::SeqCst)
    }

    #[test]
    fn one_client_has_one_worker_and_several_have_all() {
        let crew = Crew::new(2);
        let (mut first, _second) = (crew.join(), crew.join());
        first.await_turn();
        for _ in 0..3 {
            (0..200).for_each(|_| first.during(7, || ()));
            assert_eq!(reader(&crew), first.number);
            (0..200).for_each(|request| first.during(7 + request % 2, || ()));
            assert_eq!(reader(&crew), SEVERAL);
        }
    }

    #[test]
    fn a_client_that_asks_now_and_then_is_served_by_the_one_reader() {
        let crew = Crew::new(2);
        let mut worker = crew.join();
        worker.await_turn();
        (0..2_000).for_each(|request| worker.during(if request % 10 == 0 { 8 } else { 7 }, || ()));
        assert_eq!(reader(&crew), worker.number);
    }

    #[test]
    fn a_reader_whose_requests_come_late_looks_for_its_client_the_less_often_the_longer_that_stays() {
        let crew = Crew::new(1);
        let mut worker = crew.join();
        worker.await_turn();
        // No process has the number `u32::MAX`, so its CPU is unknown.
        let serve = |worker: &mut Member<'_>, requests, is_late| {
            for _ in 0..requests {
                let now = Instant::now();
                worker.served =
                    if is_late { now.checked_sub(LATE).expect("the machine runs") } else { now + LONG };
                worker.during(u32::MAX, || ());
            }
            (worker.late, worker.patience)
        };
        assert_eq!(serve(&mut worker, 1, true), (0, 2), "the first one is another client's");
        assert_eq!(serve(&mut worker, 1, true), (1, 2));
        assert_eq!(serve(&mut worker, 1, true), (0, 4));
        assert_eq!(serve(&mut worker, 3, true), (3, 4));
        assert_eq!(serve(&mut worker, 5, false), (3, 4), "none is late");
        assert_eq!(serve(&mut worker, 1, true), (0, 8));
        // The client is on this CPU now: from now on the reader looks soon.
        let cpu = worker.allowed.first().copied();
        worker.follow(cpu);
        assert_eq!((worker.cpu, worker.patience), (cpu, LATE_LEAST));
        worker.follow(cpu);
        assert_eq!(worker.patience, 2 * LATE_LEAST, "it stayed");
        worker.leave_cpu();
    }

    #[test]
    fn a_reader_whose_look_for_its_client_takes_long_is_replaced_and_no_second_one_looks() {
        let crew = &Crew::new(2);
        let (taken, is_taken) = mpsc::channel();
        thread::scope(|scope| {
            let mut first = crew.join();
            first.await_turn();
            scope.spawn(move || {
                let mut other = crew.join();
                other.await_turn();
                let looks = std::cell::Cell::new(0);
                let look = |_| Some(looks.replace(looks.get() + 1));
                (0..2 * FOLLOW).for_each(|_| other.during_looking(7, || (), look));
                taken.send(looks.get()).expect("the test waits");
            });
            let mut beside = None;
            while beside.is_none() {
                // A client that executes a program waits for the answer to another request meanwhile.
                first.during_looking(
                    7,
                    || (),
                    |_| {
                        beside = Some(is_taken.recv_timeout(LONG).expect("one takes its place"));
                        None
                    },
                );
            }
            assert_eq!(beside, Some(0));
            drop(first);
        });
    }

    #[test]
    fn a_reader_that_is_held_up_is_replaced_and_stands_by_afterwards() {
        let crew = &Crew::new(3);
        let (taken, is_taken) = mpsc::channel();
        thread::scope(|scope| {
            let mut held_up = crew.join();
            held_up.await_turn();
            for _ in 0..2 {
                let taken = taken.clone();
                scope.spawn(move || {
                    let mut other = crew.join();
                    other.await_turn();
                    // The other one of the two gets here when the mount ends.
                    let _ = taken.send(other.number);
                });
            }
            held_up.during(7, || {
                is_taken.recv_timeout(LONG).expect("one takes its place");
            });
            held_up.await_turn();
        });
    }

    #[test]
    fn while_several_are_held_up_as_many_spares_read_and_stand_by_again_afterwards() {
        let crew = &Crew::new(2);
        thread::scope(|scope| {
            let mut readers = [crew.join(), crew.join()];
            readers[0].await_turn();
            (0..200).for_each(|request| readers[0].during(7 + request % 2, || ()));
            assert_eq!((reader(crew), crew.look().stages.len()), (SEVERAL, 2));
            let (reads, has_read) = mpsc::channel();
            let (begun, is_begun) = mpsc::channel();
            for _ in 0..SPARES {
                let (reads, begun) = (reads.clone(), begun.clone());
                scope.spawn(move || {
                    let mut spare = crew.join();
                    begun.send(()).expect("the test waits");
                    spare.await_turn();
                    reads.send(spare).expect("the test waits");
                });
            }
            (0..SPARES).for_each(|_| is_begun.recv_timeout(LONG).expect("they start"));
            let [first, second] = &mut readers;
            let mut spares = Vec::new();
            first.during(7, || spares.push(has_read.recv_timeout(LONG).expect("a spare reads for it")));
            assert_eq!(crew.look().stages.len(), 3);
            first.during(7, || {
                second.during(8, || spares.push(has_read.recv_timeout(LONG).expect("one reads for each")));
            });
            assert_eq!(crew.look().stages.len(), 4);
            assert!(has_read.try_recv().is_err(), "no more than are held up");
            for spare in spares.iter_mut().rev() {
                (1..SPARE_REQUESTS).for_each(|request| spare.during(7 + request % 2, || ()));
                assert!(spare.is_to_read());
                spare.during(7, || ());
                assert!(!spare.is_to_read());
            }
            // The mount is gone, and all find out.
            drop(readers);
            drop(spares);
            (2..SPARES).for_each(|_| drop(has_read.recv_timeout(LONG).expect("it ends")));
        });
    }

    #[test]
    fn a_watcher_that_sleeps_hears_of_the_next_request() {
        let crew = &Crew::new(2);
        let (taken, is_taken) = mpsc::channel();
        thread::scope(|scope| {
            let mut first = crew.join();
            first.await_turn();
            scope.spawn(move || {
                let mut other = crew.join();
                other.await_turn();
                taken.send(()).expect("the test waits");
            });
            while !crew.asleep.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            first.during(7, || is_taken.recv_timeout(LONG).expect("it takes the reader's place"));
        });
    }

    #[test]
    fn when_a_worker_ends_all_find_out() {
        let crew = &Crew::new(2);
        thread::scope(|scope| {
            let mut first = crew.join();
            first.await_turn();
            scope.spawn(|| crew.join().await_turn());
            drop(first);
        });
        assert_eq!(reader(crew), SEVERAL);
    }

    #[test]
    fn the_cpu_is_found_behind_any_name() {
        let fields: Vec<_> = (3..=52).map(|field| (field * 10).to_string()).collect();
        let stat = format!("77 (a) (b) {}", fields.join(" "));
        assert_eq!(parse_cpu(&stat), Some(390));
        assert_eq!(parse_cpu("77 (a) S"), None);
        assert_eq!(parse_cpu(""), None);
        // This thread runs on a CPU that it may use.
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(cpu_of(own).is_none_or(|cpu| cpu < cpu::possible()));
    }
}
