//! Measures how patient threads should be with a sleeping lock: each figure of `Pace` in turn, the others as they are.
//!
//! Prints nanoseconds for a lock and unlock, as medians over interleaved rounds, by as many threads as the heading
//! says on one lock that is held and left alone for about that many nanoseconds. Run it on a quiet machine:
//! `cargo run --release -p sluice-sync --example pace`.

mod contest;
mod measure;

use contest::{cost_of, work};
use measure::median;
use sluice_sync::RwLock;
use sluice_sync::rwsem::{Pace, RwsemPolicy};

/// Threads, work with the lock, work without it.
const LOADS: [(usize, u32, u32); 7] =
    [(2, 0, 0), (2, 0, 100), (2, 100, 100), (2, 300, 300), (2, 1_000, 1_000), (4, 0, 100), (4, 1_000, 1_000)];

/// The policy whose figure number `FIGURE` is `N`.
struct With<const FIGURE: u32, const N: u32>;

impl<const FIGURE: u32, const N: u32> RwsemPolicy for With<FIGURE, N> {
    const NAME: &'static str = "pace";
    const READERS_SPIN: bool = true;
    const PACE: Pace = {
        let mut pace = Pace::MEASURED;
        match FIGURE {
            0 => pace.pause_first = N,
            1 => pace.pause_quiet = N,
            2 => pace.pause_max = N,
            3 => pace.turns_alone = N,
            4 => pace.turns_max = N,
            5 => pace.turns_in_line = N,
            6 => pace.turns_queued = N,
            _ => pace.bypass_max = N,
        }
        pace
    };
}

/// Nanoseconds for one turn under `load`.
fn turn<P: RwsemPolicy>((threads, inside, outside): (usize, u32, u32)) -> f64 {
    let lock: RwLock<u64, P> = RwLock::with_policy(0);
    let cost = cost_of(threads, 100_000, || {
        let mut value = lock.write();
        *value += 1;
        work(inside);
        drop(value);
        work(outside);
    });
    cost.nanos
}

/// One choice for a figure: its value, and a function that measures it.
type Choice = (u32, fn((usize, u32, u32)) -> f64);

macro_rules! choices {
    ($figure:literal: $($n:literal)*) => { [$(($n, turn::<With<$figure, $n>> as _)),*] };
}

fn sweep(name: &str, current: u32, rounds: usize, choices: &[Choice]) {
    println!("{name} (now {current})");
    let mut times = vec![vec![Vec::new(); LOADS.len()]; choices.len()];
    for _ in 0..rounds {
        for (at, load) in LOADS.into_iter().enumerate() {
            for ((_, turn), times) in choices.iter().zip(&mut times) {
                times[at].push(turn(load));
            }
        }
    }
    for ((n, _), times) in choices.iter().zip(times) {
        print!("{n:>24}");
        times.into_iter().for_each(|times| print!("{:>16.1}", median(times)));
        println!();
    }
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(9);
    let now = Pace::MEASURED;
    print!("{:24}", "threads: inside/outside");
    LOADS
        .iter()
        .for_each(|(threads, inside, outside)| print!("{:>16}", format!("{threads}: {inside}/{outside}")));
    println!();
    sweep("pause_first", now.pause_first, rounds, &choices!(0: 1 2 3 4 5 6 7 9 12 16));
    sweep("pause_quiet", now.pause_quiet, rounds, &choices!(1: 1 2 3 4));
    sweep("pause_max", now.pause_max, rounds, &choices!(2: 9 16 24 32 48 64 128));
    sweep("turns_alone", now.turns_alone, rounds, &choices!(3: 0 3 9 21 45 93));
    sweep("turns_max", now.turns_max, rounds, &choices!(4: 25 50 100 200 400));
    sweep("turns_in_line", now.turns_in_line, rounds, &choices!(5: 50 100 200 400 800));
    sweep("turns_queued", now.turns_queued, rounds, &choices!(6: 0 10 20 40 80 160));
    sweep("bypass_max", now.bypass_max, rounds, &choices!(7: 4 16 64 256));
}
