//! After: the entries of a name table in the order of their positions, across buckets and resizes.

use super::NameTable;
use super::node::{NameNode, first_position, last_twin, place_of, position_at};
use crate::chains::Array;
use crate::rcu::Guard;
use std::ptr;

/// The last position that there can be.
const LAST: u64 = (1 << 62) - 1;

/// An iterator over position, name and value, in increasing order of positions.
pub struct After<'g, V: Clone + Send + Sync + 'static> {
    table: &'g NameTable<V>,
    guard: &'g Guard<'g>,
    /// Where the next node is in a chain of `array`; null before the chain of `from` is looked up.
    node: *mut NameNode<V>,
    array: Option<&'g Array<NameNode<V>>>,
    /// Entries before this position have been returned, or are not asked for.
    from: u64,
    /// The chain has the entries up to here.
    chain_end: u64,
    /// Entries behind this one are not asked for.
    to: u64,
}

impl<'g, V: Clone + Send + Sync + 'static> After<'g, V> {
    /// The entries behind `position`.
    pub(super) fn new(table: &'g NameTable<V>, position: u64, guard: &'g Guard<'_>) -> Self {
        Self::range(table, position.saturating_add(1), LAST, guard)
    }

    /// The entries whose names may have `hash`.
    #[inline]
    pub(super) fn of_hash(table: &'g NameTable<V>, hash: u64, guard: &'g Guard<'_>) -> Self {
        let first = first_position(hash);
        Self::range(table, first, last_twin(first), guard)
    }

    #[inline]
    fn range(table: &'g NameTable<V>, from: u64, to: u64, guard: &'g Guard<'_>) -> Self {
        After { table, guard, node: ptr::null_mut(), array: None, from, chain_end: 0, to }
    }

    /// Goes to the chain of `from`. False if there is no array.
    fn enter_chain(&mut self) -> bool {
        let place = place_of(self.from);
        let Some((first, array)) = self.table.chains.chain(place, self.guard) else { return false };
        (self.node, self.array) = (first, Some(array));
        self.chain_end = position_at(array.last_place(place));
        true
    }
}

impl<'g, V: Clone + Send + Sync + 'static> Iterator for After<'g, V> {
    type Item = (u64, &'g [u8], &'g V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let (Some(array), Some(_)) = (self.array, ptr::NonNull::new(self.node)) {
                let node = self.node;
                // SAFETY: found in a chain inside the section: freed a grace period after it was unlinked.
                let found = unsafe { &*node };
                if found.position > self.to {
                    return None;
                }
                // A chain that was moved meanwhile never changes again: what stays in the table is in it.
                self.node = array.following(found);
                if found.position >= self.from {
                    self.from = found.position + 1;
                    // SAFETY: as above.
                    return Some((found.position, unsafe { NameNode::name(node) }, &found.value));
                }
                continue;
            }
            if self.array.is_some() {
                self.from = self.from.max(self.chain_end + 1);
            }
            if self.from > self.to || !self.enter_chain() {
                return None;
            }
        }
    }
}
