//! Growth: what a caller asks before a store grows, and how a full disk gets room again. `room` has the rules.

use crate::Store;
use crate::room::{HELD_BYTES, LEAST_SHARE, Room, TIMES};

/// How often a caller without room pushes and checkpoints at most: other callers may fill the disk meanwhile.
const ROUNDS: usize = 4;

impl Store {
    /// Whether the host's disk has room for what makes the store grow. A caller that is told no should not begin such a change:
    /// deletions need what is left.
    pub fn has_room(&self) -> bool {
        let core = &*self.core;
        !core.room.is_full() || core.room.look(&*core.disk)
    }

    /// Bytes of the disk that may still be used: what is free beyond the reserve and the blocks that are held back. None where
    /// the disk does not tell its free space.
    pub fn room_bytes(&self) -> Option<u64> {
        let core = &*self.core;
        core.disk.free_bytes().ok().map(|free| free.saturating_sub(core.room.kept()))
    }

    /// Holds `blocks` of the disk back for later writes, and says whether it has them.
    pub fn hold_back(&self, blocks: u64) -> bool {
        let core = &*self.core;
        if !self.has_room_for(blocks) {
            return false;
        }
        self.hold_back_anyway(blocks);
        // Another caller may have done the same since the look.
        let has_them = Room::has(&*core.disk, || core.room.kept());
        if !has_them {
            self.give_up(blocks);
        }
        has_them
    }

    /// Holds back `blocks` that were held back by an earlier process.
    pub fn hold_back_anyway(&self, blocks: u64) {
        let core = &*self.core;
        core.room.held.exceed(blocks);
        // From now on growth has less room.
        core.room.look(&*core.disk);
    }

    /// So many blocks that were held back are written, or wanted no more.
    pub fn give_up(&self, blocks: u64) {
        self.core.room.held.give(blocks);
    }

    /// Blocks that are held back.
    pub fn held_back(&self) -> u64 {
        self.core.room.held.used()
    }

    /// Whether the disk has room for writes into blocks that are held back, and over what is there.
    pub fn has_room_held_back(&self) -> bool {
        let core = &*self.core;
        let reserve = core.room.reserve;
        // Segments have taken room ahead, which only data can use. The tree needs some, too.
        let least =
            || (reserve / TIMES).saturating_sub(core.segments.ahead_bytes()).max(reserve / LEAST_SHARE);
        !core.room.is_full() || Room::has(&*core.disk, least)
    }

    /// Whether the disk has room for so many blocks more.
    pub fn has_room_for(&self, blocks: u64) -> bool {
        let core = &*self.core;
        let wanted = || core.room.kept().saturating_add(blocks.saturating_mul(HELD_BYTES));
        if blocks == 0 { self.has_room() } else { Room::has(&*core.disk, wanted) }
    }

    /// Gives the disk back the room that segments have taken ahead and what transactions have freed, if the disk is full: pushes
    /// these, and brings the tree up to them. Returns whether there is room afterwards. Called with no lock held that a transaction's changes need, and in no transaction.
    pub fn make_room(&self) -> bool {
        self.make_room_for(0)
    }

    /// Makes room for so many further blocks: see [`make_room`](Self::make_room). Returns whether the disk has the room afterwards.
    pub fn make_room_for(&self, blocks: u64) -> bool {
        let core = &*self.core;
        if self.has_room_for(blocks) {
            return true;
        }
        core.segments.give_ahead_back();
        for _ in 0..ROUNDS {
            core.state.lock().again = false;
            // Also if no transaction waits: the source may have files that are gone.
            if core.write_out().is_err() {
                return false;
            }
            if self.has_room_for(blocks) {
                return true;
            }
            let is_asked = core.state.lock().again;
            if !is_asked && core.cil.waiting() == 0 {
                break;
            }
        }
        false
    }
}
