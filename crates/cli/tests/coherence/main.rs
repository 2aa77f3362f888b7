//! `sluice check-coherence`: planted faults are found and named, coherent mounts pass, and nothing is left behind.
//!
//! A program of its own, since threads of this process serve the mounts with faults: a test beside that waits for all mounts of the process
//! would wait for them, too.

#[path = "../suite/harness/mod.rs"]
mod harness;
mod incoherent;

use harness::{Ran, SLUICE, Scratch, can_mount, kill, skipped, sluice, small_disk, until};
use incoherent::{Fault, IncoherentMount, mounted};
use serde_json::Value;
use sluice_console::mounted::Mounted;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Seconds for a fault, which is found much sooner.
const FOUND_WITHIN: &str = "60";

fn command<S: AsRef<OsStr>>(dirs: &[PathBuf], more: &[S]) -> Command {
    let mut command = Command::new(SLUICE);
    command.arg("check-coherence").args(dirs).args(more).stdin(Stdio::null());
    command
}

fn check<S: AsRef<OsStr>>(dirs: &[PathBuf], more: &[S]) -> Ran {
    Ran::from(command(dirs, more).output().expect("it starts"))
}

/// Mounts with a fault; none, said loudly, where that is not allowed.
fn with_fault(test: &str, fault: Fault) -> Option<(Scratch, Vec<PathBuf>, Vec<IncoherentMount>)> {
    let scratch = Scratch::new();
    let dirs = vec![scratch.dir("a"), scratch.dir("b")];
    let Some(mounts) = mounted(&dirs, fault) else {
        skipped(test, "only root may mount by mount(2), and /dev/fuse is needed (cure: run as root)");
        return None;
    };
    Some((scratch, dirs, mounts))
}

/// Two more places of the mount on `dir`.
fn bound(scratch: &Scratch, dir: &Path) -> Vec<PathBuf> {
    let places = ["first", "second"].map(|name| scratch.dir(name));
    for place in &places {
        let bound =
            Command::new("mount").arg("--bind").args([dir, place]).status().expect("mount(8) is there");
        assert!(bound.success());
    }
    places.to_vec()
}

/// A name that is wrong is also a wrong answer about its file.
const OF_NAMES: &[&str] = &[
    "stale name",
    "a rename seen half",
    "an unlinked name still opens",
    "two O_EXCL winners",
    "stale link count",
    "stale size",
    "stale readdir",
];
/// Bytes that are wrong may be the fault of any call on the file.
const OF_BYTES: &[&str] = &["a read of old bytes", "lost append", "a truncate undone", "stale size"];
/// Checks of a mount with a fault, one of which gives it its own name.
const CHECKS: u32 = 60;

#[test]
fn each_planted_fault_is_found_and_named() {
    let test = "each_planted_fault_is_found_and_named";
    // The name of the fault, and others that the same fault deserves: old bytes are a size, too.
    for (fault, name, others) in [
        (Fault::StaleSize, "stale size", OF_BYTES),
        (Fault::StaleName, "stale name", OF_NAMES),
        (Fault::LostAppend, "lost append", OF_BYTES),
        (Fault::TwoWinners, "two O_EXCL winners", &[]),
        (Fault::LockHeldTwice, "a lock held twice", &[]),
        (Fault::OldBytes, "a read of old bytes after a lock", OF_BYTES),
        (Fault::StaleReaddir, "stale readdir", &[]),
        (Fault::RenameSeenHalf, "a rename seen half", OF_NAMES),
        (Fault::UnlinkedOpens, "an unlinked name still opens", OF_NAMES),
        (Fault::TruncateUndone, "a truncate undone", OF_BYTES),
    ] {
        let Some((_scratch, dirs, _mounts)) = with_fault(test, fault) else { return };
        let mut is_named = false;
        for _ in 0..CHECKS {
            let ran = check(&dirs, &["--seconds", FOUND_WITHIN]);
            assert_eq!(ran.status, Some(1), "{fault:?}: {ran:?}");
            let wrong = ran.stdout.lines().next().and_then(|line| line.strip_prefix("incoherent: "));
            let wrong = wrong.unwrap_or_default();
            is_named = wrong.starts_with(name);
            assert!(
                is_named || others.iter().any(|other| wrong.starts_with(other)),
                "{fault:?}: {}",
                ran.stdout
            );
            assert_eq!(fs::read_dir(&dirs[0]).expect("it is there").count(), 0, "{fault:?}: it is clean");
            for part in
                ["process  begin us  end us    call\n", "no order explains these answers, whatever the other"]
            {
                assert!(ran.stdout.contains(part), "{}", ran.stdout);
            }
            if is_named {
                println!("{fault:?}:\n{}", ran.stdout);
                break;
            }
        }
        assert!(is_named, "{fault:?} has never had its own name");
    }
}

#[test]
fn the_same_server_without_a_fault_is_coherent() {
    let Some((_scratch, dirs, _mounts)) =
        with_fault("the_same_server_without_a_fault_is_coherent", Fault::None)
    else {
        return;
    };
    assert!(check(&dirs, &["--seconds", "5"]).well().starts_with("coherent\n"));
}

#[test]
fn two_places_of_a_tmpfs_and_of_a_mount_of_ours_are_coherent() {
    let test = "two_places_of_a_tmpfs_and_of_a_mount_of_ours_are_coherent";
    let scratch = Scratch::new();
    let Some(disk) = small_disk(&scratch, "disk", "16m") else {
        return skipped(test, "only root may mount a tmpfs (cure: run as root)");
    };
    let stranger = disk.join("stranger");
    fs::write(&stranger, "not ours").expect("room");
    let places = bound(&scratch, &disk);
    assert!(check(&places, &["--seconds", "5"]).well().starts_with("coherent\n"));
    assert_eq!(fs::read_to_string(&stranger).expect("it is untouched"), "not ours");
    assert_eq!(fs::read_dir(&disk).expect("it is there").count(), 1, "all else is removed");
    if can_mount(test) {
        let other = Scratch::new();
        let served = harness::Served::on(&other.dir("m"), "locks=sluice");
        let places = bound(&other, &served.0);
        assert!(check(&places, &["--seconds", "5"]).well().starts_with("coherent\n"));
    }
}

/// A cluster of three nodes on this machine.
fn cluster(scratch: &Scratch) -> Vec<Mounted> {
    let (store, shared) = (scratch.0.join("store"), scratch.0.join("cluster"));
    sluice([OsStr::new("mkfs"), store.as_os_str()]).well();
    sluice(["cluster".as_ref(), "init".as_ref(), "--ttl".as_ref(), "2".as_ref(), shared.as_os_str()]).well();
    let place = format!("dir:{}", shared.display());
    let options = [OsStr::new("--cluster"), OsStr::new(&place)];
    let node = || Mounted::start_on(Path::new(SLUICE), Some(&store), &options).expect("mounting works here");
    (0..3).map(|_| node()).collect()
}

#[test]
fn nodes_of_a_cluster_are_coherent_also_when_one_is_killed() {
    let test = "nodes_of_a_cluster_are_coherent_also_when_one_is_killed";
    if !can_mount(test) {
        return;
    }
    let scratch = Scratch::new();
    let nodes = cluster(&scratch);
    let dirs: Vec<_> = nodes.iter().map(|node| node.path().to_owned()).collect();
    assert!(check(&dirs, &["--seconds", "5"]).well().starts_with("coherent\n"));
    // The owner dies. Two nodes go on.
    let nemesis = format!("sleep 1; kill -9 {}", nodes[0].server_pid());
    let ran = check(&dirs, &["--seconds", "15", "--json", "--nemesis", &nemesis]);
    let told: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert!(told["counterexample"].is_null(), "{told:#}");
    assert_eq!(told["nemesis"]["status"], 0, "{told}");
    let errors = told["errors"].as_array().expect("a list");
    assert!(!errors.is_empty(), "the nemesis has struck: {told}");
    drop(nodes);
}

#[test]
fn the_json_has_the_calls_that_contradict_each_other() {
    let test = "the_json_has_the_calls_that_contradict_each_other";
    let Some((_scratch, dirs, _mounts)) = with_fault(test, Fault::LockHeldTwice) else { return };
    let ran = check(&dirs, &["--seconds", FOUND_WITHIN, "--json", "--nemesis", "exit 0"]);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let told: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(told["coherent"], false);
    let found = &told["counterexample"];
    assert_eq!(found["wrong"], "a lock held twice", "{told:#}");
    let calls = found["calls"].as_array().expect("a list");
    let locks = calls.iter().filter(|call| call["call"].as_str().is_some_and(|call| call.contains("lock")));
    let by: Vec<_> = locks.map(|call| call["directory"].as_str().expect("a path")).collect();
    assert!(by.contains(&dirs[0].to_str().expect("text")) && by.contains(&dirs[1].to_str().expect("text")));
    assert!(
        calls.iter().all(|call| call["begun_ns"].as_u64() <= call["ended_ns"].as_u64().or(Some(u64::MAX)))
    );
    assert!(calls.len() <= 6, "few calls: {found:#}");
    assert_eq!(
        found["round"].as_array().map(Vec::len),
        Some(calls.len() + found["others"].as_u64().expect("a count") as usize)
    );
}

#[test]
fn a_check_that_cannot_be_made_says_in_a_line_why() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.dir("a"), scratch.dir("b"));
    let complaint = |dirs: &[&PathBuf], more: &[&str]| {
        let dirs: Vec<PathBuf> = dirs.iter().map(|dir| (*dir).clone()).collect();
        check(&dirs, more).complaint(2)
    };
    let other_trees = complaint(&[&a, &b], &[]);
    assert!(other_trees.contains("does not show the directory"), "{other_trees}");
    assert!(other_trees.contains("give directories of one tree"), "{other_trees}");
    let missing = complaint(&[&scratch.0.join("missing"), &b], &[]);
    assert!(missing.contains("cannot make a directory there"), "{missing}");
    let one = complaint(&[&a], &[]);
    assert!(one.contains("DIR"), "{one}");
    complaint(&[&a, &a], &["--seconds", "0"]);
    complaint(&[&a; 13], &[]);
    assert_eq!(scratch.names().len(), 2, "nothing is left: {:?}", scratch.names());
    assert!([&a, &b].iter().all(|dir| fs::read_dir(dir).expect("it is there").next().is_none()));
    let nemesis = check(&[a.clone(), a.clone()], &["--seconds", "2", "--nemesis", "exit 3"]);
    assert_eq!(nemesis.status, Some(2), "{nemesis:?}");
    assert!(nemesis.stderr.contains("--nemesis ended with status 3"), "{nemesis:?}");
    assert!(nemesis.stdout.contains("nemesis    exit 3 ended with status 3"), "{nemesis:?}");
}

#[test]
fn an_interrupted_check_removes_what_it_made_and_ends_its_nemesis() {
    let scratch = Scratch::new();
    let dir = scratch.dir("a");
    let mark = scratch.0.join("nemesis");
    let nemesis = format!("echo $$ > {}; exec sleep 1000", mark.display());
    let dirs = [dir.clone(), dir.clone()];
    let mut child = command(&dirs, &["--seconds", "600", "--nemesis", &nemesis]).spawn().expect("it starts");
    until("the nemesis runs", || fs::read_to_string(&mark).is_ok_and(|text| text.ends_with('\n')));
    kill("-INT", child.id());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(fs::read_dir(&dir).expect("it is there").count(), 0);
    let pid = fs::read_to_string(&mark).expect("it is there");
    until("the nemesis is gone", || !Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn mounts_that_hang_hold_nothing_up_and_get_no_verdict() {
    let test = "mounts_that_hang_hold_nothing_up_and_get_no_verdict";
    if !can_mount(test) {
        return;
    }
    let scratch = Scratch::new();
    let served = harness::Served::on(&scratch.dir("m"), "locks=sluice,holder=off");
    let server = harness::server_of(&served.0).to_string();
    let dirs = [served.0.clone(), served.0.clone()];
    kill("-STOP", server.parse().expect("a number"));
    let said = check(&dirs, &["--timeout", "1"]).complaint(2);
    assert!(said.contains("cannot make a directory there: no answer in 1 s: does the mount hang?"), "{said}");
    kill("-CONT", server.parse().expect("a number"));
    let stop = format!("kill -STOP {server}");
    // The rounds before the stop are few, and each later one takes a second.
    let ran = check(&dirs, &["--seconds", "15", "--timeout", "1", "--nemesis", &stop]);
    kill("-CONT", server.parse().expect("a number"));
    assert!(ran.stdout.starts_with("no verdict\n"), "{ran:?}");
    assert!(
        ran.stderr.contains("most rounds could not begin: give more --seconds, or cure the mounts"),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("cannot be removed: remove it by hand"), "{ran:?}");
}

#[test]
fn a_directory_that_is_moved_away_is_said_to_keep_files() {
    let scratch = Scratch::new();
    let dir = scratch.dir("a");
    let nemesis = format!("mv {} {}", dir.display(), scratch.0.join("moved").display());
    let ran = check(&[dir.clone(), dir], &["--seconds", "1", "--nemesis", &nemesis]);
    assert!(ran.stderr.contains("cannot be removed: remove it by hand"), "{ran:?}");
    assert_eq!(fs::read_dir(scratch.0.join("moved")).expect("it is there").count(), 1);
}

#[test]
fn mounts_that_refuse_get_no_verdict() {
    let test = "mounts_that_refuse_get_no_verdict";
    let Some((_scratch, dirs, _mounts)) = with_fault(test, Fault::Refuses) else { return };
    let ran = check(&dirs, &["--seconds", "1"]);
    assert!(ran.stdout.starts_with("no verdict\n"), "{ran:?}");
    let said = ran.complaint(2);
    assert!(said.contains("most calls fail (Input/output error): cure that and check again"), "{said}");
}

#[test]
fn a_directory_that_takes_no_file_is_named() {
    let test = "a_directory_that_takes_no_file_is_named";
    let scratch = Scratch::new();
    let Some(disk) = small_disk(&scratch, "disk", "16m") else {
        return skipped(test, "only root may mount a tmpfs (cure: run as root)");
    };
    let places = bound(&scratch, &disk);
    let remount = Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&places[1]).status();
    assert!(remount.expect("mount(8) is there").success());
    let said = check(&places, &["--seconds", "1"]).complaint(2);
    assert!(said.contains("second: cannot make a file there"), "{said}");
    assert_eq!(fs::read_dir(&disk).expect("it is there").count(), 0);
}

#[test]
fn rounds_that_lose_changes_beside_a_nemesis_are_counted() {
    let test = "rounds_that_lose_changes_beside_a_nemesis_are_counted";
    let Some((_scratch, dirs, _mounts)) = with_fault(test, Fault::LostAppend) else { return };
    let has_lost = || {
        let ran = check(&dirs, &["--seconds", FOUND_WITHIN, "--nemesis", "true"]);
        ran.stdout.contains(" lost changes that no fsync had confirmed\n")
    };
    assert!((0..20).any(|_| has_lost()), "an append that is lost is a loss");
}
