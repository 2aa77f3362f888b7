//! Stamp: the time of each push, in the push, for a mount that may outlive this process.
//!
//! # Theory
//! The server of such a mount notes when each change ended. After its death the store says which changes it has: those that ended before
//! the time in the last durable push. The time is taken in the cut, when no change is under way. A push is not made for it alone.

use super::keys::Key;
use crate::lock_class::DURABLE_REQUESTS;
use sluice_store::Added;
use sluice_sync::Mutex;
use sluice_sync::atomic::{AtomicU64, Ordering};
use std::fmt;

/// The slot of the stamp among those of the requests of a mount.
pub(super) const SLOT: u16 = u16::MAX - 1;

/// Gives the time, as a number that grows, and of which the next process goes on.
pub type PushClock = Box<dyn Fn() -> u64 + Send + Sync>;

/// Which mount is told the times of pushes.
pub(super) struct Stamp {
    clock: Mutex<Option<(u64, PushClock)>>,
    /// The time of the last cut. *atomic (stamped)*
    last: AtomicU64,
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stamp").field("last", &self.last).finish_non_exhaustive()
    }
}

impl Stamp {
    pub(super) fn new() -> Stamp {
        Stamp { clock: Mutex::with_class(&DURABLE_REQUESTS, None), last: AtomicU64::new(0) }
    }

    /// Stamps later pushes for `mount` with the time of `clock`.
    pub(super) fn set(&self, mount: u64, clock: PushClock) {
        *self.clock.lock() = Some((mount, clock));
    }

    /// No more, if the mount `is_gone`.
    pub(super) fn end(&self, is_gone: impl Fn(u64) -> bool) {
        let mut clock = self.clock.lock();
        if clock.as_ref().is_some_and(|(mount, _)| is_gone(*mount)) {
            *clock = None;
        }
    }

    /// Adds the time to a push. Called in its cut.
    pub(super) fn put(&self, to: &mut Added) {
        if let Some((mount, clock)) = &*self.clock.lock() {
            let now = clock();
            // Release(stamped): the cut, which comes before changes that see it; pairs with Acquire(stamped) in last().
            self.last.store(now, Ordering::Release);
            let mut value = [0; 16];
            value[..8].copy_from_slice(&now.to_le_bytes());
            to.put_beside(&Key::request(*mount, SLOT), &value);
        }
    }

    /// The time of the last cut; 0 before the first.
    pub(super) fn last(&self) -> u64 {
        // Acquire(stamped): pairs with Release(stamped) in put().
        self.last.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Fs, Options, RequestId, Superblock};
    use sluice_sync::Arc;
    use sluice_sync::atomic::{AtomicU64, Ordering};
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_push_has_the_time_of_its_cut_and_is_not_made_for_that_alone() {
        let dir = std::env::temp_dir().join(format!("sluice-stamp-{}", std::process::id()));
        let fs = Fs::create_store(&dir).expect("made");
        let superblock = fs.superblock().clone();
        let time = Arc::new(AtomicU64::new(10));
        let clock = time.clone();
        superblock.stamp_pushes(7, Box::new(move || clock.fetch_add(1, Ordering::SeqCst)));
        assert_eq!((superblock.push_stamp(), superblock.durable_stamp(7)), (0, 0));
        fs.create_dir("/d").expect("made");
        drop(superblock.serve_request(RequestId { mount: 7, slot: 0, number: 1 }));
        superblock.sync().expect("durable");
        let first = superblock.push_stamp();
        assert!(first >= 10);
        let batches = || superblock.root().shared.durable().expect("a store").store.stats().batches;
        let before = batches();
        superblock.sync().expect("nothing to do");
        assert_eq!(batches(), before, "a push for the time alone");
        fs.create_dir("/e").expect("made");
        superblock.sync().expect("durable");
        let last = superblock.push_stamp();
        assert!(last > first);
        // As after the death of the process: nothing is brought to the tree.
        let copy = dir.with_extension("copy");
        std::fs::create_dir(&copy).expect("made");
        for file in std::fs::read_dir(&dir).expect("listed") {
            let file = file.expect("an entry");
            let is_file = file.file_type().expect("known").is_file();
            is_file.then(|| std::fs::copy(file.path(), copy.join(file.file_name())).expect("copied"));
        }
        let died = Superblock::open(&copy, Options::default()).expect("recovered");
        assert_eq!((died.durable_stamp(7), died.durable_stamp(8)), (last, 0));
        assert_eq!(died.stamped_mounts(), BTreeSet::from([7]));
        assert_eq!(died.executed_requests(7), BTreeMap::new(), "it is no request");
        died.forget_requests(&[7].into()).expect("forgotten");
        assert!(died.stamped_mounts().is_empty());
        died.close().expect("closed");
        superblock.forget_requests(&[7].into()).expect("forgotten");
        superblock.close().expect("closed");
        drop((superblock, fs));
        let again = Superblock::open(&dir, Options::default()).expect("opened");
        assert_eq!(again.durable_stamp(7), 0);
        drop((again, died));
        std::fs::remove_dir_all(dir).expect("removed");
        std::fs::remove_dir_all(copy).expect("removed");
    }
}
