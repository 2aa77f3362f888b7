//! Program: makes the calls in a directory, and notes the times and the answers.

use crate::call::{DIRS, SharedAnswer, SharedCall, SharedLockKind, SharedName};
use crate::plan::{Offered, last_looks};
use rustix::fs::{self, AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, pread, pwrite, write};
use rustix::time::{ClockId, clock_gettime};
use sluice_sync::thread;
use sluice_sync::time::Duration;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// More is in no file of a history.
const READ_MAX: usize = 4096;
/// Tries of a lock, and the pause between them.
const LOCK_TRIES: u32 = 60;
const LOCK_PAUSE: Duration = Duration::from_micros(300);
/// The mode of files and directories: nobody else has to see them.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The time on the machine's monotonic clock, which all programs share.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

struct OpenSlot {
    descriptor: OwnedFd,
    appends: bool,
    lock: Option<SharedLockKind>,
}

/// A program's view of the directory of one round.
pub struct SharedDir {
    root: PathBuf,
    /// The mount may be taken away meanwhile: that is no answer.
    may_vanish: bool,
    /// The mount has no server any more: a kernel still answers from what it keeps, and that is no answer, either.
    is_dead: bool,
    open: BTreeMap<u8, OpenSlot>,
}

/// The begin and the end of a call, and its answer or an errno.
pub type CallTimes = (u64, u64, Result<SharedAnswer, i32>);

impl SharedDir {
    /// The round that has its files below `root`. `may_vanish`: without that directory a missing name is no answer, since the mount is gone.
    pub fn new(root: PathBuf, may_vanish: bool) -> SharedDir {
        SharedDir { root, may_vanish, is_dead: false, open: BTreeMap::new() }
    }

    /// Makes the directories of a round; with `is_durable`, so that no failure of a server takes them away.
    ///
    /// # Errors
    /// The system's.
    pub fn make_dirs(&self, is_durable: bool) -> Result<(), Errno> {
        fs::mkdir(&self.root, Mode::RWXU)?;
        let dirs = DIRS.map(|dir| self.root.join(dir));
        dirs.iter().try_for_each(|dir| fs::mkdir(dir, Mode::RWXU))?;
        let above = [Some(self.root.as_path()), self.root.parent()];
        let all = dirs.iter().map(PathBuf::as_path).chain(above.into_iter().flatten());
        all.filter(|_| is_durable).try_for_each(|dir| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            fs::fsync(fs::open(dir, flags, Mode::empty())?)
        })
    }

    /// The calls that `planned` takes: without its descriptor none, and before a descriptor is closed its lock ends by a call of its own,
    /// since some servers hear of a close later.
    pub fn calls_for(&self, planned: &SharedCall) -> Vec<SharedCall> {
        let slot = planned.slot();
        let open = slot.and_then(|slot| self.open.get(&slot));
        let ends = |slot: u8| {
            let unlock = open.and_then(|open| open.lock).map(|kind| SharedCall::Unlock { slot, kind });
            unlock.into_iter().chain(open.map(|_| SharedCall::Close { slot })).collect::<Vec<_>>()
        };
        let is_locked_by_process = self.open.values().any(|open| open.lock == Some(SharedLockKind::Posix));
        match (planned, slot, open) {
            (SharedCall::Create { .. } | SharedCall::Open { .. }, Some(slot), _) => {
                let mut calls = ends(slot);
                calls.push(planned.clone());
                calls
            }
            (SharedCall::Close { .. }, Some(slot), _) => ends(slot),
            // To close any descriptor of a file ends the process's lock of it.
            (SharedCall::ReadFile { .. }, ..) if is_locked_by_process => Vec::new(),
            (SharedCall::Append { .. }, _, Some(open)) if !open.appends => Vec::new(),
            (SharedCall::Write { .. }, _, Some(open)) if open.appends => Vec::new(),
            (SharedCall::Lock { .. }, _, Some(open)) if open.lock.is_some() => Vec::new(),
            (SharedCall::Unlock { .. }, _, Some(open)) if open.lock.is_none() => Vec::new(),
            (_, Some(_), None) => Vec::new(),
            _ => vec![planned.clone()],
        }
    }

    /// The calls that close all.
    pub fn closing_calls(&self) -> Vec<SharedCall> {
        self.open.keys().flat_map(|slot| self.calls_for(&SharedCall::Close { slot: *slot })).collect()
    }

    /// The calls that look at all names.
    pub fn last_looks() -> Vec<SharedCall> {
        last_looks()
    }

    /// Makes a call; gives its begin, its end and its answer. A lock that is busy is tried again for a while: the last try counts.
    pub fn make(&mut self, call: &SharedCall) -> CallTimes {
        let mut tries = match call {
            SharedCall::Lock { .. } => LOCK_TRIES,
            _ => 1,
        };
        loop {
            tries -= 1;
            let begun = monotonic_ns();
            let answer = self.perform(call);
            let result = self.unless_vanished(answer).map_err(Errno::raw_os_error);
            let ended = monotonic_ns();
            if result != Err(Errno::AGAIN.raw_os_error()) || tries == 0 {
                return (begun, ended, result);
            }
            thread::sleep(LOCK_PAUSE);
        }
    }

    /// The answer, unless the mount has gone and nobody answers: `ESTALE` then.
    fn unless_vanished(&mut self, answer: Result<SharedAnswer, Errno>) -> Result<SharedAnswer, Errno> {
        if !self.may_vanish {
            return answer;
        }
        let was_dead = self.is_dead;
        self.is_dead |= answer.as_ref().is_err_and(|errno| *errno == Errno::NOTCONN);
        match answer {
            Err(Errno::NOTCONN) => Err(Errno::NOTCONN),
            _ if was_dead => Err(Errno::STALE),
            Err(Errno::NOENT) if fs::stat(&self.root).is_err() => Err(Errno::STALE),
            answer => answer,
        }
    }

    fn path(&self, name: SharedName) -> PathBuf {
        self.root.join(DIRS[name.index() / 2]).join(name.last())
    }

    fn descriptor(&self, slot: u8) -> Result<&OwnedFd, Errno> {
        self.open.get(&slot).map(|open| &open.descriptor).ok_or(Errno::BADF)
    }

    fn perform(&mut self, call: &SharedCall) -> Result<SharedAnswer, Errno> {
        match *call {
            SharedCall::Create { slot, name, appends } => {
                self.open_as(slot, name, appends, OFlags::CREATE | OFlags::EXCL)?;
            }
            SharedCall::Open { slot, name, appends } => self.open_as(slot, name, appends, OFlags::empty())?,
            SharedCall::Close { slot } => drop(self.open.remove(&slot)),
            SharedCall::Write { slot, offset, word } => {
                whole(pwrite(self.descriptor(slot)?, &word, offset)?, word.len())?;
            }
            SharedCall::Append { slot, word } => whole(write(self.descriptor(slot)?, &word)?, word.len())?,
            SharedCall::Truncate { slot, size } => fs::ftruncate(self.descriptor(slot)?, size)?,
            SharedCall::Fsync { slot } => fs::fsync(self.descriptor(slot)?)?,
            SharedCall::Read { slot } => return contents(self.descriptor(slot)?),
            SharedCall::Fstat { slot } => return Ok(attributes(&fs::fstat(self.descriptor(slot)?)?)),
            SharedCall::Lock { slot, shared, kind } => {
                let operation = match shared {
                    true => FlockOperation::NonBlockingLockShared,
                    false => FlockOperation::NonBlockingLockExclusive,
                };
                lock(self.descriptor(slot)?, kind, operation)?;
                if let Some(open) = self.open.get_mut(&slot) {
                    open.lock = Some(kind);
                }
            }
            SharedCall::Unlock { slot, kind } => {
                if let Some(open) = self.open.get_mut(&slot) {
                    open.lock = None;
                }
                lock(self.descriptor(slot)?, kind, FlockOperation::NonBlockingUnlock)?;
            }
            SharedCall::Stat { name } => return Ok(attributes(&fs::stat(self.path(name))?)),
            SharedCall::ReadFile { name } => {
                let file = fs::open(self.path(name), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                return contents(&file);
            }
            SharedCall::List { dir } => {
                let path = self.root.join(DIRS[usize::from(dir) % DIRS.len()]);
                let open =
                    fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
                let mut listed = [false; 2];
                for entry in fs::Dir::new(open)? {
                    let name = entry?.file_name().to_bytes().to_vec();
                    for of in SharedName::in_dir(dir) {
                        listed[of.index() % 2] |= name == of.last().as_bytes();
                    }
                }
                return Ok(SharedAnswer::Names(listed));
            }
            SharedCall::Rename { old, new } => fs::rename(self.path(old), self.path(new))?,
            SharedCall::Link { old, new } => fs::link(self.path(old), self.path(new))?,
            SharedCall::Unlink { name } => fs::unlink(self.path(name))?,
            SharedCall::Mkdir { name } => fs::mkdir(self.path(name), Mode::RWXU)?,
            SharedCall::Rmdir { name } => fs::rmdir(self.path(name))?,
        }
        Ok(SharedAnswer::Done)
    }

    fn open_as(&mut self, slot: u8, name: SharedName, appends: bool, more: OFlags) -> Result<(), Errno> {
        let append = if appends { OFlags::APPEND } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | append | more;
        let descriptor = fs::open(self.path(name), flags, FILE_MODE)?;
        self.open.insert(slot, OpenSlot { descriptor, appends, lock: None });
        Ok(())
    }
}

/// Which calls a file system has, tried in the directory `base`.
///
/// # Errors
/// The directory takes no file.
pub fn offered_in(base: &Path, name: &str) -> Result<Offered, Errno> {
    let (file, other) = (base.join(name), base.join(format!("{name}-link")));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let descriptor = fs::open(&file, flags, FILE_MODE)?;
    let locks = |kind| {
        let is_free = lock(&descriptor, kind, FlockOperation::NonBlockingLockExclusive);
        is_free.and_then(|()| lock(&descriptor, kind, FlockOperation::NonBlockingUnlock)).is_ok()
    };
    let (flock, posix) = (locks(SharedLockKind::Flock), locks(SharedLockKind::Posix));
    let links = fs::link(&file, &other).and_then(|()| fs::unlinkat(CWD, &other, AtFlags::empty())).is_ok();
    drop(descriptor);
    fs::unlink(&file)?;
    Ok(Offered { links, flock, posix })
}

fn whole(written: usize, wanted: usize) -> Result<(), Errno> {
    // Eight bytes in parts are no write that POSIX allows on a file with room.
    if written == wanted { Ok(()) } else { Err(Errno::IO) }
}

fn contents(file: &OwnedFd) -> Result<SharedAnswer, Errno> {
    let mut bytes = vec![0; READ_MAX];
    let length = pread(file, &mut bytes, 0)?;
    bytes.truncate(length);
    Ok(SharedAnswer::Bytes(bytes))
}

fn attributes(stat: &fs::Stat) -> SharedAnswer {
    SharedAnswer::Attr {
        size: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
        links: links_of(stat),
        is_dir: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
    }
}

#[allow(clippy::unnecessary_cast, reason = "the field has fewer bits on some machines")]
fn links_of(stat: &fs::Stat) -> u64 {
    stat.st_nlink as u64
}

fn lock(file: &OwnedFd, kind: SharedLockKind, operation: FlockOperation) -> Result<(), Errno> {
    let outcome = match kind {
        SharedLockKind::Flock => fs::flock(file, operation),
        SharedLockKind::Posix => fs::fcntl_lock(file, operation),
    };
    // POSIX has both for a lock that is held.
    outcome.map_err(|errno| if errno == Errno::ACCESS { Errno::AGAIN } else { errno })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_without_a_server_gives_no_answers_and_one_that_is_gone_has_no_missing_names() {
        let root = std::env::temp_dir();
        let (done, missing, dead) = (|| Ok(SharedAnswer::Done), || Err(Errno::NOENT), || Err(Errno::NOTCONN));
        let mut healthy = SharedDir::new(root.clone(), false);
        for answer in [done(), missing(), dead(), done()] {
            assert_eq!(healthy.unless_vanished(answer.clone()), answer);
        }
        let mut dying = SharedDir::new(root.clone(), true);
        assert_eq!([done(), missing()].map(|answer| dying.unless_vanished(answer)), [done(), missing()]);
        assert_eq!(dying.unless_vanished(dead()), dead());
        for answer in [done(), missing()] {
            assert_eq!(dying.unless_vanished(answer), Err(Errno::STALE), "from a cache");
        }
        let mut gone = SharedDir::new(root.join("no/such/directory"), true);
        assert_eq!(gone.unless_vanished(missing()), Err(Errno::STALE));
    }
}
