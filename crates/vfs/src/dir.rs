//! Dir: the names in one directory.
//!
//! # Theory
//! The names stand in a [`NameTable`]: they are looked up and listed under RCU without a store, and a call that adds,
//! removes or moves a name locks the bucket of that name alone. So calls about different names of one directory run
//! side by side. The buckets also count names and subdirectories; a query adds the counts of all buckets.
//!
//! # Clients must
//! - lock names of two directories in the order of their inode numbers, and of one directory with `with_two_locked`;
//! - not wait, while they have a name locked, for a lock that is held across the locking of a name;
//! - give up the names that they have locked, and try anew, where [`Dir::bury`] says `Busy`: it is asked for a
//!   directory below, and never waits.
//!
//! # Invariants
//! - D1: a subdirectory weighs 1 in its table, other files 0;
//! - D2: a dead table is empty for ever;
//! - D3: no mount stands on a buried directory.

use crate::inode::flag;
use crate::lock_class::{DIRECTORY_MOUNTS, DIRECTORY_NAMES};
use crate::mount::MountRef;
use crate::{Errno, Inode, InodeRef};
use foldhash::quality::FixedState;
use sluice_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_sync::name_table::Sums;
use sluice_sync::rcu::{self, Guard, RcuCell};
use sluice_sync::{Mutex, NameTable, OnceLock, refcache};
use std::hash::{BuildHasher, RandomState};

/// Positions of "." and "..".
pub(crate) const POSITION_DOT: u64 = 1;
pub(crate) const POSITION_DOTDOT: u64 = 2;

/// In place of a count of mounts: the directory is removed, or is being.
const BURIED: u32 = u32::MAX;

/// Names, and where they lead.
pub(crate) type NamedInodes = Vec<(Box<[u8]>, InodeRef)>;

/// Value of `away` while the names are in memory, or if the directory never had any.
const HERE: u64 = u64::MAX;

/// Entries that a batch collects before the first of them is processed.
pub(crate) const LOOKED_AT_ONCE: usize = 32;

/// The level of names in a file system that no call can reach: locked after any of a living one, as a thread that counts
/// references may have to free it, with names locked.
const DYING: u8 = 6;
/// The same in a destructor, where counting frees nothing more: locked after those of one that dies outside of any, and
/// under any lock under which references are counted. `tests/lock_order.rs` knows the number.
const DYING_IN_DESTRUCTOR: u8 = 7;

/// The fields that only directories have.
pub(crate) struct Dir {
    /// The names. *RCU; each protected by its bucket's lock.*
    pub(crate) names: NameTable<InodeRef>,
    /// The directory that holds this one's name; none for the root. *RCU; replaced under the superblock's rename
    /// lock.*
    parent: RcuCell<Option<InodeRef>>,
    /// How many mounts stand on this directory, in any namespace, or `BURIED`. *Atomic (mounts).*
    mounts_here: AtomicU32,
    /// Which they are, once there was one. *Set once.*
    mounts: OnceLock<Box<MountsHere>>,
    /// How often names came from a store, or left for it, all together. *Atomic (departures).*
    departures: AtomicU32,
    /// The sums over the names while the names are not in memory; [`HERE`] otherwise. *Atomic (departures).*
    away: AtomicU64,
}

/// The mounts that stand on one directory.
struct MountsHere {
    /// *RCU; replaced under `changing`.*
    list: RcuCell<Vec<MountRef>>,
    changing: Mutex<()>,
}

/// The outcome of an attempt to remove a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Burial {
    /// It has no names and gets none.
    Done,
    /// Another thread has one of the names locked: the caller tries again with no name locked.
    Busy,
}

impl Dir {
    pub(crate) fn new(parent: Option<InodeRef>) -> Dir {
        Dir {
            names: NameTable::with_class(&DIRECTORY_NAMES, rcu::domain()),
            parent: RcuCell::new(rcu::domain(), parent),
            mounts_here: AtomicU32::new(0),
            mounts: OnceLock::new(),
            departures: AtomicU32::new(0),
            away: AtomicU64::new(HERE),
        }
    }

    /// How often names came from a store, or left for it. A lookup or listing that found nothing is valid only if the
    /// directory is not [`PARTIAL`](crate::inode::flag::PARTIAL) and this count has not changed.
    #[inline]
    pub(crate) fn departures(&self) -> u32 {
        // Acquire(departures): what came; pairs with Release(departures) in depart().
        self.departures.load(Ordering::Acquire)
    }

    fn depart(&self, away: u64) {
        self.away.store(away, Ordering::Relaxed);
        // Release(departures): what came, and what all adds up to; pairs with Acquire(departures) in departures(). A thread that
        // misses a name that left sees this, which comes before.
        self.departures.fetch_add(1, Ordering::Release);
    }

    /// The names are about to leave memory, where others may have left before; nobody changes them.
    pub(crate) fn begin_departure(&self) {
        let Sums { entries, weight } = self.names.sums();
        // Relaxed: nobody changes it.
        let before = Some(self.away.load(Ordering::Relaxed)).filter(|away| *away != HERE);
        self.depart(before.unwrap_or(0) + (entries << 32 | weight));
    }

    /// All names are in memory.
    pub(crate) fn arrived(&self) {
        self.depart(HERE);
    }

    /// The sums over the names, whether in memory or not.
    fn sums(&self) -> Sums {
        loop {
            let departures = self.departures();
            // Relaxed: written before what was just read.
            let away = self.away.load(Ordering::Relaxed);
            let sums = match away {
                HERE => self.names.sums(),
                away => Sums { entries: away >> 32, weight: away & u64::from(u32::MAX) },
            };
            if self.departures() == departures {
                return sums;
            }
        }
    }

    /// Whether it is known what the names add up to, although they left memory.
    pub(crate) fn is_away(&self) -> bool {
        // Relaxed: a hint.
        self.away.load(Ordering::Relaxed) != HERE
    }

    /// The names of what is `wanted`, in the order of their positions. A name that is added or removed meanwhile may be
    /// listed.
    pub(crate) fn list(&self, wanted: impl Fn(&Inode) -> bool) -> NamedInodes {
        let section = self.names.read();
        let mut found = Vec::new();
        self.visit_batches(&section, |batch| {
            let wanted = batch.filter(|(_, inode)| wanted(inode));
            found.extend(wanted.map(|(name, inode)| (name.into(), inode.clone())));
        });
        found
    }

    fn visit_batches<'g>(
        &'g self,
        section: &'g Guard<'_>,
        mut visit: impl FnMut(&mut dyn Iterator<Item = (&'g [u8], &'g InodeRef)>),
    ) {
        let mut entries = self.names.after(0, section);
        let mut batch = Vec::with_capacity(LOOKED_AT_ONCE);
        loop {
            // A walk that does nothing else waits for many entries at once.
            batch.extend(entries.by_ref().take(LOOKED_AT_ONCE));
            if batch.is_empty() {
                return;
            }
            visit(&mut batch.drain(..).map(|(_, name, inode)| (name, inode)));
        }
    }

    /// Calls `visit` with the names that [`list`](Self::list) lists, and with what they lead to. It must wait for nobody.
    pub(crate) fn visit_names(&self, mut visit: impl FnMut(&[u8], &InodeRef)) {
        let section = self.names.read();
        self.visit_batches(&section, |batch| batch.for_each(|(name, inode)| visit(name, inode)));
    }

    /// The directory that holds this one's name; none for the root.
    pub(crate) fn parent<'g>(&'g self, section: &'g Guard<'_>) -> Option<&'g InodeRef> {
        self.parent.load(section).as_ref()
    }

    pub(crate) fn set_parent(&self, parent: Option<InodeRef>) {
        self.parent.replace(parent);
    }

    /// The link count: one for the name, one for ".", one for the ".." of each subdirectory; 0 once removed.
    pub(crate) fn nlink(&self) -> u32 {
        if self.names.is_dead() { 0 } else { u32::try_from(self.sums().weight + 2).unwrap_or(u32::MAX) }
    }

    /// The size that `stat` shows: 20 bytes a name, as tmpfs counts, "." and ".." included.
    pub(crate) fn stat_size(&self) -> u64 {
        const BYTES_A_NAME: u64 = 20;
        if self.names.is_dead() { 0 } else { (self.sums().entries + 2) * BYTES_A_NAME }
    }

    /// True if a mount stands here. A walk that begins after `attach` returned sees it.
    pub(crate) fn has_mounts(&self) -> bool {
        // SeqCst(mounts): pairs with count_mount() and bury().
        !matches!(self.mounts_here.load(Ordering::SeqCst), 0 | BURIED)
    }

    /// The mount that stands here in the mount `below`.
    pub(crate) fn mount_on<'g>(&'g self, below: &MountRef, section: &'g Guard<'_>) -> Option<&'g MountRef> {
        if !self.has_mounts() {
            return None;
        }
        self.mounts.get()?.list.load(section).iter().find(|mount| mount.stands_on(below))
    }

    /// Changes the list of mounts that stand here. The caller counts a new mount before this call, and uncounts a
    /// removed mount afterwards.
    pub(crate) fn change_mounts(&self, change: impl FnOnce(&mut Vec<MountRef>)) {
        let mounts = self.mounts.get_or_init(|| {
            let list = RcuCell::new(rcu::domain(), Vec::new());
            Box::new(MountsHere { list, changing: Mutex::with_class(&DIRECTORY_MOUNTS, ()) })
        });
        let _changing = mounts.changing.lock();
        // Inside the section `replace` does not wait for a grace period.
        let section = rcu::domain().read();
        let mut list = mounts.list.load(&section).clone();
        change(&mut list);
        mounts.list.replace(list);
    }

    /// Counts a mount that is about to stand here.
    ///
    /// # Errors
    /// `ENOENT` when the directory was removed.
    pub(crate) fn count_mount(&self) -> Result<(), Errno> {
        let one_more = |mounts: u32| (mounts != BURIED).then_some(mounts + 1);
        // SeqCst(mounts): pairs with bury(): one of the two finds what the other wrote.
        while self.mounts_here.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_err() {
            if self.names.is_dead() {
                return Err(Errno::ENOENT);
            }
            // The attempt to remove it may fail.
            sluice_sync::thread::yield_now();
        }
        Ok(())
    }

    pub(crate) fn uncount_mount(&self) {
        self.mounts_here.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether names could be forbidden now. Stores nothing.
    ///
    /// # Errors
    /// `EBUSY` (something is mounted here), `ENOTEMPTY`.
    pub(crate) fn check_buriable(&self) -> Result<(), Errno> {
        match self.has_mounts() {
            true => Err(Errno::EBUSY),
            false if self.sums().entries != 0 => Err(Errno::ENOTEMPTY),
            false => Ok(()),
        }
    }

    /// Forbids names for ever. The caller has this directory's own name locked.
    ///
    /// # Errors
    /// `EBUSY` (something is mounted here), `ENOTEMPTY`.
    pub(crate) fn bury(&self) -> Result<Burial, Errno> {
        // SeqCst(mounts): pairs with count_mount().
        if self.mounts_here.compare_exchange(0, BURIED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Err(Errno::EBUSY);
        }
        let burial = match self.names.try_kill() {
            Some(true) => return Ok(Burial::Done),
            Some(false) => Err(Errno::ENOTEMPTY),
            None => Ok(Burial::Busy),
        };
        // SeqCst(mounts): nobody else writes while it is `BURIED`.
        self.mounts_here.store(0, Ordering::SeqCst);
        burial
    }
}

/// How names are hashed in one file system.
pub(crate) struct NameHasher {
    state: FixedState,
    key: u64,
}

impl NameHasher {
    /// Hashes names with this key; without one, with a random key.
    pub(crate) fn new(key: Option<u64>) -> NameHasher {
        // Runs of a simulated machine must not differ.
        let random = || if sluice_sync::face::DETERMINISTIC { 0 } else { RandomState::new().hash_one(0) };
        let key = key.unwrap_or_else(random);
        NameHasher { state: FixedState::with_seed(key), key }
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        self.state.hash_one(name)
    }
}

impl Inode {
    /// The directory's own state.
    ///
    /// # Errors
    /// `ENOTDIR` when this is no directory.
    pub(crate) fn as_dir(&self) -> Result<&Dir, Errno> {
        // The type first: where the contents of a file are, somebody may be writing.
        if !self.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        match &self.body {
            crate::inode::Body::Directory(dir) => Ok(dir),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// The weight of a name of this inode in the sums of its directory (D1).
    pub(crate) fn weight(&self) -> u8 {
        u8::from(self.is_dir())
    }

    /// Whether all names of this directory have been in memory since it had so many [`departures`](Dir::departures).
    #[inline]
    pub(crate) fn are_names_here(&self, departures: u32) -> bool {
        !self.has(flag::PARTIAL) && self.as_dir().is_ok_and(|dir| dir.departures() == departures)
    }

    /// The inode to which `name` leads in this directory, permissions aside.
    pub(crate) fn entry<'g>(
        &'g self,
        dir: &'g Dir,
        name: &[u8],
        section: &'g Guard<'_>,
    ) -> Option<&'g InodeRef> {
        dir.names.get(self.shared.hasher.hash(name), name, section)
    }

    /// The directory above, or this one if it is the root. None for other types.
    pub(crate) fn parent_in<'g>(this: &'g InodeRef, section: &'g Guard<'_>) -> Option<&'g InodeRef> {
        Some(this.as_dir().ok()?.parent(section).unwrap_or(this))
    }
}

impl InodeRef {
    /// The names of what is `wanted` in this directory, in the order of their positions: those that are there throughout, and of
    /// those that come or go meanwhile some.
    ///
    /// # Errors
    /// `ENOTDIR`; the store's.
    pub(crate) fn list_names(&self, wanted: impl Fn(&Inode) -> bool) -> Result<NamedInodes, Errno> {
        let dir = self.as_dir()?;
        loop {
            self.load_names()?;
            let departures = dir.departures();
            let names = dir.list(&wanted);
            if self.are_names_here(departures) {
                return Ok(names);
            }
        }
    }

    /// The directory that holds this directory's name; the root's is itself. None for other types.
    pub fn parent(&self) -> Option<InodeRef> {
        Inode::parent_in(self, &rcu::domain().read()).cloned()
    }

    /// Takes the tree below this inode, which is in no directory, apart from the top, without recursion: parents and children
    /// hold each other.
    pub(crate) fn take_apart(self) {
        let mut directories = vec![self];
        while let Some(dir) = directories.pop() {
            directories.extend(dir.dismantle());
        }
    }

    /// Empties a directory of a dying tree of subdirectories, and returns them.
    fn dismantle(&self) -> Vec<InodeRef> {
        let Ok(dir) = self.as_dir() else { return Vec::new() };
        dir.set_parent(None);
        let subdirectories = dir.list(|inode| inode.is_dir());
        let level = if refcache::in_destructor() { DYING_IN_DESTRUCTOR } else { DYING };
        for (name, _) in &subdirectories {
            if let Some(mut entry) = dir.names.lock_nested(self.shared.hasher.hash(name), name, level) {
                entry.remove();
            }
        }
        subdirectories.into_iter().map(|(_, inode)| inode).collect()
    }
}
