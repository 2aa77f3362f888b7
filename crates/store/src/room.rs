//! Room: how much of the host's disk is left, so that a store that is full can still be tidied up.
//!
//! Batches in the log must find room in the tree, and deleting writes too. So growth is refused ([`Store::has_room`])
//! while there is still room for what the log holds, several times over: the tree writes a changed page to a new place
//! before it gives the old one back. Deletions go on, and end the shortage.

use crate::Store;
use crate::disk::Disk;
use sluice_sync::atomic::{AtomicBool, Ordering};

/// Free space must exceed the content of the log by this factor.
const TIMES: u64 = 2;

/// How often a caller without room pushes and checkpoints at most: other callers may fill the disk meanwhile.
const ROUNDS: usize = 4;

/// Whether the disk has room for growth.
#[derive(Debug)]
pub(crate) struct Room {
    /// Bytes of the disk reserved for changes that must go on. *immutable*
    reserve: u64,
    /// There was less at the last look. *atomic, alone*
    is_full: AtomicBool,
}

impl Room {
    /// For a log of `log_size` bytes.
    pub(crate) fn new(log_size: u64) -> Room {
        Room { reserve: log_size.saturating_mul(TIMES), is_full: AtomicBool::new(false) }
    }

    /// Whether the disk had less than the reserve at the last look.
    pub(crate) fn is_full(&self) -> bool {
        // Relaxed: a hint.
        self.is_full.load(Ordering::Relaxed)
    }

    /// Looks at the disk. A disk that does not tell its free space has room until a write fails.
    pub(crate) fn look(&self, disk: &dyn Disk) -> bool {
        let is_full = disk.free_bytes().is_ok_and(|free| free < self.reserve);
        // Relaxed: a hint. Written when it changes only: each call reads it.
        if self.is_full.load(Ordering::Relaxed) != is_full {
            self.is_full.store(is_full, Ordering::Relaxed);
        }
        !is_full
    }
}

impl Store {
    /// Whether the host's disk has room for what makes the store grow. A caller that is told no should not begin such a change:
    /// deletions need what is left.
    pub fn has_room(&self) -> bool {
        let core = &*self.core;
        !core.room.is_full() || core.room.look(&*core.disk)
    }

    /// Bytes of the disk that may still be used: what is free beyond the reserve. None for a store in S3, which
    /// does not tell its free space.
    pub fn room_bytes(&self) -> Option<u64> {
        let core = &*self.core;
        core.disk.free_bytes().ok().map(|free| free.saturating_sub(core.room.reserve))
    }

    /// Gives the disk back what transactions have freed, if the disk is full: pushes them, and brings the tree up to them. Returns
    /// whether there is room afterwards. Called with no lock held that a transaction's changes need, and in no transaction.
    pub fn make_room(&self) -> bool {
        let core = &*self.core;
        for _ in 0..ROUNDS {
            if self.has_room() {
                return true;
            }
            if core.cil.waiting() > 0 && core.write_out().is_err() {
                return false;
            }
            if core.state.lock().frees_since.is_none() {
                break;
            }
            if core.checkpoint().is_err() {
                return false;
            }
        }
        self.has_room()
    }
}
