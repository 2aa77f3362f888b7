//! Allocating: what `fallocate(2)` does to a file, from reserving storage to moving its contents.

use super::{FileData, PAGE, PAGES_MAX, Space, clip, pages_touched, release, reserve, within};
use crate::{Errno, FILE_SIZE_MAX};
use std::ops::Range;

impl FileData {
    /// Reserves storage for `len` bytes at `offset`, so that writing there cannot run out of space, and grows
    /// the file to hold them unless `keep_size`. Contents stay.
    ///
    /// Errors: `EINVAL` when `len` is 0, `EFBIG`, `ENOSPC`; the file is as before then.
    pub(crate) fn allocate(
        &mut self,
        space: &dyn Space,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<(), Errno> {
        let range = checked(offset, len)?;
        let pages = pages_touched(&range);
        reserve(space, self.missing(&pages))?;
        self.fill_with_unwritten(pages);
        if !keep_size {
            self.size = self.size.max(range.end);
        }
        Ok(())
    }

    /// Makes `len` bytes at `offset` a hole: whole pages are released, parts of pages become zero. The size
    /// stays.
    pub(crate) fn punch_hole(&mut self, space: &dyn Space, offset: u64, len: u64) {
        let range = offset..offset.saturating_add(len).min(PAGES_MAX * PAGE);
        if range.is_empty() {
            return;
        }
        self.zero_partial_pages(&range);
        let pages = whole_pages(&range);
        let freed = self.remove_data(&pages) + self.unwritten.remove(&pages);
        release(space, freed);
    }

    /// Makes `len` bytes at `offset` zero and keeps, or reserves, their storage: whole pages become
    /// unwritten. Grows the file to hold them unless `keep_size`.
    ///
    /// Errors: `EINVAL` when `len` is 0, `EFBIG`, `ENOSPC`; the file is as before then.
    pub(crate) fn zero_range(
        &mut self,
        space: &dyn Space,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<(), Errno> {
        let range = checked(offset, len)?;
        let pages = pages_touched(&range);
        reserve(space, self.missing(&pages))?;
        self.zero_partial_pages(&range);
        self.remove_data(&whole_pages(&range));
        self.fill_with_unwritten(pages);
        if !keep_size {
            self.size = self.size.max(range.end);
        }
        Ok(())
    }

    /// Takes `len` bytes at `offset` out of the file; what follows moves down.
    ///
    /// Errors: `EINVAL` when `offset` or `len` is not a multiple of the page size, `len` is 0, or the range
    /// reaches the end of the file; `EFBIG`.
    pub(crate) fn collapse_range(&mut self, space: &dyn Space, offset: u64, len: u64) -> Result<(), Errno> {
        let pages = checked_aligned(offset, len)?;
        if pages.end * PAGE >= self.size {
            return Err(Errno::EINVAL);
        }
        self.punch_hole(space, offset, len);
        self.shift(pages.end, |index| index - (pages.end - pages.start));
        self.size -= len;
        Ok(())
    }

    /// Puts a hole of `len` bytes in at `offset`; what was there moves up. Takes no space.
    ///
    /// Errors: `EINVAL` when `offset` or `len` is not a multiple of the page size, `len` is 0, or `offset` is
    /// not before the end of the file; `EFBIG` when the file, or storage reserved after its end, would reach
    /// beyond the size limit.
    pub(crate) fn insert_range(&mut self, offset: u64, len: u64) -> Result<(), Errno> {
        let pages = checked_aligned(offset, len)?;
        let by = pages.end - pages.start;
        if len > FILE_SIZE_MAX - self.size {
            return Err(Errno::EFBIG);
        }
        if offset >= self.size {
            return Err(Errno::EINVAL);
        }
        if by > PAGES_MAX - self.unwritten.end() {
            return Err(Errno::EFBIG);
        }
        self.shift(pages.start, |index| index + by);
        self.size += len;
        Ok(())
    }

    /// Makes the holes in `pages` unwritten; the caller has reserved them.
    fn fill_with_unwritten(&mut self, pages: Range<u64>) {
        let mut hole = pages.start;
        for (&index, _) in self.data.range(pages.clone()) {
            self.unwritten.insert(hole..index);
            hole = index + 1;
        }
        self.unwritten.insert(hole..pages.end);
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

    /// Makes the bytes of `range` that lie in page `index` zero.
    fn zero_in_page(&mut self, index: u64, range: &Range<u64>) {
        let piece = clip(index, range);
        // Bytes from the end of the file on are zero already (I1): do not copy a shared page for them.
        let piece = piece.start..piece.end.min(self.size);
        if !piece.is_empty()
            && let Some(page) = self.data.get_mut(&index)
        {
            page.zero(within(index * PAGE, &piece));
        }
    }

    /// Moves every page from `from` on to where `to` says; the pages below `from` that it moves to are holes.
    fn shift(&mut self, from: u64, to: impl Fn(u64) -> u64) {
        let moved = self.data.split_off(&from);
        self.data.extend(moved.into_iter().map(|(index, page)| (to(index), page)));
        self.unwritten.shift(from, to);
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
