//! Scheduled: what a file system does for its [schedule](SnapshotSchedule) of snapshots.
//!
//! # Theory
//! A snapshot is left out if the tree is as the last one of its period has it. A count of changes would be a line that all calls write. So a
//! [hook] is set at the moment of such a snapshot: the first change that begins after it clears the hook, and all periods count as changed. Changes that
//! the schedule makes itself, snapshots and their ends, are not counted: its thread is known. Access times are no change. After a restart nothing is known, and
//! a snapshot is taken.

use crate::schedule::ClockThread;
use crate::superblock::Shared;
use crate::watch::hook;
use crate::{Errno, SnapshotPeriod, SnapshotSchedule, Superblock, Timestamp};
use sluice_sync::{Arc, OnceLock};

impl Shared {
    /// A change begins.
    #[cold]
    pub(crate) fn note_change(&self) {
        let mut unchanged = self.moments.unchanged.lock();
        if unchanged.of_this_thread().is_none() {
            unchanged.periods.clear();
            self.set_hook(hook::UNCHANGED, false);
        }
    }

    /// It is the moment of a snapshot, and no change is under way.
    pub(crate) fn note_snapshot(&self) {
        let mut unchanged = self.moments.unchanged.lock();
        if let Some(Some(period)) = unchanged.of_this_thread() {
            unchanged.periods.insert(period);
            self.set_hook(hook::UNCHANGED, true);
        }
    }
}

impl Superblock {
    /// Takes the snapshots of the root that are due at `now` by `schedule`, but for those that would be as the last one of the period, and deletes older ones of its periods than it keeps. The
    /// thread that [`Options::snapshots`](crate::Options::snapshots) starts calls this when a period begins.
    ///
    /// # Errors
    /// The first error of [`take_snapshot`](Self::take_snapshot) or [`drop_snapshot`](Self::drop_snapshot). The other steps are
    /// done all the same, and a later call does the rest.
    pub fn keep_snapshots(&self, schedule: &SnapshotSchedule, now: Timestamp) -> Result<(), Errno> {
        let shared = &self.root().shared;
        if shared.is_observed() {
            // An error shows when the directory is copied.
            let _ = self.root().write_back_below();
        }
        shared.moments.unchanged.lock().begin(None);
        let kept = self.keep_each(schedule, now);
        shared.moments.unchanged.lock().end();
        kept
    }

    fn keep_each(&self, schedule: &SnapshotSchedule, now: Timestamp) -> Result<(), Errno> {
        let mut kept = Ok(());
        for (period, count) in schedule.periods() {
            let due = period.name_at(now);
            let mut names = self.snapshots()?;
            names.retain(|name| period.is_name(name) && *name <= due);
            // Snapshots beyond the number to keep may take the room that a new one needs.
            kept = kept.and(self.drop_oldest(&mut names, count));
            if names.last() != Some(&due) && period.is_name(&due) && !self.is_unchanged(period) {
                match self.keep_for(period, &due) {
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

    /// Whether the last snapshot of `period` is as the tree is.
    fn is_unchanged(&self, period: SnapshotPeriod) -> bool {
        self.root().shared.moments.unchanged.lock().periods.contains(&period)
    }

    /// Takes the snapshot `name` of `period`.
    fn keep_for(&self, period: SnapshotPeriod, name: &[u8]) -> Result<(), Errno> {
        let unchanged = &self.root().shared.moments.unchanged;
        unchanged.lock().begin(Some(period));
        let kept = self.keep_as_snapshot(self.root(), name);
        unchanged.lock().begin(None);
        if kept.is_err() {
            unchanged.lock().periods.remove(&period);
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

    /// Why the scrub of [`Options::scrub`](crate::Options::scrub) could not go on; none if it can.
    pub fn scrub_failure(&self) -> Option<Errno> {
        self.scrub_thread.get()?.failure()
    }

    /// Starts the threads that take the snapshots of [`Options::snapshots`](crate::Options::snapshots) and do the scrubs of
    /// [`Options::scrub`](crate::Options::scrub), if these are any.
    pub(crate) fn begin_schedule(this: &Arc<Superblock>) {
        let shared = &this.root().shared;
        if let Some(schedule) = shared.options.snapshots.clone() {
            let (superblock, periods) = (Arc::downgrade(this), schedule.clone());
            let keep = move |now| Some(superblock.upgrade()?.keep_snapshots(&schedule, now).map(|()| None));
            let thread = this.snapshot_thread.get_or_init(Default::default);
            thread.start("snapshots", move |now| periods.due(now), keep);
        }
        if let Some(period) = shared.options.scrub.filter(|_| shared.durable().is_some()) {
            let superblock = Arc::downgrade(this);
            let step = move |now| Some(superblock.upgrade()?.scrub_by_clock(period, now));
            let thread = this.scrub_thread.get_or_init(Default::default);
            thread.start("scrub", move |now| period.begin(now), step);
        }
    }

    /// Nothing is done by the clock any more. Waits for what is under way.
    pub(crate) fn end_schedule(&self) {
        [&self.snapshot_thread, &self.scrub_thread]
            .into_iter()
            .filter_map(OnceLock::get)
            .for_each(ClockThread::end);
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
