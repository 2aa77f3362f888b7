//! Compare: where the contents of two files may differ, found without reading any.
//!
//! # Theory
//! A page is the same in both files if it is one page of memory, a hole in both, or stands in an extent that both name, and neither has
//! changed it since. All other pages may differ, and the caller reads them. So two copies of a file that were made by a clone or a
//! snapshot are compared by what the store says of their chunks, and of pages in memory by their addresses.
//!
//! A page that a call is changing at this moment may be taken for unchanged: a caller that must know compares snapshots.

use crate::data::{CHUNK_PAGES, PAGE};
use crate::{Errno, InodeRef};
use sluice_store::Extent;
use std::ops::Range;

/// A chunk of a file as the store has it: the extent, its pages that nobody has changed since, and those that are not in memory.
#[derive(Default)]
struct StoredChunk {
    extent: Option<Extent>,
    unchanged: u16,
    absent: u16,
}

impl InodeRef {
    /// The first bytes at or after `from`, whole pages of one chunk, that may differ between this regular file and `other`. `None` if
    /// there are none. Contents that both share are not read, and count as the same.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL` (not a regular file); the store's.
    pub fn first_difference(&self, other: &InodeRef, from: u64) -> Result<Option<Range<u64>>, Errno> {
        self.data()?;
        other.data()?;
        // An empty range loads what the store knows of the chunks.
        let _held = self.contents_to_copy(0..0, other, 0)?;
        let mut chunk = from / PAGE / CHUNK_PAGES;
        while let Some(at) = [self, other].into_iter().filter_map(|inode| inode.next_chunk(chunk)).min() {
            let first = at * CHUNK_PAGES;
            let passed = from.div_ceil(PAGE).saturating_sub(first).min(CHUNK_PAGES);
            let differing = u32::from(self.differing_pages(other, at)) >> passed << passed;
            if differing != 0 {
                let start = first + u64::from(differing.trailing_zeros());
                let end = start + u64::from((differing >> differing.trailing_zeros()).trailing_ones());
                return Ok(Some(start * PAGE..end * PAGE));
            }
            chunk = at + 1;
        }
        Ok(None)
    }

    /// The first chunk from `chunk` on that has data in memory, or an extent.
    fn next_chunk(&self, chunk: u64) -> Option<u64> {
        let stored = self.stored().and_then(|stored| {
            let kept = stored.kept.lock();
            let mut extents = kept.extents.range(chunk..).map(|(at, _)| *at);
            extents.find(|at| !kept.cut_off.contains(at))
        });
        self.data.next_chunk(chunk).into_iter().chain(stored).min()
    }

    /// The pages of `chunk` that may differ.
    fn differing_pages(&self, other: &InodeRef, chunk: u64) -> u16 {
        let [mine, theirs] = [self, other].map(|inode| inode.stored_chunk(chunk));
        let [here, there, same] = self.data.pages_in_common(&other.data, chunk);
        let (here, there) = (here | mine.absent, there | theirs.absent);
        let has_both = mine.extent.is_some() && mine.extent == theirs.extent;
        let in_extent = if has_both { mine.unchanged & theirs.unchanged } else { 0 };
        (here | there) & !(same | here & there & in_extent)
    }

    fn stored_chunk(&self, chunk: u64) -> StoredChunk {
        let Some(stored) = self.stored() else { return StoredChunk::default() };
        let kept = stored.kept.lock();
        match kept.extents.get(&chunk).filter(|_| !kept.cut_off.contains(&chunk)) {
            Some(held) => StoredChunk {
                extent: Some(held.extent.clone()),
                unchanged: held.pages & !held.patched & !stored.dirty_in(chunk),
                absent: kept.absent.get(&chunk).copied().unwrap_or(0),
            },
            None => StoredChunk::default(),
        }
    }
}
