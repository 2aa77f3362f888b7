//! Allocating: what `fallocate(2)` does to a file, from reserving storage to moving its contents.

use super::change::DataChange;
use super::{FileData, PAGE, PAGES_MAX, Space, pages_touched};
use crate::{Errno, FILE_SIZE_MAX};
use std::ops::Range;

impl FileData {
    /// Reserves storage for `len` bytes at `offset`, so that writing there cannot run out of space, and grows
    /// the file to hold them unless `keep_size`. Contents stay.
    ///
    /// Errors: `EINVAL` when `len` is 0, `EFBIG`, `ENOSPC`; the file is as before then.
    pub(crate) fn allocate(
        &self,
        space: &dyn Space,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<(), Errno> {
        let range = checked(offset, len)?;
        let pages = pages_touched(&range);
        let mut change = self.grow(space);
        let missing = change.missing(&pages);
        change.reserve_unwritten(missing, missing)?;
        change.fill_with_unwritten(pages);
        if !keep_size {
            self.extend_to(range.end);
        }
        Ok(())
    }

    /// Makes `len` bytes at `offset` a hole: whole pages are released, parts of pages become zero. The size
    /// stays.
    pub(crate) fn punch_hole(&self, space: &dyn Space, offset: u64, len: u64) {
        let bytes = offset..offset.saturating_add(len);
        if !bytes.is_empty() {
            self.rearrange(space, pages_touched(&bytes)).punch_hole(bytes);
        }
    }

    /// Makes `len` bytes at `offset` zero and keeps, or reserves, their storage: whole pages become
    /// unwritten. Grows the file to hold them unless `keep_size`.
    ///
    /// Errors: `EINVAL` when `len` is 0, `EFBIG`, `ENOSPC`; the file is as before then.
    pub(crate) fn zero_range(
        &self,
        space: &dyn Space,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<(), Errno> {
        let range = checked(offset, len)?;
        let pages = pages_touched(&range);
        let mut change = self.rearrange(space, pages.clone());
        let missing = change.missing(&pages);
        change.reserve_unwritten(missing, missing + change.data_in(whole_pages(&range)))?;
        change.zero_partial_pages(&range);
        change.remove_data(&whole_pages(&range));
        change.fill_with_unwritten(pages);
        if !keep_size {
            self.extend_to(range.end);
        }
        Ok(())
    }

    /// Takes `len` bytes at `offset` out of the file; what follows moves down.
    ///
    /// Errors: `EINVAL` when `offset` or `len` is not a multiple of the page size, `len` is 0, or the range
    /// reaches the end of the file; `EFBIG`.
    pub(crate) fn collapse_range(&self, space: &dyn Space, offset: u64, len: u64) -> Result<(), Errno> {
        let pages = checked_aligned(offset, len)?;
        let mut change = self.rearrange(space, pages.start..PAGES_MAX);
        if pages.end * PAGE >= self.size() {
            return Err(Errno::EINVAL);
        }
        change.remove(&pages);
        change.shift(pages.end, |index| index - (pages.end - pages.start));
        self.set_size(self.size() - len);
        Ok(())
    }

    /// Puts a hole of `len` bytes in at `offset`; what was there moves up. Takes no space.
    ///
    /// Errors: `EINVAL` when `offset` or `len` is not a multiple of the page size, `len` is 0, or `offset` is
    /// not before the end of the file; `EFBIG` when the file, or storage reserved after its end, would reach
    /// beyond the size limit.
    pub(crate) fn insert_range(&self, space: &dyn Space, offset: u64, len: u64) -> Result<(), Errno> {
        let pages = checked_aligned(offset, len)?;
        let by = pages.end - pages.start;
        let mut change = self.rearrange(space, pages.start..PAGES_MAX);
        let size = self.size();
        if len > FILE_SIZE_MAX - size {
            return Err(Errno::EFBIG);
        }
        if offset >= size {
            return Err(Errno::EINVAL);
        }
        if by > PAGES_MAX - change.unwritten_end() {
            return Err(Errno::EFBIG);
        }
        change.shift(pages.start, |index| index + by);
        self.set_size(size + len);
        Ok(())
    }
}

impl DataChange<'_> {
    /// Makes `bytes` a hole, as [`FileData::punch_hole`] says.
    pub(super) fn punch_hole(&mut self, bytes: Range<u64>) {
        let range = bytes.start..bytes.end.min(PAGES_MAX * PAGE);
        if !range.is_empty() {
            self.zero_partial_pages(&range);
            self.remove(&whole_pages(&range));
        }
    }

    /// Makes zero the bytes of `range` that lie in pages which it covers only in part.
    fn zero_partial_pages(&mut self, range: &Range<u64>) {
        let whole = whole_pages(range);
        // The first and the last page may be one; clearing it twice does no harm.
        for index in [range.start / PAGE, (range.end - 1) / PAGE] {
            if !whole.contains(&index) {
                self.zero_in_page(index, range);
            }
        }
    }
}

/// The pages of which `range` covers every byte. May be empty, never reversed.
fn whole_pages(range: &Range<u64>) -> Range<u64> {
    let start = range.start.div_ceil(PAGE);
    start..start.max(range.end / PAGE)
}

/// The bytes that a call names, if a file can hold them.
fn checked(offset: u64, len: u64) -> Result<Range<u64>, Errno> {
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    match offset.checked_add(len) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(offset..end),
        _ => Err(Errno::EFBIG),
    }
}

/// The pages that a call names which works on whole pages only.
fn checked_aligned(offset: u64, len: u64) -> Result<Range<u64>, Errno> {
    let range = checked(offset, len)?;
    if !range.start.is_multiple_of(PAGE) || !range.end.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    Ok(range.start / PAGE..range.end / PAGE)
}
