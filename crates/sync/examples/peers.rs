//! Measures the sleeping locks against `parking_lot` and the standard library, side by side in one run.
//!
//! Prints nanoseconds for a lock and unlock, uncontended and by two threads on one lock, as medians over
//! interleaved rounds (A B C A B C ...); the ratio of our time to the better peer's, where less is better (the median over
//! the rounds, as the machine is not equally fast in all); and how often a thread sleeps in a thousand locks. All locks
//! of a round lie at the same place, for what a line costs to hand over depends on where it lies, by 5 % here. Run it on a
//! quiet machine, or at real-time priority (`chrt -f 1`):
//! `cargo run --release -p sluice-sync --example peers -- ROUNDS PART`, of the rows in whose names PART stands, or all.

mod contest;
mod measure;

use contest::{Cost, cost_of, work};
use measure::median;
use sluice_sync::CachePadded;
use std::hint::black_box;

/// A lock that can be taken alone.
trait Alone: Sync {
    fn alone(&self, f: impl FnOnce(&mut u64));
}

/// A lock that can be shared.
trait Shared: Sync {
    fn shared(&self, f: impl FnOnce(&u64));
}

/// The locks of a library. `$guard` makes a guard of what locking returns, where it is none.
macro_rules! locks {
    ($($library:ident)::+ $(=> $($guard:tt)+)?) => {
        impl Alone for $($library)::+::Mutex<u64> {
            fn alone(&self, f: impl FnOnce(&mut u64)) {
                f(&mut self.lock()$($($guard)+)?);
            }
        }
        impl Alone for $($library)::+::RwLock<u64> {
            fn alone(&self, f: impl FnOnce(&mut u64)) {
                f(&mut self.write()$($($guard)+)?);
            }
        }
        impl Shared for $($library)::+::RwLock<u64> {
            fn shared(&self, f: impl FnOnce(&u64)) {
                f(&self.read()$($($guard)+)?);
            }
        }
    };
}

locks!(sluice_sync);
locks!(parking_lot);
locks!(std::sync => .unwrap());

fn read(lock: impl Shared, threads: usize, turns: u32) -> Cost {
    let lock = Box::new(CachePadded::new(lock));
    cost_of(threads, turns, || lock.shared(|value| _ = black_box(*value)))
}

fn write(lock: impl Alone, threads: usize, turns: u32, inside: u32, outside: u32) -> Cost {
    let lock = Box::new(CachePadded::new(lock));
    cost_of(threads, turns, || {
        lock.alone(|value| {
            *value += 1;
            work(inside);
        });
        work(outside);
    })
}

/// Measures the contestants turn about and prints one line.
fn row(name: &str, rounds: usize, contestants: [&dyn Fn() -> Cost; 3]) {
    if std::env::args().nth(2).is_some_and(|part| !name.contains(&part)) {
        return;
    }
    let mut costs = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        for (contestant, costs) in contestants.iter().zip(&mut costs) {
            costs.push(contestant());
        }
        // Elsewhere in the next round.
        std::mem::forget(Box::new(CachePadded::new(0u64)));
    }
    let of = |what: fn(&Cost) -> f64| costs.each_ref().map(|costs| median(costs.iter().map(what).collect()));
    let nanos = of(|cost| cost.nanos);
    let [ours, peers @ ..] = &costs;
    let to =
        |peer: &Vec<Cost>| median(ours.iter().zip(peer).map(|(we, they)| we.nanos / they.nanos).collect());
    print!("{name:38}");
    nanos.iter().for_each(|nanos| print!("{nanos:12.1}"));
    print!("{:10.2}   ", peers.iter().map(to).fold(0.0, f64::max));
    of(|cost| cost.sleeps).iter().for_each(|sleeps| print!("{:10.2}", sleeps * 1000.0));
    println!();
}

/// A row of the same lock of each library.
macro_rules! row {
    ($name:expr, $rounds:expr, $how:ident, $lock:ident, $($arg:expr),*) => {
        row($name, $rounds, [
            &|| $how(sluice_sync::$lock::new(0), $($arg),*),
            &|| $how(parking_lot::$lock::new(0), $($arg),*),
            &|| $how(std::sync::$lock::new(0), $($arg),*),
        ])
    };
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(25);
    println!(
        "{:38}{:>12}{:>12}{:>12}{:>10}   {:>30}",
        "ns per lock and unlock", "sluice", "parking_lot", "std", "to best", "sleeps in 1,000 locks"
    );
    let n = 200_000;
    row!("mutex, alone", rounds, write, Mutex, 1, n, 0, 0);
    row!("rwlock read, alone", rounds, read, RwLock, 1, n);
    row!("rwlock write, alone", rounds, write, RwLock, 1, n, 0, 0);
    for (inside, outside) in [(0, 0), (0, 100), (100, 100), (1_000, 1_000)] {
        let n = 100_000 / (1 + inside / 200);
        let name = |lock| format!("{lock}, 2 threads, {inside} in {outside} out");
        row!(&name("mutex"), rounds, write, Mutex, 2, n, inside, outside);
        row!(&name("rwlock write"), rounds, write, RwLock, 2, n, inside, outside);
    }
    row!("rwlock read, 2 threads", rounds, read, RwLock, 2, n);
}
