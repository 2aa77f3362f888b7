//! File locks: POSIX ranges, OFD ranges and flock, with their owners and close rules.

use super::{Fd, Process};
use crate::open_file::{OpenFile, Owned};
use crate::{Errno, Whence};
use sluice_locks::{Cancel, Kind, Owner, Range, RangeError, RangeRequest};

/// A byte-range lock as `fcntl` describes it (`struct flock`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLock {
    /// The kind to set, or the kind that was found.
    pub kind: LockType,
    /// From where `start` counts: `Set`, `Cur` or `End`.
    pub whence: Whence,
    /// First byte.
    pub start: i64,
    /// Number of bytes; 0 means to the end of the file however it grows; negative: the bytes before `start`.
    pub len: i64,
    /// Found locks only: the owner's [`Process::pid`], or -1 for an OFD lock.
    pub pid: i32,
}

/// The type of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LockType {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None: to remove, or nothing in the way.
    Unlock,
}

/// The operation of `flock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FlockOperation {
    /// Lock shared.
    Shared,
    /// Lock exclusively.
    Exclusive,
    /// Unlock.
    Unlock,
}

/// Whose lock a range lock is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Posix,
    Ofd,
}

impl FileLock {
    /// A lock of the whole file.
    pub fn whole(kind: LockType) -> FileLock {
        FileLock { kind, whence: Whence::Set, start: 0, len: 0, pid: 0 }
    }

    /// A lock of the `len` bytes from `start`.
    pub fn range(kind: LockType, start: i64, len: i64) -> FileLock {
        FileLock { kind, whence: Whence::Set, start, len, pid: 0 }
    }
}

impl Process {
    /// Which lock stands in the way of `lock`? Its `kind` is `Unlock` if none does (`F_GETLK`).
    ///
    /// # Errors
    /// `EBADF`, `EINVAL`, `EOVERFLOW`.
    pub fn fcntl_getlk(&self, fd: Fd, lock: &FileLock) -> Result<FileLock, Errno> {
        self.test_lock(fd, lock, Style::Posix)
    }

    /// Sets or removes a lock of this process without waiting (`F_SETLK`).
    ///
    /// # Errors
    /// `EAGAIN` when another owner's lock is in the way; `EBADF` (also: not open for what the lock means);
    /// `EINVAL`, `EOVERFLOW` (range), `ENOLCK`.
    pub fn fcntl_setlk(&self, fd: Fd, lock: &FileLock) -> Result<(), Errno> {
        self.set_lock(fd, lock, Style::Posix, None)
    }

    /// Sets or removes a lock of this process, waiting until the lock is free or `cancel` says to give up (`F_SETLKW`).
    ///
    /// # Errors
    /// Errors of [`fcntl_setlk`](Self::fcntl_setlk); `EDEADLK` when waiting would never end; `EINTR`, `ETIMEDOUT`.
    pub fn fcntl_setlkw(&self, fd: Fd, lock: &FileLock, cancel: &Cancel) -> Result<(), Errno> {
        self.set_lock(fd, lock, Style::Posix, Some(cancel))
    }

    /// The [`fcntl_getlk`](Self::fcntl_getlk) of the open file description's own locks (`F_OFD_GETLK`).
    ///
    /// # Errors
    /// Errors of [`fcntl_getlk`](Self::fcntl_getlk).
    pub fn ofd_getlk(&self, fd: Fd, lock: &FileLock) -> Result<FileLock, Errno> {
        self.test_lock(fd, lock, Style::Ofd)
    }

    /// The [`fcntl_setlk`](Self::fcntl_setlk) for locks that the open file description owns (`F_OFD_SETLK`).
    ///
    /// # Errors
    /// Errors of [`fcntl_setlk`](Self::fcntl_setlk).
    pub fn ofd_setlk(&self, fd: Fd, lock: &FileLock) -> Result<(), Errno> {
        self.set_lock(fd, lock, Style::Ofd, None)
    }

    /// Sets or removes a lock of the open file description, waiting until the lock is free or `cancel` says to give up
    /// (`F_OFD_SETLKW`). Deadlocks are not detected.
    ///
    /// # Errors
    /// Errors of [`fcntl_setlkw`](Self::fcntl_setlkw), `EDEADLK` excepted.
    pub fn ofd_setlkw(&self, fd: Fd, lock: &FileLock, cancel: &Cancel) -> Result<(), Errno> {
        self.set_lock(fd, lock, Style::Ofd, Some(cancel))
    }

    /// Locks or unlocks the whole file on behalf of the open file description, without waiting.
    ///
    /// # Errors
    /// `EBADF`; `EAGAIN` when another description's lock is in the way: a lock that was to be converted is
    /// then lost, as on Linux; `ENOLCK`.
    pub fn flock(&self, fd: Fd, operation: FlockOperation) -> Result<(), Errno> {
        self.flock_file(fd, operation, None)
    }

    /// Takes a [`flock`](Self::flock), waiting until the lock is free or `cancel` ends the wait.
    ///
    /// # Errors
    /// `EBADF`, `EINTR`, `ETIMEDOUT`, `ENOLCK`.
    pub fn flock_wait(&self, fd: Fd, operation: FlockOperation, cancel: &Cancel) -> Result<(), Errno> {
        self.flock_file(fd, operation, Some(cancel))
    }

    fn flock_file(&self, fd: Fd, operation: FlockOperation, wait: Option<&Cancel>) -> Result<(), Errno> {
        let file = self.file(fd)?;
        file.check_opened()?;
        let kind = match operation {
            FlockOperation::Shared => Kind::Shared,
            FlockOperation::Exclusive => Kind::Exclusive,
            FlockOperation::Unlock => {
                if file.may_own(Owned::Flock)
                    && let Some(locks) = file.inode().locks_if_any()
                {
                    locks.unlock_flock(file.id());
                }
                return Ok(());
            }
        };
        if !file.flags().readable() && !file.flags().writable() {
            return Err(Errno::EBADF);
        }
        file.becomes_owner(Owned::Flock);
        let (id, locks) = (file.id(), file.inode().locks());
        match wait {
            None => locks.set_flock(id, self.pid(), kind)?,
            Some(cancel) => locks.set_flock_wait(id, self.pid(), kind, cancel)?,
        }
        file.keep_locks_while_open();
        Ok(())
    }

    fn owner(&self, file: &OpenFile, style: Style) -> Owner {
        match style {
            Style::Posix => Owner::Process(self.id),
            Style::Ofd => Owner::Description(file.id()),
        }
    }

    /// False if the process certainly has no lock of the file in this style: then the file's locks need not be
    /// searched.
    fn may_own(&self, file: &OpenFile, style: Style) -> bool {
        match style {
            Style::Posix => self.lock_notes.has(file.inode()),
            Style::Ofd => file.may_own(Owned::Ranges),
        }
    }

    fn test_lock(&self, fd: Fd, lock: &FileLock, style: Style) -> Result<FileLock, Errno> {
        let file = self.file(fd)?;
        file.check_opened()?;
        let kind = kind_of(lock.kind);
        if kind.is_none() && style == Style::Posix {
            return Err(Errno::EINVAL);
        }
        check_ofd_pid(lock, style)?;
        let range = range_of(&file, lock)?;
        let owner = self.owner(&file, style);
        let found = file.inode().locks_if_any().and_then(|locks| match kind {
            Some(kind) => locks.test_range(&RangeRequest { owner, pid: self.pid(), kind, range }),
            // Linux: a description may ask for its own locks.
            None => locks.test_own_range(owner, range),
        });
        Ok(match found {
            None => FileLock { kind: LockType::Unlock, ..*lock },
            Some(held) => {
                let kind = if held.kind == Kind::Shared { LockType::Read } else { LockType::Write };
                let (start, len) = held.range.to_flock();
                FileLock { kind, whence: Whence::Set, start, len, pid: held.pid }
            }
        })
    }

    fn set_lock(&self, fd: Fd, lock: &FileLock, style: Style, wait: Option<&Cancel>) -> Result<(), Errno> {
        let file = self.file(fd)?;
        file.check_opened()?;
        let range = range_of(&file, lock)?;
        check_ofd_pid(lock, style)?;
        let owner = self.owner(&file, style);
        let Some(kind) = kind_of(lock.kind) else {
            if self.may_own(&file, style)
                && let Some(locks) = file.inode().locks_if_any()
            {
                locks.unlock_range(owner, range)?;
            }
            return Ok(());
        };
        match kind {
            Kind::Shared => file.check_readable()?,
            Kind::Exclusive => file.check_writable()?,
        }
        let pid = if style == Style::Posix { self.pid() } else { -1 };
        let request = RangeRequest { owner, pid, kind, range };
        if style == Style::Ofd {
            file.becomes_owner(Owned::Ranges);
        }
        let locks = file.inode().locks();
        locks.set_range_noting(&request, wait, || {
            if style == Style::Posix {
                self.lock_notes.note(file.inode());
            }
        })?;
        // SeqCst(note), in holds(): after the grant; pairs with the removal of the descriptor by a close.
        if style == Style::Posix && !self.descriptors.holds(fd, &file) {
            // Another thread closed the descriptor meanwhile and released what was there then.
            self.release_posix_locks(&file);
            return Err(Errno::EBADF);
        }
        if style == Style::Ofd {
            file.keep_locks_while_open();
        }
        Ok(())
    }

    /// The POSIX rule: any close of a file by a process releases all its range locks there. A descriptor that
    /// only names a place (`PATH`) never opened the file.
    #[inline]
    pub(super) fn release_posix_locks(&self, file: &OpenFile) {
        if self.may_own(file, Style::Posix) {
            self.release_noted_locks(file);
        }
    }

    #[inline(never)]
    fn release_noted_locks(&self, file: &OpenFile) {
        if let Some(locks) = file.inode().locks_if_any()
            && file.check_opened().is_ok()
        {
            locks.release_owner_noting(Owner::Process(self.id), || self.lock_notes.forget(file.inode()));
        }
    }
}

fn kind_of(lock_type: LockType) -> Option<Kind> {
    match lock_type {
        LockType::Read => Some(Kind::Shared),
        LockType::Write => Some(Kind::Exclusive),
        LockType::Unlock => None,
    }
}

fn check_ofd_pid(lock: &FileLock, style: Style) -> Result<(), Errno> {
    if style == Style::Ofd && lock.pid != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

fn range_of(file: &OpenFile, lock: &FileLock) -> Result<Range, Errno> {
    let base = match lock.whence {
        Whence::Set => 0,
        Whence::Cur => file.cursor.hold().position().cast_signed(),
        Whence::End => file.inode().size().cast_signed(),
        Whence::Data | Whence::Hole => return Err(Errno::EINVAL),
    };
    Range::from_flock(base, lock.start, lock.len).map_err(|error| match error {
        RangeError::Invalid => Errno::EINVAL,
        RangeError::Overflow => Errno::EOVERFLOW,
    })
}
