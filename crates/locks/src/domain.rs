//! LockDomain: what the lock states of all files of one process namespace share.

use crate::file_state::{FileState, Wait};
use crate::lock_class::DOMAIN_FILES;
use crate::quota::Quota;
use crate::wait_table::WaitTable;
use sluice_sync::percpu::PerCpuList;
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Weak};
use std::fmt;

/// How a [`LockDomain`] behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainOptions {
    /// Refuse POSIX waits that would deadlock. Without it they wait until cancelled.
    pub deadlock_detection: bool,
    /// At most so many lock records (granted ranges and flocks, and waiting requests) over all files; beyond,
    /// requests fail with [`LockError::NoLocks`](crate::LockError::NoLocks). `None`: no limit.
    pub max_locks: Option<u64>,
    /// At most so many of one owner, likewise. `None`: no limit.
    pub max_locks_of_owner: Option<u64>,
    /// How often a waiting request may be bypassed: a later request that conflicts with it, but with no lock that
    /// is held, is granted ahead of it. After so many bypasses later requests wait behind it. `None`: no bound, as
    /// on Linux.
    pub bypass_max: Option<u32>,
    /// How long the holder of a lease may take to give it up; then it loses it.
    pub lease_break: Duration,
}

/// The usual time to give up a lease, as on Linux.
pub const LEASE_BREAK: Duration = Duration::from_secs(45);

/// The usual bound on bypasses. High enough that a program which nests shared locks, while another waits for an
/// exclusive one, hardly ever comes to wait for itself.
pub const BYPASS_MAX: u32 = 128;

impl Default for DomainOptions {
    fn default() -> Self {
        DomainOptions {
            deadlock_detection: true,
            max_locks: None,
            max_locks_of_owner: None,
            bypass_max: Some(BYPASS_MAX),
            lease_break: LEASE_BREAK,
        }
    }
}

/// The files whose locks belong together: a deadlock is found across all of them, and they are listed as one.
/// One for each process namespace.
pub struct LockDomain {
    /// Which owner waits where. `None`: deadlock detection is off. *immutable; looks after itself*
    pub(crate) waits: Option<WaitTable<Wait>>,
    /// *immutable; looks after itself*
    pub(crate) quota: Quota,
    /// See [`DomainOptions::bypass_max`]. *immutable*
    pub(crate) bypass_max: Option<u32>,
    /// See [`DomainOptions::lease_break`]. *immutable*
    pub(crate) lease_break: Duration,
    /// All files that ever had a lock and still live. *per CPU*
    pub(crate) files: PerCpuList<Weak<FileState>>,
}

impl LockDomain {
    /// A domain without files.
    pub fn new(options: DomainOptions) -> Arc<LockDomain> {
        Arc::new(LockDomain {
            waits: options.deadlock_detection.then(WaitTable::default),
            quota: Quota::new(options.max_locks, options.max_locks_of_owner),
            bypass_max: options.bypass_max,
            lease_break: options.lease_break,
            files: PerCpuList::with_class(&DOMAIN_FILES),
        })
    }

    /// The files that still live, in the order of inode numbers.
    pub(crate) fn live_files(&self) -> Vec<Arc<FileState>> {
        let mut files = Vec::new();
        self.files.for_each(|file| files.extend(file.upgrade()));
        files.sort_by_key(|file| (file.dev, file.ino));
        files
    }

    /// True if no wait and no lock record is left. For tests of balance.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.waits.as_ref().is_none_or(WaitTable::is_empty) && self.quota.is_idle()
    }
}

impl fmt::Debug for LockDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockDomain")
            .field("deadlock_detection", &self.waits.is_some())
            .field("quota", &self.quota)
            .field("bypass_max", &self.bypass_max)
            .finish_non_exhaustive()
    }
}
