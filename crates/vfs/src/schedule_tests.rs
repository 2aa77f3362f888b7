//! Schedules of snapshots, with a clock that is played: months in milliseconds.

use crate::schedule::ClockThread;
use crate::{
    AtFlags, Cred, Errno, Fd, Fs, Options, SetTime, SnapshotPeriod, SnapshotSchedule, Timestamp, XattrFlags,
};
use sluice_store::Store;
use sluice_sync::atomic::{AtomicU32, Ordering};
use sluice_sync::face::HOSTS_SHARE;
use sluice_sync::time::Duration;
use sluice_sync::{Arc, thread};

/// 23:07:05 on Saturday, 28 November 2026.
const NOW: i64 = 1_795_907_225;
const HOUR: i64 = 3600;

fn at(sec: i64) -> Timestamp {
    Timestamp { sec, nsec: 5 }
}

fn hourly(count: u32) -> SnapshotSchedule {
    SnapshotSchedule::default().keep(SnapshotPeriod::Hourly, count)
}

fn names(fs: &Fs) -> Vec<String> {
    let names = fs.superblock().snapshots().expect("readable");
    names.into_iter().map(|name| String::from_utf8(name).expect("text")).collect()
}

/// Changes the tree, and lets the schedule work at `sec`.
fn keep(fs: &Fs, schedule: &SnapshotSchedule, sec: i64) {
    fs.write("/0", sec.to_string()).expect("there is room");
    fs.superblock().keep_snapshots(schedule, at(sec)).expect("there is room");
}

#[test]
fn a_name_says_the_period_and_when_it_began_and_names_sort_by_time() {
    let name = |period: SnapshotPeriod, sec| String::from_utf8(period.name_at(at(sec))).expect("text");
    let all: Vec<_> = SnapshotPeriod::ALL.into_iter().map(|period| name(period, NOW)).collect();
    let wanted = [
        "frequently-2026-11-28T23:00Z",
        "hourly-2026-11-28T23:00Z",
        "daily-2026-11-28T00:00Z",
        "weekly-2026-11-23T00:00Z",
        "monthly-2026-11-01T00:00Z",
    ];
    assert_eq!(all, wanted);
    for period in SnapshotPeriod::ALL {
        assert_eq!(SnapshotPeriod::named(period.name()), Some(period));
        let times: Vec<_> = (0..20_000).map(|step| name(period, NOW + step * 13 * HOUR / 7)).collect();
        assert!(times.is_sorted() && times.iter().all(|name| SnapshotSchedule::is_name(name.as_bytes())));
    }
    // Before 1970 weeks begin on Mondays, too.
    assert_eq!(name(SnapshotPeriod::Weekly, -1), "weekly-1969-12-29T00:00Z");
}

#[test]
fn a_name_of_another_form_is_nobodys() {
    for name in [
        "hourly",
        "hourly-",
        "hourly-2026-11-28T23:00",
        "hourly-2026-11-28T23:00ZZ",
        "hourly-2026-11-28T23:0xZ",
        "Hourly-2026-11-28T23:00Z",
        "yearly-2026-11-28T23:00Z",
        "my-hourly-2026-11-28T23:00Z",
        "2026-11-28T23:00Z",
        "",
    ] {
        assert!(!SnapshotSchedule::is_name(name.as_bytes()), "{name}");
    }
}

#[test]
fn of_a_year_the_newest_of_each_period_are_kept_and_other_names_stay() {
    if !HOSTS_SHARE {
        return;
    }
    let fs = Fs::new();
    for own in ["monday", "hourly", "hourly-2026", "daily-2026-11-28T00:00Zcopy"] {
        fs.superblock().take_snapshot(own.as_bytes()).expect("room");
    }
    let schedule = hourly(3).keep(SnapshotPeriod::Daily, 2).keep(SnapshotPeriod::Monthly, 13);
    for quarter in 0..365 * 24 * 4 {
        // As the thread, which looks when a period begins.
        if quarter % 4 == 0 {
            fs.write("/hour", quarter.to_string()).expect("room");
            keep(&fs, &schedule, NOW + quarter * 15 * 60);
        }
    }
    let scheduled: Vec<_> =
        names(&fs).into_iter().filter(|name| SnapshotSchedule::is_name(name.as_bytes())).collect();
    assert_eq!(scheduled.len(), 3 + 2 + 13);
    assert_eq!(scheduled[..2], ["daily-2027-11-27T00:00Z", "daily-2027-11-28T00:00Z"]);
    let hours = ["hourly-2027-11-28T20:00Z", "hourly-2027-11-28T21:00Z", "hourly-2027-11-28T22:00Z"];
    assert_eq!(scheduled[2..5], hours);
    assert_eq!((&*scheduled[5], &*scheduled[17]), ("monthly-2026-11-01T00:00Z", "monthly-2027-11-01T00:00Z"));
    assert_eq!(names(&fs).len(), scheduled.len() + 4);
    // Each has the tree of its moment.
    let hour = |name: &str| fs.read_to_string(format!("/.snapshots/{name}/hour")).expect("it is there");
    assert_eq!(hour("hourly-2027-11-28T21:00Z"), ((365 * 24 - 2) * 4).to_string());
    assert_eq!(hour("monthly-2026-11-01T00:00Z"), "0");
    fs.settle();
    assert!(fs.check().is_clean(), "{}", fs.check());
}

#[test]
fn after_a_pause_one_is_taken_and_one_in_a_period() {
    if !HOSTS_SHARE {
        return;
    }
    let fs = Fs::new();
    keep(&fs, &hourly(24), NOW);
    for minutes in [1, 30, 52] {
        keep(&fs, &hourly(24), NOW + minutes * 60);
    }
    assert_eq!(names(&fs), ["hourly-2026-11-28T23:00Z"]);
    keep(&fs, &hourly(24), NOW + 1000 * HOUR);
    assert_eq!(names(&fs).len(), 2);
}

#[test]
fn a_clock_that_was_set_back_deletes_nothing_of_the_time_to_come_and_takes_what_is_due() {
    if !HOSTS_SHARE {
        return;
    }
    let fs = Fs::new();
    (0..3).for_each(|hour| keep(&fs, &hourly(2), NOW + (100 + hour) * HOUR));
    let later = names(&fs);
    assert_eq!(later.len(), 2);
    for _ in 0..2 {
        (0..3).for_each(|hour| keep(&fs, &hourly(2), NOW + hour * HOUR));
        let now = names(&fs);
        assert_eq!((now.len(), &now[2..]), (4, &later[..]));
    }
    // They go when their time has come.
    keep(&fs, &hourly(2), NOW + 200 * HOUR);
    assert_eq!(names(&fs).len(), 2);
}

#[test]
fn fewer_that_are_to_be_kept_make_the_room_that_is_missing_and_a_full_file_system_loses_none() {
    if !HOSTS_SHARE {
        return;
    }
    let fs = Options::default().inode_limit(40).build();
    (0..8).for_each(|file| fs.write(format!("/{file}"), "x").expect("room"));
    // 9 for the tree, 1 for the directory of snapshots, 9 for each snapshot.
    (0..3).for_each(|hour| keep(&fs, &hourly(3), NOW + hour * HOUR));
    let before = names(&fs);
    let late = at(NOW + 3 * HOUR);
    fs.write("/0", "late").expect("room");
    for _ in 0..2 {
        assert_eq!(fs.superblock().keep_snapshots(&hourly(3), late), Err(Errno::ENOSPC));
        assert_eq!(names(&fs), before);
    }
    fs.superblock().keep_snapshots(&hourly(2), late).expect("one goes first");
    assert_eq!(names(&fs), ["hourly-2026-11-29T01:00Z", "hourly-2026-11-29T02:00Z"]);
}

/// A file system in memory, and one over a store.
fn both_kinds() -> [Fs; 2] {
    let store = Store::in_memory(Options::default().store.background(false)).expect("memory");
    [Fs::new(), Fs::create_in(store, Options::default()).expect("an empty store")]
}

#[test]
fn no_snapshot_is_taken_of_a_tree_that_has_not_changed() {
    if !HOSTS_SHARE {
        return;
    }
    for fs in both_kinds() {
        let schedule = hourly(3).keep(SnapshotPeriod::Daily, 9);
        let mut sec = NOW;
        let mut hours = |hours: i64| {
            (0..hours).for_each(|_| {
                sec += HOUR;
                fs.superblock().keep_snapshots(&schedule, at(sec)).expect("there is room");
            });
            let all = names(&fs);
            ["hourly", "daily"].map(|period| all.iter().filter(|name| name.starts_with(period)).count())
        };
        fs.create_dir("/dir").expect("room");
        assert_eq!(hours(50), [1, 1], "the first one of each period");
        // Reading is no change, nor is a call that fails before it changes anything.
        fs.write("/file", "text").expect("room");
        assert_eq!(hours(1), [2, 2], "so has the day");
        assert_eq!(fs.read_to_string("/file"), Ok("text".into()));
        assert_eq!(fs.read_dir("/").expect("it is there").count(), 2);
        assert_eq!(hours(70), [2, 2]);
        // Each kind of change, also while older snapshots go.
        let newest = || names(&fs).into_iter().rfind(|name| name.starts_with("hourly"));
        let process = fs.process(Cred::root());
        let changes: [&dyn Fn(); 7] = [
            &|| fs.write("/file", "texts").expect("room"),
            &|| fs.rename("/file", "/dir/file").expect("it is there"),
            &|| process.chmod("/dir/file", 0o600).expect("it is there"),
            &|| process.truncate("/dir/file", 1).expect("it is there"),
            &|| process.setxattr("/dir/file", b"user.k", b"v", XattrFlags::empty()).expect("room"),
            &|| {
                process
                    .utimensat(Fd::CWD, "/dir", [None, Some(SetTime::At(at(5)))], AtFlags::empty())
                    .expect("it is there")
            },
            &|| fs.remove_file("/dir/file").expect("it is there"),
        ];
        for change in changes {
            change();
            let before = newest();
            hours(1);
            let after = newest();
            assert_ne!(before, after);
            hours(5);
            assert_eq!(newest(), after, "one for each change");
        }
        // One by hand is a change of the file system, not of the tree, and costs one.
        fs.superblock().take_snapshot(b"mine").expect("room");
        hours(1);
        let after = newest();
        hours(5);
        assert_eq!(newest(), after);
        fs.settle();
        assert!(fs.check().is_clean(), "{}", fs.check());
    }
}

/// Changes come while snapshots are taken: whatever the last snapshot lacks is in the next one.
#[test]
fn a_change_beside_a_snapshot_is_in_it_or_in_the_next_one() {
    if !HOSTS_SHARE {
        return;
    }
    for fs in both_kinds() {
        let (written, is_over) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=300 {
                    fs.write("/number", number.to_string()).expect("room");
                    written.store(number, Ordering::SeqCst);
                }
                is_over.store(1, Ordering::SeqCst);
            });
            let mut sec = NOW;
            while is_over.load(Ordering::SeqCst) == 0 {
                sec += HOUR;
                fs.superblock().keep_snapshots(&hourly(2), at(sec)).expect("there is room");
            }
            sec += HOUR;
            fs.superblock().keep_snapshots(&hourly(2), at(sec)).expect("there is room");
        });
        assert_eq!(written.load(Ordering::SeqCst), 300);
        let last = names(&fs).pop().expect("some were taken");
        assert_eq!(fs.read_to_string(format!("/.snapshots/{last}/number")), Ok("300".into()));
    }
}

#[test]
fn a_snapshot_by_hand_has_another_name_and_one_of_the_clock_may_be_deleted_by_hand() {
    if !HOSTS_SHARE {
        return;
    }
    let fs = Fs::new();
    assert_eq!(fs.superblock().take_snapshot(b"hourly-2026-11-28T23:00Z"), Err(Errno::EINVAL));
    (0..3).for_each(|hour| keep(&fs, &hourly(3), NOW + hour * HOUR));
    fs.superblock().drop_snapshot(names(&fs)[1].as_bytes()).expect("it is there");
    assert_eq!(names(&fs), ["hourly-2026-11-28T23:00Z", "hourly-2026-11-29T01:00Z"]);
    keep(&fs, &hourly(3), NOW + 3 * HOUR);
    assert_eq!(names(&fs).len(), 3);
}

#[test]
fn the_thread_takes_what_is_due_at_once_and_ends_with_its_file_system() {
    if !HOSTS_SHARE {
        return;
    }
    let fs = Options::default().snapshots(hourly(2)).build();
    while names(&fs).is_empty() {
        thread::yield_now();
    }
    assert!(SnapshotSchedule::is_name(names(&fs)[0].as_bytes()));
    assert_eq!(fs.superblock().snapshot_failure(), None);
    // A copy has the limits of the original and takes no snapshots.
    assert!(fs.snapshot("/").expect("room").superblock().snapshot_thread.get().is_none());
    let weak = Arc::downgrade(fs.superblock());
    fs.superblock().close().expect("in memory");
    drop(fs);
    while weak.upgrade().is_some() {
        thread::yield_now();
    }
}

#[test]
fn a_failure_is_told_and_one_that_has_ended_is_over() {
    if !HOSTS_SHARE {
        return;
    }
    let fs = Options::default().inode_limit(1).snapshots(hourly(2)).build();
    while fs.superblock().snapshot_failure().is_none() {
        thread::yield_now();
    }
    assert_eq!(fs.superblock().snapshot_failure(), Some(Errno::ENOSPC));
    let (calls, taker) = (Arc::new(AtomicU32::new(0)), ClockThread::default());
    let counted = calls.clone();
    taker.start(
        "tests",
        |_| (),
        move |_| {
            let rest = (counted.fetch_add(1, Ordering::Relaxed) < 2).then_some(Duration::ZERO);
            Some(Ok(rest))
        },
    );
    // It goes on at once as long as something is left.
    while calls.load(Ordering::Relaxed) < 3 {
        thread::yield_now();
    }
    taker.end();
    assert_eq!(taker.failure(), None);
    // Started again, it does nothing: it has ended.
    let before = calls.load(Ordering::Relaxed);
    taker.start("tests", |_| (), |_| panic!("it has ended"));
    drop(taker);
    while Arc::strong_count(&calls) > 1 {
        thread::yield_now();
    }
    assert_eq!(calls.load(Ordering::Relaxed), before);
}
