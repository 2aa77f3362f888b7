//! Stored: contents in the chunks in which a store keeps them.
//!
//! A chunk is [`CHUNK_PAGES`] pages. The store keeps, for each chunk, a bitmap of the pages that have data, and the
//! bytes of these pages in order, up to the last nonzero byte. So holes stay holes, and a file of ten bytes takes ten
//! bytes.

use super::change::{data_pages, holes};
use super::page_set::PageSet;
use super::{FileData, PAGE_SIZE, PAGES_MAX, Prepaid, Space, pages_touched};
use sluice_sync::atomic::Ordering;
use sluice_sync::rcu::domain;
use std::cmp::Reverse;
use std::ops::Range;

/// Pages in a chunk.
pub(crate) const CHUNK_PAGES: u64 = 16;
/// The most ranges of unwritten pages of a file that its record keeps.
pub(crate) const RANGES_MAX: usize = 512;

/// The end of `bytes` without the zeros there, or `start`.
fn last_not_zero(bytes: &[u8], start: usize) -> usize {
    const STEP: usize = 64;
    let mut end = bytes.len();
    while end >= start + STEP && bytes[end - STEP..end] == [0; STEP] {
        end -= STEP;
    }
    bytes[start..end].iter().rposition(|byte| *byte != 0).map_or(start, |at| start + at + 1)
}

impl FileData {
    /// The file, new and known to nobody else, is as long as this, and has so many pages with data beside the `unwritten` ones. Space
    /// was reserved for all. The caller [fills](Self::fill_chunk) pages before it is read.
    pub(crate) fn preset(&self, size: u64, pages: u64, unwritten: PageSet) {
        let mut growing = self.tree.write();
        self.set_size(size);
        self.set_absent(pages > 0);
        self.set_reserved(unwritten.len() > 0);
        // Relaxed: a number that stands alone.
        self.pages.store(pages + unwritten.len(), Ordering::Relaxed);
        *growing.parts().1 = unwritten;
    }

    /// Takes those of the `pages` of `chunk` out that are there, keeping their storage: they are with a store. Returns which.
    pub(crate) fn evict(&self, space: &dyn Space, chunk: u64, pages: u16) -> u16 {
        let first = chunk * CHUNK_PAGES;
        let mut change = self.rearrange(space, first..first + CHUNK_PAGES);
        self.set_absent(true);
        let mut take = |at: u64| change.remove_data(&(first + at..first + at + 1)) > 0;
        (0..CHUNK_PAGES).filter(|at| pages & 1 << at != 0 && take(*at)).fold(0, |gone, at| gone | 1 << at)
    }

    /// So many pages came that are with a store: what was paid for them is the file's.
    pub(crate) fn adopt(&self, space: &Prepaid<'_>, pages: u64) {
        space.spend(pages);
        let _growing = self.tree.write();
        space.charge_anyway(pages);
        // Relaxed, both: a number that stands alone, written under the mutex.
        self.pages.store(self.pages.load(Ordering::Relaxed) + pages, Ordering::Relaxed);
    }

    /// So many pages that are with a store are holes now: releases their storage.
    pub(crate) fn forget(&self, space: &dyn Space, pages: u64) {
        self.grow(space).release(pages);
    }

    /// Adds the `present` pages of `chunk` to the file, which has no pages there, with these bytes; the bytes never
    /// exceed the pages.
    pub(crate) fn fill_chunk(&self, space: &dyn Space, chunk: u64, present: u16, mut bytes: &[u8]) {
        let mut change = self.grow(space);
        for at in (0..CHUNK_PAGES).filter(|at| present & 1 << at != 0) {
            let (page, rest) = bytes.split_at(bytes.len().min(PAGE_SIZE));
            change.fill(chunk * CHUNK_PAGES + at, page);
            bytes = rest;
        }
    }

    /// Appends the bytes of the pages of `chunk` that are `wanted` to `bytes`, and returns which of all are present. Nobody
    /// changes the file meanwhile.
    pub(crate) fn chunk(&self, chunk: u64, wanted: u16, bytes: &mut Vec<u8>) -> u16 {
        let (guard, start) = (domain().read(), bytes.len());
        let (mut present, mut whole): (u16, usize) = (0, start);
        for at in 0..CHUNK_PAGES {
            let Some(page) = self.tree.get(&guard, chunk * CHUNK_PAGES + at) else { continue };
            present |= 1 << at;
            if wanted & 1 << at == 0 {
                continue;
            }
            // A page may have memory for its first bytes only: the rest reads as zeros, and zeros at the end are cut
            // anyway.
            bytes.resize(whole + page.len(), 0);
            page.load(0, &mut bytes[whole..]);
            whole += PAGE_SIZE;
        }
        bytes.truncate(last_not_zero(bytes, start));
        present
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

    /// The first chunk from `chunk` on that has data in memory.
    pub(crate) fn next_chunk(&self, chunk: u64) -> Option<u64> {
        let (guard, from) = (domain().read(), chunk.saturating_mul(CHUNK_PAGES));
        Some(self.tree.first_in(&guard, from..PAGES_MAX)?.0 / CHUNK_PAGES)
    }

    /// Bitmaps of the pages of `chunk` in memory: here, in `other`, and of the pages that both files share.
    pub(crate) fn pages_in_common(&self, other: &FileData, chunk: u64) -> [u16; 3] {
        let guard = domain().read();
        let mut found = [0; 3];
        for at in 0..CHUNK_PAGES {
            let index = chunk * CHUNK_PAGES + at;
            let [here, there] = [self, other].map(|file| file.tree.get(&guard, index));
            let is_same = here.zip(there).is_some_and(|(here, there)| here.is_same(there));
            for (pages, has) in found.iter_mut().zip([here.is_some(), there.is_some(), is_same]) {
                *pages |= u16::from(has) << at;
            }
        }
        found
    }

    /// Number of pages that hold data. Nobody changes the file meanwhile.
    pub(crate) fn data_pages(&self) -> u64 {
        self.pages() - self.unwritten_pages()
    }

    /// The number of pages with data that other files share, and the number of pages of this file alone.
    pub(crate) fn shared_and_private_pages(&self) -> (u64, u64) {
        let mut tree = self.tree.write();
        let (slots, _) = tree.parts();
        let mut counts = (0, 0);
        for (index, _) in data_pages(slots, 0..PAGES_MAX) {
            *(if slots.is_sole(index) { &mut counts.1 } else { &mut counts.0 }) += 1;
        }
        counts
    }

    /// Number of unwritten pages.
    pub(crate) fn unwritten_pages(&self) -> u64 {
        if self.has_reserved() { self.tree.state().len() } else { 0 }
    }

    /// Whether the file has a page, with data or unwritten, for each of `bytes`.
    pub(crate) fn has_pages(&self, bytes: &Range<u64>) -> bool {
        let mut tree = self.tree.write();
        let (slots, unwritten) = tree.parts();
        bytes.is_empty() || holes(slots, unwritten, &pages_touched(bytes)) == 0
    }

    /// Whether each of `bytes` lies in an unwritten page.
    pub(crate) fn is_unwritten(&self, bytes: &Range<u64>) -> bool {
        let pages = pages_touched(bytes);
        self.has_reserved() && self.tree.state().count(&pages) == pages.end - pages.start
    }

    /// The unwritten pages that a record keeps: all, or the longest ranges.
    pub(crate) fn unwritten_to_keep(&self) -> PageSet {
        let unwritten = self.tree.state();
        let mut ranges: Vec<_> = unwritten.ranges().collect();
        if ranges.len() > RANGES_MAX {
            ranges.select_nth_unstable_by_key(RANGES_MAX, |range| Reverse(range.end - range.start));
            ranges.truncate(RANGES_MAX);
        }
        let mut kept = PageSet::new();
        ranges.into_iter().for_each(|range| kept.insert(range));
        kept
    }

    /// Whether a record keeps all unwritten pages.
    pub(crate) fn are_unwritten_kept(&self) -> bool {
        !self.has_reserved() || self.tree.state().ranges().nth(RANGES_MAX).is_none()
    }

    /// Whether one of the `present` pages of `chunk` is unwritten.
    pub(crate) fn has_unwritten(&self, chunk: u64, present: u16) -> bool {
        let pages = chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES;
        self.has_reserved() && self.tree.state().mask(&pages) & u64::from(present) != 0
    }
}
