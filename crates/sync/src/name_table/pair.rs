//! Pair: two locked names, of one table or of two, between which entries move.
//!
//! # Theory
//! A lookup takes no lock, and a move changes two chains. So that no lookup finds the value under both names, nor under
//! neither, one word decides for both: how the entry that leaves stands.
//!
//! ```text
//!                            old name             new name
//!                            X                    Y, or nothing
//!   the new entry arrives    X                    X arrives, Y      its bucket says who leaves
//!   X leaves: *the instant*  X has left           X arrives, Y
//!   the new entry stands     X has left           X, Y
//!   tidied up                -                    X
//! ```
//! Who finds an entry that arrives asks whether the other has left; if not, it goes on to what stands behind. Who finds
//! one that has left goes on. Nobody waits, and who finds an entry that just stands asks nothing.
//!
//! In an exchange an entry arrives at both names, and each asks for the same one: it does not leave, but is replaced
//! by what arrives before it. A lookup that comes to it all the same passed that before the instant.
//!
//! Who remembers an entry (`trail.rs`) does not pass what arrives before it. So an entry that is about to be replaced says that it
//! yields before the instant: then it does not stand for who remembers it, and he looks the name up.
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
use super::node::{NameNode, Standing, insert_at, name_at, place_of};
use crate::chains::Place;
use crate::face::{Mutant, seeded};
use crate::lock_debug::{Ask, Held};
use std::ptr;

/// Two names whose buckets the caller has locked; unlocks them when dropped.
pub struct LockedPair<'t, V: Clone + Send + Sync + 'static> {
    /// Dropped before any aftermath: who helps to move a table waits for its buckets, and those who have these may wait for
    /// the other name's.
    second: Second<'t, V>,
    first: LockedEntry<'t, V>,
    /// Of the second name, if it is in another table.
    elsewhere: Option<Aftermath<'t, V>>,
}

/// The second name of a pair.
enum Second<'t, V: Clone + Send + Sync + 'static> {
    /// In the first one's bucket.
    Beside(Name<'t>),
    /// In another bucket, of that table or of another.
    Apart { name: Name<'t>, bucket: Bucket<'t, V>, _held: Held },
}

impl<'t, V: Clone + Send + Sync + 'static> LockedPair<'t, V> {
    /// Of names of two tables.
    ///
    /// # Panics
    /// If these have readers of different domains: what leaves one table is read by way of the other.
    pub fn between(first: LockedEntry<'t, V>, second: LockedEntry<'t, V>) -> Self {
        let [one, other] = [&first, &second].map(|entry| entry.aftermath.table.chains.domain);
        assert!(ptr::eq(one, other), "the tables are of two domains");
        let LockedEntry { name, bucket, _held, aftermath } = second;
        LockedPair { second: Second::Apart { name, bucket, _held }, first, elsewhere: Some(aftermath) }
    }

    #[track_caller]
    pub(super) fn new(
        table: &'t NameTable<V>,
        first: (u64, &'t [u8]),
        second: (u64, &'t [u8]),
    ) -> Option<Self> {
        let [first, second] = [first, second].map(|(hash, bytes)| Name { hash, bytes });
        let [a, b] = [first, second].map(|name| name.place());
        let mut aftermath = Aftermath::new(table);
        let low = aftermath.lock(a.min(b), Ask::BUCKET)?;
        if low.0.covers(a.max(b)) {
            let first = LockedEntry { name: first, bucket: low.0, _held: low.1, aftermath };
            return Some(LockedPair { second: Second::Beside(second), first, elsewhere: None });
        }
        // Buckets of one table are ordered by their numbers.
        let high = aftermath.lock(a.max(b), Ask::BUCKET.any_number())?;
        let ((bucket, _held), other) = if a < b { (low, high) } else { (high, low) };
        let first = LockedEntry { name: first, bucket, _held, aftermath };
        let second = Second::Apart { name: second, bucket: other.0, _held: other.1 };
        Some(LockedPair { second, first, elsewhere: None })
    }

    /// The first name in its bucket.
    pub fn first(&mut self) -> Entry<'_, 't, V> {
        self.first.entry()
    }

    /// The second name in its bucket.
    pub fn second(&mut self) -> Entry<'_, 't, V> {
        let LockedEntry { bucket, aftermath, .. } = &mut self.first;
        let aftermath = self.elsewhere.as_mut().unwrap_or(aftermath);
        match &mut self.second {
            Second::Beside(name) => Entry { name: *name, bucket, aftermath },
            Second::Apart { name, bucket, .. } => Entry { name: *name, bucket, aftermath },
        }
    }

    /// Lets the second name stand for what the first does, and the first for nothing: at one instant, for all who look
    /// names up. The names are not the same. False, and nothing happens, if the first stands for nothing or 65,536 names
    /// have the hash of the second.
    pub fn rename(&mut self) -> bool {
        let Some(source) = self.first().standing() else { return false };
        let leaving = source.node;
        if !self.second().arrive(source, leaving) {
            return false;
        }
        self.first().leave(Standing::Left);
        self.second().settle();
        self.first().remove();
        true
    }

    /// Lets each name stand for what the other does, at one instant for all who look names up. The names are not the same.
    /// False, and nothing happens, if one of them stands for nothing.
    pub fn exchange(&mut self) -> bool {
        let (Some(source), Some(target)) = (self.first().standing(), self.second().standing()) else {
            return false;
        };
        let leaving = source.node;
        // Where the name is, there is room for it.
        let both = self.second().arrive(source, leaving) && self.first().arrive(target, leaving);
        debug_assert!(both, "both names are there");
        self.first().leave(Standing::Replaced);
        self.first().settle();
        self.second().settle();
        true
    }
}

/// What a name stands for.
struct Source<V> {
    node: *const NameNode<V>,
    value: V,
    weight: u8,
}

impl<V: Clone + Send + Sync + 'static> Entry<'_, '_, V> {
    /// What the name, to which nothing arrives, stands for.
    fn standing(&self) -> Option<Source<V>> {
        let at = find(self.bucket, self.name)?;
        let node = self.bucket.get(at)?;
        let (value, weight) = (node.value.clone(), node.weight);
        Some(Source { node: self.bucket.get_raw(at), value, weight })
    }

    /// Adds an entry that stands as soon as `leaving` does not any more, before what the name stands for until then.
    /// False if there is no room.
    fn arrive(&mut self, Source { value, weight, .. }: Source<V>, leaving: *const NameNode<V>) -> bool {
        let standing = if seeded(Mutant::MovedInTwoSteps) { Standing::Stands } else { Standing::Arrives };
        self.bucket.bucket().set_leaving(leaving);
        match find(self.bucket, self.name) {
            None => self.insert_as(value, weight, standing).is_ok(),
            Some(at) => {
                let Some(node) = self.bucket.get(at) else { return false };
                if !ptr::eq(node, leaving) && !seeded(Mutant::ReplacedUnmarked) {
                    // From now on who remembers it must ask the chain.
                    node.stand(Standing::Yields);
                }
                let position = node.position;
                self.bucket.array.count(place_of(position)).reweigh(node.weight, weight);
                insert_at(self.bucket, at, (position, self.name.bytes, value, weight), standing);
                true
            }
        }
    }

    /// Says how the entry that stood when the move began stands from now on.
    fn leave(&self, standing: Standing) {
        let here = find(self.bucket, self.name).map(|at| self.replaced_by(at).unwrap_or(at));
        if let Some(node) = here.and_then(|at| self.bucket.get(at)) {
            node.stand(standing);
        }
    }

    /// Lets the entry that arrived stand, and removes the one that it replaces.
    fn settle(&mut self) {
        let Some(at) = find(self.bucket, self.name) else { return };
        if let Some(node) = self.bucket.get(at) {
            node.stand(Standing::Stands);
        }
        if let Some(replaced) = self.replaced_by(at) {
            let unlinked = self.bucket.unlink(replaced);
            self.discard(unlinked);
        }
    }

    /// The entry of the same name behind `at`.
    fn replaced_by(&self, at: Place<NameNode<V>>) -> Option<Place<NameNode<V>>> {
        let behind = self.bucket.step(at);
        (name_at(self.bucket, behind) == Some(self.name.bytes)).then_some(behind)
    }
}
