//! I/O: reading and changing the contents of a regular file.
//!
//! A read sees a write whole or not at all, and an append finds the end and writes there in one step, as POSIX
//! asks of single calls. How that goes without a lock for all is told in `data`.

use crate::at_once::{AtOnce, WouldWait};
use crate::data::FileData;
use crate::durable::{CHUNK, Section};
use crate::inode::{Body, flag};
use crate::watch::fault::Calls;
use crate::watch::hook;
use crate::{Cred, Errno, FILE_SIZE_MAX, FallocateMode, Inode, InodeFlags, InodeRef, Whence};
use sluice_sync::refcache::Ref;
use std::ops::Range;

impl Inode {
    /// The contents in memory, for callers that want a regular file. Pages may be with a store.
    ///
    /// # Errors
    /// `EISDIR` for a directory, `EINVAL` for anything else that is no regular file.
    #[inline]
    pub(crate) fn data(&self) -> Result<&FileData, Errno> {
        match &self.body {
            Body::Regular => Ok(&self.data),
            Body::Directory(_) => Err(Errno::EISDIR),
            Body::Symlink(_) | Body::Special { .. } => Err(Errno::EINVAL),
        }
    }
}

impl InodeRef {
    /// The variant of [`read_at`](Self::read_at) that never waits.
    #[inline]
    pub(crate) fn read_at_once(&self, offset: u64, buf: &mut [u8], update_atime: bool) -> AtOnce<usize> {
        if self.has(flag::CACHED) || self.shared.has_hook(hook::FAULTS) {
            // A directory waits too, because its error is reported on the path with a reference.
            return Err(WouldWait);
        }
        let read = self.data()?.read_at_once(offset, buf)?;
        if update_atime && !buf.is_empty() {
            self.touch_atime();
        }
        Ok(read)
    }

    /// `copied` bytes were read for a copy. Called before the copy counts as written: the order shows when both are one file.
    fn note_read(&self, copied: u64, update_atime: bool) {
        if copied > 0 && update_atime {
            self.touch_atime();
        }
    }

    /// Reads from `offset` into `buf`; the count is short only at the end of the file. Holes read as zeros.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL` (not a regular file).
    pub fn read_at(&self, offset: u64, buf: &mut [u8], update_atime: bool) -> Result<usize, Errno> {
        let data = self.data()?;
        let most = self.meet_faults(Calls::READ)?.min(buf.len());
        let read = match data.read(offset, &mut buf[..most]) {
            Some(read) => read,
            None => self.read_loading(offset, &mut buf[..most])?,
        };
        if update_atime && !buf.is_empty() {
            self.touch_atime();
        }
        Ok(read)
    }

    /// The first stored byte at or after `offset`.
    ///
    /// # Errors
    /// `ENXIO` behind the last data; `EINVAL` or `EISDIR` for other types of files.
    pub fn seek_data(&self, offset: u64) -> Result<u64, Errno> {
        let found = self.data()?.seek_data(offset);
        // Last: what left memory while we looked shows here.
        let found = if self.has(flag::PARTIAL) { self.seek_data_loading(offset)? } else { found };
        found.ok_or(Errno::ENXIO)
    }

    /// The first byte of a hole at or after `offset`; the end of the file counts as one.
    ///
    /// # Errors
    /// `ENXIO` when `offset` is past the end; `EINVAL` or `EISDIR` when this is no regular file.
    pub fn seek_hole(&self, offset: u64) -> Result<u64, Errno> {
        let found = self.data()?.seek_hole(offset);
        // As in seek_data().
        let found = if self.has(flag::PARTIAL) { self.seek_hole_loading(offset)? } else { found };
        found.ok_or(Errno::ENXIO)
    }

    /// The answer to `lseek` with `Data` or `Hole`. `fill` is called first with each hole that the answer would show: where a
    /// cache above may have bytes for it, it writes them there, or fails.
    ///
    /// # Errors
    /// Errors of [`seek_data`](Self::seek_data) and [`seek_hole`](Self::seek_hole); those of `fill`.
    pub fn seek_contents<E: From<Errno>>(
        &self,
        offset: u64,
        whence: Whence,
        mut fill: impl FnMut(Range<u64>) -> Result<(), E>,
    ) -> Result<u64, E> {
        loop {
            let hole = if whence == Whence::Hole { self.seek_hole(offset)? } else { offset };
            let end = self.seek_data(hole).unwrap_or_else(|_| self.size());
            if hole < end {
                fill(hole..end)?;
            }
            if whence == Whence::Data {
                return Ok(self.seek_data(offset)?);
            }
            let found = self.seek_hole(offset)?;
            // A hole further on, since this one is full: it may be none either.
            if found < end || found == hole || found == self.size() {
                return Ok(found);
            }
        }
    }

    /// Whether one of the bytes in `bytes` lies in a hole.
    pub fn has_hole_in(&self, bytes: Range<u64>) -> bool {
        // As in seek_data().
        self.data().is_ok_and(|data| data.has_hole_in(&bytes))
            && (!self.has(flag::PARTIAL) || self.has_hole_loading(bytes))
    }

    /// Makes one operation of `change` to the contents of this file, which the caller `held`: in a section, and told to the
    /// observers when both are let go. (See [`ops`](crate::ops).) If the file must be kept first, `again` holds it anew.
    ///
    /// # Errors
    /// Errors of `again`, of `change` and of the store; `EROFS` after the store failed.
    fn change_contents<H, R>(
        &self,
        cred: &Cred,
        mut held: H,
        again: impl Fn() -> Result<H, Errno>,
        change: impl FnOnce(&H) -> Result<ContentsChange<R>, Errno>,
    ) -> Result<R, Errno> {
        loop {
            let mut section = Section::none();
            self.shared.begin_contents(&mut section)?;
            if !self.is_kept() {
                drop((section, held));
                self.keep();
                held = again()?;
                continue;
            }
            let ContentsChange { result, bytes, told: (offset, len), has_only_grown, is_collected } =
                change(&held)?;
            if !bytes.is_empty() {
                if !is_collected {
                    self.contents_changed(cred, &section);
                }
                if has_only_grown {
                    section.grown(self, bytes.start);
                } else {
                    section.contents(self, bytes);
                }
                drop((section, held));
                self.notify_data(cred, offset, len);
            }
            return Ok(result);
        }
    }

    /// The variant of [`change_contents`](Self::change_contents) for a `write` of `data`, or its longest allowed
    /// prefix, that needs the contents in `needs` in memory. A file system in memory without watchers holds and records
    /// nothing.
    #[inline]
    fn write_contents<R>(
        &self,
        cred: &Cred,
        needs: Range<u64>,
        data: &[u8],
        write: impl FnOnce(&FileData, &[u8]) -> Result<ContentsChange<R>, Errno>,
    ) -> Result<R, Errno> {
        // A kernel may have opened the file without a question.
        self.check_changes()?;
        let Some(changing) = self.shared.begin_in_memory() else {
            return self.write_put_down(cred, needs, data, write);
        };
        let ContentsChange { result, bytes, told: (offset, len), is_collected, .. } =
            write(self.data()?, data)?;
        if !bytes.is_empty() && !is_collected {
            self.contents_changed(cred, &Section::none());
        }
        drop(changing);
        if !bytes.is_empty() {
            self.notify_data(cred, offset, len);
        }
        Ok(result)
    }

    #[inline(never)]
    fn write_put_down<R>(
        &self,
        cred: &Cred,
        needs: Range<u64>,
        data: &[u8],
        write: impl FnOnce(&FileData, &[u8]) -> Result<ContentsChange<R>, Errno>,
    ) -> Result<R, Errno> {
        // An append needs all that may become the end, and writes no further than this.
        let end = needs.start.saturating_add(data.len() as u64 + 1);
        let bytes = needs.start..needs.end.min(end);
        let contents = self.contents(needs.clone())?;
        let growth = self.shared.may_grow_by(data.len() as u64);
        let data = self.shared.may_write(self, &bytes, &data[..growth.bytes() as usize])?;
        let again = || self.contents(needs.clone());
        self.change_contents(cred, contents, again, |contents| write(contents, data))
    }

    /// Writes `data` at `offset`, growing the file as needed. Set-ID bits go unless `cred` may keep them, a file capability always.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL` (not a regular file), `EFBIG`, `ENOSPC` when nothing at all could be written.
    pub fn write_at(&self, cred: &Cred, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        self.write_back_caches(cred.via, offset..offset.saturating_add(data.len() as u64));
        let needs = offset..offset.saturating_add(data.len() as u64);
        self.write_contents(cred, needs, data, |contents, data| {
            let written = contents.write(&**self, offset, data)?;
            Ok(ContentsChange::at(offset, written, written))
        })
    }

    /// Writes `data` at `offset`, growing the file as needed, for a cache above that collected the writes and keeps the times
    /// itself: times, set-ID bits and a file capability stay as they are.
    ///
    /// # Errors
    /// Errors of [`InodeRef::write_at`].
    pub fn write_back(&self, cred: &Cred, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let needs = offset..offset.saturating_add(data.len() as u64);
        self.write_contents(cred, needs, data, |contents, data| {
            let written = contents.write(&**self, offset, data)?;
            Ok(ContentsChange { is_collected: true, ..ContentsChange::at(offset, written, written) })
        })
    }

    /// Writes the part of `data` that lies below the end of the file, for a cache above that collected stores through a mapping:
    /// such stores do not make a file longer, and bytes past an end that was cut since are gone. Set-ID bits stay, and so do the
    /// times if the caller moves them later.
    ///
    /// # Errors
    /// Errors of [`InodeRef::write_at`].
    pub fn write_within(
        &self,
        cred: &Cred,
        offset: u64,
        data: &[u8],
        moves_times: bool,
    ) -> Result<(), Errno> {
        let needs = offset..offset.saturating_add(data.len() as u64);
        self.write_contents(cred, needs, data, |contents, data| {
            let written = contents.write_within(&**self, offset, data)?;
            if written > 0 && moves_times {
                self.touch_mtime();
            }
            Ok(ContentsChange {
                told: (offset, data.len() as u64),
                is_collected: true,
                ..ContentsChange::at(offset, written, ())
            })
        })
    }

    /// Writes `data` at the end of the file, in one step with finding that end. Returns where it went and
    /// how much was written.
    ///
    /// # Errors
    /// Errors of [`InodeRef::write_at`].
    pub fn append(&self, cred: &Cred, data: &[u8]) -> Result<(u64, usize), Errno> {
        self.write_back_caches(cred.via, self.size()..u64::MAX);
        let needs = self.size().saturating_sub(1)..u64::MAX;
        self.write_contents(cred, needs, data, |contents, data| {
            let (offset, written) = contents.append(&**self, data)?;
            Ok(ContentsChange::at(offset, written, (offset, written)))
        })
    }

    /// Makes the file `size` bytes long: cuts it, or grows it by a hole.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL` (not a regular file), `EFBIG`, `EPERM` (append-only).
    pub fn truncate(&self, cred: &Cred, size: u64) -> Result<(), Errno> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        self.check_not(InodeFlags::APPEND)?;
        self.write_back_caches(cred.via, size..u64::MAX);
        self.meet_faults(Calls::TRUNCATE)?;
        let hold = || {
            let contents = self.contents(size..size.next_multiple_of(CHUNK))?;
            // In the order in which they are let go.
            Ok((self.before_discard(), contents))
        };
        self.change_contents(cred, hold()?, hold, |(alone, contents)| {
            let has_released = contents.resize(&**self, size)?;
            self.discarded(size..u64::MAX, alone);
            let has_only_grown = !has_released && alone.is_none();
            let bytes = size..u64::MAX;
            Ok(ContentsChange { result: (), bytes, told: (0, 0), has_only_grown, is_collected: false })
        })
    }

    /// Reserves, frees, zeroes, removes or inserts space, as `mode` says; see `fallocate(2)`.
    ///
    /// # Errors
    /// `EISDIR`, `ENODEV` (not a regular file), `EINVAL` (empty or misaligned range), `EOPNOTSUPP` (flags
    /// that do not go together), `EFBIG`, `ENOSPC`, `EPERM` (immutable; append-only, and not only space is reserved).
    pub fn fallocate(&self, cred: &Cred, mode: FallocateMode, offset: u64, len: u64) -> Result<(), Errno> {
        let operation = FallocateOperation::from_mode(mode)?;
        let moves = matches!(operation, FallocateOperation::Collapse | FallocateOperation::Insert);
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX);
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let only_reserves = matches!(operation, FallocateOperation::Reserve);
        self.check_not(if only_reserves { InodeFlags::IMMUTABLE } else { InodeFlags::FIXED })?;
        match self.body {
            Body::Regular => {}
            Body::Directory(_) => return Err(Errno::EISDIR),
            Body::Symlink(_) | Body::Special { .. } => return Err(Errno::ENODEV),
        }
        if end.is_none() {
            return Err(Errno::EFBIG);
        }
        self.meet_faults(Calls::FALLOCATE)?;
        if matches!(operation, FallocateOperation::Reserve | FallocateOperation::Zero) {
            self.shared.make_room_to_reserve(len);
        }
        self.write_back_caches(cred.via, offset..u64::MAX);
        let keep_size = mode.contains(FallocateMode::KEEP_SIZE);
        let space = &**self;
        // The moved bytes reach to the end.
        let changed = offset..if moves { u64::MAX } else { offset + len };
        let punches = matches!(operation, FallocateOperation::Punch);
        let hold = || {
            // A hole punch needs only the chunks at both ends.
            let data = self.contents(if punches { offset..offset + 1 } else { changed.clone() })?;
            let alone = if punches {
                self.more_contents(&data, offset + len - 1..offset + len)?;
                self.before_discard()
            } else {
                None
            };
            Ok((alone, data))
        };
        self.change_contents(cred, hold()?, hold, |(alone, data)| {
            match operation {
                FallocateOperation::Reserve => data.allocate(space, offset, len, keep_size)?,
                FallocateOperation::Punch => {
                    data.punch_hole(space, offset, len);
                    self.discarded(changed.clone(), alone);
                }
                FallocateOperation::Zero => data.zero_range(space, offset, len, keep_size)?,
                FallocateOperation::Collapse => data.collapse_range(space, offset, len)?,
                FallocateOperation::Insert => data.insert_range(space, offset, len)?,
            }
            Ok(ContentsChange {
                result: (),
                bytes: changed.clone(),
                told: (offset, 0),
                has_only_grown: false,
                is_collected: false,
            })
        })
    }

    /// Copies `len` bytes from `offset` here to `to_offset` in `to`, sharing whole pages where both offsets
    /// are equally aligned; holes stay holes. Returns how many bytes there were to copy.
    ///
    /// # Errors
    /// `EXDEV` (another file system), `EINVAL` (not regular files, or overlapping ranges of one file),
    /// `EISDIR`, `EFBIG`, `ENOSPC`, `EPERM` (`to` is immutable).
    pub fn copy_range(
        &self,
        cred: &Cred,
        offset: u64,
        to: &InodeRef,
        to_offset: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        self.copy_range_noting(cred, offset, to, to_offset, len, true)
    }

    /// Copies bytes as [`InodeRef::copy_range`] does; `update_atime` says whether the access time is updated.
    pub(crate) fn copy_range_noting(
        &self,
        cred: &Cred,
        offset: u64,
        to: &InodeRef,
        to_offset: u64,
        len: u64,
        update_atime: bool,
    ) -> Result<u64, Errno> {
        if !Ref::ptr_eq(&self.shared, &to.shared) {
            return Err(Errno::EXDEV);
        }
        let (source, _) = (self.data()?, to.data()?);
        to.check_not(InodeFlags::IMMUTABLE)?;
        let len = len.min(source.size().saturating_sub(offset));
        if self.is_same(to) && offset.abs_diff(to_offset) < len {
            return Err(Errno::EINVAL);
        }
        self.write_back_caches(cred.via, offset..offset.saturating_add(len));
        to.write_back_caches(cred.via, to_offset..to_offset.saturating_add(len));
        let len = len.min(to.meet_faults(Calls::WRITE)? as u64);
        self.shared.let_names_leave();
        self.shared.make_room_to_grow()?;
        let growth = self.shared.may_grow_by(len);
        let len = growth.bytes();
        let bytes = offset..offset.saturating_add(len);
        if let Some(copied) = self.copy_sharing(cred, &bytes, to, to_offset, update_atime)? {
            return Ok(copied);
        }
        let hold = || self.contents_to_copy(bytes.clone(), to, to_offset);
        to.change_contents(cred, hold()?, hold, |[target, source]| {
            let copied = target.copy_from(&**to, to_offset, source, offset, len)?;
            self.note_read(copied, update_atime);
            Ok(ContentsChange::at(to_offset, copied as usize, copied))
        })
    }

    /// Copies bytes as [`copy_range_noting`](Self::copy_range_noting) does, if the two files can share extents in the store.
    fn copy_sharing(
        &self,
        cred: &Cred,
        bytes: &Range<u64>,
        to: &InodeRef,
        to_offset: u64,
        update_atime: bool,
    ) -> Result<Option<u64>, Errno> {
        loop {
            let Some(sharing) = self.share_with(bytes, to, to_offset)? else { return Ok(None) };
            let mut section = Section::none();
            self.shared.begin_contents(&mut section)?;
            if !to.is_kept() {
                drop((section, sharing));
                to.keep();
                continue;
            }
            let Some(copied) = sharing.copy(&section)? else { return Ok(None) };
            self.note_read(copied, update_atime);
            if copied > 0 {
                to.contents_changed(cred, &section);
            }
            drop((section, sharing));
            if copied > 0 {
                to.notify_data(cred, to_offset, copied);
            }
            return Ok(Some(copied));
        }
    }
}

/// The result of a change of contents.
struct ContentsChange<R> {
    result: R,
    /// The bytes that are to be put down; none if nothing changed.
    bytes: Range<u64>,
    /// The offset and length for observers; a length may be 0.
    told: (u64, u64),
    /// None of the contents changed: the file ends at or behind where `bytes` begin.
    has_only_grown: bool,
    /// A cache above collected the bytes earlier: the attributes of the file are its care.
    is_collected: bool,
}

impl<R> ContentsChange<R> {
    /// `len` bytes changed at `offset`.
    #[inline]
    fn at(offset: u64, len: usize, result: R) -> ContentsChange<R> {
        let len = len as u64;
        let bytes = offset..offset + len;
        ContentsChange { result, bytes, told: (offset, len), has_only_grown: false, is_collected: false }
    }
}

/// # Errors
/// `EOPNOTSUPP` for flags that do not go together.
pub(crate) fn check_fallocate_mode(mode: FallocateMode) -> Result<(), Errno> {
    FallocateOperation::from_mode(mode).map(drop)
}

/// The one thing that a valid combination of flags means.
enum FallocateOperation {
    Reserve,
    Punch,
    Zero,
    Collapse,
    Insert,
}

impl FallocateOperation {
    fn from_mode(mode: FallocateMode) -> Result<FallocateOperation, Errno> {
        let operation = mode.difference(FallocateMode::KEEP_SIZE);
        let keep_size = mode.contains(FallocateMode::KEEP_SIZE);
        Ok(match (operation, keep_size) {
            (FallocateMode::PUNCH_HOLE, true) => FallocateOperation::Punch,
            (FallocateMode::ZERO_RANGE, _) => FallocateOperation::Zero,
            (FallocateMode::COLLAPSE_RANGE, false) => FallocateOperation::Collapse,
            (FallocateMode::INSERT_RANGE, false) => FallocateOperation::Insert,
            (none, _) if none.is_empty() => FallocateOperation::Reserve,
            _ => return Err(Errno::EOPNOTSUPP),
        })
    }
}
