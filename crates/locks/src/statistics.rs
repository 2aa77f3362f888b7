//! Statistics: what happened to the locks of a file: which files are asked for most, and where the waiting is long.

use crate::LockDomain;
use crate::file_state::FileState;

/// Statistics of the locks of one file since its first lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStatistics {
    /// The device of the file, a Linux `dev_t`.
    pub dev: u64,
    /// The inode number of the file.
    pub ino: u64,
    /// Locks held now.
    pub held: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// Requests granted so far.
    pub grants: u64,
    /// Requests that had to wait so far.
    pub waits: u64,
    /// Grants ahead of an older request so far.
    pub bypasses: u64,
    /// Time that granted requests had waited for, altogether.
    pub wait_ns_total: u64,
    /// The longest of these waits.
    pub wait_ns_max: u64,
}

impl FileStatistics {
    /// The statistics of `file`, now.
    pub(crate) fn of(file: &FileState) -> Self {
        let mut sum = FileStatistics { dev: file.dev, ino: file.ino, ..Self::default() };
        for space in file.spaces() {
            let space = space.lock();
            let statistics = &space.statistics;
            sum.held += space.granted.len() as u64;
            sum.waiting += space.waiters().map_or(0, |waiters| waiters.len() as u64);
            sum.grants += statistics.grants;
            sum.waits += statistics.waits;
            sum.bypasses += statistics.bypasses;
            sum.wait_ns_total = sum.wait_ns_total.saturating_add(statistics.wait_ns_total);
            sum.wait_ns_max = sum.wait_ns_max.max(statistics.wait_ns_max);
        }
        sum
    }
}

impl LockDomain {
    /// The statistics of each file since its first lock, busiest first.
    pub fn statistics(&self) -> Vec<FileStatistics> {
        let mut files: Vec<_> = self.live_files().iter().map(|file| FileStatistics::of(file)).collect();
        files.sort_by_key(|file| std::cmp::Reverse((file.waits, file.grants)));
        files
    }
}
