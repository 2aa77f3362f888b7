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
//! system while it takes snapshots, and no longer. A second one does the scrubs ([`scrub_by_clock`](crate::Superblock::scrub_by_clock)), step by step.

use crate::lock_class::SCHEDULE;
use crate::{Errno, Timestamp, UtcTime};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Condvar, Mutex, MutexGuard, thread};
use std::collections::{BTreeMap, BTreeSet};

const MINUTE: i64 = 60;
const DAY: i64 = 24 * 60 * MINUTE;
/// A step that failed is tried again after so long: on a full disk each attempt at a snapshot copies most of the tree.
const RETRY_AFTER: Duration = Duration::from_secs(5 * 60);

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
    pub(crate) fn begin(self, now: Timestamp) -> Timestamp {
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
    pub(crate) fn due(&self, now: Timestamp) -> Vec<Vec<u8>> {
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

/// Work of the clock: `None` if the file system is no more, else the rest before the next step; without one all that is due is done.
pub(crate) type ClockStep = Option<Result<Option<Duration>, Errno>>;

/// A thread that works for one file system when a period begins. It ends some time after this is dropped.
#[derive(Default)]
pub(crate) struct ClockThread(Arc<ClockWork>);

impl ClockThread {
    /// Starts the thread, for work of this name: when `due` gives another value, it calls `step` until nothing is left.
    pub(crate) fn start<T: PartialEq>(
        &self,
        name: &'static str,
        due: impl Fn(Timestamp) -> T + Send + 'static,
        step: impl Fn(Timestamp) -> ClockStep + Send + 'static,
    ) {
        let work = self.0.clone();
        let run = move || work.run(name, due, step);
        if thread::Builder::new().name(format!("sluice-{name}")).spawn(run).is_err() {
            self.0.note(name, Err(Errno::EAGAIN));
        }
    }

    /// No step begins any more. Waits for the one that is under way.
    pub(crate) fn end(&self) {
        let mut state = self.0.end();
        while state.is_at_work {
            state = self.0.changed.wait(state);
        }
    }

    /// The error of the last step.
    pub(crate) fn failure(&self) -> Option<Errno> {
        self.0.state.lock().failure
    }
}

impl Drop for ClockThread {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

/// The state that the thread and its file system share.
struct ClockWork {
    state: Mutex<ClockState>,
    /// The state has changed.
    changed: Condvar,
}

/// *protected by its mutex*
#[derive(Default)]
struct ClockState {
    has_ended: bool,
    /// A step is under way.
    is_at_work: bool,
    failure: Option<Errno>,
}

impl Default for ClockWork {
    fn default() -> Self {
        ClockWork { state: Mutex::with_class(&SCHEDULE, ClockState::default()), changed: Condvar::new() }
    }
}

impl ClockWork {
    fn end(&self) -> MutexGuard<'_, ClockState> {
        let mut state = self.state.lock();
        state.has_ended = true;
        self.changed.notify_all();
        state
    }

    fn run<T: PartialEq>(
        &self,
        name: &str,
        due: impl Fn(Timestamp) -> T,
        step: impl Fn(Timestamp) -> ClockStep,
    ) {
        let mut done = None;
        loop {
            let now = Timestamp::now();
            let mut wait = Duration::from_secs((MINUTE - now.sec.rem_euclid(MINUTE)).unsigned_abs());
            let is_due = Some(due(now));
            if is_due != done {
                match self.work(name, || step(now)) {
                    None => return,
                    Some(Ok(None)) => done = is_due,
                    Some(Ok(Some(rest))) => wait = rest,
                    Some(Err(_)) => wait = RETRY_AFTER,
                }
            }
            let state = self.state.lock();
            if state.has_ended {
                return;
            }
            // A wake-up in between costs a look at the clock.
            drop(self.changed.wait_timeout(state, wait));
        }
    }

    /// Has `step` do what is due; none if the work has ended.
    fn work(&self, name: &str, step: impl FnOnce() -> ClockStep) -> ClockStep {
        {
            let mut state = self.state.lock();
            if state.has_ended {
                return None;
            }
            state.is_at_work = true;
        }
        let done = step();
        self.state.lock().is_at_work = false;
        self.changed.notify_all();
        done.inspect(|done| self.note(name, done.map(drop)))
    }

    /// Notes the outcome of a step, and tells of a change.
    fn note(&self, name: &str, done: Result<(), Errno>) {
        let before = std::mem::replace(&mut self.state.lock().failure, done.err());
        match done {
            Err(error) if before != Some(error) => {
                let minutes = RETRY_AFTER.as_secs() / 60;
                log::warn!("{name} by the clock: {error}; tried again every {minutes} minutes");
            }
            Ok(()) if before.is_some() => log::info!("{name} by the clock: works again"),
            _ => {}
        }
    }
}
