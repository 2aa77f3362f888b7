//! Schedule: snapshots that are taken by the clock, and deleted when newer ones are enough.
//!
//! # Theory
//! Time is cut into periods of UTC: quarters of an hour, hours, days, weeks and months. A snapshot is due in each period of a
//! kind that the schedule has, and its name says in which: `hourly-2026-11-28T23:00Z` is due in the hour that began then. So
//! a schedule needs no state but the names of snapshots. A snapshot is due if none has the name of the present period: after
//! a pause the server takes one, however many periods went by.
//!
//! The newest of each kind are kept. A period that begins later than now, as after the clock was set back, is not counted and
//! not deleted. Names of any other form are never touched, and nobody takes a snapshot with a name of this form by hand
//! ([`take_snapshot`](crate::Superblock::take_snapshot)).
//!
//! A snapshot is durable before an older one goes for it. So after a crash there is at most one too many, which the next
//! snapshot of that kind takes along, and a full disk deletes nothing that is to be kept.
//!
//! No snapshot is taken if nothing has changed since the last one of that period ([`scheduled`](crate::scheduled)).
//!
//! *The thread* looks each minute whether a new period has begun, as the clock may be set, and at the names only then. It holds the file
//! system while it takes snapshots, and no longer.

use crate::lock_class::SCHEDULE;
use crate::{Errno, Timestamp, UtcTime};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Condvar, Mutex, MutexGuard, thread};
use std::collections::{BTreeMap, BTreeSet};

const MINUTE: i64 = 60;
const DAY: i64 = 24 * 60 * MINUTE;
/// A snapshot that failed is tried again after so long: on a full disk each attempt copies most of the tree.
const RETRY_AFTER: i64 = 5 * MINUTE;

/// How often snapshots are taken by the clock, all in UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum SnapshotPeriod {
    /// Every 15 minutes.
    Frequently,
    /// On the hour.
    Hourly,
    /// At midnight.
    Daily,
    /// At midnight before Monday.
    Weekly,
    /// At midnight before the first of the month.
    Monthly,
}

impl SnapshotPeriod {
    /// All of them, the shortest first.
    pub const ALL: [SnapshotPeriod; 5] = [
        SnapshotPeriod::Frequently,
        SnapshotPeriod::Hourly,
        SnapshotPeriod::Daily,
        SnapshotPeriod::Weekly,
        SnapshotPeriod::Monthly,
    ];

    /// Its name, with which the names of its snapshots begin.
    pub fn name(self) -> &'static str {
        match self {
            SnapshotPeriod::Frequently => "frequently",
            SnapshotPeriod::Hourly => "hourly",
            SnapshotPeriod::Daily => "daily",
            SnapshotPeriod::Weekly => "weekly",
            SnapshotPeriod::Monthly => "monthly",
        }
    }

    /// The period with this name.
    pub fn named(name: &str) -> Option<SnapshotPeriod> {
        SnapshotPeriod::ALL.into_iter().find(|period| period.name() == name)
    }

    /// When the period began that `now` is in.
    fn begin(self, now: Timestamp) -> Timestamp {
        let day = now.sec.div_euclid(DAY);
        let sec = match self {
            SnapshotPeriod::Frequently => now.sec - now.sec.rem_euclid(15 * MINUTE),
            SnapshotPeriod::Hourly => now.sec - now.sec.rem_euclid(60 * MINUTE),
            SnapshotPeriod::Daily => day * DAY,
            // Day 0 was a Thursday.
            SnapshotPeriod::Weekly => (day - (day + 3).rem_euclid(7)) * DAY,
            SnapshotPeriod::Monthly => (day + 1 - i64::from(UtcTime::from(now).day)) * DAY,
        };
        Timestamp { sec, nsec: 0 }
    }

    /// The name of the snapshot that is due in the period that `now` is in. A later one sorts behind it.
    pub(crate) fn name_at(self, now: Timestamp) -> Vec<u8> {
        let UtcTime { year, month, day, hour, minute, .. } = self.begin(now).into();
        format!("{}-{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}Z", self.name()).into_bytes()
    }

    /// Whether `name` has the form of its snapshots' names.
    pub(crate) fn is_name(self, name: &[u8]) -> bool {
        const FORM: &[u8] = b"-0000-00-00T00:00Z";
        name.strip_prefix(self.name().as_bytes()).is_some_and(|time| {
            let fits =
                |(byte, form): (&u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { byte == form };
            time.len() == FORM.len() && time.iter().zip(FORM).all(fits)
        })
    }
}

/// Which snapshots are taken by the clock, and how many of them are kept.
///
/// ```
/// use sluice_vfs::{Fs, SnapshotPeriod, SnapshotSchedule, Timestamp};
///
/// let schedule = SnapshotSchedule::default().keep(SnapshotPeriod::Daily, 7);
/// let fs = Fs::new();
/// // As the thread does that `Options::snapshots` starts.
/// fs.superblock().keep_snapshots(&schedule, Timestamp { sec: 1_795_892_409, nsec: 0 })?;
/// assert_eq!(fs.superblock().snapshots()?, [b"daily-2026-11-28T00:00Z"]);
/// # Ok::<(), sluice_vfs::Errno>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SnapshotSchedule {
    keep: BTreeMap<SnapshotPeriod, u32>,
}

impl SnapshotSchedule {
    /// Also takes a snapshot in each `period`, and keeps the newest `count` of them, at least one.
    #[must_use]
    pub fn keep(mut self, period: SnapshotPeriod, count: u32) -> SnapshotSchedule {
        self.keep.insert(period, count.max(1));
        self
    }

    /// Whether `name` has the form of a name that a schedule gives, whichever it is.
    pub fn is_name(name: &[u8]) -> bool {
        SnapshotPeriod::ALL.into_iter().any(|period| period.is_name(name))
    }

    /// The periods of the schedule, each with the number of snapshots to keep.
    pub(crate) fn periods(&self) -> impl Iterator<Item = (SnapshotPeriod, usize)> {
        self.keep.iter().map(|(period, count)| (*period, *count as usize))
    }

    /// The names that are due at `now`.
    fn due(&self, now: Timestamp) -> Vec<Vec<u8>> {
        self.keep.keys().map(|period| period.name_at(now)).collect()
    }
}

/// The periods whose last snapshot is as the tree is.
#[derive(Default)]
pub(crate) struct Unchanged {
    pub(crate) periods: BTreeSet<SnapshotPeriod>,
    /// The threads that do what the schedule says, each with the period for which it takes a snapshot.
    pub(crate) at_work: Vec<(thread::ThreadId, Option<SnapshotPeriod>)>,
}

impl Unchanged {
    /// For which period this thread takes a snapshot, if it is at work.
    pub(crate) fn of_this_thread(&self) -> Option<Option<SnapshotPeriod>> {
        let me = thread::current().id();
        self.at_work.iter().find(|(thread, _)| *thread == me).map(|(_, period)| *period)
    }

    /// This thread is at work, and takes a snapshot for `period`.
    pub(crate) fn begin(&mut self, period: Option<SnapshotPeriod>) {
        self.end();
        self.at_work.push((thread::current().id(), period));
    }

    /// This thread is no longer at work.
    pub(crate) fn end(&mut self) {
        let me = thread::current().id();
        self.at_work.retain(|(thread, _)| *thread != me);
    }
}

/// The thread that takes the snapshots of one file system. It ends some time after this is dropped.
#[derive(Default)]
pub(crate) struct SnapshotThread(Arc<SnapshotWork>);

impl SnapshotThread {
    /// Starts the thread: when a period of `schedule` begins it calls `keep`, which says none if the file system is no more.
    pub(crate) fn start(
        &self,
        schedule: SnapshotSchedule,
        keep: impl Fn(&SnapshotSchedule, Timestamp) -> Option<Result<(), Errno>> + Send + 'static,
    ) {
        let work = self.0.clone();
        let run = move || work.run(&schedule, |now| keep(&schedule, now));
        if thread::Builder::new().name("sluice-snapshots".into()).spawn(run).is_err() {
            self.0.note(Err(Errno::EAGAIN));
        }
    }

    /// No snapshot is taken any more. Waits for those that are being taken.
    pub(crate) fn end(&self) {
        let mut state = self.0.end();
        while state.is_at_work {
            state = self.0.changed.wait(state);
        }
    }

    /// Why the snapshots that were due last are not as the schedule says.
    pub(crate) fn failure(&self) -> Option<Errno> {
        self.0.state.lock().failure
    }
}

impl Drop for SnapshotThread {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

/// The state that the thread and its file system share.
struct SnapshotWork {
    state: Mutex<SnapshotState>,
    /// The state has changed.
    changed: Condvar,
}

/// *protected by its mutex*
#[derive(Default)]
struct SnapshotState {
    has_ended: bool,
    /// Snapshots are being taken or deleted.
    is_at_work: bool,
    failure: Option<Errno>,
}

impl Default for SnapshotWork {
    fn default() -> Self {
        SnapshotWork {
            state: Mutex::with_class(&SCHEDULE, SnapshotState::default()),
            changed: Condvar::new(),
        }
    }
}

impl SnapshotWork {
    fn end(&self) -> MutexGuard<'_, SnapshotState> {
        let mut state = self.state.lock();
        state.has_ended = true;
        self.changed.notify_all();
        state
    }

    fn run(&self, schedule: &SnapshotSchedule, keep: impl Fn(Timestamp) -> Option<Result<(), Errno>>) {
        let mut done = Vec::new();
        loop {
            let now = Timestamp::now();
            let mut wait = MINUTE - now.sec.rem_euclid(MINUTE);
            let due = schedule.due(now);
            if due != done {
                match self.work(|| keep(now)) {
                    None => return,
                    Some(Ok(())) => done = due,
                    Some(Err(_)) => wait = RETRY_AFTER,
                }
            }
            let state = self.state.lock();
            if state.has_ended {
                return;
            }
            // A wake-up in between costs a look at the clock.
            drop(self.changed.wait_timeout(state, Duration::from_secs(wait.unsigned_abs())));
        }
    }

    /// Has `keep` do what is due; none if the schedule has ended.
    fn work(&self, keep: impl FnOnce() -> Option<Result<(), Errno>>) -> Option<Result<(), Errno>> {
        {
            let mut state = self.state.lock();
            if state.has_ended {
                return None;
            }
            state.is_at_work = true;
        }
        let kept = keep();
        self.state.lock().is_at_work = false;
        self.changed.notify_all();
        kept.inspect(|kept| self.note(*kept))
    }

    /// Notes what became of the snapshots that were due, and tells of a change.
    fn note(&self, kept: Result<(), Errno>) {
        let before = std::mem::replace(&mut self.state.lock().failure, kept.err());
        match kept {
            Err(error) if before != Some(error) => {
                log::warn!(
                    "snapshots by the clock: {error}; tried again every {} minutes",
                    RETRY_AFTER / MINUTE
                );
            }
            Ok(()) if before.is_some() => log::info!("snapshots by the clock are taken again"),
            _ => {}
        }
    }
}
