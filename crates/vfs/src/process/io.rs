//! Reading, writing and positioning through descriptors.

use super::{Fd, Process, is_regular};
use crate::at_once::{AtOnce, WouldWait, or_waiting};
use crate::cursor::HeldCursor;
use crate::data::PAGE_SIZE;
use crate::inode::flag;
use crate::open_file::OpenFile;
use crate::{Access, Errno, FILE_SIZE_MAX, FallocateMode, FileType, InodeRef, OpenFlags, Whence};
use sluice_locks::{Breaking, Kind};
use std::path::Path;

/// A read of at most so many bytes borrows the open file, and keeps others from what they may need of the thread so long.
const BORROWED_MAX: usize = 4 * PAGE_SIZE;

impl Process {
    /// Reads at the descriptor's position and moves it. Fewer bytes than asked for mean the end of the file.
    ///
    /// # Errors
    /// `EBADF`, `EISDIR`.
    pub fn read(&self, fd: Fd, buf: &mut [u8]) -> Result<usize, Errno> {
        self.read_moving(fd, &mut [buf])
    }

    /// Reads into several buffers in sequence, in a single read; see [`read`](Self::read).
    ///
    /// # Errors
    /// Errors of [`read`](Self::read).
    pub fn readv(&self, fd: Fd, bufs: &mut [&mut [u8]]) -> Result<usize, Errno> {
        if nothing_asked(bufs) {
            return self.borrow(fd, |file| file.check_readable().map(|()| 0));
        }
        self.read_moving(fd, bufs)
    }

    fn read_moving(&self, fd: Fd, bufs: &mut [&mut [u8]]) -> Result<usize, Errno> {
        if let [one] = bufs
            && one.len() <= BORROWED_MAX
        {
            let at_once = self.descriptors.borrow(fd, |file| read_moving_at_once(file, one));
            return or_waiting(at_once, || self.read_moving_waiting(fd, bufs));
        }
        self.read_moving_waiting(fd, bufs)
    }

    fn read_moving_waiting(&self, fd: Fd, bufs: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let file = self.file(fd)?;
        file.check_readable()?;
        if at_end(&file, bufs.iter().map(|buf| buf.len()).sum())? {
            return Ok(0);
        }
        let cursor = file.cursor.hold();
        let read = self.read_into(&file, cursor.position(), bufs)?;
        cursor.move_to(cursor.position() + read as u64);
        Ok(read)
    }

    /// Reads at `offset`, leaving the position alone.
    ///
    /// # Errors
    /// Errors of [`read`](Self::read); `EINVAL` for a negative offset.
    pub fn pread(&self, fd: Fd, buf: &mut [u8], offset: i64) -> Result<usize, Errno> {
        self.read_at(fd, &mut [buf], offset, false)
    }

    /// Reads at `offset` into several buffers in sequence; see [`pread`](Self::pread).
    ///
    /// # Errors
    /// Errors of [`pread`](Self::pread).
    pub fn preadv(&self, fd: Fd, bufs: &mut [&mut [u8]], offset: i64) -> Result<usize, Errno> {
        self.read_at(fd, bufs, offset, nothing_asked(bufs))
    }

    fn read_at(&self, fd: Fd, bufs: &mut [&mut [u8]], offset: i64, nothing: bool) -> Result<usize, Errno> {
        let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        if let [one] = bufs
            && one.len() <= BORROWED_MAX
            && !nothing
        {
            let at_once = self.descriptors.borrow(fd, |file| read_at_once(file, offset, one));
            return or_waiting(at_once, || self.read_into_waiting(fd, offset, bufs));
        }
        if nothing {
            return self.borrow(fd, |file| file.check_readable().map(|()| 0));
        }
        self.read_into_waiting(fd, offset, bufs)
    }

    fn read_into_waiting(&self, fd: Fd, offset: u64, bufs: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let file = self.file(fd)?;
        file.check_readable()?;
        self.read_into(&file, offset, bufs)
    }

    /// Reads as one operation: several buffers see one state of the file.
    fn read_into(&self, file: &OpenFile, offset: u64, bufs: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let (inode, update_atime) = (file.inode(), file.updates_atime());
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        check_span(offset, len)?;
        inode.write_back_caches(self.cred.via, offset..offset + len as u64);
        if let [one] = bufs {
            return inode.read_at(offset, one, update_atime);
        }
        let mut joined = vec![0; len];
        let read = inode.read_at(offset, &mut joined, update_atime)?;
        let mut rest = &joined[..read];
        for buf in bufs {
            let (now, later) = rest.split_at(rest.len().min(buf.len()));
            buf[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(read)
    }

    /// Writes at the descriptor's position (with `APPEND`: at the end of the file) and moves it.
    ///
    /// # Errors
    /// `EBADF`, `EFBIG`, `ENOSPC`.
    pub fn write(&self, fd: Fd, data: &[u8]) -> Result<usize, Errno> {
        let file = self.file(fd)?;
        file.check_writable()?;
        let cursor = file.cursor.hold();
        let position = cursor.position();
        check_span(position, data.len())?;
        if file.flags().contains(OpenFlags::APPEND) {
            let (offset, written) = file.inode().append(&self.cred, data)?;
            if written > 0 {
                cursor.move_to(offset + written as u64);
            }
            return sync_if_asked(&file, written);
        }
        let written = file.inode().write_at(&self.cred, position, data)?;
        cursor.move_to(position + written as u64);
        sync_if_asked(&file, written)
    }

    /// Writes several buffers in sequence, in a single write; see [`write`](Self::write).
    ///
    /// # Errors
    /// Errors of [`write`](Self::write).
    pub fn writev(&self, fd: Fd, bufs: &[&[u8]]) -> Result<usize, Errno> {
        match bufs {
            [one] => self.write(fd, one),
            _ => self.write(fd, &bufs.concat()),
        }
    }

    /// Writes at `offset`, leaving the position alone. With `APPEND` the data goes to the end of the file
    /// all the same, as on Linux.
    ///
    /// # Errors
    /// Errors of [`write`](Self::write); `EINVAL` for a negative offset.
    pub fn pwrite(&self, fd: Fd, data: &[u8], offset: i64) -> Result<usize, Errno> {
        let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let file = self.file(fd)?;
        file.check_writable()?;
        check_span(offset, data.len())?;
        if file.flags().contains(OpenFlags::APPEND) {
            let (_, written) = file.inode().append(&self.cred, data)?;
            return sync_if_asked(&file, written);
        }
        sync_if_asked(&file, file.inode().write_at(&self.cred, offset, data)?)
    }

    /// Writes several buffers in sequence at `offset`; see [`pwrite`](Self::pwrite).
    ///
    /// # Errors
    /// Errors of [`pwrite`](Self::pwrite).
    pub fn pwritev(&self, fd: Fd, bufs: &[&[u8]], offset: i64) -> Result<usize, Errno> {
        match bufs {
            [one] => self.pwrite(fd, one, offset),
            _ => self.pwrite(fd, &bufs.concat(), offset),
        }
    }

    /// Moves the position; returns the new one. On a directory positions are those that
    /// [`getdents`](Self::getdents) returned, and 0.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` (before the start, or past the largest offset); `ENXIO` (`Data` and `Hole` past the
    /// end, or no data left).
    pub fn lseek(&self, fd: Fd, offset: i64, whence: Whence) -> Result<u64, Errno> {
        self.use_file(
            fd,
            |file| seek_at_once(file, offset, whence),
            |file| match seek_in_place(file, offset, whence)? {
                Some(at) => Ok(at),
                None => seek_holding(file, &file.cursor.hold(), offset, whence),
            },
        )
    }

    /// Makes the file at `path` `size` bytes long.
    ///
    /// # Errors
    /// `EINVAL` (negative, or not a regular file), `EISDIR`, `EACCES`, `EFBIG`, `EROFS`.
    pub fn truncate(&self, path: impl AsRef<Path>, size: i64) -> Result<(), Errno> {
        let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
        let location = self.resolve(Fd::CWD, path.as_ref(), true)?;
        match location.inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        location.mount.check_writable()?;
        location.inode.access(&self.cred, Access::WRITE)?;
        location.inode.break_leases(&self.cred, Breaking::Open(Kind::Exclusive), true)?;
        location.inode.truncate(&self.cred, size)
    }

    /// Makes the open file `size` bytes long.
    ///
    /// # Errors
    /// `EINVAL` (negative, not a regular file, or not open for writing), `EBADF`, `EFBIG`.
    pub fn ftruncate(&self, fd: Fd, size: i64) -> Result<(), Errno> {
        let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
        let file = self.file(fd)?;
        file.check_opened()?;
        if !is_regular(file.inode()) || !file.flags().writable() {
            return Err(Errno::EINVAL);
        }
        file.inode().truncate(&self.cred, size)
    }

    /// Reserves, frees, zeroes, removes or inserts space; see [`Inode::fallocate`](crate::InodeRef::fallocate).
    ///
    /// # Errors
    /// Errors of [`Inode::fallocate`](crate::InodeRef::fallocate); `EBADF` when not open for writing.
    pub fn fallocate(&self, fd: Fd, mode: FallocateMode, offset: i64, len: i64) -> Result<(), Errno> {
        let file = self.file(fd)?;
        file.check_opened()?;
        let (Ok(offset), Ok(len)) = (u64::try_from(offset), u64::try_from(len)) else {
            return Err(Errno::EINVAL);
        };
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        crate::ops::io::check_fallocate_mode(mode)?;
        file.check_writable()?;
        file.inode().fallocate(&self.cred, mode, offset, len)
    }

    /// Makes the file durable, contents included that a mount's kernel has not written back. Memory is as durable as it gets; a
    /// durable file system makes all durable that was done before.
    ///
    /// # Errors
    /// `EBADF`; `EIO` and others of the store's disk.
    pub fn fsync(&self, fd: Fd) -> Result<(), Errno> {
        let in_memory =
            |file: &OpenFile| !file.inode().has(flag::CACHED) && file.inode().shared.has_no_hooks();
        if self.borrow(fd, |file| file.check_opened().map(|()| in_memory(file)))? {
            return Ok(());
        }
        let file = self.file(fd)?;
        file.inode().write_back_caches(self.cred.via, 0..u64::MAX);
        file.inode().sync()
    }

    /// The [`fsync`](Self::fsync) of data and of the metadata needed to read it.
    ///
    /// # Errors
    /// Errors of [`fsync`](Self::fsync).
    pub fn fdatasync(&self, fd: Fd) -> Result<(), Errno> {
        self.fsync(fd)
    }

    /// Makes everything durable, in every file system of the tree. As with sync(2), errors are told to callers that ask
    /// about one file.
    pub fn sync(&self) {
        let _ = self.fs.sync();
    }

    /// Makes everything durable in the file system of the open file.
    ///
    /// # Errors
    /// Errors of [`fsync`](Self::fsync).
    pub fn syncfs(&self, fd: Fd) -> Result<(), Errno> {
        self.file(fd)?.inode().sync_all()
    }

    /// Copies up to `len` bytes from one open file to another, or within one, without passing them through
    /// the caller: pages are shared until one side writes. Without an offset a descriptor's own position is
    /// used and moved; a given offset is moved instead.
    ///
    /// # Errors
    /// `EBADF` (not open so, or the target is open for appending), `EISDIR`, `EINVAL` (not regular files,
    /// overlapping ranges, a negative offset), `EXDEV`, `EFBIG`, `ENOSPC`, `EOVERFLOW`.
    pub fn copy_file_range(
        &self,
        from: Fd,
        from_offset: Option<&mut i64>,
        to: Fd,
        to_offset: Option<&mut i64>,
        len: usize,
    ) -> Result<usize, Errno> {
        let (source, target) = (self.file(from)?, self.file(to)?);
        source.check_opened()?;
        target.check_opened()?;
        let source_at = offset_or_position(&source, from_offset.as_deref());
        let target_at = offset_or_position(&target, to_offset.as_deref());
        check_copy(&source, &target)?;
        let wide = len as u64;
        // As Linux has it: first sums that wrap around as unsigned numbers, and what is negative later.
        let wraps = |at: i64| at.cast_unsigned().checked_add(wide).is_none();
        if wraps(source_at) || wraps(target_at) {
            return Err(Errno::EOVERFLOW);
        }
        if target_at == i64::MAX {
            return Err(Errno::EFBIG);
        }
        let (Ok(source_at), Ok(target_at)) = (u64::try_from(source_at), u64::try_from(target_at)) else {
            return Err(Errno::EINVAL);
        };
        let (to, update_atime) = (target.inode(), source.updates_atime());
        let copied =
            source.inode().copy_range_noting(&self.cred, source_at, to, target_at, wide, update_atime)?;
        advance(&source, from_offset, source_at + copied);
        advance(&target, to_offset, target_at + copied);
        Ok(copied as usize)
    }
}

fn check_copy(source: &OpenFile, target: &OpenFile) -> Result<(), Errno> {
    let (from, to) = (source.inode(), target.inode());
    if from.is_dir() || to.is_dir() {
        return Err(Errno::EISDIR);
    }
    if !is_regular(from) || !is_regular(to) {
        return Err(Errno::EINVAL);
    }
    source.check_readable()?;
    target.check_writable()?;
    if target.flags().contains(OpenFlags::APPEND) { Err(Errno::EBADF) } else { Ok(()) }
}

fn offset_or_position(file: &OpenFile, offset: Option<&i64>) -> i64 {
    offset.copied().unwrap_or_else(|| file.cursor.hold().position().cast_signed())
}

fn advance(file: &OpenFile, offset: Option<&mut i64>, to: u64) {
    match offset {
        Some(offset) => *offset = to.cast_signed(),
        None => file.cursor.hold().move_to(to),
    }
}

/// Buffers without room for a byte: `readv` has nothing to do, whatever is open. (`read` is refused where
/// reading is.)
fn nothing_asked(bufs: &[&mut [u8]]) -> bool {
    bufs.iter().all(|buf| buf.is_empty())
}

/// The bytes `offset..offset + len` must have offsets.
///
/// # Errors
/// `EINVAL`.
fn check_span(offset: u64, len: usize) -> Result<(), Errno> {
    let end = offset.checked_add(len as u64);
    if end.is_some_and(|end| end <= FILE_SIZE_MAX) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Where `lseek` would go from `position`.
///
/// So much was `written` to the file: with `O_SYNC` or `O_DSYNC` it is made durable before that is told.
///
/// # Errors
/// Errors of [`Process::fsync`].
#[inline]
fn sync_if_asked(file: &OpenFile, written: usize) -> Result<usize, Errno> {
    if file.flags().contains(OpenFlags::DSYNC) {
        file.inode().sync()?;
    }
    Ok(written)
}

/// # Errors
/// Errors of [`Process::lseek`].
#[inline]
fn seek_target(inode: &InodeRef, position: u64, offset: i64, whence: Whence) -> Result<u64, Errno> {
    let base = match whence {
        Whence::Set => 0,
        Whence::Cur => position,
        _ if inode.is_dir() => return Err(Errno::EINVAL),
        Whence::End => inode.size(),
        Whence::Data | Whence::Hole => return seek_contents(inode, offset, whence),
    };
    base.checked_add_signed(offset).filter(|p| *p <= FILE_SIZE_MAX).ok_or(Errno::EINVAL)
}

#[inline(never)]
fn seek_contents(inode: &InodeRef, offset: i64, whence: Whence) -> Result<u64, Errno> {
    let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
    inode.seek_contents(offset, whence, |hole| {
        inode.write_back_caches(None, hole);
        Ok(())
    })
}

/// Seeks if that moves nothing, and nobody is moving the position.
///
/// # Errors
/// Errors of [`Process::lseek`].
#[inline]
fn seek_in_place(file: &OpenFile, offset: i64, whence: Whence) -> Result<Option<u64>, Errno> {
    file.check_opened()?;
    let Some(position) = file.cursor.at_rest() else { return Ok(None) };
    let target = seek_target(file.inode(), position, offset, whence)?;
    Ok((target == position).then_some(target))
}

/// Seeks, alone.
///
/// # Errors
/// Errors of [`Process::lseek`].
#[inline]
fn seek_holding(file: &OpenFile, cursor: &HeldCursor<'_>, offset: i64, whence: Whence) -> Result<u64, Errno> {
    let target = seek_target(file.inode(), cursor.position(), offset, whence)?;
    cursor.move_to(target);
    Ok(target)
}

/// The variant of [`Process::lseek`] that never waits.
#[inline]
fn seek_at_once(file: &OpenFile, offset: i64, whence: Whence) -> AtOnce<u64> {
    if matches!(whence, Whence::Data | Whence::Hole) {
        return Err(WouldWait);
    }
    if let Some(at) = seek_in_place(file, offset, whence)? {
        return Ok(at);
    }
    let cursor = file.cursor.try_hold().ok_or(WouldWait)?;
    Ok(seek_holding(file, &cursor, offset, whence)?)
}

/// The variant of [`Process::read`] that never waits.
fn read_moving_at_once(file: &OpenFile, buf: &mut [u8]) -> AtOnce<usize> {
    file.check_readable()?;
    if at_end(file, buf.len())? {
        return Ok(0);
    }
    let cursor = file.cursor.try_hold().ok_or(WouldWait)?;
    let read = read_at_once(file, cursor.position(), buf)?;
    cursor.move_to(cursor.position() + read as u64);
    Ok(read)
}

/// The variant of [`Process::pread`] that never waits.
#[inline]
fn read_at_once(file: &OpenFile, offset: u64, buf: &mut [u8]) -> AtOnce<usize> {
    file.check_readable()?;
    check_span(offset, buf.len())?;
    file.inode().read_at_once(offset, buf, file.updates_atime())
}

/// Whether a read at the position, which nobody is moving, finds the end of the file: then it moves nothing either.
///
/// # Errors
/// Errors of [`Process::read`].
fn at_end(file: &OpenFile, len: usize) -> Result<bool, Errno> {
    let data = file.inode().data()?;
    let Some(position) = file.cursor.at_rest() else { return Ok(false) };
    // A second look at the position shows that both facts hold at one moment.
    if !data.ends_by(position) || file.cursor.at_rest() != Some(position) {
        return Ok(false);
    }
    check_span(position, len)?;
    if file.updates_atime() && len > 0 {
        file.inode().touch_atime();
    }
    Ok(true)
}
