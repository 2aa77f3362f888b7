//! How many small durable changes a second a store takes from 1, 2, 4 and 16 threads, beside the host's file system:
//! `cargo run --release -p sluice-store --example sync_rate -- DIR [SECONDS]`, on the disk that DIR is on.
//!
//! Each thread changes a key of its own with 4 KiB and synchronises; beside it each appends 4 KiB to a file of its own and
//! calls `fdatasync`.

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
    println!("threads      store/s       host/s   ratio");
    for threads in [1, 2, 4, 16] {
        let ours = rate(threads, length, |thread| {
            let store = &store;
            let mut version = 0;
            move || {
                version += 1;
                store.begin(5_000).expect("the disk works").put(&[thread as u8], version, &[7; 4096]);
                store.sync().expect("the disk works");
            }
        });
        let host = rate(threads, length, |thread| {
            let mut file = File::create(dir.join(format!("file{thread}"))).expect("the disk works");
            move || {
                file.write_all(&[7; 4096]).expect("the disk works");
                file.sync_data().expect("the disk works");
            }
        });
        println!("{threads:7} {ours:12.0} {host:12.0} {:7.2}", ours / host);
    }
    drop(store);
    fs::remove_dir_all(dir)?;
    Ok(())
}

/// Calls a second, of all threads together.
fn rate<W: FnMut() + Send>(threads: usize, length: Duration, worker: impl Fn(usize) -> W) -> f64 {
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let mut work = worker(thread);
                scope.spawn(move || {
                    let (start, mut count) = (Instant::now(), 0);
                    while start.elapsed() < length {
                        work();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    counts.iter().sum::<u64>() as f64 / length.as_secs_f64()
}
