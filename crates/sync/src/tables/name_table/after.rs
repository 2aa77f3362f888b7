//! After: the entries of a name table in the order of their positions, across buckets and resizes.

use super::NameTable;
use super::node::{LAST, NameNode, first_position, last_twin, place_of, position_at, same};
use crate::chains::{Array, Seen};
use crate::rcu::Guard;
use std::ptr;

/// An iterator over position, name and value, in increasing order of positions.
pub struct After<'g, V: Clone + Send + Sync + 'static> {
    table: &'g NameTable<V>,
    guard: &'g Guard<'g>,
    /// Where the next node is in a chain of `array`; null before the chain of `from` is looked up.
    node: *mut NameNode<V>,
    array: Option<&'g Array<NameNode<V>>>,
    /// The array that was the current one when the first chain was looked up: what it has not moved yet is there, all else
    /// is reached from it.
    oldest: Option<&'g Array<NameNode<V>>>,
    /// Which buckets of `oldest` come next.
    seen: Seen,
    /// Entries before this position have been returned, or are not asked for.
    from: u64,
    /// The chain has the entries up to here.
    chain_end: u64,
}

/// The entry of `name`, which has `hash`.
#[inline]
pub(super) fn find<'g, V: Clone + Send + Sync + 'static>(
    table: &'g NameTable<V>,
    hash: u64,
    name: &[u8],
    guard: &'g Guard<'_>,
) -> Option<&'g NameNode<V>> {
    let first = first_position(hash);
    // All names of one hash are in one chain; a chain that is moved meanwhile keeps the remaining names.
    let (mut at, array) = table.chains.chain(place_of(first), guard)?;
    // SAFETY: found in a chain inside the section: freed a grace period after it was unlinked.
    while let Some(node) = unsafe { at.as_ref() }
        && node.position <= last_twin(first)
    {
        // SAFETY: as above.
        if node.position >= first && same(unsafe { NameNode::name(at) }, name) {
            if node.stands() {
                return Some(node);
            }
            // Loaded before it is asked: once it stands, what it replaces is taken from behind it.
            at = array.following(node);
            if node.stands_by_now(array) {
                return Some(node);
            }
        } else {
            at = array.following(node);
        }
    }
    None
}

impl<'g, V: Clone + Send + Sync + 'static> After<'g, V> {
    /// The entries behind `position`.
    pub(super) fn new(table: &'g NameTable<V>, position: u64, guard: &'g Guard<'_>) -> Self {
        After {
            table,
            guard,
            node: ptr::null_mut(),
            array: None,
            oldest: None,
            seen: Seen::default(),
            from: position.saturating_add(1),
            chain_end: 0,
        }
    }

    /// Goes to the first chain from `from` on that may have entries. False if there is none.
    #[inline]
    fn enter_chain(&mut self) -> bool {
        self.oldest = self.oldest.or_else(|| self.table.chains.current(self.guard));
        let Some(oldest) = self.oldest else { return false };
        let place = place_of(self.from);
        let Some((used, seen)) = oldest.used_from(place, self.seen) else { return false };
        let chain = match oldest.first(used) {
            Some(first) => Some((oldest, used, first)),
            None => moved_chain(oldest, place, self.guard),
        };
        let Some((array, place, first)) = chain else { return false };
        (self.node, self.array, self.seen) = (first, Some(array), seen);
        self.from = self.from.max(position_at(place));
        self.chain_end = position_at(array.last_place(place));
        true
    }
}

/// A chain: its array, its first place, and its first node, or null.
type Chain<'g, V> = (&'g Array<NameNode<V>>, u64, *mut NameNode<V>);

/// The first chain from `place` on that may have entries, when buckets of `oldest` were moved. Apart, and by value, or what
/// a listing knows could not stay in registers.
#[cold]
fn moved_chain<'g, V: Clone + Send + Sync + 'static>(
    oldest: &'g Array<NameNode<V>>,
    place: u64,
    guard: &'g Guard<'_>,
) -> Option<Chain<'g, V>> {
    // In `array` we look from `place` to `last`.
    let (mut array, mut place, mut last) = (oldest, place, u64::MAX);
    loop {
        match array.used_from(place, Seen::default()).filter(|(used, _)| *used <= last) {
            Some((used, _)) => match array.first(used) {
                Some(first) => return Some((array, used, first)),
                None => (array, place, last) = (array.next(guard)?, used, last.min(array.last_place(used))),
            },
            // Neither the successor's buckets nor this array have further nodes.
            None => (array, place, last) = (oldest, last.checked_add(1)?, u64::MAX),
        }
    }
}

impl<'g, V: Clone + Send + Sync + 'static> Iterator for After<'g, V> {
    type Item = (u64, &'g [u8], &'g V);

    // Always, or a listing keeps what it knows in memory: a quarter slower.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let (Some(array), Some(_)) = (self.array, ptr::NonNull::new(self.node)) {
                let node = self.node;
                // SAFETY: found in a chain inside the section: freed a grace period after it was unlinked.
                let found = unsafe { &*node };
                // A chain that was moved meanwhile never changes again: what stays in the table is in it.
                self.node = array.following(found);
                if found.position >= self.from && (found.stands() || found.stands_by_now(array)) {
                    self.from = found.position + 1;
                    // SAFETY: as above.
                    return Some((found.position, unsafe { NameNode::name(node) }, &found.value));
                }
                continue;
            }
            if self.array.is_some() {
                self.from = self.from.max(self.chain_end + 1);
            }
            if self.from > LAST || !self.enter_chain() {
                return None;
            }
        }
    }
}
