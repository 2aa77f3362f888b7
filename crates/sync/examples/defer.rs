//! Measures how many pieces of deferred work should share a grace period: the batch of RCU.
//!
//! Prints nanoseconds, by one thread and by two, for putting off the freeing of 128 bytes and for a read section, medians
//! over interleaved rounds; and how much waits to be freed in the end. Run it on a quiet machine, or at real-time priority
//! (`chrt -f 1`): `cargo run --release -p sluice-sync --example defer`.

mod contest;
mod measure;

use contest::{cost_of, work};
use measure::median;
use sluice_sync::rcu::Domain;

const BATCHES: [usize; 6] = [16, 64, 128, 256, 1024, 4096];
const TURNS: u32 = 200_000;

/// Nanoseconds for a turn of each of `threads` threads, and how many pieces of work wait after all.
fn run(threads: usize, batch: usize) -> (f64, f64) {
    let domain = Box::new(Domain::with_batch(batch));
    let cost = cost_of(threads, TURNS, || {
        drop(domain.read());
        let bytes = Box::new([0u8; 128]);
        domain.defer(|| drop(bytes));
        work(100);
    });
    (cost.nanos * threads as f64, domain.deferred() as f64)
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(15);
    println!("{:>8}{:>16}{:>16}{:>16}{:>16}", "batch", "1 thread, ns", "waiting", "2 threads, ns", "waiting");
    let mut results = BATCHES.map(|_| [const { (Vec::new(), Vec::new()) }; 2]);
    for _ in 0..rounds {
        for (batch, results) in BATCHES.iter().zip(&mut results) {
            for (threads, (nanos, waiting)) in (1..).zip(results) {
                let (took, waits) = run(threads, *batch);
                nanos.push(took);
                waiting.push(waits);
            }
        }
    }
    for (batch, results) in BATCHES.iter().zip(results) {
        print!("{batch:>8}");
        for (nanos, waiting) in results {
            print!("{:>16.1}{:>16.0}", median(nanos), median(waiting));
        }
        println!();
    }
}
