//! Names: which names and inodes of a durable file system are in memory, and how they leave it.
//!
//! # Theory
//! The names of a directory are in memory all together or not at all. When inodes take more than their part of the limit of
//! memory, the names of some directories leave, those of one directory at a time, when the store's tree has all of them and
//! all that was changed of the inodes to which they lead: [`Stored::changed_in`] says in which cut of the store an object was changed last.
//! They leave while no [`Section`](super::Section) is open. So a call that changes names finds within its section what it found at the
//! begin, and a call that only looks sees by [`Dir::departures`](crate::dir::Dir::departures) that it must look again.
//! ```text
//!   names are here -- clean, and chosen --> names are away; their inodes are apart -- nobody else has one --> forgotten
//!         ^                                      |
//!         +---- looked into: an inode that is apart comes back, others are read from the tree
//! ```
//! An inode whose name left may be in use: open, mapped, a working directory, remembered by a kernel, with changes that
//! are to be pushed, or the parent of a directory in memory. So it first stands *apart*, where a name that is loaded
//! again finds it. From time to time all reference counts are made exact, and unused inodes apart are forgotten. A
//! directory is forgotten only after its names have left.
//!
//! The hand of a clock goes round the directories with names in memory. When a whole round brings too little, there is
//! a checkpoint, so that more is in the tree; if that does not help either, what is in memory is in use, and the limit
//! is exceeded. Then observers are asked for what stands apart
//! ([`Observer::memory_is_short`](crate::Observer::memory_is_short)): most of it is remembered by a kernel, and not
//! used. The next round comes when observers have given up a notable share, or when memory use has grown notably.
//!
//! *Thrashing.* A directory whose names take more than their part of the limit would leave after each call and be loaded whole by the
//! next. So where such a directory is loaded soon after its names left, they stay in memory until the names of many other
//! directories have left. These directories exceed the limit by that part once more, or by one directory.
//!
//! # Clients must
//! - call [`Durable::make_room`] where they could begin a section, and in no section and no read section.
//!
//! # Cost
//! A new inode: a count on the CPU's own line. A change: a load, and a store when it is the first since a cut.

use super::kept::WhereKnown;
use super::mutant::{Mutant, Planted};
use super::pending::Stored;
use super::{Durable, Pending};
use crate::dir::{Dir, NamedInodes};
use crate::inode::{flag, settle};
use crate::lock_class::{DURABLE_LEAVING, DURABLE_PENDING};
use crate::superblock::{INODE_BYTES, Shared};
use crate::{Inode, InodeRef, MemoryUse};
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::percpu::Budget;
use sluice_sync::{Arc, CachePadded, Mutex, rcu, refcache};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

/// Directories are listed in so many parts, so that threads that make or remove some seldom meet.
const PARTS: usize = 512;
/// A CPU takes numbers of inodes in such runs: each run has parts of its own, ...
const RUN: u64 = 64;
/// ... so many, which numbers that follow each other take in turn.
const TURNS: u64 = 8;
/// Directories whose names leave between two checks of the limit.
const AT_ONCE: usize = 32;
/// So many inodes that are apart are looked at between two such looks.
const LOOKS: usize = 1 << 14;
/// When names leave, inodes go down to the limit less this part of it.
const SLACK: u64 = 8;

/// Names that are loaded again before the names of so many directories have left came back soon.
const SOON: usize = 64;
/// Names that came back soon stay until the names of so many directories have left.
pub(super) const STAY: u64 = 256;

/// Inodes by their numbers.
type ByNumber = BTreeMap<u64, Arc<InodeRef>>;

/// The names and inodes in memory.
pub(super) struct NameSet {
    /// Bytes. *Atomic (stands alone); written by tests.*
    limit: AtomicU64,
    /// Inodes. *Per CPU.*
    inodes: Budget,
    /// Pages of contents that stand in records: they leave with their inode. *Atomic (stands alone).*
    standing: AtomicU64,
    /// There may be too much. *Atomic (stands alone).*
    is_over: AtomicBool,
    /// Below this many bytes eviction has no work. *Atomic (stands alone).*
    threshold: AtomicU64,
    /// Inodes that observers have given up since then. *Atomic (stands alone).*
    forgotten: AtomicU64,
    /// Directories with names in memory. *Each protected by its mutex.*
    /// *In an Arc: a thread that counts a reference to an inode may free dead ones, which it must not under this mutex.*
    directories: Vec<CachePadded<Mutex<ByNumber>>>,
    /// Inodes without a name in memory. *Protected by its mutex; in an Arc as above.*
    apart: Mutex<BTreeMap<u64, Apart>>,
    /// How many directories' names have left. *Atomic (stands alone).*
    departures: AtomicU64,
    /// Directories whose names left and came back. *Protected by its mutex.*
    returns: Mutex<Returns>,
    hand: Mutex<Hand>,
    /// Large directories of which was told: see `large.rs`. *Protected by its mutex.*
    pub(super) told_of_large: Mutex<BTreeSet<u64>>,
}

/// Directories whose names left memory and were loaded again soon.
#[derive(Default)]
struct Returns {
    /// The directories whose names left last, the latest at the end: at most [`SOON`].
    left: VecDeque<u64>,
    /// How many directories' names have left.
    departures: u64,
    /// Directories whose names stay, until how many departures, and how many names they had.
    staying: BTreeMap<u64, (u64, u64)>,
}

impl Returns {
    /// The names of directory `ino` have left.
    fn leave(&mut self, ino: u64) {
        self.departures += 1;
        self.left.retain(|other| *other != ino);
        self.left.push_back(ino);
        if self.left.len() > SOON {
            self.left.pop_front();
        }
    }

    /// The `names` of directory `ino` were loaded. If they are many, and left not long ago, they stay, as far as `most` names may.
    fn load(&mut self, ino: u64, names: u64, most: u64) {
        // A limit of 0 is that of a test, in which everything leaves.
        if most == 0 || names < most / 2 || !self.left.contains(&ino) {
            return;
        }
        self.staying.retain(|_, (until, _)| *until > self.departures);
        let others: u64 = self.staying.values().map(|(_, names)| names).sum();
        if others == 0 || others + names <= most {
            self.staying.insert(ino, (self.departures + STAY, names));
        }
    }

    /// Whether the names of directory `ino` stay.
    fn stays(&self, ino: u64) -> bool {
        self.staying.get(&ino).is_some_and(|(until, _)| *until > self.departures)
    }
}

/// Where a round of the clock has come to.
#[derive(Default)]
pub(super) struct Hand {
    part: usize,
    directory: u64,
    /// The last inode of those apart that was looked at.
    apart: u64,
}

impl Hand {
    /// At the inode number `ino` of those apart.
    pub(super) fn apart_from(ino: u64) -> Hand {
        Hand { apart: ino.saturating_sub(1), ..Hand::default() }
    }
}

/// An inode that stands apart.
#[derive(Clone)]
struct Apart {
    inode: Arc<InodeRef>,
    /// How often it was taken from here.
    taken: u64,
}

impl NameSet {
    /// For names and inodes of `limit` bytes.
    pub(super) fn new(limit: u64) -> NameSet {
        let part = || CachePadded::new(Mutex::with_class(&DURABLE_PENDING, BTreeMap::new()));
        NameSet {
            limit: AtomicU64::new(limit),
            inodes: Budget::new(Some(limit / INODE_BYTES), 0),
            standing: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            threshold: AtomicU64::new(limit),
            forgotten: AtomicU64::new(0),
            directories: (0..PARTS).map(|_| part()).collect(),
            apart: Mutex::with_class(&DURABLE_PENDING, BTreeMap::new()),
            departures: AtomicU64::new(0),
            returns: Mutex::with_class(&DURABLE_PENDING, Returns::default()),
            hand: Mutex::with_class(&DURABLE_LEAVING, Hand::default()),
            told_of_large: Mutex::with_class(&DURABLE_PENDING, BTreeSet::new()),
        }
    }

    pub(super) fn limit(&self) -> u64 {
        // Relaxed: a number that stands alone.
        self.limit.load(Ordering::Relaxed)
    }

    /// Lets all leave that can from now on.
    #[cfg(test)]
    pub(super) fn shrink(&self) {
        self.limit.store(0, Ordering::Relaxed);
        self.threshold.store(0, Ordering::Relaxed);
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Bytes in memory.
    pub(super) fn used(&self) -> u64 {
        // Relaxed: a number that stands alone.
        self.inodes.used() * INODE_BYTES + self.standing.load(Ordering::Relaxed) * crate::data::PAGE
    }

    /// The counts of inodes and names in memory.
    pub(super) fn counts(&self) -> MemoryUse {
        let inodes_apart = self.apart.lock().len() as u64;
        MemoryUse {
            inodes: self.inodes.used(),
            inodes_apart,
            directories: self.directories.iter().map(|part| part.lock().len() as u64).sum(),
            // Relaxed: a number that stands alone.
            departures: self.departures.load(Ordering::Relaxed),
            ..MemoryUse::default()
        }
    }

    /// An inode came into memory.
    pub(super) fn count_inode(&self) {
        if self.inodes.take(1).is_err() {
            self.inodes.exceed(1);
            // Relaxed: a hint.
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// An inode left memory.
    pub(super) fn uncount_inode(&self) {
        self.inodes.give(1);
    }

    /// Observers have given up so many inodes.
    pub(super) fn count_forgotten(&self, inodes: u64) {
        // Relaxed, all: hints. Nothing is written below the limit, where nobody needs to know.
        if !self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let forgotten = self.forgotten.fetch_add(inodes, Ordering::Relaxed) + inodes;
        if forgotten * INODE_BYTES >= self.limit() / SLACK {
            self.forgotten.store(0, Ordering::Relaxed);
            self.threshold.store(self.limit(), Ordering::Relaxed);
        }
    }

    /// Some of the inodes that stand apart, children before their directories, which mostly are older.
    fn some_apart(&self) -> Vec<u64> {
        self.apart.lock().keys().rev().take(LOOKS).copied().collect()
    }

    /// Counts the pages in loaded records of one file, which changed in number from `were` to `are`.
    pub(super) fn count_standing(&self, are: u64, were: u64) {
        if are != were {
            // Relaxed: a number that stands alone.
            self.standing.fetch_add(are.wrapping_sub(were), Ordering::Relaxed);
        }
        if are > were && self.used() > self.limit() {
            // Relaxed: a hint.
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there may be too much in memory.
    pub(super) fn is_over(&self) -> bool {
        // Relaxed: a hint.
        self.is_over.load(Ordering::Relaxed)
    }

    /// Whether more pages may stand in records.
    pub(super) fn may_stand(&self) -> bool {
        !self.is_over()
    }

    fn part(&self, ino: u64) -> &Mutex<ByNumber> {
        &self.directories[(ino / RUN * TURNS + ino % TURNS) as usize % PARTS]
    }

    /// The directory `dir` has its names in memory.
    pub(super) fn enter(&self, dir: &InodeRef) {
        let own = Arc::new(dir.clone());
        let before = self.part(dir.ino()).lock().insert(dir.ino(), own);
        drop(before);
    }

    /// The directory `dir` has its names, so many, in memory again.
    pub(super) fn enter_loaded(&self, dir: &InodeRef, names: usize) {
        self.returns.lock().load(dir.ino(), names as u64, self.limit() / INODE_BYTES);
        self.enter(dir);
    }

    /// Removes `inode`, which has lost its last name, from the lists of names.
    pub(super) fn forget(&self, inode: &Inode, known: WhereKnown) {
        let forgotten =
            if inode.is_dir() { self.part(inode.ino()).lock().remove(&inode.ino()) } else { None };
        let apart = if known.is_apart { self.apart.lock().remove(&inode.ino()) } else { None };
        // With nothing locked.
        drop((forgotten, apart));
    }

    /// The inode `ino`, if it stands apart.
    pub(super) fn find(&self, ino: u64) -> Option<InodeRef> {
        let found = {
            let mut apart = self.apart.lock();
            let found = apart.get_mut(&ino)?;
            found.taken += 1;
            found.inode.clone()
        };
        Some(InodeRef::clone(&found))
    }

    /// A name that leads to `inode` is in memory, where it was loaded. Others may not be.
    pub(super) fn named(&self, inode: &InodeRef) {
        if inode.is_dir() || inode.nlink() <= 1 {
            let before = self.apart.lock().remove(&inode.ino());
            drop(before);
        } else {
            self.set_apart([inode.clone()]);
        }
    }

    /// The directory `ino`, if its names are in memory.
    pub(super) fn with_names(&self, ino: u64) -> Option<InodeRef> {
        let found = self.part(ino).lock().get(&ino).cloned()?;
        Some(InodeRef::clone(&found))
    }

    /// All directories with names in memory.
    pub(super) fn with_names_here(&self) -> Vec<Arc<InodeRef>> {
        self.directories.iter().flat_map(|part| part.lock().values().cloned().collect::<Vec<_>>()).collect()
    }

    /// `inodes` stand apart: names that lead to them may not be in memory.
    pub(super) fn set_apart(&self, inodes: impl IntoIterator<Item = InodeRef>) {
        for inode in inodes {
            let ino = inode.ino();
            inode.stored().into_iter().for_each(|stored| stored.kept.lock().is_apart = true);
            let own = Arc::new(inode);
            let spare = {
                let mut apart = self.apart.lock();
                match apart.get_mut(&ino) {
                    Some(there) => {
                        there.taken += 1;
                        Some(own)
                    }
                    None => {
                        apart.insert(ino, Apart { inode: own, taken: 0 });
                        None
                    }
                }
            };
            drop(spare);
        }
    }

    /// Lets go of all inodes. Takes directories apart: no name that is in memory may lead to them from the root.
    fn clear(&self) {
        let parts = self.directories.iter().map(|part| std::mem::take(&mut *part.lock()));
        let mut all: Vec<_> = parts.flat_map(BTreeMap::into_values).collect();
        let apart = std::mem::take(&mut *self.apart.lock());
        all.extend(apart.into_values().map(|apart| apart.inode));
        for inode in all {
            InodeRef::clone(&inode).take_apart();
        }
    }

    /// The next directories behind the `hand`; none at the end of a round.
    fn next(&self, hand: &mut Hand) -> Vec<Arc<InodeRef>> {
        let mut found = Vec::new();
        while found.len() < AT_ONCE && hand.part < PARTS {
            let part = self.directories[hand.part].lock();
            let behind = (Bound::Excluded(hand.directory), Bound::Unbounded);
            found.extend(part.range(behind).take(AT_ONCE - found.len()).map(|(_, dir)| dir.clone()));
            drop(part);
            match found.last() {
                Some(dir) if found.len() == AT_ONCE => hand.directory = dir.ino(),
                _ => (hand.part, hand.directory) = (hand.part + 1, 0),
            }
        }
        if found.is_empty() {
            (hand.part, hand.directory) = (0, 0);
        }
        found
    }

    /// Forgets inodes apart that are otherwise unused and whose changes up to this cut are all in the tree.
    fn forget_unused(&self, hand: &mut Hand, applied: u64, planted: &Planted) {
        // Names that left hold their inodes for a grace period.
        rcu::domain().flush();
        let looked_at: Vec<(u64, Apart)> = {
            let apart = self.apart.lock();
            let behind = (Bound::Excluded(hand.apart), Bound::Unbounded);
            apart.range(behind).take(LOOKS).map(|(ino, inode)| (*ino, inode.clone())).collect()
        };
        hand.apart = looked_at.last().filter(|_| looked_at.len() == LOOKS).map_or(0, |(ino, _)| *ino);
        let sole = refcache::sole(looked_at.iter().map(|(_, apart)| apart.inode.counted()));
        let is_unused = |inode: &Inode| inode.can_be_read(applied) && inode.has_no_names_here();
        let unused: Vec<_> = looked_at
            .iter()
            .zip(sole)
            .filter(|((_, apart), is_sole)| {
                (*is_sole || planted.has(Mutant::UsedForgotten)) && is_unused(&apart.inode)
            })
            .map(|(looked_at, _)| looked_at)
            .collect();
        let mut gone = Vec::new();
        {
            let mut apart = self.apart.lock();
            for (ino, then) in unused {
                // A newer reference derives from this one, and only a holder of a reference changes the inode.
                if apart.get(ino).is_some_and(|now| now.taken == then.taken) {
                    gone.extend(apart.remove(ino));
                }
            }
        }
        // With nothing locked.
        drop((looked_at, gone));
        settle();
    }
}

impl Durable {
    /// Lets names and inodes leave memory, if these are too many. Called where a section could be begun.
    #[inline]
    pub(super) fn make_room(&self, shared: &Shared) {
        // Relaxed: a hint.
        if self.names().is_over() && !self.closed.load(Ordering::Relaxed) {
            self.make_room_now(shared);
        }
    }

    #[cold]
    fn make_room_now(&self, shared: &Shared) {
        let (names, limit) = (self.names(), self.names().limit());
        // Relaxed, all: hints.
        if names.used() <= names.threshold.load(Ordering::Relaxed) || refcache::in_destructor() {
            names.is_over.store(names.used() > limit, Ordering::Relaxed);
            return;
        }
        self.sweep();
        // A thread that comes meanwhile waits, and does not go beyond the limit.
        let mut hand = names.hand.lock();
        let aim = limit - limit / SLACK;
        let mut has_checkpointed = false;
        'rounds: loop {
            loop {
                if names.used() <= aim {
                    break 'rounds;
                }
                let chosen = names.next(&mut hand);
                if chosen.is_empty() {
                    break;
                }
                if self.let_leave(&chosen) {
                    drop(chosen);
                    self.forget_unused(&mut hand);
                }
            }
            self.forget_unused(&mut hand);
            if has_checkpointed {
                break;
            }
            // This brings all changes into the tree. A limit of 0 is that of a test of what leaves without.
            if limit > 0 && self.store.write_out().is_err() {
                break;
            }
            has_checkpointed = true;
        }
        // The remaining inodes are in use. The next search waits until memory use has grown notably, or until observers have
        // given up references.
        let threshold = limit.max(names.used() + limit / SLACK);
        names.threshold.store(threshold, Ordering::Relaxed);
        names.forgotten.store(0, Ordering::Relaxed);
        let is_over = names.used() > limit;
        names.is_over.store(is_over, Ordering::Relaxed);
        drop(hand);
        if is_over {
            self.warn_of_large();
            shared.notify_memory_is_short(&names.some_apart());
        }
    }

    /// Lets the names of those of `directories` leave that can be read again. Whether any did.
    fn let_leave(&self, directories: &[Arc<InodeRef>]) -> bool {
        let mut touched = Vec::new();
        let mut leave = |dir: &Arc<InodeRef>, applied| self.names().leave(dir, applied, &mut touched);
        let left = {
            // The mutex keeps names that are being loaded until the load is complete.
            let _loading = self.loading.lock();
            let applied = self.applied_cut();
            self.store.alone(|| directories.iter().filter(|dir| leave(dir, applied)).count())
        };
        self.names().departures.fetch_add(left as u64, Ordering::Relaxed);
        // The names leave in a later round.
        touched.iter().for_each(|inode| inode.put_down_atime());
        left > 0
    }

    /// Changes of this cut, and of earlier cuts, can be read from the tree.
    pub(super) fn applied_cut(&self) -> u64 {
        let is_planted = self.pending.planted.has(Mutant::ChangedNamesLeave);
        if is_planted { u64::MAX } else { self.store.applied_cut() }
    }

    pub(super) fn forget_unused(&self, hand: &mut Hand) {
        self.names().forget_unused(hand, self.applied_cut(), &self.pending.planted);
    }

    pub(super) fn names(&self) -> &NameSet {
        &self.pending.names
    }
}

impl NameSet {
    /// The names of `dir` leave, if the tree has all of it up to this cut, and of the inodes to which they lead. Inodes whose
    /// access time it lacks are `touched`. Called while no section is open, and nothing is loaded.
    fn leave(&self, dir: &InodeRef, applied: u64, touched: &mut Vec<InodeRef>) -> bool {
        let Ok(inner) = dir.as_dir() else { return false };
        let can_be_read = |inode: &InodeRef| inode.can_be_read(applied);
        if dir.has(flag::PARTIAL) || !dir.has_name() || dir.shared.watch().is_some() || !can_be_read(dir) {
            return false;
        }
        if self.returns.lock().stays(dir.ino()) {
            return false;
        }
        let entries = inner.list(|_| true);
        if !entries.iter().all(|(_, inode)| can_be_read(inode)) {
            return false;
        }
        let before = touched.len();
        touched.extend(entries.iter().map(|(_, inode)| inode).filter(|inode| inode.is_touched()).cloned());
        if touched.len() > before {
            return false;
        }
        self.take_out(dir, inner, &entries);
        let left = self.part(dir.ino()).lock().remove(&dir.ino());
        drop(left);
        self.returns.lock().leave(dir.ino());
        true
    }

    /// Takes `entries`, all names of `dir` in memory, out of memory.
    pub(super) fn take_out(&self, dir: &InodeRef, inner: &Dir, entries: &NamedInodes) {
        // In this order: a thread that misses a name that has left sees that one did, and finds the inode.
        self.set_apart(entries.iter().map(|(_, inode)| inode.clone()));
        inner.begin_departure();
        dir.raise(flag::PARTIAL);
        for (name, _) in entries {
            if let Some(mut entry) = inner.names.lock(dir.shared.hasher.hash(name), name) {
                entry.remove();
            }
        }
    }
}

impl InodeRef {
    /// Takes the tree apart of which this is the root, which nobody uses any more.
    pub(crate) fn take_tree_apart(self) {
        if let Some(durable) = self.shared.durable() {
            durable.names().clear();
        }
        self.take_apart();
    }
}

impl Inode {
    /// Whether no name in it is in memory.
    fn has_no_names_here(&self) -> bool {
        self.as_dir().map_or(true, |dir| self.has(flag::PARTIAL) && dir.names.is_empty())
    }

    /// Whether the tree has all that was changed of it, given that it has all changes up to the cut `applied`.
    pub(super) fn can_be_read(&self, applied: u64) -> bool {
        self.stored().is_some_and(|stored| stored.is_applied(applied)) && self.data.are_unwritten_kept()
    }

    /// Whether its access time is newer than in the record that the store has.
    pub(super) fn is_touched(&self) -> bool {
        // Relaxed: no section is open.
        self.stored().is_some_and(|stored| stored.atime.load(Ordering::Relaxed) != self.times.atime().pack())
    }
}

impl Stored {
    /// Whether the tree has all changes of the inode, given that it has all changes up to the cut `applied`.
    fn is_applied(&self, applied: u64) -> bool {
        // Relaxed: no section is open.
        self.changed_in.load(Ordering::Relaxed) <= applied && !self.is_listed()
    }

    /// The object is changed in a section.
    pub(super) fn stamp(&self, pending: &Pending) {
        let cut = pending.cut();
        // Relaxed, both: read when no section is open. Written once in each cut: calls that change one directory share it.
        if self.changed_in.load(Ordering::Relaxed) != cut {
            self.changed_in.store(cut, Ordering::Relaxed);
        }
    }
}
