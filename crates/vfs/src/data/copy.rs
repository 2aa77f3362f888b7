//! Copying: bytes from one file to another or within one, sharing whole pages copy-on-write.
//!
//! Holes are copied as holes, as reflinks do it: where a source page is a hole or unwritten, a whole page of
//! the destination becomes a hole and its storage is released, and part of a page becomes zero.

use super::{FileData, PAGE, Page, PageSet, Space, clip, pages_touched, within};
use crate::{Errno, FILE_SIZE_MAX};
use std::collections::btree_map::Entry;
use std::ops::Range;

impl FileData {
    /// Copies `len` bytes at `src_offset` of the file `src` to `dst_offset` of this one and returns the
    /// number of bytes copied. That is less than asked for when the source ends, and when space ends or the
    /// size limit is reached on the way.
    ///
    /// Errors, when not one byte could be copied: `EFBIG` at or after the size limit, `ENOSPC`.
    pub(crate) fn copy_from(
        &mut self,
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
        let len = len.min(src.size.saturating_sub(src_offset)).min(room);
        if len == 0 {
            return Ok(0);
        }
        let source = src_offset..src_offset + len;
        let mut done = 0;
        for (&index, page) in src.data.range(pages_touched(&source)) {
            let piece = clip(index, &source);
            let hole = piece.start - source.start - done;
            self.copy_hole(space, dst_offset + done, hole);
            done += hole;
            match self.copy_piece(space, dst_offset + done, page, &piece, src.size) {
                Ok(copied) => done += copied,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            if source.start + done < piece.end {
                return Ok(done);
            }
        }
        self.copy_hole(space, dst_offset + done, len - done);
        Ok(len)
    }

    /// Copies `len` bytes at `src_offset` to `dst_offset` of the same file. The two ranges must not overlap.
    /// Result and errors are those of [`FileData::copy_from`].
    pub(crate) fn copy_within(
        &mut self,
        space: &dyn Space,
        src_offset: u64,
        dst_offset: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        let source = src_offset..src_offset.saturating_add(len).min(self.size);
        let pages = if source.is_empty() { 0..0 } else { pages_touched(&source) };
        // The source pages, shared: what `copy_from` reads then stays as it was while it writes. This view is
        // dropped before anybody could need to copy for it, so no space is reserved for it.
        let view = FileData {
            size: self.size,
            data: self.data.range(pages).map(|(&index, page)| (index, page.clone())).collect(),
            unwritten: PageSet::new(),
        };
        self.copy_from(space, dst_offset, &view, src_offset, len)
    }

    /// Copies a hole of `len` bytes to `offset`.
    fn copy_hole(&mut self, space: &dyn Space, offset: u64, len: u64) {
        self.punch_hole(space, offset, len);
        if len > 0 {
            self.size = self.size.max(offset + len);
        }
    }

    /// Copies `piece` of a file of `src_size` bytes, which lies in `page`, to `offset`.
    fn copy_piece(
        &mut self,
        space: &dyn Space,
        offset: u64,
        page: &Page,
        piece: &Range<u64>,
        src_size: u64,
    ) -> Result<u64, Errno> {
        let end = offset + (piece.end - piece.start);
        let aligned = piece.start.is_multiple_of(PAGE) && offset.is_multiple_of(PAGE);
        // The last page of a file is shared although its end is not copied, if nothing of the destination
        // comes after: the bytes after the end of both files are zero (I1).
        let whole = piece.end - piece.start == PAGE || (piece.end == src_size && end >= self.size);
        if aligned && whole {
            self.share(space, offset / PAGE, page)?;
            self.size = self.size.max(end);
            Ok(end - offset)
        } else {
            let base = piece.start - piece.start % PAGE;
            Ok(self.write(space, offset, &page.bytes()[within(base, piece)])? as u64)
        }
    }

    /// Puts `page` in place `index`, sharing its bytes.
    fn share(&mut self, space: &dyn Space, index: u64, page: &Page) -> Result<(), Errno> {
        match self.data.entry(index) {
            Entry::Occupied(mut old) => *old.get_mut() = page.clone(),
            Entry::Vacant(hole) => {
                if self.unwritten.remove(&(index..index + 1)) == 0 {
                    space.reserve(1)?;
                }
                hole.insert(page.clone());
            }
        }
        Ok(())
    }
}
