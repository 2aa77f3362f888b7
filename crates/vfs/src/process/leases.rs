//! Leases and delegations: a process is told before somebody else opens or changes a file.

use super::{Fd, LockType, Process, is_regular};
use crate::open_file::{OpenFile, Owned};
use crate::{Caps, Errno, OpenFlags};
use sluice_locks::{Breaking, Kind, LeaseRequest, Notice, Promise};

impl Process {
    /// Takes, changes or gives up a lease on the file (`F_SETLEASE`). `notice` is called when somebody opens or
    /// truncates the file against it; that call waits until the lease is given up or lessened, or its time is over.
    /// It ends with the open file.
    ///
    /// # Errors
    /// `EBADF`; `EACCES` when the file is another user's (without `LEASE`); `EINVAL` for anything but a regular file;
    /// `EAGAIN` when the file is open in a way that the lease excludes (a shared lease: for writing by anybody, by
    /// the process itself included; an exclusive one: by anybody else), or there is no lease to give up.
    pub fn fcntl_setlease(&self, fd: Fd, lease: LockType, notice: Notice) -> Result<(), Errno> {
        self.set_lease(fd, lease, Promise::Lease, notice)
    }

    /// The lease of the open file (`F_GETLEASE`); while it is being broken, what is to be left of it. A delegation
    /// is none.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn fcntl_getlease(&self, fd: Fd) -> Result<LockType, Errno> {
        self.lease_of(fd, Promise::Lease)
    }

    /// The delegation that the open file holds (`F_GETDELEG`); see [`fcntl_getlease`](Self::fcntl_getlease).
    ///
    /// # Errors
    /// `EBADF`.
    pub fn fcntl_getdeleg(&self, fd: Fd) -> Result<LockType, Errno> {
        self.lease_of(fd, Promise::Delegation)
    }

    fn lease_of(&self, fd: Fd, promise: Promise) -> Result<LockType, Errno> {
        let file = self.file(fd)?;
        file.check_opened()?;
        let lease = file.inode().locks_if_any().and_then(|locks| locks.lease_of(file.id(), promise));
        Ok(match lease {
            None => LockType::Unlock,
            Some(Kind::Shared) => LockType::Read,
            Some(Kind::Exclusive) => LockType::Write,
        })
    }

    /// Takes, changes or gives up a delegation of the open file (`F_SETDELEG`); see [`fcntl_setlease`](Self::fcntl_setlease). It
    /// is broken by changes of the file's attributes (extended ones included) and names, too, and whether others have the file
    /// open does not matter. A delegation of a directory can only be shared, and is broken by changes of names in it.
    ///
    /// # Errors
    /// Errors of [`fcntl_setlease`](Self::fcntl_setlease); `EINVAL` for an exclusive one on a directory.
    pub fn fcntl_setdeleg(&self, fd: Fd, lease: LockType, notice: Notice) -> Result<(), Errno> {
        self.set_lease(fd, lease, Promise::Delegation, notice)
    }

    fn set_lease(&self, fd: Fd, lease: LockType, promise: Promise, notice: Notice) -> Result<(), Errno> {
        let file = self.file(fd)?;
        file.check_opened()?;
        let inode = file.inode();
        if !inode.attr.read().owned_by(&self.cred) && !self.cred.has(Caps::LEASE) {
            return Err(Errno::EACCES);
        }
        let is_of_dir = inode.is_dir() && promise == Promise::Delegation && lease != LockType::Write;
        if !is_regular(inode) && !is_of_dir {
            return Err(Errno::EINVAL);
        }
        let kind = match lease {
            LockType::Unlock => {
                let gave_up = inode.locks_if_any().is_some_and(|locks| locks.unset_lease(file.id()));
                return if gave_up { Ok(()) } else { Err(Errno::EAGAIN) };
            }
            LockType::Read => Kind::Shared,
            LockType::Write => Kind::Exclusive,
        };
        let opens = &inode.shared.opens;
        opens.use_leases();
        file.becomes_owner(Owned::Ranges);
        let ino = inode.ino();
        let is_in_use = || match (promise, kind) {
            (Promise::Delegation, _) => false,
            (Promise::Lease, Kind::Shared) => opens.writers(ino) > 0,
            // The one is the holder's own.
            (Promise::Lease, Kind::Exclusive) => opens.readers(ino) + opens.writers(ino) > 1,
        };
        let request = LeaseRequest { owner: file.id(), pid: self.pid(), kind, promise };
        inode.locks().set_lease(&request, is_in_use, notice)?;
        file.keep_locks_while_open();
        Ok(())
    }

    /// To be called when `file` is open and counted, and before it is used: breaks the leases that this is against.
    ///
    /// # Errors
    /// `EAGAIN`, if the file is opened with `NONBLOCK` and a lease is in the way.
    pub(super) fn break_for_open(&self, file: &OpenFile, flags: OpenFlags) -> Result<(), Errno> {
        // By its access mode alone, as on Linux: `TRUNC` with `RDONLY` counts as reading.
        let kind = if flags.writable() { Kind::Exclusive } else { Kind::Shared };
        let may_wait = !flags.contains(OpenFlags::NONBLOCK);
        file.inode().break_leases(&self.cred, Breaking::Open(kind), may_wait)
    }
}
