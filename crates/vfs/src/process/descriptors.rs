//! Descriptors: small numbers for open files; close, dup and status flags.
//!
//! # Theory
//! A descriptor is a slot on a line of its own, and whether it is free is said by the slot alone. So calls on
//! different descriptors write no common line, closing them included; `open` looks at the slots from the lowest
//! that may be free up to the one that it takes, as the rule of the lowest number demands.
//!
//! Below `lowest` no slot is free. It is only a hint of where to begin, so it is raised rarely: by a call that
//! passed [`PASSED_MAX`] slots in use, which then looks at them again; and lowered by a call that frees a slot below it. Either
//! the second look finds the free slot, or the call that freed it finds the hint raised.

use super::{Process, is_regular};
use crate::open_file::OpenFile;
use crate::{Errno, InodeFlags, OpenFlags};
use sluice_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sluice_sync::{CachePadded, OnceLock, Ref, RefSlot, SlotTable};
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
const FD_LIMIT: u32 = 1 << 20;
/// How many slots a process has from the beginning on.
const FIRST: u32 = 8;
/// How many slots in use an `open` passes before it raises the hint.
const PASSED_MAX: u32 = 8;
const _: () = assert!(FIRST <= PASSED_MAX + 1, "of the first slots too few are passed to raise the hint");

/// The open files of a process, by descriptor.
pub(crate) struct FdTable {
    /// *Immutable.*
    owner: DescriptorOwner,
    /// The lowest slots.
    first: [CachePadded<DescriptorSlot>; FIRST as usize],
    /// The slots behind them, once one was asked for. *Set once.*
    further: OnceLock<Box<SlotTable<CachePadded<DescriptorSlot>>>>,
    /// No slot below this one is free. *Atomic (hint).*
    lowest: CachePadded<AtomicU32>,
}

/// Whose descriptors these are.
#[derive(Clone, Copy)]
pub(crate) struct DescriptorOwner {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// One descriptor.
#[derive(Default)]
struct DescriptorSlot {
    /// The open file description; empty while the slot is free.
    file: RefSlot<OpenFile>,
    /// *Atomic (stands alone).*
    close_on_exec: AtomicBool,
}

impl FdTable {
    pub(super) fn new(owner: DescriptorOwner) -> FdTable {
        let lowest = CachePadded::new(AtomicU32::new(0));
        FdTable { owner, first: Default::default(), further: OnceLock::new(), lowest }
    }

    /// Descriptors of the same numbers for the same files.
    pub(super) fn fork(&self, owner: DescriptorOwner) -> FdTable {
        let child = FdTable::new(owner);
        for (number, slot) in self.in_use() {
            if let Some(file) = slot.file.load()
                && file.share().is_ok()
            {
                let copy = child.slot(number);
                copy.file.replace(Some(file));
                copy.set_close_on_exec(slot.close_on_exec());
            }
        }
        child
    }

    pub(crate) fn owner(&self) -> DescriptorOwner {
        self.owner
    }

    /// The open files, in the order of their descriptors. A descriptor that is opened or closed meanwhile may be
    /// included.
    pub(crate) fn files(&self) -> impl Iterator<Item = (Fd, Ref<OpenFile>)> {
        self.in_use().filter_map(|(number, slot)| Some((Fd(number.cast_signed()), slot.file.load()?)))
    }

    /// The slots that are not empty. Most are, and a look costs less than a reference or an exchange.
    fn in_use(&self) -> impl Iterator<Item = (u32, &DescriptorSlot)> {
        let further = self.further.get().into_iter().flat_map(|slots| slots.numbered());
        let further = further.map(|(number, slot)| (FIRST + number, slot));
        let slots = (0..).zip(&self.first).chain(further).map(|(number, slot)| (number, &**slot));
        slots.filter(|(_, slot)| !slot.file.is_empty())
    }

    pub(super) fn get(&self, fd: Fd) -> Result<Ref<OpenFile>, Errno> {
        self.known_slot(fd)?.file.load().ok_or(Errno::EBADF)
    }

    /// Calls `look` with the open file of `fd`, which is borrowed and not counted: it must be over soon, and wait for nobody,
    /// see [`RefSlot::borrow`].
    #[inline]
    pub(super) fn borrow<R, E: From<Errno>>(
        &self,
        fd: Fd,
        look: impl FnOnce(&OpenFile) -> Result<R, E>,
    ) -> Result<R, E> {
        self.known_slot(fd)?.file.borrow(|file| look(file.ok_or(Errno::EBADF)?))
    }

    /// Whether `fd` is a descriptor for `file`.
    pub(super) fn holds(&self, fd: Fd, file: &Ref<OpenFile>) -> bool {
        self.known_slot(fd).is_ok_and(|slot| slot.file.holds(file))
    }

    fn slot(&self, number: u32) -> &DescriptorSlot {
        let further = || self.further.get_or_init(|| Box::new(SlotTable::new())).get(number - FIRST);
        self.first.get(number as usize).unwrap_or_else(further)
    }

    /// The slot of a number that was in use at some time.
    ///
    /// # Errors
    /// `EBADF`.
    fn known_slot(&self, fd: Fd) -> Result<&DescriptorSlot, Errno> {
        // A negative number is past all slots.
        let number = fd.0.cast_unsigned();
        let further = || self.further.get()?.peek(number - FIRST);
        self.first.get(number as usize).or_else(further).map(|slot| &**slot).ok_or(Errno::EBADF)
    }

    /// Puts `file` at the lowest free number that is at least `least`. Gives it back if there is none.
    fn insert_from(&self, least: u32, file: Ref<OpenFile>, close_on_exec: bool) -> Result<Fd, Ref<OpenFile>> {
        // SeqCst(hint): pairs with remove() and raise().
        let lowest = self.lowest.load(Ordering::SeqCst);
        let from = least.max(lowest);
        // Most processes have few files open. The hint is not raised for these.
        let first = (from..).zip(self.first.get(from as usize..).unwrap_or_default());
        let file = match fill_one_of(first.map(|(number, slot)| (number, &**slot)), file) {
            Ok((number, slot)) => {
                slot.set_close_on_exec(close_on_exec);
                return Ok(Fd(number.cast_signed()));
            }
            Err(file) => file,
        };
        let further = (from.max(FIRST)..FD_LIMIT).map(|number| (number, self.slot(number)));
        let (number, slot) = fill_one_of(further, file)?;
        slot.set_close_on_exec(close_on_exec);
        if from == lowest && number - from > PASSED_MAX {
            self.raise(lowest, number);
        }
        Ok(Fd(number.cast_signed()))
    }

    /// Raises the hint from `from` to `to`, between which no free slot was seen.
    #[cold]
    fn raise(&self, from: u32, to: u32) {
        // SeqCst(hint): a call that frees a slot from now on sees the new hint; what was freed before, we see.
        if self.lowest.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            && let Some(free) = (from..to).find(|number| self.slot(*number).file.is_empty())
        {
            self.lowest.fetch_min(free, Ordering::SeqCst);
        }
    }

    fn remove(&self, fd: Fd) -> Result<Ref<OpenFile>, Errno> {
        let slot = self.known_slot(fd)?;
        if slot.file.is_empty() {
            return Err(Errno::EBADF);
        }
        let file = slot.file.replace(None).ok_or(Errno::EBADF)?;
        let number = fd.0.cast_unsigned();
        // SeqCst(hint): pairs with raise(); the slot was emptied before.
        if number < self.lowest.load(Ordering::SeqCst) {
            self.lowest.fetch_min(number, Ordering::SeqCst);
        }
        Ok(file)
    }

    /// Empties all slots.
    pub(super) fn take_all(&self) -> impl Iterator<Item = Ref<OpenFile>> {
        self.in_use().filter_map(|(_, slot)| slot.file.replace(None))
    }
}

/// Puts `file` into the first of `slots` that is free, and returns that one. Gives it back if none is.
#[inline]
fn fill_one_of<'s>(
    slots: impl Iterator<Item = (u32, &'s DescriptorSlot)>,
    file: Ref<OpenFile>,
) -> Result<(u32, &'s DescriptorSlot), Ref<OpenFile>> {
    let mut file = file;
    for (number, slot) in slots {
        if !slot.file.is_empty() {
            continue;
        }
        match slot.file.fill(file) {
            Ok(()) => return Ok((number, slot)),
            Err(back) => file = back,
        }
    }
    Err(file)
}

impl DescriptorSlot {
    fn close_on_exec(&self) -> bool {
        // Relaxed: the flag stands alone.
        self.close_on_exec.load(Ordering::Relaxed)
    }

    fn set_close_on_exec(&self, close_on_exec: bool) {
        // Relaxed: as above. Unlike the file it changes rarely: look first.
        if self.close_on_exec() != close_on_exec {
            self.close_on_exec.store(close_on_exec, Ordering::Relaxed);
        }
    }
}

impl Process {
    pub(super) fn install(&self, file: Ref<OpenFile>, close_on_exec: bool) -> Result<Fd, Errno> {
        self.install_from(0, file, close_on_exec)
    }

    /// Gives `file`, which counts the descriptor already, a number from `least` on.
    fn install_from(&self, least: u32, file: Ref<OpenFile>, close_on_exec: bool) -> Result<Fd, Errno> {
        self.descriptors.insert_from(least, file, close_on_exec).map_err(|file| {
            file.close();
            Errno::EMFILE
        })
    }

    /// Closes `fd`. The process's POSIX locks on the file go, whichever descriptor they were taken through.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&self, fd: Fd) -> Result<(), Errno> {
        let file = self.descriptors.remove(fd)?;
        self.let_go(&file);
        Ok(())
    }

    /// The effect of closing a descriptor on its file.
    pub(super) fn let_go(&self, file: &OpenFile) {
        self.release_posix_locks(file);
        file.close();
    }

    /// Another descriptor, the lowest free one, for what `fd` is open on.
    ///
    /// # Errors
    /// `EBADF`, `EMFILE`.
    pub fn dup(&self, fd: Fd) -> Result<Fd, Errno> {
        self.dup_from(fd, 0)
    }

    /// The lowest free descriptor from `least` on, made a second descriptor for the file of `fd` (`F_DUPFD`).
    ///
    /// # Errors
    /// `EBADF`; `EMFILE`; `EINVAL` when `least` is negative or past the limit.
    pub fn dup_from(&self, fd: Fd, least: i32) -> Result<Fd, Errno> {
        let file = self.file(fd)?;
        let least = u32::try_from(least).ok().filter(|least| *least < FD_LIMIT).ok_or(Errno::EINVAL)?;
        file.share()?;
        let new = self.install_from(least, file, false)?;
        self.note_passing(new);
        Ok(new)
    }

    /// Makes `new` a second descriptor for the file of `fd`, and closes the old file of `new`.
    ///
    /// # Errors
    /// `EBADF` when `fd` is not open or `new` is out of range.
    pub fn dup2(&self, fd: Fd, new: Fd) -> Result<Fd, Errno> {
        let file = self.file(fd)?;
        if fd == new {
            return Ok(new);
        }
        let number = u32::try_from(new.0).ok().filter(|number| *number < FD_LIMIT).ok_or(Errno::EBADF)?;
        file.share()?;
        let slot = self.descriptors.slot(number);
        let closed = slot.file.replace(Some(file));
        slot.set_close_on_exec(false);
        if let Some(file) = closed {
            self.let_go(&file);
        }
        self.note_passing(new);
        Ok(new)
    }

    /// Tells a listing of open files what has got the descriptor `fd` besides others. If the descriptor belongs to
    /// another file by now, that file is listed instead.
    fn note_passing(&self, fd: Fd) {
        self.fs.mounts().processes().passed_on(|| self.file(fd).ok());
    }

    /// Access mode and status flags (`F_GETFL`).
    ///
    /// # Errors
    /// `EBADF`.
    pub fn fcntl_getfl(&self, fd: Fd) -> Result<OpenFlags, Errno> {
        self.borrow(fd, |file| Ok(file.flags()))
    }

    /// Sets the status flags `APPEND`, `NONBLOCK`, `DIRECT` and `NOATIME` as in `flags` (`F_SETFL`); other
    /// bits are ignored.
    ///
    /// # Errors
    /// `EBADF`; `EPERM` when `NOATIME` is asked for by a user that does not own the file; `EINVAL` for `DIRECT`
    /// on anything but a regular file.
    pub fn fcntl_setfl(&self, fd: Fd, flags: OpenFlags) -> Result<(), Errno> {
        let file = self.file(fd)?;
        file.check_opened()?;
        if (flags ^ file.flags()).contains(OpenFlags::APPEND) {
            file.inode().check_not(InodeFlags::APPEND)?;
        }
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
        let slot = self.descriptors.known_slot(fd)?;
        if slot.file.is_empty() { Err(Errno::EBADF) } else { Ok(slot.close_on_exec()) }
    }
}
