//! Scheduled: what a file system does for its [schedule](SnapshotSchedule) of snapshots.

use crate::{Errno, SnapshotSchedule, Superblock, Timestamp};
use sluice_sync::Arc;

impl Superblock {
    /// Takes the snapshots of the root that are due at `now` by `schedule`, and deletes older ones of its periods than it keeps. The
    /// thread that [`Options::snapshots`](crate::Options::snapshots) starts calls this when a period begins.
    ///
    /// # Errors
    /// The first error of [`take_snapshot`](Self::take_snapshot) or [`drop_snapshot`](Self::drop_snapshot). The other steps are
    /// done all the same, and a later call does the rest.
    pub fn keep_snapshots(&self, schedule: &SnapshotSchedule, now: Timestamp) -> Result<(), Errno> {
        let mut kept = Ok(());
        for (period, count) in schedule.periods() {
            let due = period.name_at(now);
            let mut names = self.snapshots()?;
            names.retain(|name| period.is_name(name) && *name <= due);
            // Snapshots beyond the number to keep may take the room that a new one needs.
            kept = kept.and(self.drop_oldest(&mut names, count));
            if names.last() != Some(&due) && period.is_name(&due) {
                match self.keep_as_snapshot(self.root(), &due) {
                    Ok(()) => names.push(due),
                    // It was received meanwhile.
                    Err(Errno::EEXIST) => {}
                    failed => kept = kept.and(failed),
                }
                kept = kept.and(self.drop_oldest(&mut names, count));
            }
        }
        kept
    }

    /// Deletes the first snapshots of `names`, which are sorted, until `count` are left.
    fn drop_oldest(&self, names: &mut Vec<Vec<u8>>, count: usize) -> Result<(), Errno> {
        let mut dropped = Ok(());
        let old = names.len().saturating_sub(count);
        for name in names.drain(..old) {
            match self.drop_snapshot(&name) {
                // Somebody else was first.
                Err(Errno::ENOENT) => {}
                done => dropped = dropped.and(done),
            }
        }
        if old > 0 {
            // The next one may need the room now.
            self.settle();
        }
        dropped
    }

    /// Why the snapshots that were due last could not be taken, or older ones not be deleted; none if all is as the schedule says.
    pub fn snapshot_failure(&self) -> Option<Errno> {
        self.snapshot_thread.get()?.failure()
    }

    /// Starts the thread that takes the snapshots of [`Options::snapshots`](crate::Options::snapshots), if these are any.
    pub(crate) fn begin_schedule(this: &Arc<Superblock>) {
        if let Some(schedule) = this.root().shared.options.snapshots.clone() {
            let superblock = Arc::downgrade(this);
            let keep = move |schedule: &SnapshotSchedule, now| {
                Some(superblock.upgrade()?.keep_snapshots(schedule, now))
            };
            this.snapshot_thread.get_or_init(Default::default).start(schedule, keep);
        }
    }

    /// No snapshot is taken by the clock any more. Waits for those that are being taken.
    pub(crate) fn end_schedule(&self) {
        self.snapshot_thread.get().into_iter().for_each(|thread| thread.end());
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
