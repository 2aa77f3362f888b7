//! Measures the sleeping locks against `parking_lot` and the standard library, side by side in one run.
//!
//! Prints nanoseconds for a lock and unlock, uncontended and by two threads on one lock, as medians over
//! interleaved rounds (A B C A B C ...), and the ratio of our time to the best peer's: less is better. Run it on a quiet machine:
//! `cargo run --release -p sluice-sync --example peers`.

mod contest;
mod measure;

use contest::{time, work};
use measure::median;
use sluice_sync::CachePadded;
use std::hint::black_box;

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

/// The locks of one library: a mutex and two read-write locks, one of them to be read. Each begins a cache line, whatever
/// its size: else where they happen to lie would decide.
macro_rules! locks {
    ($($library:ident)::+) => {
        (
            CachePadded::new($($library)::+::Mutex::new(0u64)),
            CachePadded::new($($library)::+::RwLock::new(0u64)),
            CachePadded::new(Read($($library)::+::RwLock::new(0u64))),
        )
    };
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(15);
    println!(
        "{:34}{:>12}{:>12}{:>12}{:>12}",
        "ns per lock and unlock", "sluice", "parking_lot", "std", "to best"
    );
    let (ours, park, std) = (locks!(sluice_sync), locks!(parking_lot), locks!(std::sync));
    let n = 300_000;
    row(
        "mutex, alone",
        rounds,
        &[&|| write(&*ours.0, 1, n, 0, 0), &|| write(&*park.0, 1, n, 0, 0), &|| write(&*std.0, 1, n, 0, 0)],
    );
    row(
        "rwlock read, alone",
        rounds,
        &[&|| read(&*ours.2, 1, n), &|| read(&*park.2, 1, n), &|| read(&*std.2, 1, n)],
    );
    row(
        "rwlock write, alone",
        rounds,
        &[&|| write(&*ours.1, 1, n, 0, 0), &|| write(&*park.1, 1, n, 0, 0), &|| write(&*std.1, 1, n, 0, 0)],
    );
    for (inside, outside) in [(0, 0), (0, 100), (100, 100), (1_000, 1_000)] {
        let n = 200_000;
        let name = format!("mutex, 2 threads, {inside} in {outside} out");
        row(
            &name,
            rounds,
            &[
                &|| write(&*ours.0, 2, n, inside, outside),
                &|| write(&*park.0, 2, n, inside, outside),
                &|| write(&*std.0, 2, n, inside, outside),
            ],
        );
        let name = format!("rwlock write, 2 threads, {inside} in {outside} out");
        row(
            &name,
            rounds,
            &[
                &|| write(&*ours.1, 2, n, inside, outside),
                &|| write(&*park.1, 2, n, inside, outside),
                &|| write(&*std.1, 2, n, inside, outside),
            ],
        );
    }
    row(
        "rwlock read, 2 threads",
        rounds,
        &[&|| read(&*ours.2, 2, n), &|| read(&*park.2, 2, n), &|| read(&*std.2, 2, n)],
    );
}
