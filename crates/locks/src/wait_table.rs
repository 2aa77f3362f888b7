//! Wait table: which requests of a process wait, over all files of a domain.
//!
//! # Theory
//! This is what deadlock detection needs beyond the files themselves: to go from a process that is in somebody's
//! way to the files where that process waits in turn. Only requests that wait are noted, so locking and unlocking
//! without waiting does not come here. Processes are spread over shards: two that block rarely meet.
//!
//! # Sources
//! Layton, "locks: scalability improvements for file locking" (2013), whose hash of blocked requests has one lock.

use crate::lock_class::{DEADLOCK_SEARCH, WAIT_TABLE};
use crate::shards::Shards;
use sluice_sync::Mutex;
use std::collections::BTreeMap;

/// The waiting requests of processes, each told by a `W`.
pub(crate) struct WaitTable<W> {
    /// Chosen by process. *immutable; looks after itself*
    shards: Shards<BTreeMap<u64, Vec<W>>>,
    /// Held by a thread that searches for a cycle: only after a request that waits for an owner that itself waits.
    pub(crate) searching: Mutex<()>,
}

impl<W> Default for WaitTable<W> {
    fn default() -> Self {
        WaitTable { shards: Shards::new(&WAIT_TABLE), searching: Mutex::with_class(&DEADLOCK_SEARCH, ()) }
    }
}

impl<W: Clone> WaitTable<W> {
    /// Notes that a request of `process` waits.
    pub(crate) fn add(&self, process: u64, wait: W) {
        self.shards.of(process).lock().entry(process).or_default().push(wait);
    }

    /// Forgets the one that `is` is true of.
    pub(crate) fn remove(&self, process: u64, is: impl Fn(&W) -> bool) {
        let mut shard = self.shards.of(process).lock();
        if let Some(waits) = shard.get_mut(&process) {
            waits.retain(|wait| !is(wait));
            if waits.is_empty() {
                shard.remove(&process);
            }
        }
    }

    /// True if a request of `process` waits anywhere.
    pub(crate) fn has(&self, process: u64) -> bool {
        self.shards.of(process).lock().contains_key(&process)
    }

    /// The waiting requests of `process`.
    pub(crate) fn of(&self, process: u64) -> Vec<W> {
        self.shards.of(process).lock().get(&process).cloned().unwrap_or_default()
    }

    /// True if no request waits.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.all(BTreeMap::is_empty)
    }
}
