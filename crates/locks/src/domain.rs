//! LockDomain: what the lock states of all files of one process namespace share.

use crate::LockError;
use crate::deadlock::WaitGraph;
use crate::file::FileState;
use crate::list::{self, LockEntry};
use crate::lock_class::{DOMAIN_FILES, DOMAIN_GRAPH};
use crate::wait::Ticket;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::{Arc, Mutex, Weak};
use std::collections::BTreeMap;
use std::fmt;

/// How a [`LockDomain`] behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainOptions {
    /// Refuse POSIX waits that would deadlock. Without it they wait until cancelled.
    pub deadlock_detection: bool,
    /// At most so many lock records (granted ranges and flocks, and waiting requests) over all files; beyond,
    /// requests fail with [`LockError::NoLocks`]. `None`: no limit.
    pub max_locks: Option<u64>,
}

impl Default for DomainOptions {
    fn default() -> Self {
        DomainOptions { deadlock_detection: true, max_locks: None }
    }
}

/// The files whose locks belong together: a deadlock is found across all of them, and they are listed as one.
/// One for each process namespace.
pub struct LockDomain {
    /// `None`: detection is off. *immutable*; the graph is *protected by its own mutex*, the innermost lock
    pub(crate) graph: Option<Mutex<WaitGraph>>,
    /// *atomic (no label: a count)*
    pub(crate) quota: Quota,
    /// The next ticket or file number. *atomic (no label: only uniqueness matters)*
    next_id: AtomicU64,
    /// All files with a lock state, by age. *protected by its own mutex*, a leaf
    files: Mutex<BTreeMap<u64, Weak<FileState>>>,
}

impl LockDomain {
    /// A domain without files.
    pub fn new(options: DomainOptions) -> Arc<LockDomain> {
        let graph = || Mutex::with_class(&DOMAIN_GRAPH, WaitGraph::default());
        Arc::new(LockDomain {
            graph: options.deadlock_detection.then(graph),
            quota: Quota { limit: options.max_locks, used: AtomicU64::new(0) },
            next_id: AtomicU64::new(1),
            files: Mutex::with_class(&DOMAIN_FILES, BTreeMap::new()),
        })
    }

    /// All granted locks, each followed by the requests that wait for it. What is told of one file is a state
    /// that the file had at one moment; different files are looked at one after the other.
    pub fn list(&self) -> Vec<LockEntry> {
        let files: Vec<_> = self.files.lock().values().filter_map(Weak::upgrade).collect();
        let mut entries = Vec::new();
        for file in files {
            list::append(&file, &mut entries);
        }
        entries
    }

    /// A ticket that was never used.
    pub(crate) fn new_ticket(&self) -> Ticket {
        Ticket(self.new_id())
    }

    /// Makes `file` known to [`list`](Self::list); returns the number by which to forget it.
    pub(crate) fn register(&self, file: &Arc<FileState>) -> u64 {
        let id = self.new_id();
        self.files.lock().insert(id, Arc::downgrade(file));
        id
    }

    /// Forgets a file.
    pub(crate) fn unregister(&self, id: u64) {
        self.files.lock().remove(&id);
    }

    fn new_id(&self) -> u64 {
        // Relaxed: the number publishes nothing, it must only differ from all others.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// True if no wait and no lock record is left. For tests of balance.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.graph.as_ref().is_none_or(|graph| graph.lock().is_empty())
            && self.quota.used.load(Ordering::Relaxed) == 0
    }
}

impl fmt::Debug for LockDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockDomain")
            .field("deadlock_detection", &self.graph.is_some())
            .field("max_locks", &self.quota.limit)
            .finish_non_exhaustive()
    }
}

/// How many lock records a domain has and may have. Without a limit nothing is counted: the counter would be
/// one line written by every lock call of every file.
pub(crate) struct Quota {
    limit: Option<u64>,
    used: AtomicU64,
}

impl Quota {
    /// Counts `records` more, or none if that would pass the limit.
    pub(crate) fn reserve(&self, records: usize) -> Result<(), LockError> {
        let (Some(limit), true) = (self.limit, records > 0) else { return Ok(()) };
        let add = |used: u64| used.checked_add(records as u64).filter(|&sum| sum <= limit);
        // Relaxed: a count alone decides, no other data is published by it.
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(()),
            Err(_) => Err(LockError::NoLocks),
        }
    }

    /// Counts `records` less.
    pub(crate) fn release(&self, records: usize) {
        if self.limit.is_some() && records > 0 {
            // Relaxed: see `reserve`.
            let before = self.used.fetch_sub(records as u64, Ordering::Relaxed);
            debug_assert!(before >= records as u64, "more lock records released than reserved");
        }
    }
}
