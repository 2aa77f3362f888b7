//! Handles: the open files of a mount that serves locks itself, and which lock owners used each.
//!
//! # Theory
//! POSIX locks of a process end when it closes any descriptor of the file: FLUSH says so. OFD locks end with
//! the last close of their description: RELEASE. On the wire both look alike, an owner number and a range. But a
//! process that locks through a handle has it open, and FLUSHes it before the kernel RELEASEs it. So whoever
//! used a handle and has not flushed it when it is released was a description, and its locks end now.

use crate::lock_class::HANDLES;
use sluice_locks::Owner;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::{Arc, Mutex};
use sluice_vfs::InodeRef;
use std::collections::HashMap;

/// The open files of one mount. Number 0 is never given out: it stands for "no handle".
pub(crate) struct Handles {
    open: Mutex<HashMap<u64, Handle>>,
    /// The last number given out. *atomic (no label: only uniqueness matters)*
    last: AtomicU64,
}

impl Default for Handles {
    fn default() -> Self {
        Handles { open: Mutex::with_class(&HANDLES, HashMap::new()), last: AtomicU64::new(0) }
    }
}

struct Handle {
    inode: InodeRef,
    /// Owners that locked ranges through this handle and have not flushed it.
    owners: Vec<u64>,
    /// The owner that locked the whole file (flock).
    flock: Option<u64>,
    /// What reads see, if not the data of the inode.
    text: Option<Arc<Vec<u8>>>,
}

impl Handles {
    /// A number for a new open file of `inode`.
    pub(crate) fn open(&self, inode: InodeRef) -> u64 {
        self.add(Handle { inode, owners: Vec::new(), flock: None, text: None })
    }

    /// As [`open`](Self::open), for a file whose readers see `text`.
    pub(crate) fn open_text(&self, inode: InodeRef, text: Arc<Vec<u8>>) -> u64 {
        self.add(Handle { inode, owners: Vec::new(), flock: None, text: Some(text) })
    }

    /// What readers of `fh` see, if it was opened so.
    pub(crate) fn text(&self, fh: u64) -> Option<Arc<Vec<u8>>> {
        self.open.lock().get(&fh)?.text.clone()
    }

    fn add(&self, handle: Handle) -> u64 {
        // Relaxed: only uniqueness matters.
        let fh = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(fh, handle);
        fh
    }

    /// Notes that `owner` asks for a byte range through `fh`.
    pub(crate) fn note_owner(&self, fh: u64, owner: u64) {
        if let Some(handle) = self.open.lock().get_mut(&fh)
            && !handle.owners.contains(&owner)
        {
            handle.owners.push(owner);
        }
    }

    /// Notes that `owner` asks for a flock through `fh`.
    pub(crate) fn note_flock(&self, fh: u64, owner: u64) {
        if let Some(handle) = self.open.lock().get_mut(&fh) {
            handle.flock = Some(owner);
        }
    }

    /// A process, `owner`, closed a descriptor of `fh`.
    pub(crate) fn flush(&self, fh: u64, owner: u64) {
        if let Some(handle) = self.open.lock().get_mut(&fh) {
            handle.owners.retain(|&other| other != owner);
        }
    }

    /// The last descriptor of `fh` was closed: its descriptions' locks end.
    pub(crate) fn release(&self, fh: u64) {
        let handle = self.open.lock().remove(&fh);
        if let Some(handle) = handle {
            handle.unlock();
        }
    }

    /// Releases everything: the kernel is gone.
    pub(crate) fn close_all(&self) {
        let handles = std::mem::take(&mut *self.open.lock());
        handles.into_values().for_each(|handle| handle.unlock());
    }

    /// How many files are open.
    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }
}

impl Handle {
    fn unlock(self) {
        for owner in self.owners {
            self.inode.locks().release_owner(Owner::Process(owner));
        }
        if let Some(owner) = self.flock {
            self.inode.locks().release_flock(owner);
        }
    }
}
