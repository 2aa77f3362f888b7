//! CrashDisk: a disk in memory that remembers each step, and gives the disks that a crash could leave.
//!
//! # Theory
//! The disk keeps the list of its steps: changes of names, writes, resizes, holes punched, flushes. A *crash* after the first
//! n steps leaves what was flushed by then. Each write that was not flushed survives whole, in some of its sectors, or
//! not at all, in any order; a resize or a hole survives or does not; a change of a name survives if all earlier changes of
//! names do, as in a journal of names. A file keeps its number whatever name it has.
//!
//! A disk may have a cipher for the store on it, so that all tests of stores on such disks are tests of encrypted ones.

use super::{Disk, DiskFile};
use crate::encryption::Cipher;
use crate::format::{SUPER, Super};
use sluice_sync::random::Random;
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
    before: CrashFiles,
    /// The current files.
    now: CrashFiles,
    steps: Vec<Step>,
    /// The name under which each file was made, and how often it was read.
    made: Vec<(String, u64)>,
    /// The number of flushes that succeed before one fails; None if all succeed.
    good_syncs: Option<usize>,
    /// The store on it is encrypted.
    is_encrypted: bool,
}

/// The content of a disk.
#[derive(Debug, Clone, Default)]
struct CrashFiles {
    names: BTreeMap<String, usize>,
    /// By number; also of files that have lost their name.
    contents: BTreeMap<usize, Vec<u8>>,
}

#[derive(Debug, Clone)]
enum Step {
    Create {
        name: String,
        file: usize,
        len: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
    Write {
        file: usize,
        offset: u64,
        bytes: Vec<u8>,
    },
    SetSize {
        file: usize,
        size: u64,
    },
    Punch {
        file: usize,
        offset: u64,
        len: u64,
    },
    Sync {
        file: usize,
    },
    /// A flush that failed: what was written before is as lost as if it had never been, even if a later one succeeds.
    FailedSync {
        file: usize,
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
    file: usize,
}

impl CrashDisk {
    /// An empty disk. With `SLUICE_CRASH_ENCRYPTED` in the environment a store on the disk will be encrypted.
    pub fn new() -> CrashDisk {
        CrashDisk::with(BTreeMap::new())
    }

    /// An empty disk for an encrypted store.
    pub fn encrypted() -> CrashDisk {
        let disk = CrashDisk::new();
        disk.inner.lock().is_encrypted = true;
        disk
    }

    /// A disk with these files, all durable.
    pub fn with(files: BTreeMap<String, Vec<u8>>) -> CrashDisk {
        let is_encrypted = match files.get(SUPER) {
            Some(about) => {
                let id = Cipher::for_tests().map(|cipher| cipher.id());
                let found = about.as_slice().try_into().map(Super::decode);
                id.is_some() && found.is_ok_and(|found| found.is_ok_and(|found| found.key_id == id))
            }
            None => std::env::var_os("SLUICE_CRASH_ENCRYPTED").is_some(),
        };
        let (mut before, mut made) = (CrashFiles::default(), Vec::new());
        for (file, (name, content)) in files.into_iter().enumerate() {
            made.push((name.clone(), 0));
            before.names.insert(name, file);
            before.contents.insert(file, content);
        }
        let inner = Inner { now: before.clone(), before, made, is_encrypted, ..Inner::default() };
        CrashDisk { inner: Arc::new(Mutex::with_class(&DISK, inner)) }
    }

    /// The current files, by name.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.inner.lock().now.named()
    }

    /// A number that two disks share only if they hold the same, but for one pair in 2^64.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.files().hash(&mut hasher);
        hasher.finish()
    }

    /// Bytes that were written to files that were made with names that begin with `prefix`.
    pub fn written(&self, prefix: &str) -> u64 {
        let inner = self.inner.lock();
        let writes = inner.steps.iter().map(|step| match step {
            Step::Write { file, bytes, .. } if inner.made[*file].0.starts_with(prefix) => bytes.len() as u64,
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

    /// How often files were read that were made with names that begin with `prefix`.
    pub fn reads(&self, prefix: &str) -> u64 {
        let inner = self.inner.lock();
        inner.made.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, reads)| reads).sum()
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
        let mut random = Random::new(match survivors {
            Survivors::Some(seed) => seed,
            _ => 0,
        });
        let mut files = inner.before.clone();
        // A name that did not survive takes its file along.
        let mut names_end = false;
        for (at, step) in steps.iter().enumerate() {
            let is_flushed = |file: &usize| {
                let first = steps[at..].iter().find(|later| match later {
                    Step::Sync { file: synced } | Step::FailedSync { file: synced } => synced == file,
                    _ => false,
                });
                matches!(first, Some(Step::Sync { .. }))
            };
            let durable = match step {
                Step::Create { .. } | Step::Rename { .. } | Step::Remove { .. } => {
                    steps[at..].iter().any(|later| matches!(later, Step::SyncNames))
                }
                Step::Write { file, .. } | Step::SetSize { file, .. } | Step::Punch { file, .. } => {
                    is_flushed(file)
                }
                Step::Sync { .. } | Step::FailedSync { .. } | Step::SyncNames => continue,
            };
            let survives = durable
                || match survivors {
                    Survivors::None => false,
                    Survivors::All => true,
                    Survivors::Some(_) => random.below(2) == 0,
                };
            let torn = !durable && survives && matches!(survivors, Survivors::Some(_));
            if let Step::Create { .. } | Step::Rename { .. } | Step::Remove { .. } = step
                && !durable
            {
                names_end |= !survives;
                if names_end {
                    continue;
                }
            }
            if survives {
                step.apply(&mut files, |_| !torn || random.below(4) != 0);
            }
        }
        CrashDisk::with(files.named())
    }
}

impl CrashFiles {
    /// The files that have a name.
    fn named(&self) -> BTreeMap<String, Vec<u8>> {
        let content = |file| self.contents.get(file).cloned().unwrap_or_default();
        self.names.iter().map(|(name, file)| (name.clone(), content(file))).collect()
    }
}

impl Default for CrashDisk {
    fn default() -> Self {
        CrashDisk::new()
    }
}

impl Step {
    /// Does the step to `files`; of a write only the sectors that `takes` says.
    fn apply(&self, files: &mut CrashFiles, mut takes: impl FnMut(usize) -> bool) {
        let CrashFiles { names, contents } = files;
        match self {
            Step::Create { name, file, len } => {
                names.insert(name.clone(), *file);
                contents.insert(*file, vec![0; *len as usize]);
            }
            Step::Rename { from, to } => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            Step::Remove { name } => drop(names.remove(name)),
            Step::Write { file, offset, bytes } => {
                let Some(file) = contents.get_mut(file) else { return };
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
            Step::SetSize { file, size } => {
                if let Some(file) = contents.get_mut(file) {
                    file.resize(*size as usize, 0);
                }
            }
            Step::Punch { file, offset, len } => {
                let Some(file) = contents.get_mut(file) else { return };
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
        let file = self.inner.lock().now.names.get(name).copied().ok_or(io::ErrorKind::NotFound)?;
        Ok(super::shared(CrashFile { disk: self.clone(), file }))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.inner.lock();
        if inner.now.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = inner.made.len();
        inner.made.push((name.to_owned(), 0));
        inner.step(Step::Create { name: name.to_owned(), file, len });
        Ok(super::shared(CrashFile { disk: self.clone(), file }))
    }

    fn cipher(&self) -> Option<Arc<Cipher>> {
        if self.inner.lock().is_encrypted { Cipher::for_tests() } else { None }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.inner.lock().now.names.keys().cloned().collect())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if !inner.now.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        inner.step(Step::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if !inner.now.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        inner.step(Step::Remove { name: name.to_owned() });
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        self.inner.lock().step(Step::SyncNames);
        Ok(())
    }
}

impl CrashFile {
    fn with<R>(&self, look: impl FnOnce(&Vec<u8>) -> R) -> io::Result<R> {
        let inner = self.disk.inner.lock();
        inner.now.contents.get(&self.file).map(look).ok_or_else(|| io::ErrorKind::NotFound.into())
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
        self.step(Step::SetSize { file: self.file, size })
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        if self.size()? < end { self.set_size(end) } else { Ok(()) }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.step(Step::Punch { file: self.file, offset, len })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.inner.lock().made[self.file].1 += 1;
        self.with(|file| {
            let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            let end = start.checked_add(buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buf.copy_from_slice(file.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })?
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.step(Step::Write { file: self.file, offset, bytes: buf.to_vec() })
    }

    fn sync(&self) -> io::Result<()> {
        let file = self.file;
        let mut inner = self.disk.inner.lock();
        let fails = inner.good_syncs == Some(0);
        // The one after it succeeds again.
        inner.good_syncs = inner.good_syncs.and_then(|good| good.checked_sub(1));
        inner.step(if fails { Step::FailedSync { file } } else { Step::Sync { file } });
        if fails { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
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
    fn a_rename_survives_with_the_names_before_it_and_the_file_keeps_its_content() {
        let disk = CrashDisk::new();
        for (name, content) in [("a", b"old"), ("b", b"new")] {
            let file = disk.create(name, 0).expect("new");
            file.write_at(content, 0).and_then(|()| file.sync()).expect("memory");
        }
        let (before, file) = (disk.steps(), disk.open("b").expect("made"));
        disk.rename("b", "a").expect("it is there");
        file.write_at(b"er", 3).expect("memory");
        let content = |steps, survivors| disk.crash(steps, survivors).files();
        assert_eq!(content(before, Survivors::None).len(), 0);
        assert_eq!(content(before, Survivors::All).len(), 2);
        let renamed = content(before + 1, Survivors::All);
        assert_eq!((renamed.len(), renamed["a"].as_slice()), (1, b"new".as_slice()));
        disk.sync_names().expect("memory");
        assert_eq!(content(disk.steps(), Survivors::None)["a"], b"new");
        assert_eq!(disk.files()["a"], b"newer");
        assert_eq!(disk.files().len(), 1);
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
