//! Measures the sleeping locks against `parking_lot` and the standard library, side by side in one run.
//!
//! Prints nanoseconds for a lock and unlock, uncontended and by two threads on one lock, as medians over
//! interleaved rounds (A B C A B C ...), and the ratio of ours to the best peer. Run it on a quiet machine:
//! `cargo run --release -p sluice-sync --example peers`.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A lock that can be taken in one way (a read-write lock counts as two).
trait Lock: Sync {
    fn with(&self, f: impl FnOnce(&u64));
}

/// A lock that can be taken alone.
trait Alone: Sync {
    fn with(&self, f: impl FnOnce(&mut u64));
}

struct Read<L>(L);

impl Lock for Read<sluice_sync::RwLock<u64>> {
    fn with(&self, f: impl FnOnce(&u64)) {
        f(&self.0.read());
    }
}
impl Lock for Read<parking_lot::RwLock<u64>> {
    fn with(&self, f: impl FnOnce(&u64)) {
        f(&self.0.read());
    }
}
impl Lock for Read<std::sync::RwLock<u64>> {
    fn with(&self, f: impl FnOnce(&u64)) {
        f(&self.0.read().unwrap());
    }
}
impl Alone for sluice_sync::Mutex<u64> {
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.lock());
    }
}
impl Alone for sluice_sync::RwLock<u64> {
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.write());
    }
}
impl Alone for parking_lot::Mutex<u64> {
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.lock());
    }
}
impl Alone for parking_lot::RwLock<u64> {
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.write());
    }
}
impl Alone for std::sync::Mutex<u64> {
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.lock().unwrap());
    }
}
impl Alone for std::sync::RwLock<u64> {
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.write().unwrap());
    }
}

/// Nanoseconds per turn of `turn`, called `turns` times on each of `threads` threads, from the first one's begin to
/// the last one's end. They spin for each other before: who is woken from sleep comes when others are done.
fn time(threads: usize, turns: u32, turn: impl Fn() + Sync) -> f64 {
    let ready = AtomicUsize::new(0);
    let run = || {
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads {
            std::hint::spin_loop();
        }
        let begin = Instant::now();
        (0..turns).for_each(|_| turn());
        (begin, Instant::now())
    };
    let times: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        runs.into_iter().map(|run| run.join().expect("a measuring thread ends")).collect()
    });
    let begin = times.iter().map(|(begin, _)| *begin).min();
    let end = times.iter().map(|(_, end)| *end).max();
    let took = begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
    took * 1e9 / f64::from(turns) / threads as f64
}

/// About `n` nanoseconds of work that touches no memory.
fn work(n: u32) {
    for turn in 0..n {
        black_box(turn);
    }
}

fn read<L: Lock>(lock: &L, threads: usize, turns: u32) -> f64 {
    time(threads, turns, || lock.with(|value| _ = black_box(*value)))
}

fn write<L: Alone>(lock: &L, threads: usize, turns: u32, inside: u32, outside: u32) -> f64 {
    time(threads, turns, || {
        lock.with(|value| {
            *value += 1;
            work(inside);
        });
        work(outside);
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures the contestants turn about and prints one line.
fn row(name: &str, rounds: usize, contestants: &[&dyn Fn() -> f64]) {
    let mut times = vec![Vec::new(); contestants.len()];
    for _ in 0..rounds {
        for (contestant, times) in contestants.iter().zip(&mut times) {
            times.push(contestant());
        }
    }
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    let best = medians[1..].iter().copied().fold(f64::INFINITY, f64::min);
    print!("{name:34}");
    medians.iter().for_each(|median| print!("{median:12.1}"));
    println!("{:12.2}", medians[0] / best);
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(15);
    println!(
        "{:34}{:>12}{:>12}{:>12}{:>12}",
        "ns per lock and unlock", "sluice", "parking_lot", "std", "to best"
    );
    let ours =
        (sluice_sync::Mutex::new(0u64), sluice_sync::RwLock::new(0u64), Read(sluice_sync::RwLock::new(0u64)));
    let park =
        (parking_lot::Mutex::new(0u64), parking_lot::RwLock::new(0u64), Read(parking_lot::RwLock::new(0u64)));
    let std = (std::sync::Mutex::new(0u64), std::sync::RwLock::new(0u64), Read(std::sync::RwLock::new(0u64)));
    let n = 300_000;
    row(
        "mutex, alone",
        rounds,
        &[&|| write(&ours.0, 1, n, 0, 0), &|| write(&park.0, 1, n, 0, 0), &|| write(&std.0, 1, n, 0, 0)],
    );
    row(
        "rwlock read, alone",
        rounds,
        &[&|| read(&ours.2, 1, n), &|| read(&park.2, 1, n), &|| read(&std.2, 1, n)],
    );
    row(
        "rwlock write, alone",
        rounds,
        &[&|| write(&ours.1, 1, n, 0, 0), &|| write(&park.1, 1, n, 0, 0), &|| write(&std.1, 1, n, 0, 0)],
    );
    for (inside, outside) in [(0, 0), (0, 100), (100, 100), (1_000, 1_000)] {
        let n = 200_000;
        let name = format!("mutex, 2 threads, {inside} in {outside} out");
        row(
            &name,
            rounds,
            &[&|| write(&ours.0, 2, n, inside, outside), &|| write(&park.0, 2, n, inside, outside), &|| {
                write(&std.0, 2, n, inside, outside)
            }],
        );
        let name = format!("rwlock write, 2 threads, {inside} in {outside} out");
        row(
            &name,
            rounds,
            &[&|| write(&ours.1, 2, n, inside, outside), &|| write(&park.1, 2, n, inside, outside), &|| {
                write(&std.1, 2, n, inside, outside)
            }],
        );
    }
    row(
        "rwlock read, 2 threads",
        rounds,
        &[&|| read(&ours.2, 2, n), &|| read(&park.2, 2, n), &|| read(&std.2, 2, n)],
    );
}
