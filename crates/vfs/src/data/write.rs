//! Writing: changing the bytes of a file, and its size.

use super::{FileData, PAGE, Page, Space, clip, pages_touched, reserve, within};
use crate::{Errno, FILE_SIZE_MAX};
use std::collections::btree_map::Entry;

impl FileData {
    /// Writes `buf` at `offset`, makes the file as long as that needs, and returns the number of bytes
    /// written. That is less than asked for when space ends or the size limit is reached on the way.
    ///
    /// Errors, when not one byte could be written: `EFBIG` at or after the size limit, `ENOSPC`.
    pub(crate) fn write(&mut self, space: &dyn Space, offset: u64, buf: &[u8]) -> Result<usize, Errno> {
        if buf.is_empty() {
            return Ok(0);
        }
        let room = FILE_SIZE_MAX.saturating_sub(offset);
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let target = offset..offset + room.min(buf.len() as u64);
        // All pages at once if there is room for all; one by one otherwise, to write as much as fits.
        let pages = pages_touched(&target);
        let prepaid = reserve(space, self.missing(&pages)).is_ok();
        let mut written = 0;
        for index in pages {
            let piece = clip(index, &target);
            let bytes = &buf[within(offset, &piece)];
            let at = (piece.start - index * PAGE) as usize;
            match self.data.entry(index) {
                Entry::Occupied(mut page) => page.get_mut().write(at, bytes),
                Entry::Vacant(hole) => {
                    let unpaid = self.unwritten.remove(&(index..index + 1)) == 0 && !prepaid;
                    if unpaid && let Err(error) = space.reserve(1) {
                        if written == 0 {
                            return Err(error);
                        }
                        break;
                    }
                    hole.insert(Page::new(at, bytes));
                }
            }
            written += bytes.len();
        }
        self.size = self.size.max(offset + written as u64);
        Ok(written)
    }

    /// Makes the file `size` bytes long. Shrinking, and setting the size that it has, release all that lies
    /// beyond, storage reserved there included; growing leaves a hole.
    ///
    /// Errors: `EFBIG` above the size limit.
    pub(crate) fn truncate(&mut self, space: &dyn Space, size: u64) -> Result<(), Errno> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        if size == 0 {
            self.clear(space);
        } else if size <= self.size {
            self.punch_hole(space, size, u64::MAX);
        }
        self.size = size;
        Ok(())
    }
}
