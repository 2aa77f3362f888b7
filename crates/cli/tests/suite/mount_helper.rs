//! This program as a helper of mount(8), and remounting.

use crate::harness::{Ran, SLUICE, Scratch, Served, can_mount, is_mounted, skipped, sluice, umount};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program under the name of the helper, in a directory of its own.
fn helper(scratch: &Scratch) -> PathBuf {
    let helper = scratch.dir("sbin").join("mount.fuse.sluice");
    std::os::unix::fs::symlink(SLUICE, &helper).unwrap();
    helper
}

fn run(program: &Path, arguments: &[&str]) -> Ran {
    Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("it starts").into()
}

/// Type, source and flags of the mount on `dir`, from the table of mounts.
fn shown(dir: &Path) -> [String; 3] {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == dir.to_str()).expect("it is mounted");
    let (left, right) = line.split_once(" - ").unwrap();
    let right: Vec<&str> = right.split(' ').collect();
    [right[0], right[1], left.split(' ').nth(5).unwrap()].map(str::to_owned)
}

fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped(test, "mount(8) and remounting are for root");
    }
    is_root
}

#[test]
fn the_helper_mounts_what_mount_asks_for_and_ignores_what_is_for_others() {
    let test = "the_helper_mounts_what_mount_asks_for_and_ignores_what_is_for_others";
    if !can_mount(test) {
        return;
    }
    let scratch = Scratch::new();
    let (helper, dir) = (helper(&scratch), scratch.dir("m"));
    let text = dir.to_str().unwrap();
    let _served = Served(dir.clone());
    assert_eq!(run(&helper, &["scratch", text, "-f", "-o", "rw"]).well(), "");
    assert!(!is_mounted(&dir));
    let options = "rw,nosuid,size=64K,mode=1777,x-systemd.automount,_netdev,nofail";
    assert_eq!(run(&helper, &["scratch", text, "-n", "-o", options, "-t", "fuse.sluice"]).well(), "");
    let [kind, source, flags] = shown(&dir);
    assert_eq!((kind.as_str(), source.as_str()), ("fuse.sluice", "scratch"));
    assert!(flags.contains("nosuid"), "{flags}");
    assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o7777, 0o1777);
    umount(&dir);
    for (arguments, status, word) in [
        (vec!["scratch"], 1, "give SOURCE DIR"),
        (vec!["scratch", text, "-o", "turbo"], 1, "unknown mount option"),
        (vec!["scratch", "/no/such/place"], 32, "give an existing directory"),
        (vec!["./store", text], 1, "give the store's path from the root on"),
        (vec!["s3:/bucket", text], 1, "write s3://bucket"),
    ] {
        let ran = run(&helper, &arguments);
        assert_eq!(ran.status, Some(status), "{}", ran.stderr);
        assert!(ran.stderr.starts_with("mount.fuse.sluice: ") && ran.stderr.contains(word), "{}", ran.stderr);
    }
}

#[test]
fn a_source_that_is_a_path_is_a_store_whose_files_stay() {
    let test = "a_source_that_is_a_path_is_a_store_whose_files_stay";
    if !can_mount(test) {
        return;
    }
    let scratch = Scratch::new();
    let (helper, dir, store) = (helper(&scratch), scratch.dir("m"), scratch.dir("store"));
    let (text, source) = (dir.to_str().unwrap(), store.to_str().unwrap());
    let _served = Served(dir.clone());
    let refused = run(&helper, &[source, text]);
    assert_eq!(refused.status, Some(32), "{}", refused.stderr);
    assert!(refused.stderr.contains("mkfs"), "{}", refused.stderr);
    sluice(["mkfs", source]).well();
    for round in 0..8 {
        assert_eq!(run(&helper, &[source, text, "-o", "rw,noatime,_netdev"]).well(), "");
        assert_eq!(shown(&dir)[..2], ["fuse.sluice", source]);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), round);
        std::fs::write(dir.join(round.to_string()), vec![1; 4 << 20]).unwrap();
        // Not ours, it returns before the server has brought everything to the store and ended.
        match rustix::process::geteuid().is_root() {
            // A process that another test forks has the file open too, until it executes its program.
            true => crate::harness::until("it is unmounted", || {
                rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).is_ok()
            }),
            false => umount(&dir),
        }
    }
    assert!(sluice(["fsck", source]).well().contains("clean"));
}

#[test]
fn a_mount_becomes_read_only_and_writable_again_and_keeps_its_other_flags() {
    let test = "a_mount_becomes_read_only_and_writable_again_and_keeps_its_other_flags";
    if !can_mount(test) || !is_root(test) {
        return;
    }
    for mode in ["locks=kernel", "locks=sluice"] {
        let scratch = Scratch::new();
        let (helper, dir) = (helper(&scratch), scratch.dir("m"));
        let text = dir.to_str().unwrap();
        let _served = Served::on(&dir, &format!("{mode},nosuid,noexec,noatime"));
        let file = dir.join("file");
        let open = std::fs::File::create(&file).unwrap();
        let line = sluice(["mount", "-o", "remount,ro", text]).complaint(1);
        assert!(line.contains("open for writing"), "{line}");
        drop(open);
        // A process that another test forks has the file open too, until it executes its program.
        crate::harness::until("it is read-only", || {
            sluice(["mount", "-o", "remount,ro", text]).status == Some(0)
        });
        let refused = std::fs::write(&file, "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert!(std::fs::create_dir(dir.join("d")).is_err() && std::fs::remove_file(&file).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"");
        let flags = shown(&dir)[2].clone();
        assert!(["ro", "nosuid", "noexec", "noatime"].iter().all(|flag| flags.contains(flag)), "{flags}");
        // mount(8) hands back what the kernel shows, and what stands in /etc/fstab.
        let shown_and_listed =
            "rw,suid,relatime,user_id=0,group_id=0,default_permissions,allow_other,size=1G";
        let list = format!("remount,{mode},{shown_and_listed}");
        let ran = run(&helper, &["sluicefs", text, "-o", &list]);
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        assert!(!ran.stderr.contains(mode), "it stays as it is: {}", ran.stderr);
        assert!(ran.stderr.contains("size=1G: as when it was mounted"), "{}", ran.stderr);
        std::fs::write(&file, "x").unwrap();
        let flags = shown(&dir)[2].clone();
        assert!(
            flags.contains("noexec") && flags.contains("relatime") && !flags.contains("nosuid"),
            "{flags}"
        );
        umount(&dir);
        let line = sluice(["mount", "-o", "remount,ro", text]).complaint(1);
        assert!(line.contains("no sluicefs is mounted there"), "{line}");
    }
}
