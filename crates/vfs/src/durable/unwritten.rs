//! UnwrittenPages: what a check knows of pages that files have reserved and nobody has written.
//!
//! No page is unwritten and in a chunk. Records of chunks come before those of inodes, so a check looks once more at the chunks
//! of the files that have unwritten pages.

use super::chunk::Chunk;
use super::keys::{Key, chunk_of, ino_of};
use super::record::{self, InodeRecord};
use super::told::ToldPaths;
use crate::data::{CHUNK_PAGES, PageSet};
use sluice_store::{Gravity, Report};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The unwritten pages of all files.
#[derive(Debug, Default)]
pub(super) struct UnwrittenPages {
    /// For each inode, the pages that its record names and no chunk has.
    of: BTreeMap<u64, PageSet>,
    /// The inodes whose records name other pages, or cannot be read.
    wrong: BTreeSet<u64>,
}

impl UnwrittenPages {
    /// Takes the `record` of inode `ino`.
    pub(super) fn see(&mut self, ino: u64, record: &InodeRecord<'_>) {
        match record.unwritten() {
            Some(unwritten) if unwritten.len() > 0 => _ = self.of.insert(ino, unwritten),
            Some(_) => {}
            None => _ = self.wrong.insert(ino),
        }
    }

    /// Keys of the chunks that [`see_chunk`](Self::see_chunk) is to be told.
    pub(super) fn wanted(&self) -> Vec<Range<Vec<u8>>> {
        let chunks = self.of.keys().map(|ino| Key::chunks(*ino));
        chunks.map(|keys| keys.start.to_vec()..keys.end.to_vec()).collect()
    }

    /// Takes the record of a chunk that counts.
    pub(super) fn see_chunk(&mut self, key: &[u8], value: &[u8]) {
        let Some(((ino, at), chunk)) = ino_of(key).zip(chunk_of(key)).zip(Chunk::decode(value)) else {
            return;
        };
        let Some(left) = self.of.get_mut(&ino) else { return };
        let present = (0..CHUNK_PAGES).filter(|page| chunk.present & 1 << page != 0);
        let present = present.map(|page| at.saturating_mul(CHUNK_PAGES).saturating_add(page));
        if present.map(|page| left.remove(&(page..page + 1))).sum::<u64>() > 0 {
            self.wrong.insert(ino);
        }
    }

    /// Tells `report` the inodes whose records are wrong.
    pub(super) fn judge(&self, told: &ToldPaths, report: &mut Report) {
        for ino in self.wrong() {
            let told = told.mark(ino);
            report.find(Gravity::Count, format!("reserved pages of {told} are no ranges, or have contents"));
        }
    }

    /// The inodes whose records are wrong.
    pub(super) fn wrong(&self) -> impl Iterator<Item = u64> + use<'_> {
        self.wrong.iter().copied()
    }

    /// The record of inode `ino`, which has this `value`, with the unwritten pages that no chunk has.
    pub(super) fn mended(&self, ino: u64, value: &[u8]) -> Option<Vec<u8>> {
        let tail = self.of.get(&ino).map(record::tail_of).unwrap_or_default();
        Some(InodeRecord { tail: &tail, ..InodeRecord::decode_head(value)? }.encode())
    }
}
