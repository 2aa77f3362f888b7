//! Missing fsync: how a test finds one. A small log-structured store of keys and values runs on a file system that can crash:
//! after each put that it acknowledged, for many seeds.
//!
//! `cargo run -p sluice-vfs --example missing_fsync`

use sluice_vfs::{Errno, File, Fs, Unsynced};
use std::collections::BTreeMap;

/// Keys and values in segments `/db/1`, `/db/2`, ..., each a log of records. `/db/CURRENT` says how many there are.
pub(crate) struct Db {
    fs: Fs,
    segments: u64,
    log: File,
    /// Whether the directory is synchronised where it must be.
    is_careful: bool,
}

/// Bytes of a segment after which a new one begins.
const SEGMENT: u64 = 100;
const CURRENT: &str = "/db/CURRENT";

impl Db {
    /// Makes an empty one.
    pub(crate) fn create(fs: &Fs, is_careful: bool) -> Result<Db, Errno> {
        fs.create_dir("/db")?;
        let log = File::create(fs, "/db/1")?;
        let mut db = Db { fs: fs.clone(), segments: 1, log, is_careful };
        db.set_current()?;
        File::open(fs, "/db")?.sync_all()?;
        Ok(db)
    }

    /// Writes a pair, which is durable when this returns.
    pub(crate) fn put(&mut self, key: &str, value: &str) -> Result<(), Errno> {
        if self.log.metadata()?.size >= SEGMENT {
            self.segments += 1;
            self.log = File::create(&self.fs, format!("/db/{}", self.segments))?;
            self.set_current()?;
        }
        let line = format!("{key}={value}");
        let record = format!("{} {line}\n", sum(&line));
        self.log.write_all_at(record.as_bytes(), self.log.metadata()?.size)?;
        self.log.sync_data()
    }

    /// Replaces the file that says how many segments there are.
    fn set_current(&mut self) -> Result<(), Errno> {
        let new = File::create(&self.fs, "/db/CURRENT.new")?;
        new.write_all_at(self.segments.to_string().as_bytes(), 0)?;
        new.sync_all()?;
        self.fs.rename("/db/CURRENT.new", CURRENT)?;
        if self.is_careful {
            // Without this the rename may be lost, and with it the segments that only the new file knows of.
            File::open(&self.fs, "/db")?.sync_all()?;
        }
        Ok(())
    }

    /// All pairs that can be read after a crash.
    pub(crate) fn recover(fs: &Fs) -> Result<BTreeMap<String, String>, Errno> {
        let segments: u64 = fs.read_to_string(CURRENT)?.parse().map_err(|_| Errno::EIO)?;
        let mut pairs = BTreeMap::new();
        for segment in 1..=segments {
            let bytes = fs.read(format!("/db/{segment}"))?;
            for record in String::from_utf8_lossy(&bytes).lines() {
                // A torn record ends the log: it was not acknowledged.
                let Some((found, line)) = record.split_once(' ') else { break };
                let Some((key, value)) = line.split_once('=') else { break };
                if found != sum(line) {
                    break;
                }
                pairs.insert(key.to_owned(), value.to_owned());
            }
        }
        Ok(pairs)
    }
}

/// A checksum.
fn sum(line: &str) -> String {
    let sum = line
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{sum:016x}")
}

/// A crash that lost something.
#[derive(Debug)]
pub(crate) struct Loss {
    /// After so many puts.
    pub(crate) puts: usize,
    /// And with this seed.
    pub(crate) seed: u64,
    /// The changes that could be lost then.
    pub(crate) unsynced: Vec<Unsynced>,
}

/// Crashes the store after each of some puts: the first crash that loses one that was acknowledged.
pub(crate) fn hunt(is_careful: bool) -> Result<Option<Loss>, Errno> {
    let fs = Fs::new();
    fs.track_crashes()?;
    let mut db = Db::create(&fs, is_careful)?;
    let mut acknowledged = BTreeMap::new();
    for puts in 1..=20 {
        let (key, value) = (format!("key-{puts:02}"), format!("value of {puts}"));
        db.put(&key, &value)?;
        acknowledged.insert(key, value);
        for seed in 0..50 {
            let found = Db::recover(&fs.crash_clone(seed)?);
            if found.as_ref() != Ok(&acknowledged) {
                return Ok(Some(Loss { puts, seed, unsynced: fs.unsynced()? }));
            }
        }
    }
    Ok(None)
}

fn main() -> Result<(), Errno> {
    for is_careful in [false, true] {
        let how = if is_careful { "with" } else { "without" };
        match hunt(is_careful)? {
            None => println!("{how} fsync of the directory: 1,000 crashes, nothing lost"),
            Some(Loss { puts, seed, unsynced }) => {
                println!("{how} fsync of the directory: put {puts} is lost by the crash with seed {seed}");
                for Unsynced { path, bytes, name, .. } in unsynced {
                    let name = if name { ", its name" } else { "" };
                    println!("    not durable: {}: {bytes} bytes{name}", path.display());
                }
            }
        }
    }
    Ok(())
}
