//! Name table: the names of a directory, read without locks, changed one bucket at a time, listed in a fixed order.
//!
//! # Theory
//! An entry has a *position*, a number that it keeps: the high bits of its name's hash, and then a few bits that
//! tell names with equal hashes apart, given out under the bucket's lock. The chains (`chains/`) are sorted by
//! position, and a bucket has the positions that begin with its number:
//!
//! ```text
//!   hash       | 23 bits used ......................... | 41 bits not used |
//!   position   | 23 bits of the hash .................. | 8 bits twin |       below 2^31, above 2
//!   bucket     | as many bits as the array needs |
//! ```
//!
//! A position has 31 bits, so that it fits the signed 32 bits in which old programs keep it. Hashes are equal in 23 bits now
//! and then: two of 4,000 names, on average. Such names share their place in the order, and a lookup tells them apart by their
//! bytes. A table has room for 256 of them: with random hashes it lacks room for none of a billion names.
//!
//! So threads that add names share no counter. A listing that stopped at a position goes on behind it, in an array of
//! any length, whatever came and went meanwhile: an entry that is there from the begin to the end of the listing is
//! found exactly once. An array shrinks at one moment, with all buckets locked: a bucket that is merged from two, one after
//! the other, has entries in three chains for a while, and neither a listing nor [`NameTable::with_two_locked`] could tell.
//!
//! An array is doubled when its buckets fill. When threads wait for the locks of buckets, because different names share
//! a bucket, it is grown at once to 64 buckets for each CPU. A large one that has grown with its names is made smaller when a
//! sixteenth of the buckets would do: a listing that has come to its end looks, and so does a CPU that has removed many names.
//!
//! Entries are counted on lines that the adding thread writes anyway. In an array of up to 256 buckets, or 64 for each CPU,
//! each bucket counts its own, on the line of its lock; in a larger one each CPU counts what it adds and removes. Reading the
//! sum stores nothing. A thread that adds a name does not know the sum. A CPU reads the counts of all when it has added its
//! part of the room that it saw at its last look, with no bucket locked.
//!
//! # Clients must
//! - give the same hash for the same name, with a key that strangers do not know;
//! - keep [`LockedEntry`]s short: others spin for the bucket. Two buckets of one table are locked by
//!   [`NameTable::with_two_locked`], tables in an order that the client keeps;
//! - not wait for a grace period of the table's domain while they have a bucket locked.
//!
//! # Then
//! - the holder of a name's lock is alone with the name, in all of the table;
//! - an entry that moves to another name does so at one instant, for lookups and for listings;
//! - [`NameTable::kill`] succeeds only if the table is empty, and then no name is ever added again;
//! - [`NameTable::sums`] is what stood in the table at one moment. Only where many write without pause, or a name is
//!   moved within a table of more buckets than count their own, may each bucket or CPU have a moment of its own.
//!
//! # Ordering
//! See `tally.rs`, `chains/`, and for entries that move between names `pair.rs`.
//!
//! # Cost
//! get: the section and loads. lock, insert or remove, unlock: one exchange and two stores or
//! read-modify-writes, all on the bucket's line; where the CPUs count, one of them on the CPU's own line, and now and then
//! to insert a load of each CPU's line: half a load to two for each name among 256 CPUs, less where they are fewer or have more
//! room. Sums: two looks at each bucket's line, or at each CPU's. Memory: none before the first name, then 16 lines; an entry
//! 26 bytes, its value and its name; where the CPUs count, a line for each.

mod after;
mod entry;
mod key;
#[allow(unsafe_code)]
mod node;
mod pair;
mod tally;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
mod trail;

pub use self::after::After;
pub use self::entry::{Entry, LockedEntry, Room, There};
pub use self::key::Key;
pub use self::node::NAME_MAX;
pub use self::pair::LockedPair;
pub use self::trail::{Recorder, Remembered, Trail, Trails};

use self::node::NameNode;
use self::tally::EntryCounts;
use crate::chains::{Array, Chains};
use crate::face::{Mutant, SHRUNK, hint, seeded};
use crate::lock_debug::{LockClass, Watch};
use crate::rcu::{Domain, Guard};
use std::fmt;

/// The buckets of the first array.
const BUCKETS_FIRST: usize = if SHRUNK { 1 } else { 16 };

/// An array of so many buckets shrinks, ...
const SHRINKS_FROM: usize = if SHRUNK { 2 } else { 4096 };
/// ... if this fraction of the buckets suffices.
const SHRINKS_BY: usize = if SHRUNK { 2 } else { 16 };

/// How often [`NameTable::sums`] looks for a moment at which all counts stood.
const TRIES: u32 = 8;

/// The most buckets: a bucket then has one hash.
const BUCKETS_MAX: usize = 1 << node::HASH_BITS;

/// The names of a directory and what they stand for.
pub struct NameTable<V: Clone + Send + Sync + 'static> {
    chains: Chains<NameNode<V>>,
    /// The class of the buckets' locks. *immutable*
    watch: Watch,
}

/// Totals over the entries of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// How many there are.
    pub entries: u64,
    /// The sum of their weights.
    pub weight: u64,
}

impl<V: Clone + Send + Sync + 'static> NameTable<V> {
    /// A table without names whose readers are those of `domain`. The class of its locks is the place of this call.
    #[track_caller]
    pub fn new(domain: &'static Domain) -> Self {
        NameTable { chains: Chains::new(domain), watch: Watch::here() }
    }

    /// An empty table whose locks are of class `class`; see [`new`](Self::new).
    pub fn with_class(class: &'static LockClass, domain: &'static Domain) -> Self {
        NameTable { chains: Chains::new(domain), watch: Watch::class(class) }
    }

    /// Begins a read section of the table's domain.
    #[inline]
    pub fn read(&self) -> Guard<'_> {
        self.chains.read()
    }

    /// The value of `name`, valid while the section is open.
    ///
    /// # Panics
    /// If `guard` is a section of another domain.
    #[inline]
    pub fn get<'g>(&'g self, hash: u64, name: &[u8], guard: &'g Guard<'_>) -> Option<&'g V> {
        Some(&after::find(self, hash, name, guard)?.value)
    }

    /// The position of `name`, and what it stands for.
    pub fn find<'g>(&'g self, hash: u64, name: &[u8], guard: &'g Guard<'_>) -> Option<(u64, &'g V)> {
        after::find(self, hash, name, guard).map(|node| (node.position, &node.value))
    }

    /// The entries behind `position`, 0 for all, in the order of their positions.
    ///
    /// # Panics
    /// If `guard` is a section of another domain.
    pub fn after<'g>(&'g self, position: u64, guard: &'g Guard<'_>) -> After<'g, V> {
        After::new(self, position, guard)
    }

    /// Takes the lock of `name`, which need not be there. None if the table was killed.
    #[track_caller]
    pub fn lock<'t>(&'t self, hash: u64, name: &'t [u8]) -> Option<LockedEntry<'t, V>> {
        LockedEntry::new(self, hash, name, 0)
    }

    /// Calls `act` with the lock of `name`, as [`lock`](Self::lock) has it. Also none if a lock takes a long wait: so
    /// it may be called in a read section that goes on.
    #[track_caller]
    #[inline]
    pub fn try_with_locked<'t, R>(
        &'t self,
        hash: u64,
        name: &'t [u8],
        act: impl FnOnce(&mut LockedEntry<'t, V>) -> R,
    ) -> Option<R> {
        LockedEntry::try_with(self, hash, name, act)
    }

    /// Takes the lock of `name`, for a thread that may hold names of other tables of this class at lower levels: see
    /// [`lock_debug`](crate::lock_debug). None if the table was killed.
    #[track_caller]
    pub fn lock_nested<'t>(&'t self, hash: u64, name: &'t [u8], level: u8) -> Option<LockedEntry<'t, V>> {
        LockedEntry::new(self, hash, name, level)
    }

    /// Calls `act` with the locks of two names, which may be the same. None if the table was killed.
    #[track_caller]
    #[inline]
    pub fn with_two_locked<'t, R>(
        &'t self,
        first: (u64, &'t [u8]),
        second: (u64, &'t [u8]),
        act: impl FnOnce(&mut LockedPair<'t, V>) -> R,
    ) -> Option<R> {
        LockedPair::with(self, first, second, act)
    }

    /// The number of buckets, or their number after the current resize.
    pub fn buckets(&self) -> usize {
        self.chains.buckets()
    }

    /// Begins to move to twice as many buckets, as a small table does by itself when it fills. False if the move cannot
    /// begin now, or if more buckets would not help.
    pub fn grow(&self) -> bool {
        self.grow_to(2 * self.buckets())
    }

    /// Begins to move to `buckets` buckets, a power of two, if these are more. False as [`grow`](Self::grow).
    fn grow_to(&self, buckets: usize) -> bool {
        // One resize may end inside the section, but none begin after it: so what we look at does not get larger twice.
        let _section = self.read();
        buckets <= BUCKETS_MAX && (1..buckets).contains(&self.buckets()) && self.chains.resize(buckets)
    }

    /// Moves to as few buckets as the names need, if these are far fewer than there are: then threads that change names wait
    /// while it goes on. False if there is nothing to gain, or if a name is locked or the previous resize is not over.
    ///
    /// Removing names calls it now and then. A listing should, which has looked at all buckets anyway.
    pub fn shrink(&self) -> bool {
        let buckets = {
            let section = self.read();
            self.chains.current(&section).filter(|array| array.is_dense() || SHRUNK).map_or(0, Array::len)
        };
        if buckets < SHRINKS_FROM {
            return false;
        }
        let wanted = self.len().max(BUCKETS_FIRST).next_power_of_two();
        SHRINKS_BY * wanted <= buckets && self.chains.replace(wanted)
    }

    /// Forbids names for ever, if the table is empty. False if it has a name.
    pub fn kill(&self) -> bool {
        loop {
            if let Some(killed) = self.try_kill() {
                return killed;
            }
            self.help();
            hint::spin_loop();
        }
    }

    /// The variant of [`kill`](Self::kill) for callers that hold names of other tables locked and must not wait. None
    /// if a name of this table is locked or a resize is under way: to be tried again after [`help`](Self::help), with
    /// nothing locked.
    pub fn try_kill(&self) -> Option<bool> {
        // Most that are not empty are seen to be so without a lock.
        if self.sums().entries != 0 { Some(false) } else { self.chains.try_close() }
    }

    /// Does a part of the resize that is under way, if one is.
    pub fn help(&self) {
        self.chains.help();
    }

    /// Whether the table was killed.
    pub fn is_dead(&self) -> bool {
        self.chains.is_closed()
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        usize::try_from(self.sums().entries).unwrap_or(usize::MAX)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many names there are and what their weights add up to. Stores nothing.
    pub fn sums(&self) -> Sums {
        let guard = self.read();
        let mut before = None;
        for _ in 0..TRIES {
            let Some(array) = self.chains.current(&guard) else { return Sums::default() };
            let now = self.add_up(array, &guard);
            if (before == Some(now) || seeded(Mutant::SummedInOneLook)) && now.is_settled {
                return now.sums();
            }
            before = Some(now);
        }
        // So many add and remove that no moment can be caught: then the sum is of several.
        before.map_or_else(Sums::default, |now| now.sums())
    }

    /// Looks at what is counted in `array` and the next, once.
    fn add_up(&self, array: &Array<NameNode<V>>, guard: &Guard<'_>) -> EntryCounts {
        loop {
            let moved = array.progress().moved();
            let mut tally = EntryCounts::new();
            [Some(array), array.next(guard)].into_iter().flatten().for_each(|array| tally.add(array));
            // While a bucket is moved its entries may be counted in both arrays or in none. If each claimed move had
            // ended before the summing began, there was no such bucket.
            if array.progress().claimed() == moved {
                return tally;
            }
            hint::spin_loop();
        }
    }
}

impl<V: Clone + Send + Sync + 'static> fmt::Debug for NameTable<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameTable").field("sums", &self.sums()).finish_non_exhaustive()
    }
}
