//! Handles: the open files of a mount that serves locks itself, and which lock owners used each.
//!
//! # Theory
//! POSIX locks of a process end when it closes any descriptor of the file: FLUSH says so. OFD locks end with
//! the last close of their description: RELEASE. On the wire both look alike, an owner number and a range. But a
//! process that locks through a handle has it open, and FLUSHes it before the kernel RELEASEs it. So an
//! owner that used a handle and has not flushed it when it is released was a description, and its locks end now.
//!
//! A process may close a descriptor while another of its threads asks for a lock through it. FLUSH then finds nothing to
//! release, and the lock is granted later, or has just been asked for. The kernel tells the thread EBADF, and does not tell
//! us. So each owner that a lock is granted to is noted *after* the grant, and whether it has flushed the handle is found out in
//! the same step: either FLUSH comes later and releases the lock, or the grant is seen to be late ([`Noted::Flushed`]).
//! Whether the lock must go then depends on the descriptor, which may have been a copy of the one that was closed
//! (`blocked_call`). RELEASE never comes in between, as the call that asks keeps the handle open.

use crate::lock_class::HANDLES;
use sluice_locks::Owner;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::{Arc, Mutex, OnceLock};
use sluice_vfs::InodeRef;
use std::collections::{HashMap, HashSet, VecDeque};

/// How many owners that have flushed a handle are remembered, beside those that wait for a lock through it: time enough
/// for a request that was on the way when its descriptor was closed.
const FLUSHED_MAX: usize = 16;

/// Marks the number of a handle whose file may be mapped, so that a server that takes over knows.
const MAY_MAP: u64 = 1 << 63;

/// Whether the file of a handle may be mapped.
pub fn may_map(fh: u64) -> bool {
    fh & MAY_MAP != 0
}

/// The open files of one mount. Number 0 is never given out: it stands for "no handle".
pub struct Handles {
    open: Mutex<HashMap<u64, OpenHandle>>,
    /// The last number given out. *atomic (no label: only uniqueness matters)*
    last: AtomicU64,
    /// Is told of locks that are granted, if anybody asks. *set once*
    pub witness: OnceLock<Box<dyn Witness>>,
}

/// Is told which files a mount locks.
pub trait Witness: Send + Sync {
    /// A lock of file `ino` is granted to the mount. Called before that is answered, with no lock held.
    fn granted(&self, ino: u64);
}

impl Default for Handles {
    fn default() -> Self {
        let open = Mutex::with_class(&HANDLES, HashMap::new());
        Handles { open, last: AtomicU64::new(0), witness: OnceLock::new() }
    }
}

/// A handle's knowledge of the owner of a granted lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noted {
    /// It has the file open.
    Open,
    /// The owner closed a descriptor of the handle, and may have no other.
    Flushed,
    /// The file has no such handle, or another owner has its flock.
    Unknown,
}

struct OpenHandle {
    inode: InodeRef,
    /// Owners that locked ranges through this handle and have not flushed it.
    owners: Vec<u64>,
    /// The owner that locked the whole file (flock).
    flock: Option<u64>,
    /// Owners that wait for a range through this handle, as often as they do.
    waiting: Vec<u64>,
    /// Owners that have flushed it, the oldest first.
    flushed: VecDeque<u64>,
    /// The text that reads return, if not the data of the inode.
    text: Option<Arc<Vec<u8>>>,
}

impl Handles {
    /// A number for a new open file of `inode`.
    pub(crate) fn open(&self, inode: InodeRef) -> u64 {
        self.add(inode, None)
    }

    /// Opens a handle whose number says that the file may be mapped.
    pub(crate) fn open_to_map(&self, inode: InodeRef) -> u64 {
        // Relaxed: only uniqueness matters.
        let fh = (self.last.fetch_add(1, Ordering::Relaxed) + 1) | MAY_MAP;
        self.add_as(fh, inode, None);
        fh
    }

    /// Opens a handle whose readers see `text`.
    pub(crate) fn open_text(&self, inode: InodeRef, text: Arc<Vec<u8>>) -> u64 {
        self.add(inode, Some(text))
    }

    /// The text that readers of `fh` see, if it was opened as a text.
    pub(crate) fn text(&self, fh: u64) -> Option<Arc<Vec<u8>>> {
        self.open.lock().get(&fh)?.text.clone()
    }

    /// The kernel has `inode` open as `fh`, a number that is [reserved](Self::reserve).
    pub fn restore(&self, fh: u64, inode: InodeRef) {
        self.add_as(fh, inode, None);
    }

    /// The kernel has something open as `fh`, which may be lost. The number is never reused: statements about the lost
    /// file would be taken for the new one.
    pub fn reserve(&self, fh: u64) {
        // Relaxed: only uniqueness matters.
        self.last.fetch_max(fh & !MAY_MAP, Ordering::Relaxed);
    }

    fn add(&self, inode: InodeRef, text: Option<Arc<Vec<u8>>>) -> u64 {
        // Relaxed: only uniqueness matters.
        let fh = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.add_as(fh, inode, text);
        fh
    }

    fn add_as(&self, fh: u64, inode: InodeRef, text: Option<Arc<Vec<u8>>>) {
        let (owners, waiting, flushed) = Default::default();
        let handle = OpenHandle { inode, owners, flock: None, waiting, flushed, text };
        self.open.lock().insert(fh, handle);
    }

    /// The owners that have locks through some handle, with the file.
    pub fn owners(&self) -> HashSet<(u64, u64)> {
        let open = self.open.lock();
        let of_one = |handle: &OpenHandle| {
            let owners = handle.owners.iter().chain(&handle.flock);
            owners.map(|&owner| (handle.inode.ino(), owner)).collect::<Vec<_>>()
        };
        open.values().flat_map(of_one).collect()
    }

    /// Releases everything but the locks of those in `kept`, which others look after.
    pub fn leave(&self, kept: &HashSet<(u64, u64)>) {
        let handles = std::mem::take(&mut *self.open.lock());
        for mut handle in handles.into_values() {
            let ino = handle.inode.ino();
            handle.owners.retain(|&owner| !kept.contains(&(ino, owner)));
            handle.flock.take_if(|owner| kept.contains(&(ino, *owner)));
            handle.unlock();
        }
    }

    /// Notes that `owner` was granted a byte range of `inode` through `fh`.
    pub(crate) fn note_owner(&self, fh: u64, inode: &InodeRef, owner: u64) -> Noted {
        self.noting(fh, inode, |handle| {
            if !handle.owners.contains(&owner) {
                handle.owners.push(owner);
            }
            if handle.flushed.contains(&owner) { Noted::Flushed } else { Noted::Open }
        })
    }

    /// Notes that `owner` was granted a flock of `inode` through `fh`.
    pub(crate) fn note_flock(&self, fh: u64, inode: &InodeRef, owner: u64) -> Noted {
        self.noting(fh, inode, |handle| {
            let is_its_own = *handle.flock.get_or_insert(owner) == owner;
            if is_its_own { Noted::Open } else { Noted::Unknown }
        })
    }

    fn noting(&self, fh: u64, inode: &InodeRef, note: impl FnOnce(&mut OpenHandle) -> Noted) -> Noted {
        if let Some(witness) = self.witness.get() {
            witness.granted(inode.ino());
        }
        match self.open.lock().get_mut(&fh) {
            Some(handle) if handle.inode.ino() == inode.ino() => note(handle),
            _ => Noted::Unknown,
        }
    }

    /// Remembers, until what is returned is dropped, that `owner` waits for a range through `fh`.
    pub(crate) fn wait(self: &Arc<Self>, fh: u64, owner: u64) -> WaitingOwner {
        if let Some(handle) = self.open.lock().get_mut(&fh) {
            handle.waiting.push(owner);
        }
        WaitingOwner { handles: self.clone(), fh, owner }
    }

    /// A process, `owner`, closed a descriptor of `fh`: its locks of the file that is returned end.
    pub fn flush(&self, fh: u64, owner: u64) -> Option<InodeRef> {
        let mut open = self.open.lock();
        let handle = open.get_mut(&fh)?;
        handle.owners.retain(|&other| other != owner);
        if !handle.flushed.contains(&owner) {
            handle.flushed.push_back(owner);
        }
        if handle.flushed.len() > FLUSHED_MAX + handle.waiting.len() {
            let oldest = handle.flushed.iter().position(|owner| !handle.waiting.contains(owner));
            oldest.and_then(|oldest| handle.flushed.remove(oldest));
        }
        Some(handle.inode.clone())
    }

    /// The last descriptor of `fh` was closed: its descriptions' locks end. Returns the inode's number.
    pub(crate) fn release(&self, fh: u64) -> Option<u64> {
        let handle = self.open.lock().remove(&fh)?;
        let ino = handle.inode.ino();
        handle.unlock();
        Some(ino)
    }

    /// All locks of file `ino` end, and are noted no more.
    pub fn unlock_file(&self, ino: u64) {
        let locked: Vec<_> = {
            let mut open = self.open.lock();
            let of_file = open.values_mut().filter(|handle| handle.inode.ino() == ino);
            let take = |handle: &mut OpenHandle| {
                (handle.inode.clone(), std::mem::take(&mut handle.owners), handle.flock.take())
            };
            of_file.map(take).collect()
        };
        locked.iter().for_each(|(inode, owners, flock)| unlock(inode, owners, *flock));
    }

    /// Releases everything: the kernel is gone.
    pub(crate) fn close_all(&self) {
        let handles = std::mem::take(&mut *self.open.lock());
        handles.into_values().for_each(|handle| handle.unlock());
    }

    /// The files that are open, by number.
    pub fn files(&self) -> HashSet<u64> {
        self.open.lock().values().map(|handle| handle.inode.ino()).collect()
    }

    /// How many files are open.
    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }
}

/// An owner that waits for a range through a handle.
pub(crate) struct WaitingOwner {
    handles: Arc<Handles>,
    fh: u64,
    owner: u64,
}

impl Drop for WaitingOwner {
    fn drop(&mut self) {
        if let Some(handle) = self.handles.open.lock().get_mut(&self.fh)
            && let Some(at) = handle.waiting.iter().position(|&owner| owner == self.owner)
        {
            handle.waiting.swap_remove(at);
        }
    }
}

impl OpenHandle {
    fn unlock(self) {
        unlock(&self.inode, &self.owners, self.flock);
    }
}

/// The locks of these owners end.
fn unlock(inode: &InodeRef, owners: &[u64], flock: Option<u64>) {
    for &owner in owners {
        inode.locks().release_owner(Owner::Process(owner));
    }
    if let Some(owner) = flock {
        inode.locks().release_flock(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_vfs::{Options, Superblock};

    fn handle() -> (Arc<Handles>, InodeRef, u64) {
        let (handles, inode) =
            (Arc::<Handles>::default(), Superblock::new(Options::default()).root().clone());
        let fh = handles.open(inode.clone());
        (handles, inode, fh)
    }

    #[test]
    fn a_grant_after_a_flush_of_its_owner_is_told_from_others() {
        let (handles, inode, fh) = handle();
        assert_eq!(handles.note_owner(fh, &inode, 1), Noted::Open);
        assert!(handles.flush(fh, 1).is_some());
        assert_eq!(handles.note_owner(fh, &inode, 1), Noted::Flushed);
        assert_eq!(handles.note_owner(fh, &inode, 2), Noted::Open);
        handles.release(fh);
        assert_eq!(handles.note_owner(fh, &inode, 2), Noted::Unknown);
        assert!(handles.flush(fh, 2).is_none());
    }

    #[test]
    fn a_flush_by_an_owner_that_waits_is_not_forgotten_over_those_of_others() {
        let (handles, inode, fh) = handle();
        let waiting = handles.wait(fh, 1);
        (1..1_000).for_each(|owner| drop(handles.flush(fh, owner)));
        assert_eq!(handles.note_owner(fh, &inode, 1), Noted::Flushed);
        assert_eq!(handles.note_owner(fh, &inode, 2), Noted::Open);
        assert!(handles.open.lock()[&fh].flushed.len() <= FLUSHED_MAX + 1);
        drop(waiting);
        (1_000..2_000).for_each(|owner| drop(handles.flush(fh, owner)));
        assert_eq!(handles.note_owner(fh, &inode, 1), Noted::Open);
        assert!(handles.open.lock()[&fh].waiting.is_empty());
    }

    #[test]
    fn a_handle_has_the_flock_of_one_owner() {
        let (handles, inode, fh) = handle();
        assert_eq!(handles.note_flock(fh, &inode, 1), Noted::Open);
        assert_eq!(handles.note_flock(fh, &inode, 2), Noted::Unknown);
        assert_eq!(handles.note_flock(fh, &inode, 1), Noted::Open);
    }
}
