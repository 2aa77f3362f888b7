//! Descriptors: small numbers for open files; close, dup and status flags.

use super::{Process, is_regular};
use crate::open_file::OpenFile;
use crate::{Errno, OpenFlags};
use sluice_sync::Arc;
use std::fmt;

/// A file descriptor of one [`Process`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct Fd(pub i32);

impl Fd {
    /// In place of a directory descriptor: the working directory (`AT_FDCWD`).
    pub const CWD: Fd = Fd(-100);
}

impl fmt::Display for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The most descriptors of one process.
const FD_LIMIT: usize = 1 << 20;

/// What each descriptor of a process points to.
#[derive(Clone, Default)]
pub(super) struct FdTable {
    slots: Vec<Option<Slot>>,
    /// No slot below this one is free.
    lowest_free: usize,
}

#[derive(Clone)]
struct Slot {
    file: Arc<OpenFile>,
    close_on_exec: bool,
}

impl FdTable {
    pub(super) fn get(&self, fd: Fd) -> Result<Arc<OpenFile>, Errno> {
        self.slot(fd).map(|slot| slot.file.clone())
    }

    fn slot(&self, fd: Fd) -> Result<&Slot, Errno> {
        let index = usize::try_from(fd.0).map_err(|_| Errno::EBADF)?;
        self.slots.get(index).and_then(Option::as_ref).ok_or(Errno::EBADF)
    }

    /// Puts `file` at the lowest free number that is at least `least`.
    fn insert_from(&mut self, least: usize, file: Arc<OpenFile>, close_on_exec: bool) -> Result<Fd, Errno> {
        let from = least.max(self.lowest_free);
        let taken = self.slots.iter().skip(from).take_while(|slot| slot.is_some()).count();
        let index = from + taken;
        if index >= FD_LIMIT {
            return Err(Errno::EMFILE);
        }
        self.put(index, Slot { file, close_on_exec });
        if least <= self.lowest_free {
            self.lowest_free = index + 1;
        }
        Ok(Fd(index as i32))
    }

    fn put(&mut self, index: usize, slot: Slot) -> Option<Slot> {
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        self.slots[index].replace(slot)
    }

    fn remove(&mut self, fd: Fd) -> Result<Arc<OpenFile>, Errno> {
        let index = usize::try_from(fd.0).map_err(|_| Errno::EBADF)?;
        let slot = self.slots.get_mut(index).and_then(Option::take).ok_or(Errno::EBADF)?;
        self.lowest_free = self.lowest_free.min(index);
        Ok(slot.file)
    }

    pub(super) fn into_files(self) -> impl Iterator<Item = Arc<OpenFile>> {
        self.slots.into_iter().flatten().map(|slot| slot.file)
    }
}

impl Process {
    pub(super) fn install(&self, file: Arc<OpenFile>, close_on_exec: bool) -> Result<Fd, Errno> {
        self.descriptors.lock().insert_from(0, file, close_on_exec)
    }

    /// Closes `fd`. The process's POSIX locks on the file go, whichever descriptor they were taken through.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&self, fd: Fd) -> Result<(), Errno> {
        let file = self.descriptors.lock().remove(fd)?;
        self.release_posix_locks(&file);
        Ok(())
    }

    /// Another descriptor, the lowest free one, for what `fd` is open on.
    ///
    /// # Errors
    /// `EBADF`, `EMFILE`.
    pub fn dup(&self, fd: Fd) -> Result<Fd, Errno> {
        self.dup_from(fd, 0)
    }

    /// As [`dup`](Self::dup), at `least` or above (`F_DUPFD`).
    ///
    /// # Errors
    /// `EBADF`; `EMFILE`; `EINVAL` when `least` is negative or past the limit.
    pub fn dup_from(&self, fd: Fd, least: i32) -> Result<Fd, Errno> {
        let mut table = self.descriptors.lock();
        let file = table.get(fd)?;
        let least = usize::try_from(least).ok().filter(|least| *least < FD_LIMIT).ok_or(Errno::EINVAL)?;
        table.insert_from(least, file, false)
    }

    /// Makes `new` a descriptor for what `fd` is open on, closing what it was before.
    ///
    /// # Errors
    /// `EBADF` when `fd` is not open or `new` is out of range.
    pub fn dup2(&self, fd: Fd, new: Fd) -> Result<Fd, Errno> {
        let mut table = self.descriptors.lock();
        let file = table.get(fd)?;
        if fd == new {
            return Ok(new);
        }
        let index = usize::try_from(new.0).ok().filter(|index| *index < FD_LIMIT).ok_or(Errno::EBADF)?;
        let closed = table.put(index, Slot { file, close_on_exec: false });
        while table.slots.get(table.lowest_free).is_some_and(Option::is_some) {
            table.lowest_free += 1;
        }
        drop(table);
        if let Some(slot) = closed {
            self.release_posix_locks(&slot.file);
        }
        Ok(new)
    }

    /// Access mode and status flags (`F_GETFL`).
    ///
    /// # Errors
    /// `EBADF`.
    pub fn fcntl_getfl(&self, fd: Fd) -> Result<OpenFlags, Errno> {
        Ok(self.file(fd)?.flags())
    }

    /// Sets the status flags `APPEND`, `NONBLOCK`, `DIRECT` and `NOATIME` as in `flags` (`F_SETFL`); other
    /// bits are ignored.
    ///
    /// # Errors
    /// `EBADF`; `EPERM` when `NOATIME` is asked for by somebody who does not own the file; `EINVAL` for `DIRECT`
    /// on anything but a regular file.
    pub fn fcntl_setfl(&self, fd: Fd, flags: OpenFlags) -> Result<(), Errno> {
        let file = self.file(fd)?;
        file.check_opened()?;
        let adds_noatime = flags.contains(OpenFlags::NOATIME) && !file.flags().contains(OpenFlags::NOATIME);
        if adds_noatime && !file.inode().attr.read().owned_by(&self.cred) {
            return Err(Errno::EPERM);
        }
        if flags.contains(OpenFlags::DIRECT) && !is_regular(file.inode()) {
            return Err(Errno::EINVAL);
        }
        file.set_status_flags(flags);
        Ok(())
    }

    /// Whether `fd` is closed on exec (`F_GETFD`). Kept for programs that ask; a library has no exec.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn fcntl_getfd(&self, fd: Fd) -> Result<bool, Errno> {
        self.descriptors.lock().slot(fd).map(|slot| slot.close_on_exec)
    }
}
