//! Page: 4096 bytes of a file, shared copy-on-write between the files (and places in a file) that hold it.

use super::PAGE_SIZE;
use sluice_sync::Arc;
use std::ops::Range;

/// A page that holds data. Cloning shares the bytes; writing to a shared page copies them first.
#[derive(Clone)]
pub(super) struct Page(Arc<[u8; PAGE_SIZE]>);

impl Page {
    /// A page of zeros but for `bytes`, which begin at `at`. They must fit.
    pub(super) fn new(at: usize, bytes: &[u8]) -> Page {
        let mut page = [0; PAGE_SIZE];
        page[at..at + bytes.len()].copy_from_slice(bytes);
        Page(Arc::new(page))
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8; PAGE_SIZE] {
        &self.0
    }

    /// Replaces what is at `at` by `bytes`, which must fit.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        match Arc::get_mut(&mut self.0) {
            Some(page) => page[at..at + bytes.len()].copy_from_slice(bytes),
            // Nothing of the shared bytes survives: copying them would be for nothing.
            None if bytes.len() == PAGE_SIZE => *self = Page::new(0, bytes),
            None => Arc::make_mut(&mut self.0)[at..at + bytes.len()].copy_from_slice(bytes),
        }
    }

    /// Makes `range` zero.
    pub(super) fn zero(&mut self, range: Range<usize>) {
        Arc::make_mut(&mut self.0)[range].fill(0);
    }

    /// True when both are the same bytes in memory.
    #[cfg(test)]
    pub(super) fn is_shared_with(&self, other: &Page) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
