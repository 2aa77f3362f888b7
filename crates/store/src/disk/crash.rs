//! CrashDisk: a disk in memory that remembers each step, and gives the disks that a crash could leave.
//!
//! # Theory
//! The disk keeps the list of its steps: creations, writes, resizes, holes punched, flushes. A *crash* after the first
//! n steps leaves what was flushed by then. Each write that was not flushed survives whole, in some of its sectors, or
//! not at all, in any order; a resize or a hole survives or does not; a creation survives if all earlier creations do,
//! as in a journal of names.

use super::{Disk, DiskFile};
use sluice_sync::{Arc, LockClass, Mutex};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

static DISK: LockClass = LockClass::new("store.disk.crash");

/// The unit in which a write is torn.
const SECTOR: usize = 512;

/// A disk in memory that can crash.
#[derive(Debug, Clone)]
pub struct CrashDisk {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The files at the beginning.
    before: BTreeMap<String, Vec<u8>>,
    /// The current files.
    now: BTreeMap<String, Vec<u8>>,
    steps: Vec<Step>,
    /// How often each file was read.
    reads: BTreeMap<String, u64>,
    /// The number of flushes that succeed before one fails; None if all succeed.
    good_syncs: Option<usize>,
}

#[derive(Debug, Clone)]
enum Step {
    Create {
        name: String,
        len: u64,
    },
    Write {
        name: String,
        offset: u64,
        bytes: Vec<u8>,
    },
    SetSize {
        name: String,
        size: u64,
    },
    Punch {
        name: String,
        offset: u64,
        len: u64,
    },
    Sync {
        name: String,
    },
    /// A flush that failed: what was written before is as lost as if it had never been, even if a later one succeeds.
    FailedSync {
        name: String,
    },
    SyncNames,
}

/// The steps that survive among those that were not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// Some, chosen by this seed; writes may be torn.
    Some(u64),
}

#[derive(Debug)]
struct CrashFile {
    disk: CrashDisk,
    name: String,
}

impl CrashDisk {
    /// An empty disk.
    pub fn new() -> CrashDisk {
        CrashDisk::with(BTreeMap::new())
    }

    /// A disk with these files, all durable.
    pub fn with(files: BTreeMap<String, Vec<u8>>) -> CrashDisk {
        let inner = Inner { now: files.clone(), before: files, ..Inner::default() };
        CrashDisk { inner: Arc::new(Mutex::with_class(&DISK, inner)) }
    }

    /// The current files, by name.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.inner.lock().now.clone()
    }

    /// A number that two disks share only if they hold the same, but for one pair in 2^64.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.inner.lock().now.hash(&mut hasher);
        hasher.finish()
    }

    /// Bytes that were written to files whose names begin with `prefix`.
    pub fn written(&self, prefix: &str) -> u64 {
        let inner = self.inner.lock();
        let writes = inner.steps.iter().map(|step| match step {
            Step::Write { name, bytes, .. } if name.starts_with(prefix) => bytes.len() as u64,
            _ => 0,
        });
        writes.sum()
    }

    /// How many flushes there were.
    pub fn flushes(&self) -> usize {
        self.inner
            .lock()
            .steps
            .iter()
            .filter(|step| matches!(step, Step::Sync { .. } | Step::SyncNames))
            .count()
    }

    /// How often files were read whose names begin with `prefix`.
    pub fn reads(&self, prefix: &str) -> u64 {
        let inner = self.inner.lock();
        inner.reads.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, count)| count).sum()
    }

    /// Lets the flush after the next `good` ones fail, and later ones succeed.
    pub fn fail_sync_after(&self, good: usize) {
        self.inner.lock().good_syncs = Some(good);
    }

    /// How many steps there have been: a crash is possible after each, and before the first.
    pub fn steps(&self) -> usize {
        self.inner.lock().steps.len()
    }

    /// The disk that a crash after the first `steps` steps leaves.
    pub fn crash(&self, steps: usize, survivors: Survivors) -> CrashDisk {
        let inner = self.inner.lock();
        let steps = &inner.steps[..steps];
        let mut random = Random(match survivors {
            Survivors::Some(seed) => seed,
            _ => 0,
        });
        let mut files = inner.before.clone();
        // A name that did not survive takes its file along.
        let mut names_end = false;
        for (at, step) in steps.iter().enumerate() {
            let is_flushed = |name: &str| {
                let first = steps[at..].iter().find(|later| match later {
                    Step::Sync { name: synced } | Step::FailedSync { name: synced } => synced == name,
                    _ => false,
                });
                matches!(first, Some(Step::Sync { .. }))
            };
            let durable = match step {
                Step::Create { .. } => steps[at..].iter().any(|later| matches!(later, Step::SyncNames)),
                Step::Write { name, .. } | Step::SetSize { name, .. } | Step::Punch { name, .. } => {
                    is_flushed(name)
                }
                Step::Sync { .. } | Step::FailedSync { .. } | Step::SyncNames => continue,
            };
            let survives = durable
                || match survivors {
                    Survivors::None => false,
                    Survivors::All => true,
                    Survivors::Some(_) => random.draw().is_multiple_of(2),
                };
            let torn = !durable && survives && matches!(survivors, Survivors::Some(_));
            if let Step::Create { .. } = step
                && !durable
            {
                names_end |= !survives;
                if names_end {
                    continue;
                }
            }
            if survives {
                step.apply(&mut files, |_| !torn || !random.draw().is_multiple_of(4));
            }
        }
        CrashDisk::with(files)
    }
}

impl Default for CrashDisk {
    fn default() -> Self {
        CrashDisk::new()
    }
}

impl Step {
    /// Does the step to `files`; of a write only the sectors that `takes` says.
    fn apply(&self, files: &mut BTreeMap<String, Vec<u8>>, mut takes: impl FnMut(usize) -> bool) {
        match self {
            Step::Create { name, len } => {
                files.insert(name.clone(), vec![0; *len as usize]);
            }
            Step::Write { name, offset, bytes } => {
                let Some(file) = files.get_mut(name) else { return };
                let start = *offset as usize;
                if file.len() < start + bytes.len() {
                    file.resize(start + bytes.len(), 0);
                }
                // Sectors by their place on the disk, not in the buffer.
                let mut at = 0;
                while at < bytes.len() {
                    let end = bytes.len().min(at + SECTOR - (start + at) % SECTOR);
                    if takes((start + at) / SECTOR) {
                        file[start + at..start + end].copy_from_slice(&bytes[at..end]);
                    }
                    at = end;
                }
            }
            Step::SetSize { name, size } => {
                if let Some(file) = files.get_mut(name) {
                    file.resize(*size as usize, 0);
                }
            }
            Step::Punch { name, offset, len } => {
                let Some(file) = files.get_mut(name) else { return };
                let end = file.len().min((*offset + *len) as usize);
                file[end.min(*offset as usize)..end].fill(0);
            }
            Step::Sync { .. } | Step::FailedSync { .. } | Step::SyncNames => {}
        }
    }
}

impl Inner {
    fn step(&mut self, step: Step) {
        step.apply(&mut self.now, |_| true);
        self.steps.push(step);
    }
}

impl Disk for CrashDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if !self.inner.lock().now.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(super::shared(CrashFile { disk: self.clone(), name: name.to_owned() }))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.inner.lock();
        if inner.now.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        inner.step(Step::Create { name: name.to_owned(), len });
        Ok(super::shared(CrashFile { disk: self.clone(), name: name.to_owned() }))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.inner.lock().now.keys().cloned().collect())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.inner.lock().step(Step::SyncNames);
        Ok(())
    }
}

impl CrashFile {
    fn with<R>(&self, look: impl FnOnce(&Vec<u8>) -> R) -> io::Result<R> {
        let inner = self.disk.inner.lock();
        inner.now.get(&self.name).map(look).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn step(&self, step: Step) -> io::Result<()> {
        self.disk.inner.lock().step(step);
        Ok(())
    }
}

impl DiskFile for CrashFile {
    fn size(&self) -> io::Result<u64> {
        self.with(|file| file.len() as u64)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.step(Step::SetSize { name: self.name.clone(), size })
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        if self.size()? < end { self.set_size(end) } else { Ok(()) }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.step(Step::Punch { name: self.name.clone(), offset, len })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        *self.disk.inner.lock().reads.entry(self.name.clone()).or_default() += 1;
        self.with(|file| {
            let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            let end = start.checked_add(buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buf.copy_from_slice(file.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })?
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.step(Step::Write { name: self.name.clone(), offset, bytes: buf.to_vec() })
    }

    fn sync(&self) -> io::Result<()> {
        let name = self.name.clone();
        let mut inner = self.disk.inner.lock();
        let fails = inner.good_syncs == Some(0);
        // The one after it succeeds again.
        inner.good_syncs = inner.good_syncs.and_then(|good| good.checked_sub(1));
        inner.step(if fails { Step::FailedSync { name } } else { Step::Sync { name } });
        if fails { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
    }
}

/// Numbers for choices: splitmix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Numbers that follow from `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_keeps_what_was_flushed_and_may_lose_what_was_not() {
        let disk = CrashDisk::new();
        let file = disk.create("f", 0).expect("new");
        file.write_at(b"first", 0).expect("memory");
        file.sync().expect("memory");
        disk.sync_names().expect("memory");
        file.write_at(b"later", 5).expect("memory");
        let content = |steps, survivors| disk.crash(steps, survivors).files().get("f").cloned();
        assert_eq!(content(0, Survivors::All), None);
        assert_eq!(content(3, Survivors::None), None, "its name was not durable");
        assert_eq!(content(4, Survivors::None).as_deref(), Some(b"first".as_slice()));
        assert_eq!(content(5, Survivors::None).as_deref(), Some(b"first".as_slice()));
        assert_eq!(content(5, Survivors::All).as_deref(), Some(b"firstlater".as_slice()));
    }

    #[test]
    fn writes_are_torn_by_sectors_and_lost_out_of_order() {
        let disk = CrashDisk::new();
        let file = disk.create("f", 4096).expect("new");
        disk.sync_names().expect("memory");
        file.write_at(&[1; 2048], 0).expect("memory");
        file.write_at(&[2; 2048], 2048).expect("memory");
        let states: Vec<Vec<u8>> =
            (0..64).map(|seed| disk.crash(4, Survivors::Some(seed)).files()["f"].clone()).collect();
        let torn = |state: &Vec<u8>| state[..2048].contains(&0) && state[..2048].contains(&1);
        let reordered = |state: &Vec<u8>| !state[..2048].contains(&1) && state[2048..].contains(&2);
        assert!(states.iter().any(torn) && states.iter().any(reordered));
        assert!(
            states
                .iter()
                .all(|state| state.chunks(SECTOR).all(|sector| sector.iter().all(|b| *b == sector[0])))
        );
    }
}
