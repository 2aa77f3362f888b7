//! Snapshots in a store: after each crash a snapshot that was taken is there, and one that was deleted is there or gone.

use super::audit::audit;
use super::share_tests::{check, close, opened};
use super::tests::{counted, pattern};
use crate::{Errno, Fs, SnapshotPeriod, SnapshotSchedule, Timestamp};
use sluice_store::disk::crash::{CrashDisk, Survivors};
use sluice_sync::face::HOSTS_SHARE;

const LEN: usize = 200_000;

/// A tree of which nothing is synchronised.
fn with_tree() -> (CrashDisk, Fs) {
    let (disk, fs) = counted();
    fs.create_dir_all("/d/e").expect("room");
    fs.write("/d/f", pattern(0, LEN)).expect("room");
    fs.write("/d/e/little", "text").expect("room");
    fs.hard_link("/d/f", "/d/e/g").expect("room");
    (disk, fs)
}

/// Checks that the snapshot is whole, and does not change.
fn is_whole(fs: &Fs) {
    let path = |below: &str| format!("/.snapshots/one/{below}");
    assert!(fs.read(path("d/f")).expect("it is there") == pattern(0, LEN));
    assert_eq!(fs.read_to_string(path("d/e/little")), Ok("text".into()));
    let ino = |below: &str| fs.metadata(path(below)).map(|stat| stat.ino);
    assert_eq!(ino("d/f"), ino("d/e/g"));
    assert_eq!(fs.write(path("d/f"), "x"), Err(Errno::EROFS));
    assert_eq!(fs.write(path("new"), "x"), Err(Errno::EROFS));
    assert_eq!(fs.remove_file(path("d/e/g")), Err(Errno::EROFS));
}

#[test]
fn a_snapshot_is_durable_and_read_only_when_it_was_taken() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = with_tree();
    fs.superblock().take_snapshot(b"one").expect("room");
    for survivors in [Survivors::None, Survivors::All] {
        let crash = disk.crash(disk.steps(), survivors);
        assert_eq!(check(&crash).found, 0, "{:?}", check(&crash));
        let again = opened(&crash, None);
        is_whole(&again);
        assert!(again.check().is_clean(), "{}", again.check());
    }
}

#[test]
fn a_copy_knows_of_which_file_it_is_one_also_after_a_restart() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = with_tree();
    let origin = |fs: &Fs, path: &str| {
        let root = fs.superblock().root().clone();
        let names = path.split('/').filter(|name| !name.is_empty());
        let found = names.fold(root, |dir, name| dir.look_up(name.as_bytes()).expect("it is there"));
        (found.ino(), found.origin())
    };
    let (number, own) = origin(&fs, "/d/f");
    assert_eq!(own, Some(number));
    fs.superblock().take_snapshot(b"one").expect("room");
    fs.clone_tree("/d", "/clone").expect("room");
    fs.superblock().restore_snapshot(b"one", b"d/f").expect("it is there");
    fs.sync().expect("the disk works");
    let again = opened(&disk.crash(disk.steps(), Survivors::None), None);
    for fs in [&fs, &again] {
        let (copy, was) = origin(fs, "/.snapshots/one/d/f");
        assert_eq!((was, origin(fs, "/.snapshots/one/d/e/g")), (Some(number), (copy, was)));
        let (clone, its) = origin(fs, "/clone/f");
        assert_eq!((its, clone == number), (Some(clone), false));
        let (restored, its) = origin(fs, "/d/f");
        assert_eq!((its, restored == number), (Some(number), false));
    }
    // The second snapshot has the same number for the file that came back.
    again.superblock().take_snapshot(b"two").expect("room");
    assert_eq!(origin(&again, "/.snapshots/two/d/f").1, Some(number));
}

#[test]
fn after_a_crash_at_each_step_of_a_deletion_the_snapshot_is_whole_or_gone_and_the_room_is_free() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = with_tree();
    fs.superblock().take_snapshot(b"one").expect("room");
    let from = disk.steps();
    fs.superblock().drop_snapshot(b"one").expect("it is there");
    let used = |fs: &Fs| {
        fs.settle();
        (fs.superblock().live_inodes(), fs.superblock().bytes_used())
    };
    let without = used(&fs);
    let (mut whole, mut gone) = (0, 0);
    for step in from..=disk.steps() {
        for survivors in [Survivors::None, Survivors::All] {
            let crash = disk.crash(step, survivors);
            assert_eq!(check(&crash).found, 0, "step {step}: {:?}", check(&crash));
            let again = opened(&crash, None);
            if again.superblock().snapshots().expect("readable").is_empty() {
                gone += 1;
                assert_eq!(used(&again), without, "step {step}");
            } else {
                whole += 1;
                is_whole(&again);
                again.superblock().drop_snapshot(b"one").expect("it is there");
                assert_eq!(used(&again), without, "step {step}, deleted");
            }
            audit(&again).unwrap_or_else(|what| panic!("step {step}: {what}"));
            close(&again);
            assert_eq!(check(&crash).found, 0, "step {step}, closed: {:?}", check(&crash));
            assert_eq!(used(&opened(&crash, None)), without, "step {step}, and again");
        }
    }
    assert!(whole > 0 && gone > 0, "whole {whole}, gone {gone}");
    assert!(opened(&disk.crash(disk.steps(), Survivors::None), None).superblock().snapshots() == Ok(vec![]));
}

#[test]
fn after_a_crash_at_each_step_of_a_schedule_the_old_snapshot_is_whole_or_the_new_one_or_both() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = with_tree();
    let schedule = SnapshotSchedule::default().keep(SnapshotPeriod::Hourly, 1);
    // 23:07 on 28 November 2026, and an hour later.
    let [first, second] = [0, 3600].map(|later| Timestamp { sec: 1_795_907_225 + later, nsec: 0 });
    let names = ["hourly-2026-11-28T23:00Z", "hourly-2026-11-29T00:00Z"];
    fs.superblock().keep_snapshots(&schedule, first).expect("room");
    fs.write("/d/f", "changed").expect("room");
    let from = disk.steps();
    fs.superblock().keep_snapshots(&schedule, second).expect("room");
    let mut met = [0; 4];
    for step in from..=disk.steps() {
        for survivors in [Survivors::None, Survivors::All] {
            let crash = disk.crash(step, survivors);
            assert_eq!(check(&crash).found, 0, "step {step}: {:?}", check(&crash));
            let again = opened(&crash, None);
            let there = again.superblock().snapshots().expect("readable");
            let [old, new] = names.map(|name| there.iter().any(|found| found == name.as_bytes()));
            met[usize::from(old) + 2 * usize::from(new)] += 1;
            assert_eq!(there.len(), usize::from(old) + usize::from(new), "step {step}: {there:?}");
            let file = |name: &str| again.read(format!("/.snapshots/{name}/d/f"));
            assert!(!old || file(names[0]) == Ok(pattern(0, LEN)), "step {step}");
            assert!(!new || file(names[1]) == Ok(b"changed".to_vec()), "step {step}");
            // The thread of the next mount does the rest.
            again.superblock().keep_snapshots(&schedule, second).expect("room");
            assert_eq!(again.superblock().snapshots(), Ok(vec![names[1].into()]), "step {step}");
            again.settle();
            audit(&again).unwrap_or_else(|what| panic!("step {step}: {what}"));
            close(&again);
            assert_eq!(check(&crash).found, 0, "step {step}, closed: {:?}", check(&crash));
        }
    }
    assert!(met[0] == 0 && met[1..].iter().all(|met| *met > 0), "none, old, new, both: {met:?}");
}

#[test]
fn after_a_crash_at_each_step_of_a_restore_the_tree_is_the_old_one_or_the_new_one() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = with_tree();
    fs.superblock().take_snapshot(b"one").expect("room");
    fs.write("/d/f", "changed").expect("room");
    fs.remove_file("/d/e/little").expect("it is there");
    fs.create_dir_all("/new/below").expect("room");
    fs.write("/new/below/file", "new").expect("room");
    fs.sync().expect("the disk works");
    let from = disk.steps();
    fs.superblock().restore_snapshot(b"one", b"").expect("room");
    let (mut old, mut new) = (0, 0);
    for step in from..=disk.steps() {
        for survivors in [Survivors::None, Survivors::All] {
            let crash = disk.crash(step, survivors);
            assert_eq!(check(&crash).found, 0, "step {step}: {:?}", check(&crash));
            let again = opened(&crash, None);
            is_whole(&again);
            if again.exists("/new") {
                old += 1;
                assert_eq!(again.read_to_string("/d/f"), Ok("changed".into()), "step {step}");
                assert_eq!(again.read_to_string("/new/below/file"), Ok("new".into()), "step {step}");
                assert!(!again.exists("/d/e/little"), "step {step}");
            } else {
                new += 1;
                assert!(again.read("/d/f") == Ok(pattern(0, LEN)), "step {step}");
                assert_eq!(again.read_to_string("/d/e/little"), Ok("text".into()), "step {step}");
            }
            again.settle();
            audit(&again).unwrap_or_else(|what| panic!("step {step}: {what}"));
            close(&again);
            assert_eq!(check(&crash).found, 0, "step {step}, closed: {:?}", check(&crash));
        }
    }
    assert!(old > 0 && new > 0, "old {old}, new {new}");
}
