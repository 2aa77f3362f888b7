//! The cost of a push beside its single write: `cargo run -p sluice-bucket --example push_cost -- DIRECTORY`.

use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, PutMode, PutOptions, PutPayload};
use sluice_bucket::Bucket;
use sluice_store::Options;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 300;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("give a directory that is not there yet")?;
    let store = Bucket::make(&format!("file://{dir}"))?.create(Options::default())?;
    let objects = LocalFileSystem::new_with_prefix(&dir)?.with_fsync(true);
    let runtime = tokio::runtime::Runtime::new()?;
    let (mut pushes, mut writes) = (Vec::new(), Vec::new());
    // Turn by turn, so that both see the same machine.
    for round in 0..ROUNDS {
        let began = Instant::now();
        let mut change = store.begin(8192)?;
        change.put(format!("{round}").as_bytes(), 1, &[7; 4096]);
        drop(change);
        store.sync()?;
        pushes.push(began.elapsed());
        let began = Instant::now();
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let path = format!("raw/{round}").into();
        runtime.block_on(objects.put_opts(&path, PutPayload::from(vec![7; 4200]), options))?;
        writes.push(began.elapsed());
    }
    println!("a push of 4 KiB          {:?}", median(pushes));
    println!("a conditional write      {:?}", median(writes));
    drop(store);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
