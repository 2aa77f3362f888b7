//! Measures what reading costs: the big-reader lock and the RCU section against the least that a visible reader
//! can do, which is to raise and lower a word of its own by plain loads and stores; and against the least that a
//! correct one can do, which must find its thread's word, and look each time whether somebody waits for it.
//!
//! Prints nanoseconds per turn, medians over interleaved rounds. Run it on a quiet machine:
//! `cargo run --release -p sluice-sync --example readers`.

mod measure;

use measure::median;
use sluice_sync::percpu::Counter;
use sluice_sync::rcu::{RcuCell, domain};
use sluice_sync::{BrLock, CachePadded, HashTable, RwLock, SeqLock};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::time::Instant;

thread_local! {
    /// Which of a lock's words is this thread's.
    static SLOT: Cell<usize> = const { Cell::new(0) };
}

/// The minimal cost of any big-reader lock with a line for each thread.
#[derive(Default)]
struct Least {
    lines: [CachePadded<[AtomicU64; 2]>; 32],
    writer: CachePadded<AtomicU64>,
}

impl Least {
    /// Reads, unless a writer is there.
    #[inline]
    fn read(&self) {
        let Some([inside, sleeper]) = self.lines.get(SLOT.get()).map(|line| &**line) else { return };
        if inside.load(Ordering::Relaxed) != 0 {
            return;
        }
        inside.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if self.writer.load(Ordering::Acquire) != 0 {
            return;
        }
        inside.store(0, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        if sleeper.load(Ordering::Relaxed) != 0 {
            self.writer.store(1, Ordering::Release);
        }
    }
}

/// Nanoseconds per call of `turn`.
fn time(turns: u32, turn: &dyn Fn(u32)) -> f64 {
    let begin = Instant::now();
    turn(turns);
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(turns)
}

/// A contestant: its name, and a loop that takes a number of turns.
type Contestant<'a> = (&'a str, &'a dyn Fn(u32));

/// Puts `$turn` into a loop of its own, so that a turn costs no indirect call.
macro_rules! turns {
    ($turn:expr) => {
        &|turns: u32| {
            for _ in 0..turns {
                black_box($turn);
            }
        }
    };
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(31);
    // Not on the stack, where some CPUs forward a store at no cost: a reader's line is not there either.
    let word = black_box(Box::new(AtomicU64::new(0)));
    let step = |by: u64| word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    SLOT.set(black_box(0));
    let least = black_box(Box::<Least>::default());
    let br = BrLock::new(1u64);
    let rw = RwLock::new(1u64);
    let seq = SeqLock::new([1u64; 2]);
    let cell = RcuCell::new(domain(), 1u64);
    let table = HashTable::new(domain());
    (0..1_000u64).for_each(|key| table.insert(key, key).expect("a new key"));
    let counter = Counter::new(0);
    let contestants: &[Contestant] = &[
        (
            "plain: one load and store",
            turns!({
                step(1);
                black_box(&*word);
            }),
        ),
        (
            "plain: raise and lower a word",
            turns!({
                step(1);
                black_box(&*word);
                step(u64::MAX);
            }),
        ),
        ("least: own word, two looks", turns!(least.read())),
        ("big-reader lock, read", turns!(drop(br.read()))),
        ("RCU section", turns!(drop(domain().read()))),
        ("RCU section and load", turns!(*cell.load(&cell.read()))),
        ("sequence lock, read 2 words", turns!(seq.read())),
        ("rwsem, read", turns!(*rw.read())),
        ("per-CPU counter, add", turns!(counter.add(1))),
        ("hash table, find one of 1,000", turns!(table.contains(&77u64))),
    ];
    let mut times = vec![Vec::new(); contestants.len()];
    for _ in 0..rounds {
        for ((_, turn), times) in contestants.iter().zip(&mut times) {
            times.push(time(200_000, turn));
        }
    }
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    println!("{:34}{:>10}{:>14}{:>14}", "", "ns", "to load+store", "to least");
    for ((name, _), ns) in contestants.iter().zip(&medians) {
        println!("{name:34}{ns:10.2}{:14.2}{:14.2}", ns / medians[0], ns / medians[2]);
    }
}
