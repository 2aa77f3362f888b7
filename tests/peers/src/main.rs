//! Peers: sluicefs beside the in-memory file systems of other libraries and the host's tmpfs, one thread, turn about.
//!
//! Prints the median nanoseconds of each call, on a file at depth four, and ours over the best peer's: less is better. The
//! ratio is the median over the rounds, as the machine is not equally fast in all. A peer's write is counted when it can be
//! read. `make peers`, or `cargo run --release -- [ROUNDS]` here.

mod calls;

use calls::{CALLS, Call, FileSystem};
use std::time::Instant;

/// Seconds of one measurement, about.
const SHARE: f64 = 0.02;

/// Nanoseconds of one `call`.
fn nanos(call: &mut Call<'_>) -> f64 {
    let mut run = |times: u32| {
        let begun = Instant::now();
        (0..times).for_each(|_| call());
        begun.elapsed().as_secs_f64() / f64::from(times)
    };
    let about = run(100);
    run((SHARE / about) as u32 + 1) * 1e9
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let rounds =
        std::env::args().nth(1).map_or(9, |rounds| rounds.parse().expect("how many rounds, a number"));
    let tmpfs = calls::Tmpfs::new();
    let peers: [(&str, &dyn FileSystem); 5] = [
        ("sluicefs", &calls::Sluice::new()),
        ("vfs", &calls::Vfs::new()),
        ("rsfs", &calls::Rsfs::new()),
        ("virtual-fs", &calls::VirtualFs::new()),
        ("tmpfs", &tmpfs),
    ];
    peers.iter().for_each(|(_, peer)| peer.set_up());
    print!("{:14}", "nanoseconds");
    peers.iter().for_each(|(name, _)| print!("{name:>12}"));
    println!("{:>16}", "to best peer");
    let mut runs: Vec<_> = peers.iter().map(|(_, peer)| peer.calls()).collect();
    for (row, call) in CALLS.iter().enumerate() {
        let mut seen = [const { Vec::new() }; 5];
        for _ in 0..rounds {
            for (calls, seen) in runs.iter_mut().zip(&mut seen) {
                seen.push(nanos(&mut calls[row]));
            }
        }
        let [ours, others @ ..] = &seen;
        let to = |peer: &Vec<f64>| median(ours.iter().zip(peer).map(|(we, they)| we / they).collect());
        let to_best = others.iter().map(to).fold(0.0, f64::max);
        print!("{call:14}");
        seen.into_iter().for_each(|nanos| print!("{:>12.0}", median(nanos)));
        println!("{to_best:>16.2}");
    }
}
