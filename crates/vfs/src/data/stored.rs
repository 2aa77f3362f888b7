//! Stored: contents as a store keeps them: in chunks, each the value of one record.
//!
//! # Theory
//! A chunk is [`CHUNK_PAGES`] pages. Its value says which of them have data, and ends with the last byte that is not zero:
//! ```text
//!   0      1          3
//!   | kind | pages    | the bytes of each page that has data ...     pages: one bit each, little endian
//! ```
//! `kind` is 0; others are left for chunks whose bytes are elsewhere. A chunk without data has no record. So holes stay holes, and
//! a file of ten bytes takes ten bytes.

use super::page_set::PageSet;
use super::{FileData, PAGE_SIZE, Space};
use sluice_sync::atomic::Ordering;
use sluice_sync::rcu::domain;
use std::ops::Range;

/// Pages in a chunk.
pub(crate) const CHUNK_PAGES: u64 = 16;
/// Bytes before those of the pages.
const HEAD: usize = 3;
/// The bytes follow.
const INLINE: u8 = 0;

/// Pages with data in a chunk with this value, if it is one.
pub(crate) fn pages_of_chunk(value: &[u8]) -> Option<u64> {
    let ([kind, low, high], bytes) = value.split_first_chunk::<HEAD>()?;
    let pages = u16::from_le_bytes([*low, *high]).count_ones() as usize;
    (*kind == INLINE && bytes.len() <= pages * PAGE_SIZE).then_some(pages as u64)
}

impl FileData {
    /// The file, new and known to nobody else, is as long as this, and has so many pages, for which space was reserved. They are to
    /// be [filled](Self::fill_chunk) before anybody looks at them.
    pub(crate) fn preset(&self, size: u64, pages: u64) {
        let _growing = self.tree.write();
        self.set_size(size);
        // Relaxed: a number that stands alone.
        self.pages.store(pages, Ordering::Relaxed);
    }

    /// Puts the pages of `chunk` into the file, which has holes there, as `value` has them. False if it is no value of a chunk.
    pub(crate) fn fill_chunk(&self, space: &dyn Space, chunk: u64, value: &[u8]) -> bool {
        let Some(([kind, low, high], mut bytes)) = value.split_first_chunk::<HEAD>() else { return false };
        if *kind != INLINE {
            return false;
        }
        let present = u16::from_le_bytes([*low, *high]);
        let mut change = self.grow(space);
        for at in (0..CHUNK_PAGES).filter(|at| present & 1 << at != 0) {
            let (page, rest) = bytes.split_at(bytes.len().min(PAGE_SIZE));
            change.fill(chunk * CHUNK_PAGES + at, page);
            bytes = rest;
        }
        bytes.is_empty()
    }

    /// Appends the value of `chunk` to `value`. False, and nothing is appended, if it has no data. Nobody changes the file
    /// meanwhile.
    pub(crate) fn chunk(&self, chunk: u64, value: &mut Vec<u8>) -> bool {
        let (guard, start) = (domain().read(), value.len());
        value.extend_from_slice(&[INLINE, 0, 0]);
        let mut present: u16 = 0;
        for at in 0..CHUNK_PAGES {
            let Some(page) = self.tree.get(&guard, chunk * CHUNK_PAGES + at) else { continue };
            present |= 1 << at;
            let end = value.len();
            value.resize(end + PAGE_SIZE, 0);
            page.load_padded(0, &mut value[end..]);
        }
        if present == 0 {
            value.truncate(start);
            return false;
        }
        let last = value.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        value.truncate(last.max(start + HEAD));
        value[start + 1..start + HEAD].copy_from_slice(&present.to_le_bytes());
        true
    }

    /// The chunks among `chunks` that have data. Nobody changes the file meanwhile.
    pub(crate) fn chunks_with_data(&self, chunks: Range<u64>) -> PageSet {
        let guard = domain().read();
        let mut found = PageSet::new();
        let end = chunks.end.saturating_mul(CHUNK_PAGES);
        let mut rest = chunks.start.saturating_mul(CHUNK_PAGES)..end;
        while let Some((index, _)) = self.tree.first_in(&guard, rest.clone()) {
            let chunk = index / CHUNK_PAGES;
            found.insert(chunk..chunk + 1);
            rest.start = (chunk + 1) * CHUNK_PAGES;
        }
        found
    }

    /// Number of pages that hold data.
    pub(crate) fn data_pages(&self) -> u64 {
        // Relaxed: a hint, as nobody changes the file meanwhile.
        let reserved = if self.reserved.load(Ordering::Relaxed) { self.tree.state().len() } else { 0 };
        self.pages() - reserved
    }
}
