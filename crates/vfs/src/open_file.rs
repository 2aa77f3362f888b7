//! OpenFile: an open file description: what descriptors point to and `dup` and `fork` share.
//!
//! # Theory
//! A description has two ends. When the last *descriptor* is closed it gives back what others wait for: its locks,
//! and its place among the users of its mount. Its memory, and the inode that it holds, go with the last
//! *reference*, since a call on another thread may be using it still. Calls take references, which write no shared
//! line; only opening, duplicating and closing count descriptors. Calls that are over soon and wait for nobody do not even
//! take one: they *borrow* the description from its descriptor ([`RefSlot::borrow`](sluice_sync::RefSlot::borrow)), and
//! where they would have to wait they give up and begin again with a reference.

use crate::cursor::Cursor;
use crate::mount::{Location, MountTable};
use crate::{Errno, InodeRef, OpenFlags};
use sluice_locks::Owner;
use sluice_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sluice_sync::{Gap, Ref, name_fields};
use std::ptr;

/// One open file description. Fields that each call reads, that `dup` and `close` change, that a first lock changes and
/// that move the position lie on separate cache lines.
#[repr(C)]
pub(crate) struct OpenFile {
    /// The file that is open, and its mount. *Immutable.*
    pub(crate) location: Location,
    /// The login of the process that opened it. *Immutable.*
    pub(crate) login: u64,
    /// Access mode and status flags. *Atomic (independent bits).*
    flags: AtomicU32,
    /// The last descriptor was closed. *Atomic (end).*
    ended: AtomicBool,
    _who_uses_it: Gap<19>,
    /// How many descriptors point here; 0 for ever after the last. *Atomic (stands alone).*
    descriptors: AtomicU32,
    _who_shares_it: Gap<60>,
    /// It has asked for an OFD lock or a lease. *Atomic (end), set once.*
    may_own_ranges: AtomicBool,
    _who_locks_ranges: Gap<63>,
    /// It has asked for a flock. *Atomic (end), set once.*
    may_own_flock: AtomicBool,
    _who_locks_all: Gap<63>,
    /// Where the next read or write goes. *Protected by itself; held across that read or write.*
    pub(crate) cursor: Cursor,
}

impl OpenFile {
    /// A description for one descriptor, which need not exist yet: see [`close`](Self::close).
    ///
    /// # Errors
    /// `ESTALE` when the mount was taken away since it was found.
    pub(crate) fn new(
        mounts: &MountTable,
        location: Location,
        flags: OpenFlags,
        login: u64,
    ) -> Result<Ref<OpenFile>, Errno> {
        mounts.enter_service(&location.mount)?;
        if is_counted(flags) {
            location.inode.shared.opens.opened(location.inode.ino(), flags.writable());
        }
        let file = Ref::new_with(|| OpenFile {
            location,
            login,
            flags: AtomicU32::new(flags.bits()),
            ended: AtomicBool::new(false),
            _who_uses_it: Gap::new(),
            descriptors: AtomicU32::new(1),
            _who_shares_it: Gap::new(),
            may_own_ranges: AtomicBool::new(false),
            _who_locks_ranges: Gap::new(),
            may_own_flock: AtomicBool::new(false),
            _who_locks_all: Gap::new(),
            cursor: Cursor::new(),
        });
        name_fields!(
            file,
            OpenFile { location, login, flags, ended, descriptors, may_own_ranges, may_own_flock, cursor }
        );
        Ok(file)
    }

    /// Counts another descriptor.
    ///
    /// # Errors
    /// `EBADF` when the last one was closed already.
    pub(crate) fn share(&self) -> Result<(), Errno> {
        let one_more = |count: u32| (count != 0).then_some(count + 1);
        // Relaxed: a descriptor publishes nothing.
        match self.descriptors.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::EBADF),
        }
    }

    /// Counts one descriptor less. The last gives back the locks and leaves the mount.
    pub(crate) fn close(&self) {
        // Relaxed: a descriptor publishes nothing.
        if self.descriptors.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SeqCst(end): either a thread that was given a lock sees this in keep_locks_while_open(), or we see its lock.
            self.ended.store(true, Ordering::SeqCst);
            self.release_locks();
            let flags = self.flags();
            if is_counted(flags) {
                self.inode().shared.opens.closed(self.inode().ino(), flags.writable());
            }
            self.location.mount.leave();
        }
    }

    /// Whether the last descriptor was closed.
    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: a descriptor publishes nothing.
        self.descriptors.load(Ordering::Relaxed) == 0
    }

    /// To be called after a lock was granted to this description: gives it back if the last descriptor was closed
    /// meanwhile, as the caller's own reference to the file would in a kernel.
    pub(crate) fn keep_locks_while_open(&self) {
        // SeqCst(end): pairs with close().
        if self.ended.load(Ordering::SeqCst) {
            self.release_locks();
        }
    }

    fn release_locks(&self) {
        let Some(locks) = self.inode().locks_if_any() else { return };
        let id = self.id();
        if self.may_own(Owned::Ranges) {
            locks.release_owner(Owner::Description(id));
            locks.unset_lease(id);
        }
        if self.may_own(Owned::Flock) {
            locks.release_flock(id);
        }
    }

    /// The id of the description as an owner of locks: its address, which stays unique while the description may have
    /// locks. A number from a counter would be a line that every open or lock writes.
    pub(crate) fn id(&self) -> u64 {
        ptr::from_ref(self).addr() as u64
    }

    /// To be called before a lock is asked for in the name of the description.
    pub(crate) fn becomes_owner(&self, of: Owned) {
        // SeqCst(end): pairs with may_own() in a close: if that sees false, a lock that is granted later is given
        // back at once. Once set, it is only read.
        if !self.may_own(of) {
            self.owned(of).store(true, Ordering::SeqCst);
        }
    }

    /// False if the description never asked for a lock of that kind.
    pub(crate) fn may_own(&self, of: Owned) -> bool {
        // SeqCst(end): pairs with becomes_owner().
        self.owned(of).load(Ordering::SeqCst)
    }

    fn owned(&self, of: Owned) -> &AtomicBool {
        match of {
            Owned::Ranges => &self.may_own_ranges,
            Owned::Flock => &self.may_own_flock,
        }
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

/// Kinds of locks that an open file description can own on a file. The two know nothing of each other, down to the
/// line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owned {
    /// OFD locks and leases.
    Ranges,
    Flock,
}

/// Whether a description with these flags has its file open, and does not only name a place.
fn is_counted(flags: OpenFlags) -> bool {
    !flags.contains(OpenFlags::PATH)
}
