//! `sluice scrub`: of a sound store, of one that the disk damaged while it is mounted, and one that ends early.

use crate::harness::{SLUICE, Scratch, can_mount, sluice, umount, until};
use crate::store::Stored;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The exit status and the output of `scrub --json`.
fn scrub(dir: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let arguments = ["scrub", "--json"].iter().chain(more).map(AsRef::as_ref);
    let ran = sluice(arguments.chain([dir.as_os_str()]));
    assert_eq!(ran.stderr, "");
    (ran.status, serde_json::from_str(&ran.stdout).expect("JSON"))
}

/// The bytes of file `number`: no two files have a page in common.
fn bytes_of(number: u32) -> Vec<u8> {
    (0..200_000_u32).flat_map(|at| (at ^ number << 20).to_le_bytes()).collect()
}

/// A mounted store with ten files that are on the disk.
fn filled(scratch: &Scratch) -> Stored {
    let stored = Stored::new(scratch);
    stored.mount("rw");
    fs::create_dir(stored.dir.join("dir")).expect("room");
    for number in 0..10 {
        fs::write(stored.dir.join(format!("dir/{number}")), bytes_of(number)).expect("room");
    }
    stored.umount();
    stored.mount("rw");
    stored
}

/// The counts of `sluice stat`.
fn stat(dir: &Path) -> Value {
    let said = sluice(["stat".as_ref(), "--json".as_ref(), dir.as_os_str()]).well();
    serde_json::from_str(&said).expect("JSON")
}

/// Flips a bit of the second page of file `number` on the disk.
fn flip(stored: &Stored, number: u32) {
    let page = &bytes_of(number)[4096..8192];
    for entry in fs::read_dir(&stored.store).expect("a store") {
        let entry = entry.expect("a store");
        if !entry.file_name().to_string_lossy().starts_with("segment") {
            continue;
        }
        let content = fs::read(entry.path()).expect("ours");
        if let Some(at) = content.chunks(4096).position(|found| found == page) {
            let file = OpenOptions::new().write(true).open(entry.path()).expect("ours");
            return file.write_all_at(&[page[5] ^ 1], at as u64 * 4096 + 5).expect("ours");
        }
    }
    panic!("no segment has file {number}");
}

#[test]
fn a_scrub_names_the_files_that_the_disk_damaged_while_they_are_in_use() {
    if !can_mount("a_scrub_names_the_files_that_the_disk_damaged_while_they_are_in_use") {
        return;
    }
    let scratch = Scratch::new();
    let stored = filled(&scratch);
    let (status, told) = scrub(&stored.dir, &["--status"]);
    assert_eq!((status, &told["status"]), (Some(0), &Value::from("never")));
    assert_eq!(stat(&stored.dir)["scrub_damaged"], Value::Null);
    let (status, told) = scrub(&stored.dir, &[]);
    assert_eq!((status, &told["status"], &told["damaged"]), (Some(0), &"clean".into(), &0.into()));
    assert!(told["bytes"].as_u64().is_some_and(|bytes| bytes >= 8_000_000), "{told}");
    assert_eq!(told["bytes"], told["total_bytes"]);
    // The mount has the bytes in memory.
    assert_eq!(fs::read(stored.dir.join("dir/3")).expect("sound"), bytes_of(3));
    flip(&stored, 3);
    let ran = sluice(["scrub".as_ref(), stored.dir.join("dir").as_os_str()]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(1), ""));
    assert!(ran.stdout.starts_with("damage: \"/dir/3\" from byte 4096: "), "{}", ran.stdout);
    assert!(ran.stdout.contains(": damaged: ") && ran.stdout.contains("restore or delete"), "{}", ran.stdout);
    let (status, told) = scrub(&stored.dir, &["--status"]);
    assert_eq!((status, &told["findings"][0]["path"]), (Some(1), &Value::from("/dir/3")), "{told}");
    let watched = stat(&stored.dir);
    assert!(watched["scrub_damaged"] == 1 && watched["scrub_unfinished"] == 0, "{watched}");
    assert_eq!(watched["scrub_bytes"], told["bytes"]);
    fs::remove_file(stored.dir.join("dir/3")).expect("it is there");
    fs::write(stored.dir.join("dir/3"), bytes_of(3)).expect("room");
    // The kernel lets go of the deleted file later.
    until("nothing is damaged", || scrub(&stored.dir, &[]).0 == Some(0));
    stored.umount();
    assert_eq!(sluice(["fsck".as_ref(), stored.store.as_os_str()]).status, Some(0));
}

#[test]
fn a_scrub_that_is_interrupted_goes_on_there_after_the_next_mount() {
    if !can_mount("a_scrub_that_is_interrupted_goes_on_there_after_the_next_mount") {
        return;
    }
    let scratch = Scratch::new();
    let stored = filled(&scratch);
    flip(&stored, 0);
    let slow = ["scrub".as_ref(), "--rate".as_ref(), "100K".as_ref(), stored.dir.as_os_str()];
    let child = Command::new(SLUICE).args(slow).stderr(Stdio::piped()).spawn().expect("sluice starts");
    // The state is in the store as soon as something is found.
    until("it has found the damage", || scrub(&stored.dir, &["--status"]).1["damaged"] == 1);
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let ended = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(130) || ended.status.signal() == Some(2), "{ended:?}");
    assert!(said.contains("the scrub stopped"), "{said}");
    let (status, before) = scrub(&stored.dir, &["--status"]);
    assert_eq!((status, &before["status"]), (Some(1), &Value::from("unfinished")));
    stored.umount();
    stored.mount("rw");
    let (_, after) = scrub(&stored.dir, &["--status"]);
    assert_eq!((&after["status"], &after["damaged"]), (&Value::from("unfinished"), &Value::from(1)));
    let (status, told) = scrub(&stored.dir, &[]);
    assert_eq!((status, &told["status"], &told["started"]), (Some(1), &"damaged".into(), &before["started"]));
    assert_eq!((&told["bytes"], &told["findings"]), (&told["total_bytes"], &Value::from(Vec::<u8>::new())));
    let (_, anew) = scrub(&stored.dir, &["--restart"]);
    assert_eq!(anew["findings"][0]["path"], Value::from("/dir/0"), "{anew}");
    stored.umount();
}

#[test]
fn a_scrub_of_what_is_no_store_and_with_wrong_rates_is_refused_in_a_line() {
    if !can_mount("a_scrub_of_what_is_no_store_and_with_wrong_rates_is_refused_in_a_line") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("m");
    assert!(sluice(["scrub".as_ref(), dir.as_os_str()]).complaint(1).contains("not in a sluicefs mount"));
    sluice(["mount".as_ref(), dir.as_os_str()]).well();
    assert!(
        sluice(["scrub".as_ref(), dir.as_os_str()]).complaint(1).contains("only a store has data to check")
    );
    for rate in ["0", "fast", "12Q", ""] {
        let line = sluice(["scrub".as_ref(), "--rate".as_ref(), rate.as_ref(), dir.as_os_str()]).complaint(2);
        assert!(line.contains("give bytes a second, such as 50M"), "{rate}: {line}");
    }
    umount(&dir);
}

#[test]
fn a_mount_scrubs_by_the_clock_once_in_a_period_and_tells_what_it_found() {
    if !can_mount("a_mount_scrubs_by_the_clock_once_in_a_period_and_tells_what_it_found") {
        return;
    }
    let scratch = Scratch::new();
    let stored = filled(&scratch);
    stored.umount();
    flip(&stored, 7);
    let ended = |wanted: i64| {
        let (_, told) = scrub(&stored.dir, &["--status"]);
        told["finished"].as_i64().is_some_and(|finished| finished >= wanted)
    };
    stored.mount("scrub=weekly");
    until("a scrub has ended", || ended(1));
    let (status, told) = scrub(&stored.dir, &["--status"]);
    assert_eq!((status, &told["findings"][0]["path"]), (Some(1), &Value::from("/dir/7")), "{told}");
    let watched = stat(&stored.dir);
    assert!(watched["scrub_damaged"] == 1 && watched["scrub_end_age_seconds"].is_u64(), "{watched}");
    assert_eq!(watched["scrub_failure"], Value::Null);
    stored.umount();
    // A later mount knows; another week may have begun meanwhile.
    stored.mount("scrub=weekly");
    assert!(stat(&stored.dir)["scrub_end_age_seconds"].is_u64());
    stored.umount();
    for (options, wanted) in [
        ("scrub=hourly", "mount option scrub=hourly: give daily, weekly, monthly or off"),
        (
            "ro,scrub=weekly",
            "mount option scrub=weekly: only with a store, and not with ro: the place of a scrub is noted in the store",
        ),
    ] {
        let words = ["mount", "-o", options].map(AsRef::as_ref);
        let refused = sluice([&words[..], &[stored.store.as_os_str(), stored.dir.as_os_str()]].concat());
        assert!(refused.complaint(2).contains(wanted), "{options}");
    }
}

#[test]
fn the_unit_that_a_timer_starts_scrubs_and_fails_for_damage() {
    if !can_mount("the_unit_that_a_timer_starts_scrubs_and_fails_for_damage") {
        return;
    }
    let scratch = Scratch::new();
    let stored = filled(&scratch);
    let unit = include_str!("../../../../contrib/sluice-scrub@.service");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/sluice "))
        .expect("it starts");
    let run = || {
        let dir = stored.dir.to_str().expect("text");
        sluice(line.split(' ').map(|word| if word == "%f" { dir } else { word }))
    };
    assert!(run().well().contains(": clean: "));
    flip(&stored, 5);
    let ran = run();
    assert!(ran.status == Some(1) && ran.stdout.contains("\"/dir/5\""), "{}", ran.stdout);
    stored.umount();
}
