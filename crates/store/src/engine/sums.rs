//! SummedFile: a file with a checksum of each of its pages.
//!
//! # Theory
//! redb finds a page by its number, and trusts what stands there: its own checksums are for a check of the whole file. So a page
//! that is stale, misplaced or damaged would be taken for the one that was asked for. Here each page has a checksum of its number and
//! its bytes, in a block before each 1024 pages:
//! ```text
//!   file   | sums | page 0 | page 1 | ... | page 1023 | sums | page 1024 | ...       a block, a page: 4 KiB
//!   sums   a checksum of four bytes for each of the pages behind it; 0: not written yet; 0 for page 0
//!   page 0 0         508      512
//!          | bytes   | crc    | zeros
//! ```
//! redb writes a page where none is that the last commit needs, and flushes it before a commit names it; the sums are written before
//! that flush. A torn block of sums has old and new sectors, and of a page that is needed both have the same sum. Page 0 alone is
//! written in place: its bytes are fewer than a sector's, and stand with their checksum in one, which is never torn.
//!
//! A file of an earlier version begins with redb's own bytes. Such a file has no sums, and is used unchanged.
//!
//! # Cost
//! Four bytes of memory for each page of the groups that were touched; a checksum for each page that redb does not have in its
//! cache; a block more to be written at a flush for each group that changed.

use crate::disk::DiskFile;
use sluice_sync::{Arc, LockClass, Mutex};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, ErrorKind};

static SUMS: LockClass = LockClass::new("store.engine.sums");

const PAGE: u64 = 4096;
/// Pages of a group.
const PAGES: u64 = 1024;
/// Bytes of a group's pages.
const GROUP: u64 = PAGES * PAGE;
/// Bytes of page 0, and what follows them.
const FIRST: usize = 508;
const SECTOR: usize = 512;
/// The first bytes of a file without sums.
const PLAIN: &[u8; 4] = b"redb";

/// The file.
#[derive(Debug)]
pub(super) struct SummedFile {
    file: Arc<dyn DiskFile>,
    /// *immutable*
    is_plain: bool,
    /// By number. *protected by its mutex*
    groups: Mutex<BTreeMap<u64, PageSums>>,
}

/// The sums of a group's pages.
#[derive(Debug)]
struct PageSums {
    sums: Vec<u32>,
    is_written: bool,
}

impl SummedFile {
    /// The pages in `file`, which is empty or a summed file.
    ///
    /// # Errors
    /// `InvalidData` when it ends before its first page; the disk's.
    pub(super) fn new(file: Arc<dyn DiskFile>) -> io::Result<SummedFile> {
        let mut begin = [0; PLAIN.len()];
        let is_plain = match file.size()? {
            0 => false,
            cut if cut <= PAGE => return Err(io::Error::new(ErrorKind::InvalidData, "it was cut off")),
            _ => {
                file.read_at(&mut begin, 0)?;
                begin == *PLAIN
            }
        };
        Ok(SummedFile { file, is_plain, groups: Mutex::with_class(&SUMS, BTreeMap::new()) })
    }

    /// A file of an earlier version.
    #[cfg(test)]
    pub(super) fn plain(file: Arc<dyn DiskFile>) -> SummedFile {
        SummedFile { file, is_plain: true, groups: Mutex::with_class(&SUMS, BTreeMap::new()) }
    }

    pub(super) fn len(&self) -> io::Result<u64> {
        let size = self.file.size()?;
        Ok(if self.is_plain { size } else { size - size.div_ceil(GROUP + PAGE) * PAGE })
    }

    pub(super) fn set_len(&self, len: u64) -> io::Result<()> {
        if self.is_plain {
            return self.file.set_size(len);
        }
        let mut groups = self.groups.lock();
        for (number, group) in groups.range_mut(len / GROUP..) {
            let left = len.saturating_sub(number * GROUP).div_ceil(PAGE);
            group.sums.iter_mut().skip(left as usize).for_each(|sum| *sum = 0);
            group.is_written = false;
        }
        groups.retain(|number, _| number * GROUP < len);
        self.file.set_size(len + len.div_ceil(GROUP) * PAGE)
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.is_plain {
            return self.file.read_at(out, offset);
        }
        let (start, end) = (offset / PAGE * PAGE, (offset + out.len() as u64).next_multiple_of(PAGE));
        if (start, end) != (offset, offset + out.len() as u64) {
            let mut whole = vec![0; (end - start) as usize];
            self.read(start, &mut whole)?;
            let skipped = (offset - start) as usize;
            out.copy_from_slice(&whole[skipped..skipped + out.len()]);
            return Ok(());
        }
        let mut offset = offset;
        for out in pieces(offset, out) {
            self.file.read_at(out, place(offset))?;
            for page in out.chunks(PAGE as usize) {
                self.check(offset / PAGE, page)?;
                offset += PAGE;
            }
        }
        if start == 0 {
            out.iter_mut().take(SECTOR).skip(FIRST).for_each(|byte| *byte = 0);
        }
        Ok(())
    }

    pub(super) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.is_plain {
            return self.file.write_at(data, offset);
        }
        let end = offset + data.len() as u64;
        if offset < PAGE {
            return self.write_first(offset, data);
        }
        if !offset.is_multiple_of(PAGE) || !end.is_multiple_of(PAGE) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a part of a page is written"));
        }
        let (mut offset, mut left) = (offset, data);
        while !left.is_empty() {
            let (piece, rest) = left.split_at(left.len().min((GROUP - offset % GROUP) as usize));
            self.file.write_at(piece, place(offset))?;
            let mut groups = self.groups.lock();
            let group = self.group(&mut groups, offset / GROUP)?;
            for page in piece.chunks(PAGE as usize) {
                group.sums[(offset / PAGE % PAGES) as usize] = sum(offset / PAGE, page);
                offset += PAGE;
            }
            group.is_written = false;
            left = rest;
        }
        Ok(())
    }

    /// Makes what was written durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.write_sums()?;
        self.file.sync()
    }

    /// Writes the sums that changed.
    pub(super) fn write_sums(&self) -> io::Result<()> {
        for (number, group) in self.groups.lock().iter_mut().filter(|(_, group)| !group.is_written) {
            let bytes: Vec<u8> = group.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
            self.file.write_at(&bytes, number * (GROUP + PAGE))?;
            group.is_written = true;
        }
        Ok(())
    }

    /// Writes to page 0, whose only used part is its first sector.
    fn write_first(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (at, mut page) = (offset as usize, vec![0; PAGE as usize]);
        if at > 0 || data.len() < FIRST {
            // A new file is still empty.
            let mut first = [0; PAGE as usize];
            self.file.read_at(&mut first, place(0))?;
            if first.iter().any(|byte| *byte != 0) {
                self.check(0, &first)?;
                page[..FIRST].copy_from_slice(&first[..FIRST]);
            }
        }
        match page.get_mut(at..at + data.len()) {
            Some(bytes) => bytes.copy_from_slice(data),
            None => return Err(io::Error::new(ErrorKind::InvalidInput, "page 0 is written with others")),
        }
        if page[FIRST..].iter().any(|byte| *byte != 0) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "page 0 holds less than a sector"));
        }
        let crc = sum(0, &page[..FIRST]).to_le_bytes();
        page[FIRST..SECTOR].copy_from_slice(&crc);
        self.file.write_at(&page[..SECTOR], place(0))
    }

    /// Looks whether `bytes` are what was written to page `number`.
    fn check(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let is_right = if number == 0 {
            let (first, rest) = bytes.split_at(FIRST);
            let (crc, zeros) = rest.split_at(SECTOR - FIRST);
            crc == sum(0, first).to_le_bytes() && zeros.iter().all(|byte| *byte == 0)
        } else {
            let mut groups = self.groups.lock();
            let group = self.group(&mut groups, number / PAGES)?;
            group.sums[(number % PAGES) as usize] == sum(number, bytes)
        };
        let damaged =
            || io::Error::new(ErrorKind::InvalidData, format!("page {number} is not what was written"));
        if is_right { Ok(()) } else { Err(damaged()) }
    }

    /// The sums of group `number`.
    fn group<'g>(
        &self,
        groups: &'g mut BTreeMap<u64, PageSums>,
        number: u64,
    ) -> io::Result<&'g mut PageSums> {
        match groups.entry(number) {
            Entry::Occupied(group) => Ok(group.into_mut()),
            Entry::Vacant(empty) => {
                let mut bytes = [0; PAGE as usize];
                let at = number * (GROUP + PAGE);
                if self.file.size()? > at {
                    self.file.read_at(&mut bytes, at)?;
                }
                let sums = bytes.as_chunks().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
                Ok(empty.insert(PageSums { sums, is_written: true }))
            }
        }
    }
}

/// Where the byte at `offset` of the pages stands in the file.
fn place(offset: u64) -> u64 {
    offset + (offset / GROUP + 1) * PAGE
}

/// The parts of `bytes`, which begin at `offset` of the pages, that lie in one group each.
fn pieces(offset: u64, bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    let first = bytes.len().min((GROUP - offset % GROUP) as usize);
    let (first, rest) = bytes.split_at_mut(first);
    std::iter::once(first).chain(rest.chunks_mut(GROUP as usize))
}

/// The checksum of page `number` with these `bytes`: never 0.
fn sum(number: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, crash::CrashDisk};

    #[test]
    fn a_page_is_what_was_written_there_last_or_an_error() {
        let disk = CrashDisk::new();
        let file = disk.create("tree", 0).expect("an empty disk");
        let pages = SummedFile::new(file.clone()).expect("memory");
        let len = GROUP + 8 * PAGE;
        pages.set_len(len).expect("memory");
        assert_eq!(pages.len().expect("memory"), len);
        pages.write(0, &[7; 320]).expect("memory");
        // Over the end of a group.
        let data: Vec<u8> = (0..4 * PAGE).map(|at| (at / PAGE + 1) as u8).collect();
        pages.write(GROUP - 2 * PAGE, &data).expect("memory");
        pages.sync().expect("memory");
        let read = |at: u64, len: u64| {
            let pages = SummedFile::new(file.clone())?;
            let mut found = vec![0; len as usize];
            pages.read(at, &mut found).map(|()| found)
        };
        assert_eq!(read(GROUP - 2 * PAGE, 4 * PAGE).expect("as written"), data);
        assert_eq!(read(0, 320).expect("as written"), [7; 320]);
        assert!(read(PAGE, PAGE).is_err(), "it was never written");
        // Another page, an older one, a page that was lost, and a flipped bit.
        let at = place(GROUP - PAGE);
        let before = {
            let mut page = [0; 4096];
            file.read_at(&mut page, at).expect("memory");
            page
        };
        for wrong in [[1; 4096], [0; 4096], {
            let mut page = before;
            page[9] ^= 4;
            page
        }] {
            file.write_at(&wrong, at).expect("memory");
            assert!(read(GROUP - PAGE, PAGE).is_err());
            read(GROUP, PAGE).expect("another page");
        }
        file.write_at(&[8; 9], place(0)).expect("memory");
        assert!(read(0, 320).is_err());
        pages.set_len(GROUP).expect("memory");
        pages.set_len(len).expect("memory");
        assert!(pages.read(GROUP, &mut [0; 4096]).is_err(), "it went with the end");
    }
}
