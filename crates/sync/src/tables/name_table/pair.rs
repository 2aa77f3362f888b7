//! Pair: two locked names, of one table or of two, between which entries move.
//!
//! # Theory
//! A lookup takes no lock, and a move changes two chains. So that no lookup finds the value under both names, nor under
//! neither, one word decides for both: how the entry that leaves stands.
//!
//! ```text
//!                            old name             new name
//!                            X                    Y, or nothing
//!   the new entry arrives    X                    X arrives, Y      its bucket names X
//!   X leaves: *the instant*  X has left           X arrives, Y
//!   the new entry stands     X has left           X, Y
//!   tidied up                -                    X
//! ```
//! A lookup that finds an entry that arrives asks whether the other has left; if not, it goes on to what stands behind. At an
//! entry that has left it goes on. No lookup waits, and one that finds an entry that just stands asks nothing.
//!
//! In an exchange, and where a move leaves another value behind, an entry arrives at both names, and each asks for the same
//! one: it does not leave, but is replaced by what arrives before it. A lookup that comes to it all the same passed that
//! before the instant.
//!
//! A thread that remembers an entry (`trail.rs`) does not pass what arrives before it. So an entry that is about to be replaced
//! says before the instant that it yields: then it does not stand for threads that remember it, and they look the name up.
//!
//! # Lock order
//! Buckets of one table by number; those of two tables in the client's order.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | standing | `NameNode::stand` | `NameNode::is` | that the other name's entry arrived, or has left |
//! | leaving | `NameBucket::set_leaving` | `stands_by_now` | that the bucket's earlier moves are over |
//!
//! # Cost
//! To a lookup: one load of the entry that it finds. To a move: one store to the entry that leaves and one to the bucket.

use super::NameTable;
use super::entry::{Aftermath, Bucket, Entry, LockedEntry, Name, find};
use super::node::{EntryState, NameNode, insert_at, name_at, place_of};
use super::tally::Adder;
use crate::chains::ChainPlace;
use crate::face::{Mutant, seeded};
use crate::lock_debug::{Ask, Held};
use std::ptr;

/// Two names whose buckets the caller has locked; unlocks them when dropped.
pub struct LockedPair<'t, V: Clone + Send + Sync + 'static> {
    names: [Name<'t>; 2],
    /// Dropped before any aftermath: a thread that helps to move a table waits for its buckets, and the threads that hold these
    /// may wait for the other name's.
    one: Bucket<'t, V>,
    /// Another bucket, of that table or of another.
    other: Option<Bucket<'t, V>>,
    /// Which of the names are in the other bucket.
    is_in_other: [bool; 2],
    _held: [Option<Held>; 2],
    /// The aftermath in the first name's table.
    aftermath: Aftermath<'t, V>,
    /// The aftermath in the second name's table, if that is another.
    elsewhere: Option<Aftermath<'t, V>>,
}

impl<'t, V: Clone + Send + Sync + 'static> LockedPair<'t, V> {
    /// Two locked names of two tables.
    ///
    /// # Panics
    /// If these have readers of different domains: what leaves one table is read by way of the other.
    pub fn between(first: LockedEntry<'t, V>, second: LockedEntry<'t, V>) -> Self {
        let [one, other] = [&first, &second].map(|entry| entry.aftermath.table.chains.domain);
        assert!(ptr::eq(one, other), "the tables are of two domains");
        LockedPair {
            names: [first.name, second.name],
            one: first.bucket,
            other: Some(second.bucket),
            is_in_other: [false, true],
            _held: [Some(first._held), Some(second._held)],
            aftermath: first.aftermath,
            elsewhere: Some(second.aftermath),
        }
    }

    /// Calls `act` with two names of `table`. None if it was killed.
    #[track_caller]
    #[inline]
    pub(super) fn with<R>(
        table: &'t NameTable<V>,
        first: (u64, &'t [u8]),
        second: (u64, &'t [u8]),
        act: impl FnOnce(&mut LockedPair<'t, V>) -> R,
    ) -> Option<R> {
        let names = [first, second].map(|(hash, bytes)| Name { hash, bytes });
        let [a, b] = names.map(|name| name.place());
        // Buckets of one table are ordered by their numbers.
        let (one, held) = table.lock_bucket(a.min(b), Ask::BUCKET)?;
        let mut pair = LockedPair {
            names,
            one,
            other: None,
            is_in_other: [false; 2],
            _held: [Some(held), None],
            aftermath: Aftermath::new(table),
            elsewhere: None,
        };
        if !pair.one.covers(a.max(b)) {
            let (other, held) = pair.aftermath.lock_another(a.max(b), Ask::BUCKET.any_number())?;
            (pair.other, pair._held[1], pair.is_in_other) = (Some(other), Some(held), [a > b, a < b]);
        }
        Some(act(&mut pair))
    }

    /// The first name in its bucket.
    pub fn first(&mut self) -> Entry<'_, 't, V> {
        self.entry(0)
    }

    /// The second name in its bucket.
    pub fn second(&mut self) -> Entry<'_, 't, V> {
        self.entry(1)
    }

    #[inline]
    fn entry(&mut self, number: usize) -> Entry<'_, 't, V> {
        let bucket = match &mut self.other {
            Some(other) if self.is_in_other[number] => other,
            _ => &mut self.one,
        };
        let aftermath = match &mut self.elsewhere {
            Some(elsewhere) if number == 1 => elsewhere,
            _ => &mut self.aftermath,
        };
        Entry { name: &self.names[number], bucket, aftermath }
    }

    /// Lets the second name stand for what the first does, and the first for nothing: at one instant, for all lookups.
    /// The names are not the same. False, and nothing happens, if the first stands for nothing or 256 names
    /// have the hash of the second.
    pub fn rename(&mut self) -> bool {
        let Some(source) = self.first().standing() else { return false };
        let leaving = source.node;
        if !self.second().arrive(source, leaving) {
            return false;
        }
        self.first().leave(leaving, EntryState::Left);
        self.second().settle();
        if let Some(left) = self.first().there() {
            left.remove();
        }
        true
    }

    /// Exchanges the values of two different names, at one instant for all lookups. Returns false and changes nothing if
    /// either name is absent.
    pub fn exchange(&mut self) -> bool {
        let (Some(source), Some(target)) = (self.first().standing(), self.second().standing()) else {
            return false;
        };
        self.replace_both(source, (target.value, target.weight))
    }

    /// Renames the first name to the second, as [`rename`](Self::rename) does, but the first name stands for `left` from that
    /// instant on, which counts as an entry of `weight`.
    pub fn rename_leaving(&mut self, left: V, weight: u8) -> bool {
        match self.first().standing() {
            Some(source) => self.replace_both(source, (left, weight)),
            None => false,
        }
    }

    /// Lets the second name stand for `source`, which the first stands for, and the first for what is `left`. False, and
    /// nothing happens, if there is no room for the second name.
    fn replace_both(&mut self, source: Source<V>, (value, weight): (V, u8)) -> bool {
        let leaving = source.node;
        if !self.second().arrive(source, leaving) {
            return false;
        }
        let arrived = self.first().arrive(Source { node: leaving, value, weight }, leaving);
        debug_assert!(arrived, "where the name is, there is room for it");
        self.first().leave(leaving, EntryState::Replaced);
        self.first().settle();
        self.second().settle();
        true
    }
}

/// The value of a name, with its node.
struct Source<V> {
    node: ChainPlace<NameNode<V>>,
    value: V,
    weight: u8,
}

impl<V: Clone + Send + Sync + 'static> Entry<'_, '_, V> {
    /// The value of the name, which has no arriving entry.
    fn standing(&self) -> Option<Source<V>> {
        let at = find(self.bucket, self.name);
        let node = self.bucket.get(at)?;
        let (value, weight) = (node.value.clone(), node.weight);
        Some(Source { node: at, value, weight })
    }

    /// Adds an entry that stands as soon as `leaving` does not any more, before what the name stands for until then.
    /// False if there is no room.
    fn arrive(self, Source { value, weight, .. }: Source<V>, leaving: ChainPlace<NameNode<V>>) -> bool {
        let leaving = self.bucket.get_raw(leaving);
        let standing = if seeded(Mutant::MovedInTwoSteps) { EntryState::Stands } else { EntryState::Arrives };
        self.bucket.bucket().set_leaving(leaving);
        let at = find(self.bucket, self.name);
        match self.bucket.get(at) {
            None => self.room().is_some_and(|room| room.fill_as(value, weight, standing).is_ok()),
            Some(node) => {
                if !ptr::eq(node, leaving) && !seeded(Mutant::ReplacedUnmarked) {
                    // From now on a thread that remembers it must ask the chain.
                    node.stand(EntryState::Yields);
                }
                let position = node.position;
                let array = self.bucket.array;
                array.count(place_of(position)).reweigh(node.weight, weight, Adder::to(array));
                insert_at(self.bucket, at, (position, self.name.bytes, value, weight), standing);
                true
            }
        }
    }

    /// Says how the entry at `leaving`, which stood when the move began, stands from now on.
    fn leave(&self, leaving: ChainPlace<NameNode<V>>, standing: EntryState) {
        if let Some(node) = self.bucket.get(leaving) {
            node.stand(standing);
        }
    }

    /// Lets the entry that arrived stand, and removes the one that it replaces.
    fn settle(&mut self) {
        let at = find(self.bucket, self.name);
        let Some(node) = self.bucket.get(at) else { return };
        node.stand(EntryState::Stands);
        if let Some(replaced) = self.replaced_by(at) {
            let unlinked = self.bucket.unlink(replaced);
            self.discard(unlinked);
        }
    }

    /// The entry of the same name behind `at`.
    fn replaced_by(&self, at: ChainPlace<NameNode<V>>) -> Option<ChainPlace<NameNode<V>>> {
        let behind = self.bucket.step(at);
        (name_at(self.bucket, behind) == Some(self.name.bytes)).then_some(behind)
    }
}
