//! Copying: bytes from one file to another or within one, sharing whole pages copy-on-write.
//!
//! Holes are copied as holes, as reflinks do it: where a source page is a hole or unwritten, a whole page of
//! the destination becomes a hole and its storage is released, and part of a page becomes zero.
//!
//! The source is looked at first, and its pages are frozen; then the destination is changed. So the two are never
//! locked at once, and may be one. A copy of a whole file shares the tree of its pages, whatever their number.

use super::change::DataChange;
use super::page::MadePages;
use super::{FileData, PAGE, PAGE_SIZE, Space, clip, pages_touched, within};
use crate::{Errno, FILE_SIZE_MAX};
use sluice_sync::SharedBytes;
use sluice_sync::rcu::Guard;
use std::ops::Range;

/// A range of a file as it was at one moment.
struct CopyRun {
    /// The range, cut at the end of the file.
    bytes: Range<u64>,
    /// Size of the file.
    size: u64,
    /// Its data pages, frozen. No space is reserved for holding them: the extent lives shorter than a call.
    pages: Vec<(u64, SharedBytes)>,
}

impl FileData {
    /// Copies `len` bytes at `src_offset` of the file `src` to `dst_offset` of this one and returns the
    /// number of bytes copied. That is less than asked for when the source ends, and when space ends or the
    /// size limit is reached on the way. The two may be one file if the two ranges do not overlap.
    ///
    /// Errors, when not one byte could be copied: `EFBIG` at or after the size limit, `ENOSPC`.
    pub(crate) fn copy_from(
        &self,
        space: &dyn Space,
        dst_offset: u64,
        src: &FileData,
        src_offset: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        let room = FILE_SIZE_MAX.saturating_sub(dst_offset);
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let source = src.extent(space, src_offset..src_offset.saturating_add(len.min(room)));
        if source.bytes.is_empty() {
            return Ok(0);
        }
        let target = dst_offset..dst_offset + (source.bytes.end - source.bytes.start);
        self.rearrange(space, pages_touched(&target)).copy(dst_offset, &source)
    }

    /// Makes this file, which is new, hold what `src` holds now; `src` may be of another file system. Storage reserved
    /// for `src` is not reserved for this file.
    ///
    /// Errors: `ENOSPC`.
    pub(crate) fn copy_whole(&self, space: &dyn Space, src: &FileData) -> Result<(), Errno> {
        let (all, pages, size) = {
            let source = src.grow(space);
            let (all, pages) = source.share_all();
            (all, pages, src.size())
        };
        let mut change = self.grow(space);
        change.begin_with(all, pages)?;
        self.set_size(size);
        Ok(())
    }

    /// Looks at what [`copy_whole`](Self::copy_whole) of a short file looks at, and returns something of it: for a caller that then
    /// copies many files, so that it waits for the memory of all at once.
    pub(crate) fn look_ahead(&self, guard: &Guard<'_>) -> usize {
        const PAGES: u64 = 4;
        let pages = self.size().div_ceil(PAGE).min(PAGES);
        let bytes: usize =
            (0..pages).filter_map(|index| self.tree.get(guard, index)).map(|page| page.len()).sum();
        bytes + usize::from(self.tree.are_shared(guard))
    }

    /// The pages and holes in `bytes` now.
    fn extent(&self, space: &dyn Space, bytes: Range<u64>) -> CopyRun {
        let change = self.grow(space);
        let size = self.size();
        let bytes = bytes.start..bytes.end.min(size).max(bytes.start);
        let pages = if bytes.is_empty() { Vec::new() } else { change.freeze(pages_touched(&bytes)) };
        CopyRun { bytes, size, pages }
    }
}

impl DataChange<'_> {
    /// Copies `source`, which is not empty, to `offset`.
    fn copy(&mut self, offset: u64, source: &CopyRun) -> Result<u64, Errno> {
        let mut done = 0;
        for (index, page) in &source.pages {
            let piece = clip(*index, &source.bytes);
            let hole = piece.start - source.bytes.start - done;
            self.copy_hole(offset + done, hole);
            done += hole;
            match self.copy_piece(offset + done, page, &piece, source.size) {
                Ok(copied) => done += copied,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            if source.bytes.start + done < piece.end {
                return Ok(done);
            }
        }
        let rest = source.bytes.end - source.bytes.start - done;
        self.copy_hole(offset + done, rest);
        Ok(done + rest)
    }

    /// Copies a hole of `len` bytes to `offset`.
    fn copy_hole(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.punch_hole(offset..offset + len);
            self.file.extend_to(offset + len);
        }
    }

    /// Copies `piece` of a file of `src_size` bytes, which lies in `page`, to `offset`.
    fn copy_piece(
        &mut self,
        offset: u64,
        page: &SharedBytes,
        piece: &Range<u64>,
        src_size: u64,
    ) -> Result<u64, Errno> {
        let end = offset + (piece.end - piece.start);
        let aligned = piece.start.is_multiple_of(PAGE) && offset.is_multiple_of(PAGE);
        // The last page of a file is shared although its end is not copied, if nothing of the destination
        // comes after: the bytes after the end of both files are zero (I1).
        let whole = piece.end - piece.start == PAGE || (piece.end == src_size && end >= self.file.size());
        if aligned && whole {
            self.share(offset / PAGE, page)?;
            self.file.extend_to(end);
            Ok(end - offset)
        } else {
            let mut buf = [0; PAGE_SIZE];
            let bytes = &mut buf[..(piece.end - piece.start) as usize];
            page.load_padded(within(piece.start - piece.start % PAGE, piece).start, bytes);
            Ok(self.write(offset, bytes, MadePages::new())? as u64)
        }
    }
}
