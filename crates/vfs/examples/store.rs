//! Store: a file system that survives the process: a counter of its own runs.
//!
//! `cargo run -p sluice-vfs --example store -- DIR`

use sluice_vfs::{Errno, Fs, StoreError};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: store DIR")?;
    let fs = match Fs::open_store(&dir) {
        Err(StoreError::NotAStore) => Fs::create_store(&dir)?,
        Err(StoreError::Io(_, error)) if error.kind() == std::io::ErrorKind::NotFound => {
            Fs::create_store(&dir)?
        }
        opened => opened?,
    };
    let runs: u64 = match fs.read_to_string("/runs") {
        Err(Errno::ENOENT) => 0,
        text => text?.trim().parse()?,
    };
    // The new file takes the place of the old one at once: after a crash there is the one or the other.
    fs.write("/runs.new", format!("{}\n", runs + 1))?;
    fs.rename("/runs.new", "/runs")?;
    fs.sync()?;
    println!("run {}", runs + 1);
    // An error of the close is told; dropping the file system would not tell it.
    fs.superblock().close()?;
    Ok(())
}
