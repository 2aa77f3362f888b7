//! Many threads at once: locks exclude, every wait ends, and nothing is left.

use super::{ofd, posix, seeded};
use crate::{Cancel, DomainOptions, FileLocks, Kind, LockDomain, LockError, Owner, Submitted};
use sluice_sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use sluice_sync::random::Random;
use sluice_sync::{Arc, Barrier, Mutex, thread};

const FILES: usize = 3;
const CELLS: usize = 8;
const WORKERS: usize = 6;
const ROUNDS: usize = 4_000;

/// A file, and the users of each of its bytes: -1 for a writer, else the number of readers.
struct Guarded {
    locks: FileLocks,
    ranges: [AtomicI64; CELLS],
    flock: AtomicI64,
}

fn enter(cells: &[AtomicI64], kind: Kind) {
    for cell in cells {
        // SeqCst throughout: this is the judge, it should not depend on an argument of its own.
        match kind {
            Kind::Shared => assert!(cell.fetch_add(1, Ordering::SeqCst) >= 0, "a reader beside a writer"),
            Kind::Exclusive => assert_eq!(cell.swap(-1, Ordering::SeqCst), 0, "a writer is not alone"),
        }
    }
}

fn leave(cells: &[AtomicI64], kind: Kind) {
    for cell in cells {
        match kind {
            Kind::Shared => assert!(cell.fetch_sub(1, Ordering::SeqCst) > 0),
            Kind::Exclusive => assert_eq!(cell.swap(0, Ordering::SeqCst), -1),
        }
    }
}

/// Locks a range in each of one to three files in random order, so that workers deadlock now and then, and
/// gives all back. An OFD owner takes part with one file only: nobody would find its deadlocks.
fn ranges_round(files: &[Guarded], id: u64, random: &mut Random, cancel: &Cancel, counts: &Counts) {
    let is_ofd = random.below(4) == 0;
    let mut held = Vec::new();
    for _ in 0..if is_ofd { 1 } else { 1 + random.below(3) } {
        let file = &files[random.below(FILES)];
        if held.iter().any(|(other, ..): &(&Guarded, _, _)| std::ptr::eq(*other, file)) {
            continue;
        }
        let from = random.below(CELLS);
        let to = from + random.below(CELLS - from);
        let kind = random.pick(&[Kind::Shared, Kind::Exclusive]);
        let request = if is_ofd {
            ofd(id, kind, from as u64, to as u64)
        } else {
            posix(id, kind, from as u64, to as u64)
        };
        let result = match random.below(4) {
            0 => file.locks.set_range(&request),
            _ => file.locks.set_range_wait(&request, cancel),
        };
        counts.note(result);
        match result {
            Ok(()) => {
                enter(&file.ranges[from..=to], kind);
                held.push((file, from..=to, kind));
                if random.below(2) == 0 {
                    thread::yield_now();
                }
            }
            Err(_) => break,
        }
    }
    for (file, cells, kind) in held {
        leave(&file.ranges[cells], kind);
        file.locks.release_owner(if is_ofd { Owner::Description(id) } else { Owner::Process(id) });
    }
}

fn flock_round(file: &Guarded, id: u64, random: &mut Random, cancel: &Cancel, counts: &Counts) {
    let kind = random.pick(&[Kind::Shared, Kind::Exclusive]);
    let result = file.locks.set_flock_wait(id, 1, kind, cancel);
    counts.note(result);
    if result.is_ok() {
        enter(std::slice::from_ref(&file.flock), kind);
        thread::yield_now();
        leave(std::slice::from_ref(&file.flock), kind);
        file.locks.unlock_flock(id);
    }
}

/// How often each outcome came.
#[derive(Default)]
struct Counts {
    granted: AtomicUsize,
    refused: AtomicUsize,
    deadlock: AtomicUsize,
    interrupted: AtomicUsize,
}

impl Counts {
    fn note(&self, result: Result<(), LockError>) {
        let count = match result {
            Ok(()) => &self.granted,
            Err(LockError::WouldBlock) => &self.refused,
            Err(LockError::Deadlock) => &self.deadlock,
            Err(LockError::Interrupted) => &self.interrupted,
            Err(error) => panic!("unexpected: {error}"),
        };
        // Relaxed: read after the threads are joined.
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn locks_exclude_and_every_wait_ends() {
    let domain = LockDomain::new(DomainOptions { max_locks: Some(1_000), ..Default::default() });
    let files: Vec<_> = (0..FILES as u64)
        .map(|ino| Guarded {
            locks: FileLocks::new(&domain, 0, ino),
            ranges: Default::default(),
            flock: AtomicI64::new(0),
        })
        .collect();
    let tokens: Vec<_> = (0..WORKERS).map(|_| Mutex::new(Cancel::new())).collect();
    let (finished, counts) = (AtomicUsize::new(0), Counts::default());
    let mut seeds = seeded("threads");
    thread::scope(|scope| {
        for id in 0..WORKERS {
            let mut random = Random::new(seeds.bits());
            let (files, tokens, finished, counts) = (&files, &tokens, &finished, &counts);
            scope.spawn(move || {
                // Counts as finished also when an assertion fails, so that the disturber ends and the test fails.
                let _finish = OnDrop(finished);
                for _ in 0..ROUNDS {
                    let cancel = Cancel::new();
                    *tokens[id].lock() = cancel.clone();
                    match random.below(4) {
                        0 => {
                            flock_round(&files[random.below(FILES)], id as u64, &mut random, &cancel, counts)
                        }
                        _ => ranges_round(files, id as u64, &mut random, &cancel, counts),
                    }
                }
            });
        }
        // A disturber: interrupts waits at random, and lists, which must not upset anything.
        let mut random = Random::new(seeds.bits());
        while finished.load(Ordering::SeqCst) < WORKERS {
            for _ in 0..50 {
                thread::yield_now();
            }
            tokens[random.below(WORKERS)].lock().cancel();
            for entry in domain.list() {
                assert!(entry.waits_for.is_none_or(|blocker| blocker < entry.id));
            }
        }
    });
    let seen = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    println!(
        "granted {}, refused {}, deadlock {}, interrupted {}",
        seen(&counts.granted),
        seen(&counts.refused),
        seen(&counts.deadlock),
        seen(&counts.interrupted)
    );
    assert!(seen(&counts.granted) > 0);
    assert!(files.iter().all(|file| !file.locks.has_locks()));
    assert!(domain.list().is_empty() && domain.is_idle(), "something is left behind");
}

struct OnDrop<'a>(&'a AtomicUsize);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_release_and_a_cancel_at_once_decide_each_wait_exactly_once() {
    const ROUNDS: usize = 5_000;
    let domain = LockDomain::new(DomainOptions { max_locks: Some(10), ..Default::default() });
    let file = FileLocks::new(&domain, 0, 1);
    let barrier = Barrier::new(2);
    let mut random = seeded("release and cancel");
    let (mut granted, mut cancelled) = (0, 0);
    thread::scope(|scope| {
        // Each side dawdles for a while of its own after the barrier, so that either may come first.
        let mut dawdle = Random::new(random.bits());
        let (file, barrier) = (&file, &barrier);
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                barrier.wait();
                spin(&mut dawdle);
                file.release_owner(Owner::Process(1));
                barrier.wait();
            }
        });
        for _ in 0..ROUNDS {
            file.set_range(&posix(1, Kind::Exclusive, 0, 0)).expect("free");
            let told = Arc::new(AtomicUsize::new(0));
            let teller = told.clone();
            let done = Box::new(move |outcome: Result<(), LockError>| {
                teller.fetch_add(if outcome.is_ok() { 1 } else { 100 }, Ordering::SeqCst);
            });
            let submitted = file.submit_range(&posix(2, Kind::Exclusive, 0, 0), done);
            barrier.wait();
            spin(&mut random);
            let withdrawn = match submitted {
                Ok(Submitted::Waiting(ticket)) => file.cancel(&ticket),
                _ => false,
            };
            barrier.wait();
            // Nothing above may panic: the other side would wait at the barrier for ever.
            let told = told.load(Ordering::SeqCst);
            assert_eq!(told, usize::from(!withdrawn), "either cancelled or told, once: {submitted:?}");
            if withdrawn {
                cancelled += 1
            } else {
                granted += 1
            }
            file.release_owner(Owner::Process(2));
            assert!(!file.has_locks());
        }
    });
    println!("granted {granted}, cancelled {cancelled}");
    assert!(domain.is_idle());
}

/// Passes a little time, sometimes none.
fn spin(random: &mut Random) {
    for _ in 0..random.below(200) {
        std::hint::spin_loop();
    }
}
