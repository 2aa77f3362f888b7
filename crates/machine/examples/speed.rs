//! How many accesses a second the machine models on this host:
//! `cargo run --release -p sluice-machine --example speed`.

use std::hint::black_box;
use std::time::Instant;

use sluice_machine::atomic::{AtomicU64, Ordering};
use sluice_machine::cell::OwnLine;
use sluice_machine::{Cpu, Machine};

const ACCESSES: u64 = 20_000_000;
const RUNS: usize = 5;

/// Runs `body` on `cpus` CPUs; it is told how many accesses to make.
fn show(name: &str, cpus: usize, accesses: u64, body: impl Fn(&Cpu, u64)) {
    let machine = Machine::named("power7-64");
    let once = || {
        let start = Instant::now();
        let report = machine.run(cpus, |cpu| body(&cpu, accesses / cpus as u64));
        let rate = report.accesses() as f64 / start.elapsed().as_secs_f64();
        (rate / 1e6, report.misses() as f64 * 100.0 / report.accesses() as f64)
    };
    // The best of several, because the host may be busy with other things.
    let (millions, missed) =
        (0..RUNS).map(|_| once()).fold((0.0, 0.0), |best, run| if run > best { run } else { best });
    println!("{cpus:>3} CPUs, {name:<36} {millions:>7.1} million accesses/s, {missed:.0}% missed");
}

fn main() {
    let lines: Vec<OwnLine<AtomicU64>> = (0..64).map(|_| OwnLine::default()).collect();
    for cpus in [1, 64] {
        show("own lines, load and store", cpus, ACCESSES, |cpu, accesses| {
            let line = &lines[cpu.id()];
            for _ in 0..accesses / 2 {
                line.store(line.load(Ordering::Relaxed) + 1, Ordering::Release);
            }
        });
        show("own lines, fetch_add", cpus, ACCESSES, |cpu, accesses| {
            for _ in 0..accesses {
                lines[cpu.id()].fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    show("one line, load", 64, ACCESSES, |_, accesses| {
        for _ in 0..accesses {
            black_box(lines[0].load(Ordering::Relaxed));
        }
    });
    show("one line, fetch_add (all miss)", 64, ACCESSES / 4, |_, accesses| {
        for _ in 0..accesses {
            lines[0].fetch_add(1, Ordering::Relaxed);
        }
    });
}
