//! Quota: how many lock records a domain, and each owner in it, has and may have.
//!
//! # Theory
//! A record is a granted lock or a waiting request. The domain's records are counted per CPU; an owner's records, which
//! may be on any CPU, are counted in a shard chosen by owner. Records without a limit are not counted.
//!
//! # Cost
//! Without limits: two reads of lines that never change. With a limit on the whole: a read-modify-write of the CPU's own line.
//! With one on each owner: the lock of a shard, which owners share by chance.

use crate::lock_class::OWNER_LOCKS;
use crate::shards::Shards;
use crate::{LockError, Owner};
use sluice_sync::percpu::Budget;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

/// The counts of records, as far as they are limited.
pub(crate) struct Quota {
    /// The domain's records. *immutable; looks after itself*
    all: Option<Budget>,
    /// The records of each owner that has some, and the limit. *immutable; looks after itself*
    each: Option<(u64, Shards<HashMap<Owner, u64>>)>,
}

impl Quota {
    /// Limits on the records of the domain and of each owner; no record is counted yet.
    pub(crate) fn new(all: Option<u64>, each: Option<u64>) -> Self {
        Quota {
            all: all.map(|limit| Budget::new(Some(limit), 0)),
            each: each.map(|limit| (limit, Shards::new(&OWNER_LOCKS))),
        }
    }

    /// Whether anything is limited.
    #[inline]
    fn has_limits(&self) -> bool {
        self.all.is_some() || self.each.is_some()
    }

    /// Counts `records` more for `owner`, or none if that would pass a limit.
    ///
    /// # Errors
    /// [`LockError::NoLocks`].
    #[inline]
    pub(crate) fn reserve(&self, owner: Owner, records: usize) -> Result<(), LockError> {
        if records == 0 || !self.has_limits() { Ok(()) } else { self.reserve_limited(owner, records) }
    }

    fn reserve_limited(&self, owner: Owner, records: usize) -> Result<(), LockError> {
        let records = records as u64;
        if let Some((limit, shards)) = &self.each {
            let mut shard = shards.of(owner.number()).lock();
            let used = shard.get(&owner).copied().unwrap_or(0);
            if records > limit.saturating_sub(used) {
                return Err(LockError::NoLocks);
            }
            shard.insert(owner, used + records);
        }
        match &self.all {
            Some(all) if all.take(records).is_err() => {
                self.release_of(owner, records);
                Err(LockError::NoLocks)
            }
            _ => Ok(()),
        }
    }

    /// Counts `records` of `owner` less.
    #[inline]
    pub(crate) fn release(&self, owner: Owner, records: usize) {
        if records != 0 && self.has_limits() {
            self.release_limited(owner, records);
        }
    }

    fn release_limited(&self, owner: Owner, records: usize) {
        self.release_of(owner, records as u64);
        if let Some(all) = &self.all {
            all.give(records as u64);
        }
    }

    fn release_of(&self, owner: Owner, records: u64) {
        if let Some((_, shards)) = &self.each
            && let Entry::Occupied(mut used) = shards.of(owner.number()).lock().entry(owner)
        {
            *used.get_mut() -= records;
            if *used.get() == 0 {
                used.remove();
            }
        }
    }

    /// True if nothing is used. For tests of balance.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.all.as_ref().is_none_or(|all| all.used() == 0)
            && self.each.as_ref().is_none_or(|(_, shards)| shards.all(HashMap::is_empty))
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.each.as_ref().map(|(limit, _)| limit);
        f.debug_struct("Quota").field("all", &self.all).field("limit_of_each", &limit).finish_non_exhaustive()
    }
}
