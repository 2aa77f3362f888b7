//! How many messages the kernel sends for what programs do most, by kind, where the kernel checks permissions and where the
//! server does.
//!
//! Each row says the most that may be sent of each kind, because newer kernels send fewer. A row is tried several times: a
//! machine that is short of memory may make the kernel forget something, and ask again.

use crate::harness::{Fixture, find_program, fresh_dir, fresh_superblock, is_mounted, skipped};
use sluice_fuse::{Mount, MountOptions, opcode};
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The messages that are counted. FORGET is not: it comes when the kernel finds time.
const KINDS: [(u32, &str); 22] = [
    (opcode::LOOKUP, "LOOKUP"),
    (opcode::GETATTR, "GETATTR"),
    (opcode::STATX, "STATX"),
    (opcode::SETATTR, "SETATTR"),
    (opcode::MKNOD, "MKNOD"),
    (opcode::MKDIR, "MKDIR"),
    (opcode::UNLINK, "UNLINK"),
    (opcode::RMDIR, "RMDIR"),
    (opcode::OPEN, "OPEN"),
    (opcode::OPENDIR, "OPENDIR"),
    (opcode::CREATE, "CREATE"),
    (opcode::READ, "READ"),
    (opcode::WRITE, "WRITE"),
    (opcode::READDIR, "READDIR"),
    (opcode::READDIRPLUS, "READDIRPLUS"),
    (opcode::RELEASE, "RELEASE"),
    (opcode::RELEASEDIR, "RELEASEDIR"),
    (opcode::FLUSH, "FLUSH"),
    (opcode::ACCESS, "ACCESS"),
    (opcode::GETXATTR, "GETXATTR"),
    (opcode::LISTXATTR, "LISTXATTR"),
    (opcode::READLINK, "READLINK"),
];
const TRIES: usize = 5;
/// Files of the small tree.
const FILES: u64 = 10;

type Counts = BTreeMap<&'static str, u64>;

fn counts(mount: &Mount) -> Counts {
    KINDS.iter().map(|&(kind, name)| (name, mount.requests(kind))).collect()
}

/// The messages that `body` makes the kernel send.
fn sent(mount: &Mount, body: &dyn Fn()) -> Counts {
    let before = counts(mount);
    body();
    let after = counts(mount);
    after
        .into_iter()
        .map(|(name, count)| (name, count - before[name]))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// Runs `body` until it sends no more than `most`.
fn at_most(mount: &Mount, what: &str, most: &[(&str, u64)], body: &dyn Fn()) {
    let mut last = Counts::new();
    for _ in 0..TRIES {
        last = sent(mount, body);
        let allowed = |name| most.iter().find(|(allowed, _)| *allowed == name).map_or(0, |(_, count)| *count);
        if last.iter().all(|(name, count)| *count <= allowed(*name)) {
            println!("{what}: {last:?}");
            return;
        }
    }
    panic!("{what}: {last:?}, and at most {most:?} was expected");
}

/// Makes and removes a small tree as an archive program does.
fn unpack(dir: &Path) {
    let tree = dir.join("tree");
    fs::create_dir(&tree).expect("a fresh name");
    for number in 0..FILES {
        let path = tree.join(format!("file{number}"));
        let mut file = File::create_new(&path).expect("a fresh name");
        file.write_all(b"contents").expect("there is room");
        file.set_permissions(Permissions::from_mode(0o640)).expect("it is ours");
        file.set_modified(std::time::UNIX_EPOCH).expect("it is ours");
    }
    fs::remove_dir_all(&tree).expect("it is ours");
}

/// Checks the rows where the kernel checks permissions, or the server.
fn rows(fixture: &Fixture, server_checks: bool) {
    let (dir, mount) = (fixture.dir().to_path_buf(), fixture.mount());
    // Each change makes the kernel forget the attributes of the directory, and it checks permissions by them.
    let asked = |changes: u64| ("GETATTR", if server_checks { 0 } else { changes });
    let (file, sub) = (dir.join("f"), dir.join("sub"));
    fs::write(&file, "contents").expect("a fresh mount is writable");
    fs::create_dir(&sub).expect("a fresh name");
    (0..FILES).for_each(|number| fs::write(sub.join(number.to_string()), "x").expect("a fresh name"));
    // The first open and close find out that they need no message.
    drop(File::open(&file).expect("it was just made"));
    fs::read_dir(&sub).expect("a directory").for_each(|entry| drop(entry.expect("it is read").metadata()));

    at_most(mount, "open, close", &[], &|| drop(File::open(&file).expect("it is there")));
    at_most(mount, "stat", &[], &|| {
        fs::metadata(&file).expect("it is there");
    });
    at_most(mount, "read", &[], &|| drop(fs::read(&file).expect("it is there")));
    let made = [("LOOKUP", 1), ("MKNOD", 1), ("UNLINK", 1), asked(2)];
    at_most(mount, "create, close, unlink", &made, &|| {
        let path = dir.join("new");
        drop(File::create_new(&path).expect("a fresh name"));
        fs::remove_file(&path).expect("it was just made");
    });
    at_most(mount, "list, stat each", &[], &|| {
        let entries = fs::read_dir(&sub).expect("a directory");
        entries.for_each(|entry| {
            entry.expect("it is read").metadata().expect("it is there");
        });
    });
    let unpacked = [
        ("LOOKUP", FILES + 1),
        ("MKDIR", 1),
        ("MKNOD", FILES),
        ("WRITE", FILES),
        ("SETATTR", 2 * FILES),
        ("READDIRPLUS", 2),
        ("READDIR", 2),
        ("UNLINK", FILES),
        ("RMDIR", 1),
        asked(2 * FILES),
        ("STATX", 2),
        // Only to look for a capability that a write would clear.
        ("GETXATTR", FILES),
    ];
    at_most(mount, "unpack and remove a tree", &unpacked, &|| unpack(&dir));
    git_status(fixture);
    fs::remove_dir_all(&sub).expect("it is ours");
    fs::remove_file(&file).expect("it is ours");
}

/// A second `git status` of a tree that it knows needs to ask for little.
fn git_status(fixture: &Fixture) {
    if !find_program("git") {
        return skipped("git is not installed: its messages are not counted");
    }
    let repository = fixture.path("repository");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(&repository).args(["-c", "core.fsmonitor=false", "-c", "safe.directory=*"]);
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        let output = command.args(arguments).output().expect("git is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    fs::create_dir(&repository).expect("a fresh name");
    (0..FILES).for_each(|number| fs::write(repository.join(number.to_string()), "x").expect("a fresh name"));
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["--no-optional-locks", "status"]);
    let most = [("LOOKUP", 4), ("GETATTR", 4), ("ACCESS", 12), ("READ", 2)];
    at_most(fixture.mount(), "git status", &most, &|| git(&["--no-optional-locks", "status"]));
    fs::remove_dir_all(&repository).expect("it is ours");
}

#[test]
fn common_calls_send_no_more_messages_than_they_need_where_the_kernel_checks() {
    let Some(fixture) = Fixture::new("checks=kernel") else { return };
    rows(&fixture, false);
    fixture.finish();
}

#[test]
fn common_calls_send_no_more_messages_than_they_need_where_the_server_checks() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root may have the server check permissions");
    }
    let Some(fixture) = Fixture::new("checks=sluice") else { return };
    rows(&fixture, true);
    fixture.finish();
}

#[test]
fn where_the_server_checks_others_are_kept_out_and_what_nobody_may_run_is_not_run() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root may have the server check permissions");
    }
    let Some(fixture) = Fixture::new("checks=sluice") else { return };
    let script = fixture.path("script");
    fs::write(&script, "#!/bin/sh\n").expect("a fresh mount is writable");
    fs::set_permissions(&script, Permissions::from_mode(0o644)).expect("it is ours");
    let may_run = || rustix::fs::access(&script, rustix::fs::Access::EXEC_OK).is_ok();
    assert!(!may_run() && Command::new(&script).status().is_err());
    fs::set_permissions(&script, Permissions::from_mode(0o100)).expect("it is ours");
    assert!(may_run() && Command::new(&script).status().is_ok_and(|status| status.success()));
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").expect("proc is mounted");
    let ours = mountinfo.lines().find(|line| line.split(' ').nth(4) == fixture.dir().to_str());
    let ours = ours.expect("it is mounted");
    assert!(!ours.contains("allow_other") && !ours.contains("default_permissions"), "{ours}");
    fixture.finish();
}

#[test]
fn the_server_does_not_check_where_others_may_use_the_mount() {
    let dir = fresh_dir();
    let options = MountOptions::parse("checks=sluice,allow_other").expect("each is valid on its own");
    let error = options.mount(&fresh_superblock(), &dir).map(drop).expect_err("not both").to_string();
    assert!(error.contains("leave out allow_other") && !error.contains('\n'), "{error}");
    assert!(!is_mounted(&dir));
    fs::remove_dir(&dir).expect("nothing is mounted on it");
}
