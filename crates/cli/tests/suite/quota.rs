//! `sluice quota`: what programs see of a quota, in memory and over a store, also after the server was killed.

use crate::harness::{Mounted, Scratch, can_mount, sluice, umount};
use crate::store::Stored;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Limit and use in bytes, as `quota --json` says.
fn quota(dir: &Path) -> (Option<u64>, Option<u64>) {
    let said = sluice(["quota".as_ref(), "--json".as_ref(), dir.as_os_str()]).well();
    let said: Value = serde_json::from_str(&said).expect("JSON");
    (said["limit_bytes"].as_u64(), said["used_bytes"].as_u64())
}

/// Waits until so many bytes are used: the kernel tells the server a moment later that nobody uses a removed file any more.
fn comes_to_use(dir: &Path, bytes: u64) {
    for _ in 0..500 {
        if quota(dir).1 == Some(bytes) {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{:?} and not {bytes}", quota(dir));
}

fn set(dir: &Path, size: &str) -> String {
    sluice(["quota".as_ref(), dir.as_os_str(), OsStr::new(size)]).well()
}

/// Size, used and free room in bytes, as df shows them.
fn df(dir: &Path) -> [u64; 3] {
    let ran =
        Command::new("df").args(["-B1", "--output=size,used,avail"]).arg(dir).output().expect("df runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let numbers: Vec<u64> =
        said.lines().last().unwrap_or("").split_whitespace().flat_map(str::parse).collect();
    numbers.try_into().expect("three numbers")
}

/// Uses the quota of a directory in `mount`, as programs do.
fn use_quota(mount: &Path) {
    let (dir, other) = (mount.join("dir"), mount.join("other"));
    fs::create_dir_all(dir.join("below")).expect("room");
    fs::create_dir(&other).expect("room");
    fs::write(dir.join("below/before"), vec![1; MIB]).expect("room");
    assert_eq!(sluice(["quota".as_ref(), dir.as_os_str()]).well(), format!("{}: no quota\n", dir.display()));
    let said = set(&dir, "4M");
    assert_eq!(said, format!("{}: 1.0 MiB of 4.0 MiB used\n", dir.display()));
    let [mib, limit] = [MIB as u64, 4 * MIB as u64];
    assert_eq!(df(&dir.join("below")), [limit, mib, limit - mib]);
    assert!(df(mount)[0] > limit);
    // A program that writes too much gets what fits, and then an error.
    let ran = Command::new("dd")
        .args(["if=/dev/zero", "bs=64K", "count=100"])
        .arg(format!("of={}", dir.join("much").display()))
        .env("LC_ALL", "C")
        .output()
        .expect("dd runs");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(said.contains("Disk quota exceeded") && said.contains("48+0 records out"), "{said}");
    assert_eq!((df(&dir), quota(&dir)), ([limit, limit, 0], (Some(limit), Some(limit))));
    fs::write(other.join("file"), vec![2; MIB]).expect("there is no quota");
    let refused = fs::rename(other.join("file"), dir.join("file")).expect_err("it is full");
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded);
    fs::remove_file(dir.join("much")).expect("it is there");
    comes_to_use(&dir, mib);
    fs::rename(other.join("file"), dir.join("file")).expect("room");
    assert_eq!(quota(&dir.join("below")), (Some(limit), Some(2 * mib)));
    let across = fs::rename(dir.join("below"), other.join("below")).expect_err("a directory stays");
    assert_eq!(across.kind(), ErrorKind::CrossesDevices);
    let moved = Command::new("mv").arg(dir.join("below")).arg(&other).status().expect("mv runs");
    assert!(moved.success());
    comes_to_use(&dir, mib);
}

#[test]
fn a_directory_of_a_mount_in_memory_holds_what_its_quota_says() {
    if let Some(mounted) = Mounted::new("a_directory_of_a_mount_in_memory_holds_what_its_quota_says", "rw") {
        use_quota(mounted.dir());
        let dir = mounted.path("dir");
        assert_eq!(set(&dir, "none"), format!("{}: no quota\n", dir.display()));
        fs::write(dir.join("much"), vec![3; 8 * MIB]).expect("there is no quota");
    }
}

#[test]
fn the_quotas_of_a_store_are_exact_after_its_server_was_killed() {
    if !can_mount("the_quotas_of_a_store_are_exact_after_its_server_was_killed") {
        return;
    }
    let scratch = Scratch::new();
    let stored = Stored::new(&scratch);
    stored.mount("rw");
    use_quota(&stored.dir);
    let dir = stored.dir.join("dir");
    let mut file = File::create(dir.join("synced")).expect("room");
    file.write_all(&vec![4; MIB]).and_then(|()| file.sync_all()).expect("room");
    drop(file);
    let before = (quota(&dir), df(&dir));
    stored.kill();
    stored.assert_clean();
    stored.mount("rw");
    assert_eq!((quota(&dir), df(&dir)), before);
    assert_eq!(before.0, (Some(4 * MIB as u64), Some(2 * MIB as u64)));
    // Another way to end, another way to count.
    umount(&stored.dir);
    stored.assert_clean();
    stored.mount("rw");
    assert_eq!((quota(&dir), df(&dir)), before);
    let refused = fs::write(dir.join("more"), vec![5; 3 * MIB]).expect_err("it does not fit");
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded);
}

#[test]
fn a_quota_that_cannot_be_is_refused_with_a_line_that_says_what_to_do() {
    let Some(mounted) =
        Mounted::new("a_quota_that_cannot_be_is_refused_with_a_line_that_says_what_to_do", "rw")
    else {
        return;
    };
    let refused = |path: &Path, size: &str, status| {
        let ran = sluice(["quota".as_ref(), path.as_os_str(), OsStr::new(size)]);
        ran.complaint(status)
    };
    let (dir, below) = (mounted.path("dir"), mounted.path("dir/below"));
    fs::create_dir_all(&below).expect("room");
    fs::write(mounted.path("file"), "").expect("room");
    for size in ["", "0", "4095", "-1", "10X", "1e9", "None", "99999999999999999999"] {
        let said = refused(&dir, size, 2);
        assert!(said.contains("give 4096 bytes or more, such as 10G, or `none`"), "{size}: {said}");
    }
    assert!(refused(&dir, "none", 1).contains("it has no quota"));
    assert!(refused(mounted.dir(), "1M", 1).contains("the mount option size="));
    assert!(refused(&mounted.path("file"), "1M", 1).contains("Not a directory"));
    assert!(refused(&scratch_outside(), "1M", 1).contains("not in a sluicefs mount"));
    set(&below, "1M");
    assert!(refused(&dir, "1M", 1).contains("quotas do not nest"));
    set(&below, "none");
    set(&dir, "1M");
    assert!(refused(&below, "1M", 1).contains("quotas do not nest"));
    set(&dir, "none");
    fs::write(below.join("twin"), "").expect("room");
    fs::hard_link(below.join("twin"), mounted.path("twin")).expect("room");
    assert!(refused(&dir, "1M", 1).contains("`find DIR -links +1` shows such files"));
    sluice(["snapshot".as_ref(), "create".as_ref(), dir.as_os_str(), "one".as_ref()]).well();
    assert!(refused(&mounted.path(".snapshots/one/dir"), "1M", 1).contains("it is in a snapshot"));
}

fn scratch_outside() -> std::path::PathBuf {
    std::env::temp_dir()
}
