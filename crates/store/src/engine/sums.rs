//! SummedFile: a file with a checksum of each of its pages, or with pages that are encrypted.
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
//! In an encrypted store each page is encrypted with its number, and its nonce and tag stand for the checksum:
//! ```text
//!   file   | seals | page 0 | page 1 | ... | page 95 | seals | page 96 | ...
//!   seals  twelve in each sector of 512 bytes: nonce (24), tag (16)
//!   page 0 0         472     496   512
//!          | bytes   | nonce | tag | zeros
//! ```
//! A seal never crosses the end of a sector, so all of the above holds.
//!
//! A file of an earlier version begins with redb's own bytes. Such a file has no sums, and is used unchanged.
//!
//! # Cost
//! Four bytes of memory for each page of the groups that were touched, 43 of an encrypted one; a checksum for each page that redb does not have in its
//! cache; a block more to be written at a flush for each group that changed.

use crate::disk::DiskFile;
use crate::encryption::{Cipher, SEAL, StorePart};
use sluice_sync::{Arc, LockClass, Mutex};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, ErrorKind};

static SUMS: LockClass = LockClass::new("store.engine.sums");

const PAGE: u64 = 4096;
/// Pages of a group.
const PAGES: u64 = 1024;
/// Pages of a group that are encrypted.
const PAGES_ENCRYPTED: u64 = (PAGE as usize / SECTOR * SEALS) as u64;
/// Seals in a sector.
const SEALS: usize = SECTOR / SEAL;
/// Bytes of a checksum.
const SUM: usize = 4;
const SECTOR: usize = 512;
/// The first bytes of a file without sums.
const PLAIN: &[u8; 4] = b"redb";

/// The file.
#[derive(Debug)]
pub(super) struct SummedFile {
    file: Arc<dyn DiskFile>,
    /// *immutable*
    is_plain: bool,
    /// *immutable*
    cipher: Option<Arc<Cipher>>,
    /// By number. *protected by its mutex*
    groups: Mutex<BTreeMap<u64, PageSums>>,
}

/// The sums of a group's pages, or their seals.
#[derive(Debug)]
struct PageSums {
    /// As the file has them.
    block: Box<[u8; PAGE as usize]>,
    is_written: bool,
}

impl SummedFile {
    /// The pages in `file`, which is empty or a summed file, encrypted if there is a `cipher`.
    ///
    /// # Errors
    /// `InvalidData` when it ends before its first page, or is not encrypted and should be; the disk's.
    pub(super) fn new(file: Arc<dyn DiskFile>, cipher: Option<Arc<Cipher>>) -> io::Result<SummedFile> {
        let mut begin = [0; PLAIN.len()];
        let is_plain = match file.size()? {
            0 => false,
            cut if cut <= PAGE => return Err(io::Error::new(ErrorKind::InvalidData, "it was cut off")),
            _ => {
                file.read_at(&mut begin, 0)?;
                begin == *PLAIN && cipher.is_none()
            }
        };
        Ok(SummedFile { file, is_plain, cipher, groups: Mutex::with_class(&SUMS, BTreeMap::new()) })
    }

    /// A file of an earlier version.
    #[cfg(test)]
    pub(super) fn plain(file: Arc<dyn DiskFile>) -> SummedFile {
        let groups = Mutex::with_class(&SUMS, BTreeMap::new());
        SummedFile { file, is_plain: true, cipher: None, groups }
    }

    /// Bytes of a group's pages.
    fn group_len(&self) -> u64 {
        PAGE * if self.cipher.is_some() { PAGES_ENCRYPTED } else { PAGES }
    }

    /// Bytes of page 0 that are redb's. Their checksum or seal follows in the sector.
    fn first_len(&self) -> usize {
        SECTOR - if self.cipher.is_some() { SEAL } else { SUM }
    }

    /// Where the byte at `offset` of the pages stands in the file.
    fn place(&self, offset: u64) -> u64 {
        offset + (offset / self.group_len() + 1) * PAGE
    }

    pub(super) fn len(&self) -> io::Result<u64> {
        let size = self.file.size()?;
        Ok(if self.is_plain { size } else { size - size.div_ceil(self.group_len() + PAGE) * PAGE })
    }

    pub(super) fn set_len(&self, len: u64) -> io::Result<()> {
        if self.is_plain {
            return self.file.set_size(len);
        }
        let group_len = self.group_len();
        let mut groups = self.groups.lock();
        for (number, group) in groups.range_mut(len / group_len..) {
            let left = len.saturating_sub(number * group_len).div_ceil(PAGE);
            for page in left..group_len / PAGE {
                self.slot(&mut group.block, page).fill(0);
            }
            group.is_written = false;
        }
        groups.retain(|number, _| number * group_len < len);
        self.file.set_size(len + len.div_ceil(group_len) * PAGE)
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
        for out in pieces(offset, self.group_len(), out) {
            self.file.read_at(out, self.place(offset))?;
            for page in out.chunks_mut(PAGE as usize) {
                self.check(offset / PAGE, page)?;
                offset += PAGE;
            }
        }
        if start == 0 {
            out.iter_mut().take(SECTOR).skip(self.first_len()).for_each(|byte| *byte = 0);
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
        let group_len = self.group_len();
        let (mut offset, mut left) = (offset, data);
        while !left.is_empty() {
            let (piece, rest) = left.split_at(left.len().min((group_len - offset % group_len) as usize));
            let mut stored =
                if self.cipher.is_some() { Cow::Owned(piece.to_vec()) } else { Cow::Borrowed(piece) };
            let proofs = self.proofs(offset / PAGE, &mut stored)?;
            self.file.write_at(&stored, self.place(offset))?;
            let mut groups = self.groups.lock();
            let group = self.group(&mut groups, offset / group_len)?;
            for proof in proofs.chunks(self.proof_len()) {
                self.slot(&mut group.block, offset / PAGE % (group_len / PAGE)).copy_from_slice(proof);
                offset += PAGE;
            }
            group.is_written = false;
            left = rest;
        }
        Ok(())
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The disk's; `Other` for any of its flush.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.write_sums()?;
        // After a failed flush nobody knows which pages the disk has, so a full disk is no reason to try again.
        self.file.sync().map_err(|error| io::Error::other(error.to_string()))
    }

    /// Writes the sums that changed.
    pub(super) fn write_sums(&self) -> io::Result<()> {
        for (number, group) in self.groups.lock().iter_mut().filter(|(_, group)| !group.is_written) {
            self.file.write_at(&*group.block, number * (self.group_len() + PAGE))?;
            group.is_written = true;
        }
        Ok(())
    }

    /// Writes to page 0, whose only used part is its first sector.
    fn write_first(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (first_len, at, mut page) = (self.first_len(), offset as usize, vec![0; PAGE as usize]);
        if at > 0 || data.len() < first_len {
            // A new file is still empty.
            let mut first = [0; PAGE as usize];
            self.file.read_at(&mut first, self.place(0))?;
            if first.iter().any(|byte| *byte != 0) {
                self.check(0, &mut first)?;
                page[..first_len].copy_from_slice(&first[..first_len]);
            }
        }
        match page.get_mut(at..at + data.len()) {
            Some(bytes) => bytes.copy_from_slice(data),
            None => return Err(io::Error::new(ErrorKind::InvalidInput, "page 0 is written with others")),
        }
        if page[first_len..].iter().any(|byte| *byte != 0) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "page 0 holds less than a sector"));
        }
        let mut first = Cow::Owned(page[..first_len].to_vec());
        let proof = self.proofs(0, &mut first)?;
        self.file.write_at(&[&*first, &proof].concat(), self.place(0))
    }

    /// Bytes that say of a page that it is what was written.
    fn proof_len(&self) -> usize {
        if self.cipher.is_some() { SEAL } else { SUM }
    }

    /// The sums of the `pages` from `number` on; or these are encrypted, and it is their seals.
    fn proofs(&self, number: u64, pages: &mut Cow<'_, [u8]>) -> io::Result<Vec<u8>> {
        let mut proofs = Vec::with_capacity(pages.len().div_ceil(PAGE as usize) * self.proof_len());
        match &self.cipher {
            None => (number..).zip(pages.chunks(PAGE as usize)).for_each(|(number, page)| {
                proofs.extend_from_slice(&sum(number, page).to_le_bytes());
            }),
            Some(cipher) => {
                for (number, page) in (number..).zip(pages.to_mut().chunks_mut(PAGE as usize)) {
                    proofs.extend_from_slice(&cipher.encrypt(
                        StorePart::Tree,
                        &number.to_le_bytes(),
                        page,
                    )?);
                }
            }
        }
        Ok(proofs)
    }

    /// Looks whether `bytes` are what was written to page `number`, and decrypts them if they are encrypted.
    fn check(&self, number: u64, bytes: &mut [u8]) -> io::Result<()> {
        let is_right = if number == 0 {
            let (first, rest) = bytes.split_at_mut(self.first_len());
            let (proof, zeros) = rest.split_at(SECTOR - first.len());
            zeros.iter().all(|byte| *byte == 0) && self.is_proven(number, first, proof)
        } else {
            let (mut proof, len) = ([0; SEAL], self.proof_len());
            let pages = self.group_len() / PAGE;
            {
                let mut groups = self.groups.lock();
                let group = self.group(&mut groups, number / pages)?;
                proof[..len].copy_from_slice(self.slot(&mut group.block, number % pages));
            }
            self.is_proven(number, bytes, &proof[..len])
        };
        let damaged =
            || io::Error::new(ErrorKind::InvalidData, format!("page {number} is not what was written"));
        if is_right { Ok(()) } else { Err(damaged()) }
    }

    /// Whether `proof` is that of page `number` with these `bytes`, which it decrypts.
    fn is_proven(&self, number: u64, bytes: &mut [u8], proof: &[u8]) -> bool {
        match (&self.cipher, proof.first_chunk()) {
            (None, _) => *proof == sum(number, bytes).to_le_bytes(),
            (Some(cipher), Some(seal)) => cipher.decrypt(StorePart::Tree, &number.to_le_bytes(), bytes, seal),
            (Some(_), None) => false,
        }
    }

    /// The place of the proof of a group's page `number` in the `block` before it.
    fn slot<'b>(&self, block: &'b mut [u8; PAGE as usize], number: u64) -> &'b mut [u8] {
        let number = number as usize;
        let at = match self.cipher {
            None => number * SUM,
            Some(_) => number / SEALS * SECTOR + number % SEALS * SEAL,
        };
        &mut block[at..at + self.proof_len()]
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
                let mut block = Box::new([0; PAGE as usize]);
                let at = number * (self.group_len() + PAGE);
                if self.file.size()? > at {
                    self.file.read_at(&mut *block, at)?;
                }
                Ok(empty.insert(PageSums { block, is_written: true }))
            }
        }
    }
}

/// The parts of `bytes`, which begin at `offset` of the pages, that lie in one group of `group_len` bytes each.
fn pieces(offset: u64, group_len: u64, bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    let first = bytes.len().min((group_len - offset % group_len) as usize);
    let (first, rest) = bytes.split_at_mut(first);
    std::iter::once(first).chain(rest.chunks_mut(group_len as usize))
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
        pages_are_what_was_written_or_errors(None);
    }

    #[cfg(feature = "encryption")]
    #[test]
    fn an_encrypted_page_is_what_was_written_there_last_or_an_error() {
        pages_are_what_was_written_or_errors(Some(Arc::new(Cipher::of(&[7; 32]))));
    }

    fn pages_are_what_was_written_or_errors(cipher: Option<Arc<Cipher>>) {
        let disk = CrashDisk::new();
        let file = disk.create("tree", 0).expect("an empty disk");
        let pages = SummedFile::new(file.clone(), cipher.clone()).expect("memory");
        let group = pages.group_len();
        let len = group + 8 * PAGE;
        pages.set_len(len).expect("memory");
        assert_eq!(pages.len().expect("memory"), len);
        pages.write(0, &[7; 320]).expect("memory");
        // Over the end of a group.
        let data: Vec<u8> = (0..4 * PAGE).map(|at| (at / PAGE + 1) as u8).collect();
        pages.write(group - 2 * PAGE, &data).expect("memory");
        pages.sync().expect("memory");
        let read = |at: u64, len: u64| {
            let pages = SummedFile::new(file.clone(), cipher.clone())?;
            let mut found = vec![0; len as usize];
            pages.read(at, &mut found).map(|()| found)
        };
        assert_eq!(read(group - 2 * PAGE, 4 * PAGE).expect("as written"), data);
        assert_eq!(read(0, 320).expect("as written"), [7; 320]);
        assert!(read(PAGE, PAGE).is_err(), "it was never written");
        // Another page, an older one, a page that was lost, and a flipped bit.
        let at = pages.place(group - PAGE);
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
            assert!(read(group - PAGE, PAGE).is_err());
            read(group, PAGE).expect("another page");
        }
        file.write_at(&[8; 9], pages.place(0)).expect("memory");
        assert!(read(0, 320).is_err());
        pages.set_len(group).expect("memory");
        pages.set_len(len).expect("memory");
        assert!(pages.read(group, &mut [0; 4096]).is_err(), "it went with the end");
        // The sums stand for whole pages, and page 0 has room for one sector.
        let too_long = vec![1; SECTOR];
        for (at, data, why) in [
            (PAGE, &too_long[..], "a part of a page is written"),
            (0, &[0; 5000][..], "page 0 is written with others"),
            (0, &too_long[..], "page 0 holds less than a sector"),
        ] {
            assert_eq!(pages.write(at, data).expect_err(why).to_string(), why);
        }
    }
}
