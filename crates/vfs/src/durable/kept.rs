//! Kept: what the store has of a file's contents.

use super::chunk::Held;
use super::keys::Key;
use super::mutant::Mutant;
use super::pending::Pending;
use super::record;
use super::resident::Resident;
use crate::data::PageSet;
use sluice_store::{Added, Extent};
use sluice_sync::Arc;
use std::collections::BTreeMap;
use std::ops::Range;

/// The contents of a file as known to the store, or to a push that was accepted.
#[derive(Default)]
pub(super) struct Kept {
    /// Chunks that have a record.
    pub(super) records: PageSet,
    /// For chunks whose record holds bytes: the pages in the record.
    standing: BTreeMap<u64, u16>,
    /// Where the bytes are of those whose record names an extent.
    pub(super) extents: BTreeMap<u64, Held>,
    /// For chunks with an extent: the pages that are not in memory.
    pub(super) absent: BTreeMap<u64, u16>,
    /// Chunks whose extent is borrowed: no record of this file names it yet (`owners.rs`).
    pub(super) borrowed: PageSet,
    /// The extents that the records of such chunks name meanwhile.
    replaced: BTreeMap<u64, Extent>,
    /// The file counts as a borrower.
    pub(super) borrows: bool,
    /// The chunks that the limit of memory counts.
    pub(super) entered: BTreeMap<u64, Arc<Resident>>,
    /// The state that the store had when it was opened has been loaded.
    pub(super) is_known: bool,
    /// Chunks that are holes, and whose records later pushes remove. The store has a record of the range, until it is empty.
    pub(super) cut_off: Range<u64>,
    /// Where reading went on last, and how many chunks ahead of it were read.
    pub(super) ahead: ReadAhead,
    /// The inode may be among the files that the limit of memory knows.
    pub(super) has_residents: bool,
    /// The inode may be among the files with heavy chunks (`contents.rs`).
    pub(super) is_heavy: bool,
    /// The inode may stand apart: see `names.rs`.
    pub(super) is_apart: bool,
}

/// A chunk that one file takes over from another, in whose extent it is.
pub(super) struct Lent {
    /// The chunk's number in the file that receives it.
    pub(super) chunk: u64,
    pub(super) held: Held,
    /// Absent pages and dirty pages.
    pub(super) absent: u16,
    pub(super) dirty: u16,
}

/// Where an inode may be known, as [`Kept`] says.
#[derive(Clone, Copy, Default)]
pub(super) struct WhereKnown {
    pub(super) has_residents: bool,
    pub(super) is_heavy: bool,
    pub(super) is_apart: bool,
}

impl WhereKnown {
    /// Whether it may be known anywhere.
    pub(super) fn is_anything(self) -> bool {
        self.has_residents || self.is_heavy || self.is_apart
    }
}

/// How far ahead a file is read.
#[derive(Clone, Copy, Default)]
pub(super) struct ReadAhead {
    /// The chunk behind the last one that was read.
    next: u64,
    chunks: u64,
}

impl ReadAhead {
    /// How many chunks behind `wanted`, the first of which is not in memory, to read with it: twice as many as the last time, and at most `most`, if it is
    /// where reading went on; else none.
    pub(super) fn of(&mut self, wanted: &Range<u64>, most: u64) -> u64 {
        self.chunks = if wanted.start == self.next { (self.chunks * 2).max(1).min(most) } else { 0 };
        self.next = wanted.end + self.chunks;
        self.chunks
    }
}

impl Kept {
    /// Where the inode may be known.
    pub(super) fn known(&self) -> WhereKnown {
        let Kept { has_residents, is_heavy, is_apart, .. } = *self;
        WhereKnown { has_residents, is_heavy, is_apart }
    }

    /// The store has a record of `chunk`, with all its bytes or with the extent that holds them.
    pub(super) fn insert(&mut self, chunk: u64, present: u16, held: Option<Held>) {
        self.records.insert(chunk..chunk + 1);
        match held {
            Some(held) => {
                self.standing.remove(&chunk);
                self.extents.insert(chunk, held);
            }
            None => _ = self.standing.insert(chunk, present),
        }
    }

    /// The record of `chunk` names the extent that was written of what the cut copied.
    pub(super) fn written(&mut self, chunk: u64, present: u16, held: Held) {
        if self.borrowed.count(&(chunk..chunk + 1)) == 0 {
            self.insert(chunk, present, Some(held));
        } else {
            // Meanwhile the file got other contents there.
            self.records.insert(chunk..chunk + 1);
            self.replaced.insert(chunk, held.extent);
        }
    }

    /// The pages of `chunk`, if its record has the bytes.
    pub(super) fn standing(&self, chunk: u64) -> Option<u16> {
        self.standing.get(&chunk).copied()
    }

    /// How many pages of `chunk` are in its record.
    pub(super) fn pages_in_record(&self, chunk: u64) -> u32 {
        let patched = self.extents.get(&chunk).map(|held| held.patched);
        patched.or(self.standing(chunk)).unwrap_or(0).count_ones()
    }

    /// Whether there is a record of the first chunk, if there is nothing else: neither another record nor an extent.
    pub(super) fn has_first_alone(&self) -> Option<bool> {
        let has_extents = !self.extents.is_empty() || !self.replaced.is_empty();
        if has_extents || self.borrowed.len() > 0 || !self.cut_off.is_empty() {
            return None;
        }
        match (self.records.len(), self.records.end()) {
            (0, _) => Some(false),
            (1, 1) => Some(true),
            _ => None,
        }
    }

    /// The pages in records.
    pub(super) fn standing_pages(&self) -> u64 {
        self.standing.values().map(|pages| u64::from(pages.count_ones())).sum()
    }

    /// The end of the first `count` of `chunks` that have records, or of all.
    pub(super) fn end_of_first(&self, chunks: &Range<u64>, mut count: u64) -> u64 {
        for range in self.records.within(chunks) {
            let len = range.end - range.start;
            if len > count {
                return range.start + count;
            }
            count -= len;
        }
        chunks.end
    }

    /// The records of `chunks` are removed, or replaced by others: what they name is free.
    pub(super) fn remove(&mut self, chunks: &Range<u64>, pending: &Pending) {
        self.records.remove(chunks);
        let standing: Vec<u64> = self.standing.range(chunks.clone()).map(|(chunk, _)| *chunk).collect();
        standing.iter().for_each(|chunk| _ = self.standing.remove(chunk));
        let held: Vec<u64> = self.extents.range(chunks.clone()).map(|(chunk, _)| *chunk).collect();
        for (chunk, held) in held.iter().filter_map(|chunk| Some((chunk, self.extents.remove(chunk)?))) {
            pending.memory.count_patched(0, held.patched);
            let is_own = self.borrowed.remove(&(*chunk..chunk + 1)) == 0;
            if is_own && !pending.planted.has(Mutant::ExtentsStay) {
                pending.owners.lost(held.extent);
            }
        }
        while let Some((chunk, _)) = self.replaced.range(chunks.clone()).next() {
            self.lose_replaced(*chunk, pending);
        }
    }

    /// The record of `chunk` is removed, or replaced by another, and the extent that was borrowed for the chunk is not what it names.
    fn lose_replaced(&mut self, chunk: u64, pending: &Pending) {
        if let Some(extent) = self.replaced.remove(&chunk)
            && !pending.planted.has(Mutant::ReplacedStays)
        {
            pending.owners.lost(extent);
        }
    }

    /// Gives the file the `lent` chunk in place of its own. The extent that the old record names is released with that
    /// record, in a later push.
    pub(super) fn borrow(&mut self, lent: Lent, pending: &Pending) {
        let Lent { chunk, held, absent, .. } = lent;
        if !self.borrows {
            self.borrows = true;
            // First: see lend().
            pending.owners.borrow();
        }
        pending.memory.count_patched(held.patched, 0);
        self.standing.remove(&chunk);
        let was_own = self.borrowed.count(&(chunk..chunk + 1)) == 0;
        if let Some(before) = self.extents.insert(chunk, held) {
            pending.memory.count_patched(0, before.patched);
            if was_own {
                self.replaced.insert(chunk, before.extent);
            }
        }
        self.borrowed.insert(chunk..chunk + 1);
        if absent == 0 {
            self.absent.remove(&chunk);
        } else {
            self.absent.insert(chunk, absent);
        }
    }

    /// Forgets the absent pages of `chunks`, and returns their number.
    pub(super) fn forget_absent(&mut self, chunks: &Range<u64>) -> u64 {
        let mut gone = self.absent.split_off(&chunks.start);
        self.absent.append(&mut gone.split_off(&chunks.end.max(chunks.start)));
        gone.values().map(|pages| u64::from(pages.count_ones())).sum()
    }

    /// The initial state of a copy of the file: it borrows all extents.
    pub(super) fn lend(&self, pending: &Pending) -> Kept {
        let mut own = Kept { is_known: true, borrows: true, ..Kept::default() };
        // First: a push that takes an extent from this file from now on sees it.
        pending.owners.borrow();
        for (chunk, held) in self.extents.iter().filter(|(chunk, _)| !self.cut_off.contains(chunk)) {
            pending.memory.count_patched(held.patched, 0);
            own.borrowed.insert(*chunk..*chunk + 1);
            own.extents.insert(*chunk, held.clone());
        }
        let absent = self.absent.iter().filter(|(chunk, _)| own.extents.contains_key(chunk));
        own.absent = absent.map(|(chunk, pages)| (*chunk, *pages)).collect();
        own
    }

    /// Adds to `with_data` each borrowed chunk among `chunks` that has absent pages; drops each borrowed chunk that is
    /// a hole by now.
    pub(super) fn keep_borrowed(&mut self, chunks: &Range<u64>, with_data: &mut PageSet, pending: &Pending) {
        let mut holes = PageSet::new();
        for chunk in self.borrowed.within(chunks).flatten() {
            if self.absent.contains_key(&chunk) {
                with_data.insert(chunk..chunk + 1);
            } else if with_data.count(&(chunk..chunk + 1)) == 0 {
                holes.insert(chunk..chunk + 1);
            }
        }
        // The old record of such a chunk is removed like the records of other holes.
        for chunk in holes.ranges().flatten() {
            self.borrowed.remove(&(chunk..chunk + 1));
            let held = self.extents.remove(&chunk);
            pending.memory.count_patched(0, held.map_or(0, |held| held.patched));
        }
    }

    /// The record of `chunk` names the extent that was borrowed for it.
    pub(super) fn own(&mut self, chunk: u64, pending: &Pending) {
        if self.borrowed.remove(&(chunk..chunk + 1)) > 0 {
            self.records.insert(chunk..chunk + 1);
            self.extents.get(&chunk).into_iter().for_each(|held| pending.owners.gained(&held.extent));
            self.lose_replaced(chunk, pending);
        }
    }

    /// The file counts as a borrower no more, if it does.
    pub(super) fn end_borrow(&mut self, pending: &Pending) {
        if self.borrows {
            self.borrows = false;
            pending.owners.end_borrow();
        }
    }

    /// The variant of [`remove`](Self::remove) for inode `ino` that also removes the records of these chunks.
    pub(super) fn remove_records(
        &mut self,
        ino: u64,
        chunks: &Range<u64>,
        to: &mut Added,
        pending: &Pending,
    ) {
        if !pending.planted.has(Mutant::ChunksStay) {
            self.records.within(chunks).flatten().for_each(|chunk| to.remove(&Key::chunk(ino, chunk)));
        }
        self.remove(chunks, pending);
    }

    /// Removes the first chunks that are cut off, up to `end`.
    pub(super) fn remove_cut_off(&mut self, ino: u64, end: u64, to: &mut Added, pending: &Pending) {
        self.remove_records(ino, &(self.cut_off.start..end), to, pending);
        let rest = end..self.cut_off.end;
        self.cut_off = if self.records.within(&rest).next().is_some() { rest } else { 0..0 };
        if self.cut_off.is_empty() {
            to.remove(&Key::cut_off(ino));
        } else if !pending.planted.has(Mutant::CutOffForgotten) {
            to.put(&Key::cut_off(ino), &record::cut_off(&self.cut_off));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_in_order_is_read_ever_further_ahead_and_what_is_not_is_not() {
        let mut ahead = ReadAhead::default();
        let mut read = |chunk| ahead.of(&(chunk..chunk + 1), 20);
        assert_eq!(
            [read(0), read(2), read(5), read(10), read(19), read(36), read(57)],
            [1, 2, 4, 8, 16, 20, 20]
        );
        assert_eq!([read(7), read(90), read(3), read(4), read(6)], [0, 0, 0, 1, 2]);
        assert_eq!(ReadAhead::default().of(&(0..1), 0), 0, "there is no room");
    }

    /// An extent of one block, with all of a chunk's pages.
    fn held(block: u32) -> Held {
        let bytes = [0, block, 4096, 0].map(u32::to_le_bytes).concat();
        let (extent, rest) = Extent::decode(&bytes).expect("an extent");
        assert!(rest.is_empty());
        Held { extent, pages: u16::MAX, patched: 0 }
    }

    #[test]
    fn what_is_borrowed_while_a_push_writes_the_former_bytes_stays_and_these_are_lost() {
        let options = sluice_store::Options::default().background(false);
        let store = sluice_store::Store::in_memory(options).expect("memory");
        let pending = Pending::new(1 << 20, 1 << 20, &store);
        let (mut kept, [before, written, lent]) = (Kept::default(), [1, 2, 3].map(held));
        let place = |held: &Held| held.extent.place();
        let places = [place(&before), place(&written), place(&lent)];
        let lend = |chunk| Lent { chunk, held: lent.clone(), absent: 0, dirty: 0 };
        // One chunk is being written, and the other has an extent.
        kept.insert(0, u16::MAX, None);
        kept.insert(1, u16::MAX, Some(before));
        (0..2).for_each(|chunk| kept.borrow(lend(chunk), &pending));
        kept.written(0, u16::MAX, written);
        assert_eq!(pending.owners.collected(), [vec![], vec![]], "records name what they named");
        assert!((0..2).all(|chunk| kept.extents.get(&chunk).is_some_and(|held| *held == lent)));
        kept.own(0, &pending);
        kept.remove(&(1..2), &pending);
        assert_eq!(pending.owners.collected(), [vec![places[2]], vec![places[1], places[0]]]);
        kept.end_borrow(&pending);
        assert!(!pending.owners.are_borrowed());
    }
}
