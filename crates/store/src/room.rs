//! Room: how much of the host's disk is left, so that a store that is full can still be tidied up.
//!
//! Batches in the log must find room in the tree, and deleting writes too. So growth is refused (`growth`) while there is still
//! room for what the log holds, several times over: the tree writes a changed page to a new place before it gives the old one
//! back. Deletions go on, and end the shortage.
//!
//! *Held back.* A caller that is told to keep room for later writes holds back blocks of the disk. All other growth leaves them
//! alone. They are counted per CPU, and added up only where the disk is looked at, so a write reads no more than whether the disk
//! is full. A write into such blocks, or over what is there, goes on with half of the reserve.

use crate::StoreError;
use crate::disk::Disk;
use crate::format::BLOCK;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::percpu::Budget;

/// Free space must exceed the content of the log by this factor.
pub(crate) const TIMES: u64 = 2;

/// This part of the reserve is always left for the tree.
pub(crate) const LEAST_SHARE: u64 = 8;

/// A block that is held back counts as so many bytes: its records take room, too.
pub(crate) const HELD_BYTES: u64 = BLOCK + BLOCK / 16;

/// Whether the disk has room for growth.
#[derive(Debug)]
pub(crate) struct Room {
    /// Bytes of the disk reserved for changes that must go on. *immutable*
    pub(crate) reserve: u64,
    /// Blocks that are held back. *per CPU*
    pub(crate) held: Budget,
    /// There was less at the last look. *atomic, alone*
    is_full: AtomicBool,
    /// The tree has found no room at the last attempt. *atomic, alone*
    tree_waits: AtomicBool,
}

impl Room {
    /// For a log of `log_size` bytes.
    pub(crate) fn new(log_size: u64) -> Room {
        let reserve = log_size.saturating_mul(TIMES);
        Room {
            reserve,
            held: Budget::new(None, 0),
            is_full: AtomicBool::new(false),
            tree_waits: AtomicBool::new(false),
        }
    }

    /// Bytes that growth leaves alone.
    pub(crate) fn kept(&self) -> u64 {
        self.reserve.saturating_add(self.held.used().saturating_mul(HELD_BYTES))
    }

    /// Whether the disk has as many bytes as `wanted` says. A disk that does not tell its free space has them until a write fails.
    pub(crate) fn has(disk: &dyn Disk, wanted: impl FnOnce() -> u64) -> bool {
        disk.free_bytes().map_or(true, |free| free >= wanted())
    }

    /// Whether the disk had less than growth needs at the last look.
    pub(crate) fn is_full(&self) -> bool {
        // Relaxed: a hint.
        self.is_full.load(Ordering::Relaxed)
    }

    /// The tree was written, or found no room, because of `error`: that is said once.
    pub(crate) fn note_tree(&self, error: Option<&StoreError>) {
        // Relaxed: it guards no data.
        let waited = self.tree_waits.swap(error.is_some(), Ordering::Relaxed);
        if let Some(error) = error.filter(|_| !waited) {
            log::warn!("the disk is full, and the log is kept until there is room: {error}");
        }
    }

    /// Looks at the disk.
    pub(crate) fn look(&self, disk: &dyn Disk) -> bool {
        let is_full = !Room::has(disk, || self.kept());
        // Relaxed: a hint. Written when it changes only: each call reads it.
        if self.is_full.load(Ordering::Relaxed) != is_full {
            self.is_full.store(is_full, Ordering::Relaxed);
        }
        !is_full
    }
}
