//! How many appends of 4 KiB a second are made durable by 1, 2, 4 and 16 threads, over a store beside the host's file system:
//! `cargo run --release -p sluice-vfs --example append_fsync -- DIR [SECONDS [THREADS]]`, on the disk that DIR is on.
//!
//! Each thread appends to a file of its own and calls `fsync`. The two sides take turns. Counted are, of both, context switches and
//! the processor's time for each append.

use sluice_vfs::{Cred, Fs, OpenFlags, Options};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the two sides take turns.
const TURNS: u32 = 8;
/// A file is cut to nothing when it has so many blocks.
const LONGEST: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which directory? usage: append_fsync DIR [SECONDS]")?;
    let seconds = arguments.next().map_or(Ok(2.0), |seconds| seconds.parse())?;
    let length = Duration::try_from_secs_f64(seconds)?;
    let dir = Path::new(&dir).join("sluice-append-fsync");
    fs::create_dir_all(dir.join("store"))?;
    let fs = Fs::create(dir.join("store"), Options::default())?;
    let only: Option<usize> = arguments.next().map(|threads| threads.parse()).transpose()?;
    println!("threads      store/s       host/s   ratio   switches: store, host   CPU us: store, host");
    for threads in [1, 2, 4, 16].into_iter().filter(|threads| only.is_none_or(|only| only == *threads)) {
        let (mut ours, mut host) = (Rate::default(), Rate::default());
        for _ in 0..TURNS {
            ours.add(rate(threads, length / TURNS, |thread| {
                let process = fs.process(Cred::root());
                let flags = OpenFlags::RDWR | OpenFlags::CREAT | OpenFlags::APPEND | OpenFlags::TRUNC;
                let file = process.open(format!("/file{thread}"), flags, 0o600).expect("the store works");
                let mut blocks = 0;
                move || {
                    if blocks % LONGEST == LONGEST - 1 {
                        process.ftruncate(file, 0).expect("the store works");
                    }
                    blocks += 1;
                    process.write(file, &[7; 4096]).expect("the store works");
                    process.fsync(file).expect("the store works");
                }
            }));
            host.add(rate(threads, length / TURNS, |thread| {
                let mut file = File::create(dir.join(format!("file{thread}"))).expect("the disk works");
                let mut blocks = 0;
                move || {
                    if blocks % LONGEST == LONGEST - 1 {
                        file.set_len(0).expect("the disk works");
                    }
                    blocks += 1;
                    file.write_all(&[7; 4096]).expect("the disk works");
                    file.sync_all().expect("the disk works");
                }
            }));
        }
        println!(
            "{threads:7} {:12.0} {:12.0} {:7.2} {:8.2} {:8.2} {:15.1} {:8.1}",
            ours.per_second(),
            host.per_second(),
            ours.per_second() / host.per_second(),
            ours.switches as f64 / ours.calls as f64,
            host.switches as f64 / host.calls as f64,
            ours.cpu / ours.calls as f64,
            host.cpu / host.calls as f64,
        );
    }
    drop(fs);
    fs::remove_dir_all(dir)?;
    Ok(())
}
/// What some threads did together.
#[derive(Default)]
struct Rate {
    calls: u64,
    seconds: f64,
    /// Times that one of them lost its CPU, or gave it up.
    switches: u64,
    /// Microseconds of the processor's time that the whole program took.
    cpu: f64,
}

impl Rate {
    fn add(&mut self, more: Rate) {
        self.calls += more.calls;
        self.seconds += more.seconds;
        self.switches += more.switches;
        self.cpu += more.cpu;
    }

    fn per_second(&self) -> f64 {
        self.calls as f64 / self.seconds
    }
}

/// What `threads` do in this time.
fn rate<W: FnMut() + Send>(threads: usize, length: Duration, worker: impl Fn(usize) -> W) -> Rate {
    let before = cpu_time();
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
    Rate { calls, switches, seconds: length.as_secs_f64(), cpu: cpu_time() - before }
}

/// Context switches of this thread, both kinds; none where the system does not say.
fn switches() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let lines = status.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
    lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

/// Microseconds of the processor's time that this program has had, in steps of the kernel's tick; 0 where the system does not say.
fn cpu_time() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 10_000.0
}
