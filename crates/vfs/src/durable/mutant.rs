//! Mutants: faults that tests plant in what goes to the store, to see that the crash tests find them.

use sluice_sync::atomic::{AtomicU8, Ordering};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mutant {
    /// A name that is taken away is not put down.
    NameForgotten = 1,
    /// A push keeps the older of two values of a name.
    OlderName,
    /// Synchronising does not wait for the store.
    SyncDoesNotWait,
    /// A file's size goes to the store without its bytes.
    SizeWithoutBytes,
    /// Chunks that were cut off stay in the store.
    ChunksStay,
    /// Extended attributes are not collected.
    XattrsForgotten,
    /// A file without a name is not put down.
    OrphanForgotten,
    /// Attributes are put down as they were before the change.
    RecordBeforeChange,
    /// An extent is free although a record names it.
    FreedEarly,
    /// A record names an extent that does not hold the bytes.
    NameWithoutBytes,
    /// The extent of an overwritten or deleted chunk is not freed.
    ExtentsStay,
    /// Contents leave memory although they have changed.
    ChangedPagesLeave,
    /// Names leave memory although the tree lacks a change.
    ChangedNamesLeave,
    /// An inode in use is forgotten when its names leave.
    UsedForgotten,
    /// That chunks are cut off is not put down.
    CutOffForgotten,
    /// Only the last of the patched pages are put down.
    PatchForgotten,
    /// A record names an extent that was written ahead although the chunk has changed since.
    AheadUnchecked,
    /// A splice keeps the wrong pages of a record.
    SpliceMisplaced,
    /// That an inode lost a name in its holder is not put down.
    HolderStays,
    /// That a record names an extent which another one names is not counted.
    OwnerNotCounted,
    /// An extent that loses its last owner is freed although a file borrows it.
    BorrowedFreed,
    /// That a file without a name is to be deleted is not put down when it is spilled.
    SpillForgotten,
    /// That a record names an extent no more, of which others are owners, is not counted.
    LossNotCounted,
    /// An extent is free when its first owner is gone.
    FreedAtFirstLoss,
    /// The extent that a chunk's record named before the chunk was borrowed is not freed.
    ReplacedStays,
    /// A copy borrows the stored contents without later changes.
    LentWithoutChanges,
    /// A record does not have the unwritten pages of its file.
    UnwrittenForgotten,
    /// The record of an inode does not have the number of its quota.
    QuotaForgotten,
    /// That a tree is getting a number is not put down.
    WalkUnmarked,
    /// The store's thread does not ask for what no change announces.
    DeadFilesWait,
}

/// Which fault is planted in a file system, if any. Without tests there are none.
#[derive(Default)]
pub(super) struct Planted {
    mutant: AtomicU8,
}

impl Planted {
    /// Whether it is `mutant`.
    #[inline]
    pub(super) fn has(&self, mutant: Mutant) -> bool {
        // Relaxed: stands alone.
        cfg!(test) && self.mutant.load(Ordering::Relaxed) == mutant as u8
    }

    /// Plants `mutant`.
    #[cfg(test)]
    pub(super) fn plant(&self, mutant: Option<Mutant>) {
        self.mutant.store(mutant.map_or(0, |mutant| mutant as u8), Ordering::Relaxed);
    }
}
