//! Quota: a limit for the contents of a directory and all that is below it.
//!
//! # Theory
//! A quota has a *number*, and each inode has the number of the quota that it belongs to, or none. A new inode takes over the number of its
//! directory, and counts there for as long as it has the number: so a change of a file finds its quota without a look at the directories
//! above it, and each CPU counts on its own line ([`Budget`]). A quota counts the bytes that the size limit of the file system counts, without
//! extended attributes and access control lists.
//!
//! The numbers follow the names. Where a name would lead from one quota to another, a rename of a file of one name takes the file's pages along;
//! a rename of a directory, an exchange, and a further name of a file fail with `EXDEV`, as with the project quotas of XFS, and `mv` copies then.
//! A directory gets no quota while a file has names both below and elsewhere.
//!
//! *A tree gets a number* from the top. Each directory gets it first; when the changes that were under way have ended, everything new in there
//! has the number, and what has a name already gets it one by one. The lock of renames is held, so no directory leaves the way. The
//! same walk takes a number away. The store knows that a walk is under way, and opening it after a crash walks again.
//!
//! Quotas do not nest: a directory below or above one that has a quota gets none.
//!
//! *Numbers are used once.* An inode without a name may have the number of a quota that is gone; that counts for nothing that matters.
//!
//! # Lock order
//! `vfs.quota.changing` is held while a quota is set or removed, and so before the lock of renames. An inode's number changes with its contents
//! locked, and charges are made with them locked.
//!
//! # Invariants
//! - Q1: an inode has the number of each directory in which it has a name, but for the top of a quota, and what a walk has not reached;
//! - Q2: a quota's use is the sum of what its inodes hold.
//!
//! # Cost
//! An inode without a number: a load of a line that is written when the number changes. One with a number: an addition on the CPU's
//! own line; near the limit a mutex.

mod members;

use crate::Errno;
use crate::data::PAGE;
use crate::lock_class::QUOTA_CHANGING;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::percpu::Budget;
use sluice_sync::{CachePadded, Mutex, OnceLock};

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;

/// In so many bytes use is counted.
const UNIT: u64 = 64;
const UNITS_A_PAGE: u64 = PAGE / UNIT;
/// No quota.
pub(crate) const NO_QUOTA: u32 = 0;
/// Slots of a table, and tables.
const SLOTS: usize = 4096;

/// The quota of a directory, and what counts for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaUse {
    /// The most bytes that may be in use.
    pub limit: u64,
    /// Bytes in use, which may be more if the quota came later.
    pub used: u64,
    /// The inode number of the directory that has the quota.
    pub dir: u64,
}

/// How far a quota is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QuotaStage {
    /// All of the tree has its number.
    Whole,
    /// The tree is getting it.
    Coming,
    /// The tree is losing it.
    Going,
}

pub(crate) struct DirectoryQuota {
    number: u32,
    /// The inode number of its directory; 0 when it is gone. *Atomic (stands alone).*
    dir: AtomicU64,
    /// The most units. *Atomic (stands alone).*
    limit: AtomicU64,
    /// Units in use. *Per CPU.*
    used: Budget,
}

type QuotaTable = Box<[OnceLock<Box<DirectoryQuota>>]>;

/// The quotas of one file system.
pub(crate) struct Quotas {
    /// By number. *Set once.*
    tables: OnceLock<Box<[OnceLock<QuotaTable>]>>,
    /// The last number that was used. *Protected by its mutex, held while a quota is set or removed.*
    last: CachePadded<Mutex<u32>>,
}

/// So many empty slots.
fn slots<T>() -> Box<[OnceLock<T>]> {
    (0..SLOTS).map(|_| OnceLock::new()).collect()
}

impl Quotas {
    pub(crate) fn new() -> Quotas {
        Quotas {
            tables: OnceLock::new(),
            last: CachePadded::new(Mutex::with_class(&QUOTA_CHANGING, NO_QUOTA)),
        }
    }

    fn get(&self, number: u32) -> Option<&DirectoryQuota> {
        if number == NO_QUOTA {
            return None;
        }
        let (table, slot) = (number as usize / SLOTS, number as usize % SLOTS);
        self.tables.get()?.get(table)?.get()?.get(slot)?.get().map(|quota| &**quota)
    }

    /// The quota with this number, unless it is gone.
    fn standing(&self, number: u32) -> Option<&DirectoryQuota> {
        self.get(number).filter(|quota| quota.dir() != 0)
    }

    /// Makes the quota `number`, which is new, for the directory `dir`, with so many bytes in use.
    ///
    /// # Errors
    /// `ENOSPC` when all numbers are used.
    pub(crate) fn make(&self, number: u32, dir: u64, limit: u64, used: u64) -> Result<(), Errno> {
        let tables = self.tables.get_or_init(slots);
        let table = tables.get(number as usize / SLOTS).ok_or(Errno::ENOSPC)?.get_or_init(slots);
        let used = Budget::with_grain(Some(limit / UNIT), used / UNIT, UNITS_A_PAGE);
        let limit = AtomicU64::new(limit / UNIT);
        let quota = DirectoryQuota { number, dir: AtomicU64::new(dir), limit, used };
        table[number as usize % SLOTS].get_or_init(|| Box::new(quota));
        Ok(())
    }

    /// The quotas that stand.
    pub(crate) fn all(&self) -> impl Iterator<Item = &DirectoryQuota> {
        let tables = self.tables.get().into_iter().flatten().filter_map(|table| table.get());
        let quotas = tables.flatten().filter_map(|slot| slot.get()).map(|quota| &**quota);
        quotas.filter(|quota| quota.dir() != 0)
    }

    /// A guard: while it lives, no quota is set or removed.
    pub(crate) fn still(&self) -> impl Drop + '_ {
        self.last.lock()
    }

    /// Numbers up to this were used.
    pub(crate) fn set_last(&self, last: u32) {
        *self.last.lock() = last;
    }

    fn are_any(&self) -> bool {
        self.tables.get().is_some()
    }
}

impl DirectoryQuota {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn dir(&self) -> u64 {
        // Relaxed: stands alone.
        self.dir.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit_units() * UNIT
    }

    fn limit_units(&self) -> u64 {
        // Relaxed: stands alone.
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the most bytes. Files may take more already: then writes fail until files have shrunk below the limit.
    fn set_limit(&self, limit: u64) {
        // Relaxed: as in limit_units().
        self.limit.store(limit / UNIT, Ordering::Relaxed);
    }

    /// Units that can still be taken.
    fn free(&self) -> u64 {
        self.limit_units().saturating_sub(self.used.used())
    }

    /// Its directory is gone.
    pub(crate) fn end(&self) {
        // Relaxed: as in dir().
        self.dir.store(0, Ordering::Relaxed);
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.used() * UNIT
    }

    /// # Errors
    /// `EDQUOT`.
    fn take(&self, units: u64) -> Result<(), Errno> {
        self.used.take_within(units, self.limit_units()).map(drop).or(Err(Errno::EDQUOT))
    }
}
