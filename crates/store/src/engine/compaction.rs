//! Compaction: how the file of a tree becomes smaller.
//!
//! # Theory
//! redb uses the pages of removed records again, but gives only free pages at the end of its file back, and a single record there keeps
//! all of them. So a file that is much larger than its records is copied to one beside it: each step copies some records, in the
//! order of their keys, and all steps belong to one transaction of redb. A batch that is applied to the tree between two steps is
//! applied to the copy, too, as far as the copy reaches. The last step makes the copy durable and gives it the name of the tree.
//! ```text
//!   tree      | a b c d e f g h       the batch "b, f" changes both here,
//!   tree.new  | a b c d               and b here; a later step copies f
//! ```
//! A crash before the last step leaves the tree, and a file that the next open removes. Nothing is applied between the change of the name
//! and the flush of the directory, so that a crash there leaves one of two trees with the same records.
//!
//! A step that fails, for instance because the disk is full, ends the attempt, and the tree stays as it is. One error alone is
//! the store's: that of the change of the name, after which nobody knows which file a crash would leave. A damaged record is never
//! copied: the attempt ends there. After a damaged page redb answers no more questions, whether a copy or a call has read it.
//!
//! # Cost
//! A tree takes up to [`TIMES`] times the bytes of its records, and [`SIZE_MIN`]. A copy reads and writes each record once, takes the
//! disk space of the records until it is done, and [`CACHE`] bytes of memory. A step keeps checkpoints waiting for as long as
//! a few hundred pages take. The last step also flushes what redb kept in memory, and a block of checksums for each 4 MiB.

use super::redb_tree::{OBJECTS, POSITION, RedbTree, change, checked, guarded, note_bytes, record_bytes};
use crate::StoreError;
use crate::disk::Disk;
use crate::error::lacks_room;
use crate::format::{TREE, TREE_COPY};
use crate::record::Batch;
use redb::{ReadableDatabase, ReadableTableMetadata, WriteTransaction};
use sluice_sync::Arc;
use std::io::ErrorKind;
use std::ops::Bound;

/// A file below this size is left alone.
pub(crate) const SIZE_MIN: u64 = 4 << 20;
/// A file is copied that is larger than its records by this factor.
pub(crate) const TIMES: u64 = 4;
/// Bytes of records that a step copies.
const STEP: u64 = 1 << 20;
/// Bytes of the copy that redb keeps in memory.
const CACHE: usize = 4 << 20;
/// Bytes that a file takes without a record, rounded up.
const EMPTY: u64 = 256 << 10;

/// The attempt to make a file smaller.
#[derive(Default)]
pub(super) struct Compaction {
    copy: Option<TreeCopy>,
    /// The size of the file, and the bytes of its records, after an attempt. The next one is due with half of these bytes.
    settled: Option<(u64, u64)>,
}

/// CompactionLimits of a step.
#[derive(Clone, Copy, Debug)]
pub struct CompactionLimits {
    /// Bytes of the disk that nobody else needs.
    pub spare: u64,
    /// Bytes of records that a copy may have.
    pub records: u64,
    /// Bytes of the tree that are kept in memory.
    pub cache: usize,
}

struct TreeCopy {
    disk: Arc<dyn Disk>,
    /// Dropped before its database is.
    write: WriteTransaction,
    tree: RedbTree,
    /// The copy has what the tree has up to this key.
    reached: Option<Vec<u8>>,
    /// Bytes of records in the copy.
    bytes: u64,
}

/// The state of an attempt after a step.
pub(super) enum CompactionStep {
    /// The attempt ended, or none was due.
    Nothing,
    More,
    /// This is the tree now.
    Done(RedbTree),
}

impl Compaction {
    /// Whether a [`step`](Self::step) has something to do: the tree takes much more than its records do.
    pub(super) fn is_due(&self, tree: &RedbTree) -> bool {
        self.copy.is_some() || self.due(tree).is_some()
    }

    /// The size of the file, if it is too large, and the bytes of its records as far as they are known.
    fn due(&self, tree: &RedbTree) -> Option<(u64, Option<u64>)> {
        let size = tree.file.size().ok()?;
        if size <= SIZE_MIN {
            return None;
        }
        let bytes = guarded("read the tree", || record_bytes(&tree.database)).ok()?;
        let is_settled =
            |(settled, then): (u64, u64)| settled == size && bytes.is_none_or(|bytes| bytes > then / 2);
        if self.settled.is_some_and(is_settled) {
            return None;
        }
        bytes.is_none_or(|bytes| size / TIMES > bytes).then_some((size, bytes))
    }

    /// Does a part of the work. Nothing is applied to `tree` meanwhile.
    ///
    /// # Errors
    /// The errors of the rename.
    pub(super) fn step(
        &mut self,
        disk: &Arc<dyn Disk>,
        tree: &RedbTree,
        limits: CompactionLimits,
    ) -> Result<CompactionStep, StoreError> {
        let Some((size, bytes)) = self.due(tree) else {
            self.end();
            return Ok(CompactionStep::Nothing);
        };
        let bytes = bytes.unwrap_or(size);
        let done = self.copy.as_ref().map_or(0, |copy| copy.bytes);
        let needed = (bytes.saturating_sub(done) / 2).saturating_mul(3).saturating_add(EMPTY);
        if bytes > limits.records || needed > limits.spare / 2 {
            self.end();
            return Ok(CompactionStep::Nothing);
        }
        match self.copied(disk, tree) {
            Ok(false) => Ok(CompactionStep::More),
            Ok(true) => {
                let Some(copy) = self.copy.take() else { return Ok(CompactionStep::Nothing) };
                let made = copy.finish(tree, limits.cache)?;
                let now = made.as_ref().map_or(Some(size), |made| made.file.size().ok());
                self.settled = now.map(|size| (size, bytes));
                Ok(made.map_or(CompactionStep::Nothing, CompactionStep::Done))
            }
            Err(error) => {
                log::warn!("the tree stays larger than it need be: {error}");
                self.settled = Some((size, bytes));
                self.end();
                Ok(CompactionStep::Nothing)
            }
        }
    }

    /// Copies some records: whether the copy now has all.
    fn copied(&mut self, disk: &Arc<dyn Disk>, tree: &RedbTree) -> Result<bool, StoreError> {
        let copy = match &mut self.copy {
            Some(copy) => copy,
            none => none.insert(TreeCopy::begin(disk.clone())?),
        };
        copy.advance(tree)
    }

    /// Brings `batch`, which the tree has, to the copy.
    pub(super) fn follow(&mut self, batch: &Batch) {
        let Some(TreeCopy { write, reached, bytes, .. }) = &mut self.copy else { return };
        let has = |key: &[u8]| reached.as_ref().is_some_and(|reached| key <= reached.as_slice());
        match guarded("copy the tree", || change(write, batch, has, Some(*bytes))) {
            Ok(now) => *bytes = now.unwrap_or(*bytes),
            Err(error) => {
                log::warn!("the tree stays larger than it need be: {error}");
                self.end();
            }
        }
    }

    /// Ends an attempt that did not get to its end.
    pub(super) fn end(&mut self) {
        if let Some(copy) = self.copy.take() {
            copy.give_up();
        }
    }
}

impl TreeCopy {
    fn begin(disk: Arc<dyn Disk>) -> Result<TreeCopy, StoreError> {
        let made = || {
            remove_copy(&*disk)?;
            disk.create(TREE_COPY, 0)
        };
        let tree = RedbTree::open(
            made().map_err(StoreError::io("make a file beside the tree"))?,
            disk.cipher(),
            CACHE,
        )?;
        let write = guarded("copy the tree", || {
            let mut write = tree.database.begin_write()?;
            write.set_quick_repair(true);
            Ok(write)
        })?;
        Ok(TreeCopy { disk, write, tree, reached: None, bytes: 0 })
    }

    /// Copies the next records of `tree`: false if some are left.
    fn advance(&mut self, tree: &RedbTree) -> Result<bool, StoreError> {
        let step = || {
            let read = tree.database.begin_read()?;
            let objects = read.open_table(OBJECTS)?;
            let mut copied = self.write.open_table(OBJECTS)?;
            let from = self.reached.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let (mut last, mut bytes, mut is_whole) = (None, 0, true);
            {
                let mut end = copied.upper_bound_mut(Bound::<&[u8]>::Unbounded)?;
                for item in objects.range::<&[u8]>((from, Bound::Unbounded))? {
                    let (key, stored) = item?;
                    // Damage stays where it is seen.
                    if let Err(error) = checked(key.value(), stored.value()) {
                        return Ok(Err(error));
                    }
                    end.insert_before(key.value(), stored.value())?;
                    bytes += (key.value().len() + stored.value().len()) as u64;
                    if bytes >= STEP {
                        last = Some(key.value().to_vec());
                        is_whole = false;
                        break;
                    }
                }
                end.close()?;
            }
            Ok(Ok((last, bytes, is_whole)))
        };
        let (last, bytes, is_whole) = guarded("copy the tree", step)??;
        self.reached = last.or(self.reached.take());
        self.bytes += bytes;
        if !is_whole {
            // So that the last step has little to flush.
            self.tree.file.sync().map_err(StoreError::io("copy the tree"))?;
        }
        Ok(is_whole)
    }

    /// Makes the copy durable, and the tree, with up to `cache` bytes of it in memory: none if that cannot be.
    fn finish(self, tree: &RedbTree, cache: usize) -> Result<Option<RedbTree>, StoreError> {
        let TreeCopy { disk, write, tree: copy, bytes, .. } = self;
        let committed = guarded("copy the tree", || {
            let read = tree.database.begin_read()?;
            let records = read.open_table(OBJECTS)?.len()?;
            if write.open_table(OBJECTS)?.len()? != records {
                return Ok(Err(StoreError::Damaged("the tree has a damaged part".into())));
            }
            let positions = read.open_table(POSITION)?;
            if let Some(position) = positions.get(())? {
                write.open_table(POSITION)?.insert((), position.value())?;
            }
            note_bytes(&write, Some(bytes))?;
            write.commit()?;
            Ok(Ok(()))
        });
        // Opened anew, it has as much of the cache as a tree should.
        let file = copy.file.clone();
        copy.end();
        let opened = committed
            .and_then(|committed| committed)
            .and_then(|()| RedbTree::open(file, disk.cipher(), cache));
        let named = opened.and_then(|opened| match disk.rename(TREE_COPY, TREE) {
            // Then the names are as before.
            Err(error) if lacks_room(&error) => {
                opened.end();
                Err(StoreError::Io("name the copy of the tree", error))
            }
            named => Ok((opened, named)),
        });
        match named {
            Ok((opened, named)) => match named.and_then(|()| disk.sync_names()) {
                Ok(()) => Ok(Some(opened)),
                Err(error) => {
                    opened.end();
                    Err(StoreError::Io("name the copy of the tree", error))
                }
            },
            Err(error) => {
                log::warn!("the tree stays larger than it need be: {error}");
                discard(&*disk);
                Ok(None)
            }
        }
    }

    fn give_up(self) {
        let TreeCopy { disk, write, tree, .. } = self;
        let _ = guarded("close the copy of the tree", || {
            drop(write);
            Ok(())
        });
        tree.end();
        discard(&*disk);
    }
}

/// Removes the file of an attempt that ended, if there is one.
///
/// # Errors
/// The disk's.
pub(super) fn remove_copy(disk: &dyn Disk) -> std::io::Result<()> {
    match disk.open(TREE_COPY) {
        Ok(_) => disk.remove(TREE_COPY),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the copy. A copy that stays takes space until the next attempt.
fn discard(disk: &dyn Disk) {
    let _ = remove_copy(disk);
}
