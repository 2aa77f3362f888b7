//! Wait table: which requests of a process wait, over all files of a domain.
//!
//! # Theory
//! This is what deadlock detection needs beyond the files themselves: to go from a process that is in somebody's
//! way to the files where that process waits in turn. Only requests that wait are noted, so locking and unlocking
//! without waiting does not come here. Processes are spread over shards: two that block rarely meet.
//!
//! # Sources
//! Layton, "locks: scalability improvements for file locking" (2013), whose hash of blocked requests has one lock.

use crate::file::FileState;
use crate::lock_class::{DEADLOCK_SEARCH, WAIT_TABLE};
use crate::shards::Shards;
use crate::wait::{Ticket, Wait};
use sluice_sync::{Arc, Mutex};
use std::collections::BTreeMap;

/// The waiting requests of processes.
pub(crate) struct WaitTable {
    /// Chosen by process. *immutable; looks after itself*
    shards: Shards<WaitShard>,
    /// Held by a thread that searches for a cycle: only after a request that waits for an owner that itself waits.
    pub(crate) searching: Mutex<()>,
}

type WaitShard = BTreeMap<u64, Vec<Wait>>;

impl Default for WaitTable {
    fn default() -> Self {
        WaitTable { shards: Shards::new(&WAIT_TABLE), searching: Mutex::with_class(&DEADLOCK_SEARCH, ()) }
    }
}

impl WaitTable {
    /// Notes that a request of `process` waits.
    pub(crate) fn add(&self, process: u64, file: &Arc<FileState>, ticket: Ticket) {
        self.shards.of(process).lock().entry(process).or_default().push(Wait { file: file.clone(), ticket });
    }

    /// Forgets it.
    pub(crate) fn remove(&self, process: u64, file: &Arc<FileState>, ticket: Ticket) {
        let mut shard = self.shards.of(process).lock();
        if let Some(waits) = shard.get_mut(&process) {
            waits.retain(|wait| wait.ticket != ticket || !Arc::ptr_eq(&wait.file, file));
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
    pub(crate) fn of(&self, process: u64) -> Vec<Wait> {
        self.shards.of(process).lock().get(&process).cloned().unwrap_or_default()
    }

    /// True if no request waits.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.all(WaitShard::is_empty)
    }
}
