//! FileData: the sparse contents of one regular file, kept in pages of memory.
//!
//! # Theory
//! Each page of a file is in one of three states:
//! ```text
//!   bytes   0      4096     8192     12288    16384   size
//!           | data  | hole   | unwritten       | data  | |
//!           |       |        |                 |       |
//!   data    { 0: Page,                           4: Page }     ordered map, pages copy-on-write
//!   unwritten         { 2..4 }                                 set of ranges
//! ```
//! *Data* holds bytes. *Unwritten* is storage that fallocate reserved: it counts as allocated, reads as
//! zeros, and SEEK_DATA and SEEK_HOLE take it for a hole. A *hole* is everything else: it reads as zeros and
//! costs nothing, however long it is.
//!
//! # Clients must
//! - hold the inode's data lock, shared for `&self` and exclusive for `&mut self`: there is no lock here;
//! - pass the same [`Space`] to each call on one file, and call [`FileData::clear`] before dropping it.
//!
//! # Invariants
//! - I1: bytes of a data page at and after `size` are zero. So growing never has to clear anything.
//! - I2: a data page begins below `size`. Only unwritten pages lie beyond.
//! - I3: no page is both data and unwritten.
//! - I4: no page lies beyond `FILE_SIZE_MAX`, and `size` is not above it. So a page number times the page
//!   size, plus one page, fits in 64 bits.
//! - I5: the pages reserved from `Space` and not yet released are `pages()`.
//!
//! # Cost
//! O(log n) for a call, plus O(log n) for each page that it touches; n is the number of data pages and of
//! unwritten ranges. Holes and unwritten ranges cost the same at any length. Collapsing and inserting touch
//! the pages after the range, which move. An empty file is [`FileData`] itself, without memory on the heap.
//!
//! # Sources
//! `fallocate(2)`, `lseek(2)`, `copy_file_range(2)`. Analogous to Linux's tmpfs (`mm/shmem.c`): an unwritten
//! page is its page that is allocated and not up to date. One difference is meant: a second fallocate over an
//! unwritten page turns it into data (zeros) there, and leaves it unwritten here, as on ext4 and XFS.

mod allocate;
mod copy;
mod page;
mod page_set;
mod write;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use crate::{Errno, FILE_SIZE_MAX};
use page::Page;
use page_set::PageSet;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes in a page.
pub(crate) const PAGE_SIZE: usize = 4096;
/// Bytes in a page, as file offsets count.
pub(crate) const PAGE: u64 = PAGE_SIZE as u64;
/// The number of pages in the longest file.
const PAGES_MAX: u64 = FILE_SIZE_MAX.div_ceil(PAGE);

/// The storage that files take their pages from. A page shared copy-on-write counts once for each place that
/// holds it, since each may need a copy of its own at the next write.
pub(crate) trait Space {
    /// Takes `pages` pages, all or none. Errors: `ENOSPC` (or `EDQUOT`) when there are not that many.
    fn reserve(&self, pages: u64) -> Result<(), Errno>;
    /// Gives `pages` pages back.
    fn release(&self, pages: u64);
}

/// The contents of one regular file. See the module's header for what callers owe it.
pub(crate) struct FileData {
    /// Size in bytes. *Protected by the inode's data lock*, as the other fields are.
    size: u64,
    /// The pages that hold data, by page number.
    data: BTreeMap<u64, Page>,
    /// The pages that are reserved and read as zeros.
    unwritten: PageSet,
}

impl FileData {
    /// An empty file.
    pub(crate) const fn new() -> FileData {
        FileData { size: 0, data: BTreeMap::new(), unwritten: PageSet::new() }
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Number of pages allocated, unwritten ones included.
    pub(crate) fn pages(&self) -> u64 {
        self.data.len() as u64 + self.unwritten.len()
    }

    /// Reads from `offset` into `buf` and returns the number of bytes read, which is less than asked for only
    /// at the end of the file. Holes read as zeros.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = self.size.saturating_sub(offset).min(buf.len() as u64);
        if len == 0 {
            return 0;
        }
        let wanted = offset..offset + len;
        let buf = &mut buf[..len as usize];
        let mut filled = 0;
        for (&index, page) in self.data.range(pages_touched(&wanted)) {
            let piece = clip(index, &wanted);
            let target = within(offset, &piece);
            buf[filled..target.start].fill(0);
            filled = target.end;
            buf[target].copy_from_slice(&page.bytes()[within(index * PAGE, &piece)]);
        }
        buf[filled..].fill(0);
        len as usize
    }

    /// The first offset at or after `offset` that holds data, in whole pages; `None` (`ENXIO`) when there is
    /// none before the end of the file, or `offset` is not before it.
    pub(crate) fn seek_data(&self, offset: u64) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let (&index, _) = self.data.range(offset / PAGE..).next()?;
        Some(offset.max(index * PAGE))
    }

    /// The first offset at or after `offset` that is in a hole or an unwritten page, or the end of the file;
    /// `None` (`ENXIO`) when `offset` is not before the end.
    pub(crate) fn seek_hole(&self, offset: u64) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let mut index = offset / PAGE;
        for (&next, _) in self.data.range(index..) {
            if next != index {
                break;
            }
            index += 1;
        }
        Some(offset.max(index * PAGE).min(self.size))
    }

    /// Makes the file empty and releases all its pages.
    pub(crate) fn clear(&mut self, space: &dyn Space) {
        let old = std::mem::replace(self, FileData::new());
        release(space, old.pages());
    }

    /// How many of `pages` are holes.
    fn missing(&self, pages: &Range<u64>) -> u64 {
        let data = self.data.range(pages.clone()).count() as u64;
        pages.end - pages.start - data - self.unwritten.count(pages)
    }

    /// Takes the data pages out of `pages`, which become holes, and tells how many there were.
    fn remove_data(&mut self, pages: &Range<u64>) -> u64 {
        let before = self.data.len();
        while let Some((&index, _)) = self.data.range(pages.clone()).next() {
            self.data.remove(&index);
        }
        (before - self.data.len()) as u64
    }
}

/// Reserves `pages` pages; none needs no reservation.
fn reserve(space: &dyn Space, pages: u64) -> Result<(), Errno> {
    if pages == 0 { Ok(()) } else { space.reserve(pages) }
}

/// Releases `pages` pages.
fn release(space: &dyn Space, pages: u64) {
    if pages > 0 {
        space.release(pages);
    }
}

/// The pages that have a byte in `bytes`, which is not empty.
fn pages_touched(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / PAGE..bytes.end.div_ceil(PAGE)
}

/// The part of `bytes` that lies in page `index`, which has a byte in it.
fn clip(index: u64, bytes: &Range<u64>) -> Range<u64> {
    let start = index * PAGE;
    bytes.start.max(start)..bytes.end.min(start + PAGE)
}

/// `bytes`, counted from offset `base` on. The range must be in memory: in a page or in a caller's buffer.
fn within(base: u64, bytes: &Range<u64>) -> Range<usize> {
    (bytes.start - base) as usize..(bytes.end - base) as usize
}
