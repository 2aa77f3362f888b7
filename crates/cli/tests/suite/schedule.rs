//! Snapshots that a mount takes by the clock (`-o snapshots=`).

use crate::harness::{Mounted, Scratch, can_mount, sluice, umount, until};
use serde_json::Value;
use std::path::Path;

/// The snapshots of the mount on `dir`: name and time.
fn listed(dir: &Path) -> Vec<(String, String)> {
    let json = sluice(["snapshot".as_ref(), "list".as_ref(), "--json".as_ref(), dir.as_os_str()]).well();
    let all: Vec<Value> = serde_json::from_str(&json).expect("JSON");
    let text = |snapshot: &Value, field: &str| snapshot[field].as_str().expect("text").to_owned();
    all.iter().map(|snapshot| (text(snapshot, "name"), text(snapshot, "created"))).collect()
}

#[test]
fn a_mount_takes_the_snapshot_that_is_due_and_another_mount_of_the_store_takes_none_in_the_same_month() {
    if !can_mount("a_mount_takes_the_snapshot_that_is_due") {
        return;
    }
    let scratch = Scratch::new();
    let (store, dir) = (scratch.0.join("store"), scratch.dir("m"));
    sluice(["mkfs".as_ref(), store.as_os_str()]).well();
    let mount = || {
        let options = ["mount", "-o", "snapshots=daily:2,monthly:3"].map(AsRef::as_ref);
        sluice([&options[..], &[store.as_os_str(), dir.as_os_str()]].concat()).well();
        until("snapshots are taken", || listed(&dir).len() >= 2);
    };
    mount();
    let before = listed(&dir);
    let periods: Vec<_> = before.iter().filter_map(|(name, _)| name.split('-').next()).collect();
    assert_eq!(periods, ["daily", "monthly"]);
    std::fs::write(dir.join("file"), "new").expect("room");
    umount(&dir);
    mount();
    let after = listed(&dir);
    // A day or a month may have begun meanwhile.
    assert!(before.iter().all(|snapshot| after.contains(snapshot)), "{before:?} {after:?}");
    let stat = sluice(["stat".as_ref(), dir.as_os_str()]).well();
    assert!(!stat.contains("snapshots fail"), "{stat}");
    umount(&dir);
}

#[test]
fn names_of_the_clock_are_refused_by_hand_and_schedules_that_cannot_be_kept_at_mount() {
    let Some(mounted) = Mounted::new("names_of_the_clock_are_refused_by_hand", "snapshots=monthly:1") else {
        return;
    };
    let dir = mounted.dir().to_str().expect("text").to_owned();
    until("a snapshot is taken", || !listed(mounted.dir()).is_empty());
    let refused = sluice(["snapshot", "create", &dir, "hourly-2026-11-28T23:00Z"]).complaint(2);
    assert!(refused.contains("such names are of snapshots that the clock takes"), "{refused}");
    sluice(["snapshot", "create", &dir, "hourly-of-mine"]).well();
    // A snapshot of the clock may be deleted by hand.
    let name = listed(mounted.dir()).pop().expect("it was taken").0;
    sluice(["snapshot", "delete", &dir, &name]).well();
    let scratch = Scratch::new();
    let other = scratch.dir("other").to_str().expect("text").to_owned();
    for (options, wanted) in [
        ("ro,snapshots=hourly:2", "mount option snapshots=hourly:2: not with ro"),
        ("snapshots=yearly:2", "mount option snapshots=yearly:2: give periods (frequently, hourly, daily,"),
        ("snapshots=hourly:2,daily:0", "mount option daily:0: give periods"),
    ] {
        let refused = sluice(["mount", "-o", options, &other]).complaint(2);
        assert!(refused.contains(wanted), "{refused}");
    }
}

#[test]
fn a_full_file_system_says_in_stat_why_no_snapshot_is_taken() {
    let name = "a_full_file_system_says_in_stat_why_no_snapshot_is_taken";
    let Some(mounted) = Mounted::new(name, "nr_inodes=1,snapshots=hourly:2") else { return };
    until("it has failed", || mounted.stat()["snapshot_failure"].is_string());
    assert!(mounted.stat()["snapshot_failure"].as_str().is_some_and(|why| why.contains("ENOSPC")));
    let stat = sluice(["stat".as_ref(), mounted.dir().as_os_str()]).well();
    assert!(stat.contains("snapshots fail, since"), "{stat}");
}
