//! Page: 4 KiB of a file, of which the first may have memory for its first bytes only.
//!
//! # Theory
//! Most files are short, and many are a few bytes long. So the memory of a file's first page is as long as what was written
//! there needs, in a few steps; what lies behind it are zeros. A write that needs more puts a longer copy in its place, as it does
//! with a page that others share. That is done once for each step, for a file that grows byte by byte five times
//! in all. The pages behind the first are whole: they are written by long files.
//!
//! Storage is counted in whole pages all the same, as tmpfs counts it: what `st_blocks` shows and `size=` charges depends on
//! which pages have data, not on how the data came there.

use super::PAGE_SIZE;
use sluice_sync::{LockedBytes, SharedBytes};

/// How long the memory of a page may be. With what belongs to a page beside its bytes, a file of 10 bytes takes 112 bytes for
/// them, and one of 100 bytes 176.
const LENGTHS: [usize; 6] = [48, 112, 240, 496, 1008, PAGE_SIZE];

/// A page that its holder alone may change.
pub(super) type LockedPage<'a> = LockedBytes<'a>;

/// The state of a call for each page that it touches. The first stands apart from the others, so that one alone needs
/// no memory.
pub(super) struct PerPage<T> {
    first: Option<T>,
    others: Vec<T>,
}

/// Pages that are locked together.
pub(super) type Locked<'p> = PerPage<LockedPage<'p>>;

/// New pages, for where there was none.
pub(super) type MadePages = PerPage<Option<SharedBytes>>;

impl<T> PerPage<T> {
    pub(super) const fn new() -> PerPage<T> {
        PerPage { first: None, others: Vec::new() }
    }

    pub(super) fn push(&mut self, one: T) {
        match &self.first {
            None => self.first = Some(one),
            Some(_) => self.others.push(one),
        }
    }

    /// In the order of the pages.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.others)
    }

    /// In the order of the pages.
    pub(super) fn into_iter(self) -> impl Iterator<Item = T> {
        self.first.into_iter().chain(self.others)
    }
}

/// How long the memory of page `index` is made that has bytes up to `end`.
pub(super) fn length(index: u64, end: usize) -> usize {
    let shortest = || LENGTHS.into_iter().find(|length| end <= *length);
    if index > 0 { PAGE_SIZE } else { shortest().unwrap_or(PAGE_SIZE) }
}

/// Page `index` of a file, new: zeros but for `bytes`, which begin at `at` and fit.
pub(super) fn with(index: u64, at: usize, bytes: &[u8]) -> SharedBytes {
    SharedBytes::with(length(index, at + bytes.len()), at, bytes)
}

/// Whether a page has memory for all its bytes.
pub(super) fn is_whole(page: &LockedPage<'_>) -> bool {
    page.len() == PAGE_SIZE
}
