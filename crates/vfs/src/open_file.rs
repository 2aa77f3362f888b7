//! OpenFile: an open file description: what descriptors point to and `dup` and `fork` share.

use crate::mount::Pinned;
use crate::{Errno, InodeRef, OpenFlags};
use sluice_locks::Owner;
use sluice_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_sync::{Arc, Mutex};

/// One open file description. It ends when the last descriptor that points to it is closed.
pub(crate) struct OpenFile {
    /// Identifies the owner of OFD locks and flocks. *Immutable.*
    pub(crate) id: u64,
    /// What is open, and through which mount. *Immutable.*
    pub(crate) location: Pinned,
    /// The login of the process that opened it. *Immutable.*
    pub(crate) login: u64,
    /// Access mode and status flags. *Atomic (independent bits).*
    flags: AtomicU32,
    /// Where the next read or write goes. *Protected by itself; held across that read or write.*
    pub(crate) cursor: Mutex<Cursor>,
}

/// The position in a file or directory.
#[derive(Default)]
pub(crate) struct Cursor {
    /// Byte offset in a file; position of the last entry read from a directory.
    pub(crate) position: u64,
}

impl OpenFile {
    pub(crate) fn new(location: Pinned, flags: OpenFlags, login: u64) -> Arc<OpenFile> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let flags = AtomicU32::new(flags.bits());
        Arc::new(OpenFile { id, location, login, flags, cursor: Mutex::new(Cursor::default()) })
    }

    pub(crate) fn flags(&self) -> OpenFlags {
        // Relaxed: the flags stand alone.
        OpenFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    /// Changes the flags that `F_SETFL` may change.
    pub(crate) fn set_status_flags(&self, flags: OpenFlags) {
        let changeable = OpenFlags::APPEND | OpenFlags::NONBLOCK | OpenFlags::DIRECT | OpenFlags::NOATIME;
        let new = (self.flags() - changeable) | (flags & changeable);
        self.flags.store(new.bits(), Ordering::Relaxed);
    }

    pub(crate) fn inode(&self) -> &InodeRef {
        &self.location.inode
    }

    /// # Errors
    /// `EBADF` for a descriptor that only names a place (`O_PATH`).
    pub(crate) fn check_opened(&self) -> Result<(), Errno> {
        if self.flags().contains(OpenFlags::PATH) { Err(Errno::EBADF) } else { Ok(()) }
    }

    /// # Errors
    /// `EBADF` when not open for reading.
    pub(crate) fn check_readable(&self) -> Result<(), Errno> {
        self.check_opened()?;
        if self.flags().readable() { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// # Errors
    /// `EBADF` when not open for writing.
    pub(crate) fn check_writable(&self) -> Result<(), Errno> {
        self.check_opened()?;
        if self.flags().writable() { Ok(()) } else { Err(Errno::EBADF) }
    }

    pub(crate) fn updates_atime(&self) -> bool {
        self.location.mount.updates_atime() && !self.flags().contains(OpenFlags::NOATIME)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(locks) = self.inode().locks_if_any() {
            locks.release_owner(Owner::Description(self.id));
            locks.release_flock(self.id);
        }
    }
}
