//! How many small durable changes a second a store takes from 1, 2, 4 and 16 threads, beside the host's file system:
//! `cargo run --release -p sluice-store --example sync_rate -- DIR [SECONDS]`, on the disk that DIR is on.
//!
//! Each thread changes a key of its own with 4 KiB and synchronises; beside it each appends 4 KiB to a file of its own and
//! calls `fdatasync`. The two take turns. Counted are, of the store, pushes for each change and, of both, context switches.

use sluice_store::disk::HostDisk;
use sluice_store::{Options, Store};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which directory? usage: sync_rate DIR [SECONDS]")?;
    let seconds = arguments.next().map_or(Ok(2.0), |seconds| seconds.parse())?;
    let length = Duration::try_from_secs_f64(seconds)?;
    let dir = Path::new(&dir).join("sluice-sync-rate");
    fs::create_dir_all(dir.join("store"))?;
    let store = Store::create(Arc::new(HostDisk::lock(&dir.join("store"))?), Options::default())?;
    println!("threads      store/s       host/s   ratio   pushes   switches: store, host");
    for threads in [1, 2, 4, 16] {
        let (mut ours, mut host, mut pushes) = (Rate::default(), Rate::default(), 0);
        for _ in 0..TURNS {
            let before = store.stats().batches;
            ours.add(rate(threads, length / TURNS, |thread| {
                let store = &store;
                let mut version = 0;
                move || {
                    version += 1;
                    store.begin(5_000).expect("the disk works").put(&[thread as u8], version, &[7; 4096]);
                    store.sync().expect("the disk works");
                }
            }));
            pushes += store.stats().batches - before;
            host.add(rate(threads, length / TURNS, |thread| {
                let mut file = File::create(dir.join(format!("file{thread}"))).expect("the disk works");
                move || {
                    file.write_all(&[7; 4096]).expect("the disk works");
                    file.sync_data().expect("the disk works");
                }
            }));
        }
        println!(
            "{threads:7} {:12.0} {:12.0} {:7.2} {:8.2} {:8.2} {:8.2}",
            ours.per_second(),
            host.per_second(),
            ours.per_second() / host.per_second(),
            pushes as f64 / ours.calls as f64,
            ours.switches as f64 / ours.calls as f64,
            host.switches as f64 / host.calls as f64,
        );
    }
    drop(store);
    fs::remove_dir_all(dir)?;
    Ok(())
}

/// How often the two sides take turns.
const TURNS: u32 = 8;

/// The joint work of some threads.
#[derive(Default)]
struct Rate {
    calls: u64,
    seconds: f64,
    /// How often a thread lost its CPU, or gave it up.
    switches: u64,
}

impl Rate {
    fn add(&mut self, more: Rate) {
        self.calls += more.calls;
        self.seconds += more.seconds;
        self.switches += more.switches;
    }

    fn per_second(&self) -> f64 {
        self.calls as f64 / self.seconds
    }
}

/// The rate of `threads` threads over this time.
fn rate<W: FnMut() + Send>(threads: usize, length: Duration, worker: impl Fn(usize) -> W) -> Rate {
    let counts: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let mut work = worker(thread);
                scope.spawn(move || {
                    let (start, before, mut count) = (Instant::now(), switches(), 0);
                    while start.elapsed() < length {
                        work();
                        count += 1;
                    }
                    (count, switches() - before)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let (calls, switches) = (counts.iter().map(|one| one.0).sum(), counts.iter().map(|one| one.1).sum());
    Rate { calls, switches, seconds: length.as_secs_f64() }
}

/// Context switches of this thread, both kinds; none where the system does not say.
fn switches() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let lines = status.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
    lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}
