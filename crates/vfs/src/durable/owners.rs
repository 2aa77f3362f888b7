//! Owners: how many chunks' records name an extent.
//!
//! # Theory
//! A copy of a file names the extents of the original. So an extent has *owners*, the records that name it, and is free
//! when the last one is gone. Most extents have one owner and no record of their own; the others have one at a time:
//! ```text
//!   e place     it has two owners or more: how many
//!   f place     it has none, and is not free yet
//! ```
//! *Pushes alone count.* A push that collects a file puts down what its records name in addition, and no more; when all is collected
//! it adds that up and writes the counts into the same batch. So no count needs a lock on the way of a call, and after each crash
//! the counts are those of the records beside them.
//!
//! *Borrowers.* A copy of a file, or of chunks, takes over what the original's records name when it is made, and its
//! own records come with a later push. Until then it *borrows* these extents: its original may lose them meanwhile, to
//! a change or a removal. An extent that loses its last owner while some file borrows is not freed: it gets a record
//! `f`. The copy's push takes that away, or a push without borrowers frees the extent. After a crash there are no
//! borrowers, so extents with such a record are freed.
//!
//! # Invariants
//! - O1: a count is looked up in the tree only if no change of it waits to come there: `counts` has it until then.
//! - O2: a file counts as a borrower before it has an extent that it borrows, and until it owns all or is gone.
//!
//! # Cost
//! Nothing for a store without shared extents. Else for each extent that is freed a look into the tree, by the thread that
//! pushes, while calls go on.

use super::chunk::Chunk;
use super::keys::Key;
use super::mutant::{Mutant, Planted};
use crate::Superblock;
use crate::lock_class::DURABLE_PENDING;
use sluice_store::disk::Disk;
use sluice_store::engine::Visit;
use sluice_store::{Added, Content, Data, Extent, Store, StoreError};
use sluice_sync::percpu::Budget;
use sluice_sync::{Arc, Mutex};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;
use std::ops::Range;

/// Counts that are remembered although the tree has them.
const REMEMBERED: usize = 1 << 16;

/// How many records name which extents.
pub(super) struct Owners {
    /// How many files borrow extents. *Per CPU.*
    borrowers: Budget,
    /// *Protected by its mutex; of pushes alone, and of the thread that opens the store.*
    state: Mutex<OwnerCounts>,
}

#[derive(Default)]
struct OwnerCounts {
    /// Extents that the records of this push name newly (`gained`) or no longer name (`lost`).
    gained: Vec<Extent>,
    lost: Vec<Extent>,
    /// By place: owners, and the cut that changed them.
    counts: BTreeMap<u64, (u32, u64)>,
    /// By place: extents without an owner that are not free, and whether a record says so.
    unowned: BTreeMap<u64, (Extent, bool)>,
    /// Some count may be in the tree.
    are_any: bool,
}

/// The value of a record `e`: owners, and the bytes that the extent takes.
pub(super) fn encode(owners: u32, allocated: u64) -> [u8; 8] {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&owners.to_le_bytes());
    value[4..].copy_from_slice(&(allocated as u32).to_le_bytes());
    value
}

/// Decodes a record `e`: owners, and bytes. No such record says less than two owners.
pub(super) fn decode(value: &[u8]) -> Option<(u32, u64)> {
    let (owners, allocated) = value.split_first_chunk()?;
    let (owners, allocated) = (u32::from_le_bytes(*owners), u32::from_le_bytes(allocated.try_into().ok()?));
    (owners > 1).then_some((owners, u64::from(allocated)))
}

/// The extent of a record `f`.
pub(super) fn decode_unowned(value: &[u8]) -> Option<Extent> {
    Extent::decode(value).filter(|(_, rest)| rest.is_empty()).map(|(extent, _)| extent)
}

/// The extent that a record of a chunk, or of an extent without an owner, names.
pub(super) fn named(key: &[u8], value: &[u8]) -> Option<Extent> {
    match *key.first()? {
        super::keys::DATA => Some(Chunk::decode(value)?.held?.extent),
        super::keys::UNOWNED => decode_unowned(value),
        _ => None,
    }
}

impl Superblock {
    /// The content of the store on `disk`, which is only read and which no other process writes meanwhile; and the
    /// bytes of data that several places in files share.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn store_content(disk: Arc<dyn Disk>) -> Result<(Content, u64), StoreError> {
        with_shared(|keys, visit| Store::content(disk, keys, visit))
    }

    /// The durable [content](Self::store_content) of this file system's store, if it has a store.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn content(&self) -> Option<Result<(Content, u64), StoreError>> {
        let store = &self.root().shared.durable()?.store;
        Some(with_shared(|keys, visit| store.content_in_use(keys, visit)))
    }
}

/// The result of `look`, and the shared bytes according to the records that it visits.
fn with_shared(
    look: impl FnOnce(Range<&[u8]>, &mut Visit<'_>) -> Result<Content, StoreError>,
) -> Result<(Content, u64), StoreError> {
    let (keys, mut shared) = (Key::all_owners(), 0);
    let content = look(&keys.start[..]..&keys.end[..], &mut |_, value| {
        shared += decode(value).map_or(0, |(_, allocated)| allocated);
        true
    })?;
    Ok((content, shared))
}

impl Owners {
    pub(super) fn new() -> Owners {
        Owners {
            borrowers: Budget::new(None, 0),
            state: Mutex::with_class(&DURABLE_PENDING, OwnerCounts::default()),
        }
    }

    /// One file more borrows extents.
    pub(super) fn borrow(&self) {
        self.borrowers.exceed(1);
    }

    /// One file borrows no more.
    pub(super) fn end_borrow(&self) {
        self.borrowers.give(1);
    }

    /// Whether some file borrows.
    pub(super) fn are_borrowed(&self) -> bool {
        self.borrowers.used() > 0
    }

    /// Whether the extent at `place` has several owners in `store`. No more than a hint: a push may be about to count.
    pub(super) fn are_several(&self, place: u64, store: &Store) -> bool {
        let counted = self.state.lock().counts.get(&place).map(|(owners, _)| *owners > 1);
        // A tree that cannot be read says nothing against it.
        counted.unwrap_or_else(|| !matches!(store.get(&Key::owners(place)), Ok(None)))
    }

    /// A record of this push names `extent` in addition.
    pub(super) fn gained(&self, extent: &Extent) {
        self.state.lock().gained.push(extent.clone());
    }

    /// A record that named `extent` is gone with this push, or names it no more.
    pub(super) fn lost(&self, extent: Extent) {
        self.state.lock().lost.push(extent);
    }

    /// The store that is opened has these extents without an owner, and perhaps counts.
    pub(super) fn found(&self, unowned: impl IntoIterator<Item = Extent>, are_any: bool) {
        let mut state = self.state.lock();
        state.unowned = unowned.into_iter().map(|extent| (extent.place(), (extent, true))).collect();
        state.are_any = are_any;
    }

    /// The places of what the records of this push name in addition, and no more.
    #[cfg(test)]
    pub(super) fn collected(&self) -> [Vec<u64>; 2] {
        let state = self.state.lock();
        [&state.gained, &state.lost].map(|extents| extents.iter().map(Extent::place).collect())
    }

    /// Whether extents are to be freed.
    #[cfg(test)]
    pub(super) fn are_left(&self) -> bool {
        !self.state.lock().unowned.is_empty()
    }

    /// Whether a push would free extents: they have no owner, and nobody borrows.
    pub(super) fn have_unowned(&self) -> bool {
        !self.state.lock().unowned.is_empty() && !self.are_borrowed()
    }

    /// Adds up what the push has collected.
    pub(super) fn settle(&self, data: &Data<'_>, to: &mut Added, planted: &Planted) {
        // Out of its mutex, which is a leaf, while the tree is read. This push is the only one.
        let mut state = mem::take(&mut *self.state.lock());
        let is_borrowed = || self.are_borrowed() && !planted.has(Mutant::BorrowedFreed);
        if let Err(error) = state.settle(data, to, planted, is_borrowed) {
            // A wrong count would free what is named.
            to.fail(error);
        }
        *self.state.lock() = state;
    }
}

/// The change that a push makes to the owner count of one extent.
struct OwnerChange {
    extent: Extent,
    before: u32,
    now: u32,
}

impl OwnerCounts {
    fn settle(
        &mut self,
        data: &Data<'_>,
        to: &mut Added,
        planted: &Planted,
        is_borrowed: impl Fn() -> bool,
    ) -> Result<(), StoreError> {
        let (gained, lost) = (mem::take(&mut self.gained), mem::take(&mut self.lost));
        let mut changes: BTreeMap<u64, OwnerChange> = BTreeMap::new();
        for extent in gained.into_iter().filter(|_| !planted.has(Mutant::OwnerNotCounted)) {
            self.change_of(extent, data, &mut changes)?.now += 1;
        }
        // Last: what one file lost another may have gained in the same push.
        for extent in lost {
            let change = self.change_of(extent, data, &mut changes)?;
            match change.before {
                2.. if planted.has(Mutant::LossNotCounted) => {}
                2.. if planted.has(Mutant::FreedAtFirstLoss) => change.now = 0,
                _ => change.now = change.now.saturating_sub(1),
            }
        }
        for (place, OwnerChange { extent, before, now }) in changes {
            if now > 1 && now != before {
                to.put(&Key::owners(place), &encode(now, extent.allocated()));
                self.are_any = true;
            } else if now < 2 && before > 1 {
                to.remove(&Key::owners(place));
            }
            if now == 0 {
                self.counts.remove(&place);
                self.unowned.entry(place).or_insert((extent, false));
                continue;
            }
            if now != before {
                self.counts.insert(place, (now, to.cut()));
            }
            if let Some((_, true)) = self.unowned.remove(&place) {
                to.remove(&Key::unowned(place));
            }
        }
        if !self.unowned.is_empty() {
            self.free_unowned(to, is_borrowed());
        }
        if self.counts.len() > REMEMBERED {
            self.counts.retain(|_, (_, cut)| *cut > data.applied_cut());
        }
        Ok(())
    }

    /// The entry of `changes` for `extent`.
    fn change_of<'c>(
        &self,
        extent: Extent,
        data: &Data<'_>,
        changes: &'c mut BTreeMap<u64, OwnerChange>,
    ) -> Result<&'c mut OwnerChange, StoreError> {
        Ok(match changes.entry(extent.place()) {
            Entry::Occupied(change) => change.into_mut(),
            Entry::Vacant(room) => {
                let owners = self.owners(extent.place(), data)?;
                room.insert(OwnerChange { extent, before: owners, now: owners })
            }
        })
    }

    /// How many owners the extent at `place` has.
    fn owners(&self, place: u64, data: &Data<'_>) -> Result<u32, StoreError> {
        if self.unowned.contains_key(&place) {
            return Ok(0);
        }
        if let Some((owners, _)) = self.counts.get(&place) {
            return Ok(*owners);
        }
        match if self.are_any { data.get(&Key::owners(place))? } else { None } {
            None => Ok(1),
            Some(value) => decode(&value)
                .map(|(owners, _)| owners)
                .ok_or_else(|| StoreError::Damaged("a count of owners that cannot be read".into())),
        }
    }

    /// Frees the extents without an owner, unless some file may want one yet: then a crash shall find them.
    fn free_unowned(&mut self, to: &mut Added, is_borrowed: bool) {
        for (place, (extent, is_recorded)) in &mut self.unowned {
            if !is_borrowed {
                to.free_extent(extent);
                if *is_recorded {
                    to.remove(&Key::unowned(*place));
                }
            } else if !*is_recorded {
                let mut value = Vec::new();
                extent.encode(&mut value);
                to.put(&Key::unowned(*place), &value);
                *is_recorded = true;
            }
        }
        if !is_borrowed {
            self.unowned.clear();
        }
    }
}
