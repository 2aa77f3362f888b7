//! The command line with stores: what is there after unmounting, after `kill -9`, on a full disk; `fsck` and `info`.

use crate::harness::{
    Scratch, can_mount, crash, is_mounted, kernel, server_of, skipped, sluice, small_disk, umount, until,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn a_mount_whose_store_failed_says_so_once_and_stat_and_info_show_why() {
    let name = "a_mount_whose_store_failed_says_so_once_and_stat_and_info_show_why";
    if !can_mount(name) {
        return;
    }
    // The disk below is a mount of ours, of which the log fails.
    let scratch = Scratch::new();
    let disk = scratch.dir("disk");
    sluice(["mount".as_ref(), "--ram".as_ref(), disk.as_os_str()]).well();
    let (store, dir) = (disk.join("store"), scratch.dir("m"));
    sluice(["mkfs".as_ref(), store.as_os_str()]).well();
    let log = File::create(scratch.0.join("log")).expect("room");
    let mut server = Command::new(crate::harness::SLUICE)
        .args(["mount", "--foreground"])
        .args([&store, &dir])
        .stderr(log)
        .spawn()
        .expect("sluice starts");
    until("it is mounted", || is_mounted(&dir));
    let said = |wanted: &str| {
        let text = fs::read_to_string(scratch.0.join("log")).expect("text");
        text.lines().filter(|line| line.contains(wanted)).map(str::to_owned).collect::<Vec<_>>()
    };
    fs::write(dir.join("kept"), "bytes").expect("room");
    assert_eq!(said("nothing can be written"), [""; 0]);
    sluice(["fault".as_ref(), disk.as_os_str(), "write:EIO:path=/store/log".as_ref()]).well();
    let failed = File::open(dir.join("kept")).expect("it is there").sync_all();
    assert_eq!(failed.map_err(|error| error.raw_os_error()), Err(Some(5)));
    for round in 0..3 {
        let refused = fs::write(dir.join("more"), "bytes").expect_err("nothing can be written");
        assert_eq!(refused.raw_os_error(), Some(30), "round {round}");
    }
    assert_eq!(fs::read_to_string(dir.join("kept")).expect("it can be read"), "bytes");
    let lines = said("nothing can be written");
    assert!(matches!(&*lines, [line] if line.contains("write the log")), "{lines:?}");
    let stat: Value =
        serde_json::from_str(&sluice(["stat".as_ref(), "--json".as_ref(), dir.as_os_str()]).well())
            .expect("JSON");
    assert!(stat["failure"].as_str().is_some_and(|why| why.contains("write the log")), "{stat}");
    assert!(sluice(["stat".as_ref(), dir.as_os_str()]).well().contains("write the log"));
    let info = sluice(["info".as_ref(), "--json".as_ref(), store.as_os_str()]).well();
    let info: Value = serde_json::from_str(&info).expect("JSON");
    assert_eq!(info["failure"], stat["failure"]);
    assert!(sluice(["info".as_ref(), store.as_os_str()]).well().contains("read-only: "));
    // It has lost something, and says so in the end.
    let line = sluice(["umount".as_ref(), dir.as_os_str()]).complaint(1);
    assert!(line.contains("not all is durable"), "{line}");
    assert!(!server.wait().expect("it ends").success());
    umount(&disk);
}

const LOCK_MODES: [&str; 2] = ["locks=kernel", "locks=sluice"];

/// A mounted store. Unmounted when dropped, however the test ends.
pub(crate) struct Stored {
    pub(crate) store: PathBuf,
    pub(crate) dir: PathBuf,
}

impl Stored {
    pub(crate) fn new(scratch: &Scratch) -> Stored {
        let stored = Stored { store: scratch.0.join("store"), dir: scratch.dir("m") };
        assert_eq!(sluice(["mkfs".as_ref(), stored.store.as_os_str()]).well(), "");
        stored
    }

    pub(crate) fn mount(&self, options: &str) {
        let arguments =
            ["mount".as_ref(), "-o".as_ref(), options.as_ref(), self.store.as_os_str(), self.dir.as_os_str()];
        assert_eq!(sluice(arguments).well(), "");
    }

    pub(crate) fn umount(&self) {
        umount(&self.dir);
    }

    /// The output of `fsck --json`, and its exit status.
    fn fsck(&self, more: &[&str]) -> (Option<i32>, Value) {
        let arguments = ["fsck", "--json"].iter().chain(more).map(AsRef::as_ref);
        let ran = sluice(arguments.chain([self.store.as_os_str()]));
        (ran.status, serde_json::from_str(&ran.stdout).unwrap_or(Value::String(ran.stderr)))
    }

    pub(crate) fn assert_clean(&self) {
        let (status, said) = self.fsck(&[]);
        assert_eq!((status, &said["status"]), (Some(0), &Value::from("clean")), "{said}");
    }

    fn info(&self) -> Value {
        let said = sluice(["info".as_ref(), "--json".as_ref(), self.store.as_os_str()]).well();
        serde_json::from_str(&said).expect("JSON")
    }

    /// Ends the server as a crash of its process does, and takes the dead mount away.
    pub(crate) fn kill(&self) {
        crash(&self.dir);
        until("the dead server lets go of the store", || self.info()["in_use"] == false);
        // It says that the server had ended.
        sluice(["umount".as_ref(), "--lazy".as_ref(), self.dir.as_os_str()]);
        assert!(!is_mounted(&self.dir));
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        if is_mounted(&self.dir) {
            sluice(["umount".as_ref(), "--lazy".as_ref(), self.dir.as_os_str()]);
        }
    }
}

/// Writes a file and makes it durable.
fn write_through(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[test]
fn what_was_written_to_a_store_is_there_when_it_is_mounted_again() {
    if !can_mount("what_was_written_to_a_store_is_there_when_it_is_mounted_again") {
        return;
    }
    let scratch = Scratch::new();
    let stored = Stored::new(&scratch);
    for (round, locks) in LOCK_MODES.into_iter().enumerate() {
        stored.mount(locks);
        let dir = stored.dir.join(round.to_string());
        fs::create_dir(&dir).expect("room");
        fs::write(dir.join("large"), vec![round as u8 + 1; 3_000_000]).expect("room");
        fs::write(dir.join("small"), "small").expect("room");
        fs::hard_link(dir.join("small"), dir.join("again")).expect("room");
        std::os::unix::fs::symlink("small", dir.join("link")).expect("room");
        stored.umount();
        stored.assert_clean();
        stored.mount(locks);
        for round in 0..=round {
            let dir = stored.dir.join(round.to_string());
            assert!(fs::read(dir.join("large")).expect("kept") == vec![round as u8 + 1; 3_000_000]);
            assert_eq!(fs::read_to_string(dir.join("link")).expect("kept"), "small");
            fs::remove_file(dir.join("again")).expect("it has two names");
            fs::hard_link(dir.join("small"), dir.join("again")).expect("room");
        }
        stored.umount();
    }
    // Only to be looked at: nothing in the store changes.
    let bytes = || {
        let names =
            fs::read_dir(&stored.store).expect("it is there").map(|entry| entry.expect("a file").path());
        let mut files: Vec<_> = names.map(|path| (path.clone(), fs::read(path).expect("a file"))).collect();
        files.sort();
        files
    };
    let before = bytes();
    stored.mount("ro");
    assert_eq!(fs::read_to_string(stored.dir.join("0/small")).expect("kept"), "small");
    assert!(fs::write(stored.dir.join("new"), "x").is_err());
    stored.umount();
    assert!(bytes() == before, "a mount with -o ro wrote to its store");
}

#[test]
fn a_copy_on_a_mount_shares_what_is_on_disk_and_info_says_how_much() {
    if !can_mount("a_copy_on_a_mount_shares_what_is_on_disk_and_info_says_how_much") {
        return;
    }
    const LEN: usize = 3_000_000;
    let scratch = Scratch::new();
    let stored = Stored::new(&scratch);
    let bytes = |what: &str| stored.info()[what].as_u64().expect("a number");
    let told = |place: &Path| sluice(["info".as_ref(), place.as_os_str()]).well();
    stored.mount("rw");
    fs::write(stored.dir.join("f"), vec![1; LEN]).expect("room");
    stored.umount();
    let alone = bytes("data_bytes");
    assert_eq!((bytes("shared_bytes"), bytes("private_bytes")), (0, alone));
    assert!(told(&stored.store).contains("(0 bytes shared, 2.9 MiB private)"), "{}", told(&stored.store));
    stored.mount("rw");
    // With copy_file_range.
    assert_eq!(fs::copy(stored.dir.join("f"), stored.dir.join("copy")).expect("room"), LEN as u64);
    fs::File::open(stored.dir.join("copy")).and_then(|copy| copy.sync_all()).expect("the disk works");
    for is_mounted in [true, false] {
        if !is_mounted {
            stored.umount();
        }
        assert_eq!((bytes("data_bytes"), bytes("shared_bytes"), bytes("private_bytes")), (alone, alone, 0));
        let places = [&stored.store, &stored.dir];
        for place in &places[..if is_mounted { 2 } else { 1 }] {
            let told = told(place);
            assert!(told.contains("2.9 MiB (2.9 MiB shared, 0 bytes private) in files of "), "{told}");
            assert!(told.contains(" batches to replay"), "{told}");
            assert_eq!(told.contains(", in use by process "), is_mounted, "{told}");
        }
    }
    stored.assert_clean();
    stored.mount("rw");
    fs::write(stored.dir.join("f"), vec![2; LEN]).expect("room");
    assert!(fs::read(stored.dir.join("copy")).expect("kept") == vec![1; LEN]);
    stored.umount();
    assert_eq!((bytes("data_bytes"), bytes("shared_bytes")), (2 * alone, 0));
    stored.assert_clean();
}

#[test]
fn run_leaves_in_a_store_what_its_command_wrote() {
    if !can_mount("run_leaves_in_a_store_what_its_command_wrote") {
        return;
    }
    let scratch = Scratch::new();
    let store = scratch.0.join("store");
    sluice(["mkfs".as_ref(), store.as_os_str()]).well();
    let run = |script: &str| {
        let arguments = ["run".as_ref(), store.as_os_str(), "--".as_ref(), "sh".as_ref(), "-c".as_ref()];
        sluice(arguments.into_iter().chain([script.as_ref()])).well()
    };
    assert_eq!(run("echo kept > file"), "");
    assert_eq!(run("cat file"), "kept\n");
}

#[test]
fn errors_about_stores_are_one_line_that_says_what_to_do() {
    let scratch = Scratch::new();
    let (empty, used) = (scratch.dir("empty"), scratch.dir("used"));
    fs::write(used.join("file"), "x").expect("room");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    for command in ["info", "fsck"] {
        let status = if command == "fsck" { 8 } else { 1 };
        for place in [&empty, &used, &scratch.0.join("missing")] {
            let line = sluice([command, &text(place)]).complaint(status);
            assert!(line.contains("sluice mkfs"), "{line}");
        }
    }
    assert!(empty.read_dir().expect("it is there").next().is_none(), "asking makes nothing");
    let line = sluice(["mount", &text(&empty), &text(&used)]).complaint(1);
    assert!(line.contains("sluice mkfs"), "{line}");
    let line = sluice(["mkfs", &text(&used)]).complaint(1);
    assert!(line.contains("empty or a new one"), "{line}");
    sluice(["mkfs", &text(&empty)]).well();
    let line = sluice(["mkfs", &text(&empty)]).complaint(1);
    assert!(line.contains("already"), "{line}");
    sluice(["fsck", "--turbo"]).complaint(16);
    // A store of a program that does not exist yet.
    let mut bytes = fs::read(empty.join("super")).expect("a store");
    bytes[8] = 200;
    let newer = format!("format {}", bytes[8]);
    fs::write(empty.join("super"), bytes).expect("ours");
    let line = sluice(["fsck", &text(&empty)]).complaint(8);
    assert!(line.contains(&newer) && line.contains("newer"), "{line}");
}

#[test]
fn a_store_in_use_says_by_which_process() {
    if !can_mount("a_store_in_use_says_by_which_process") {
        return;
    }
    let scratch = Scratch::new();
    let stored = Stored::new(&scratch);
    stored.mount("locks=kernel,memory=64M");
    let server = server_of(&stored.dir);
    // Its names are loaded when somebody asks for one.
    assert_eq!(fs::read_dir(&stored.dir).expect("it is there").count(), 0);
    let stat = sluice(["stat".as_ref(), "--json".as_ref(), stored.dir.as_os_str()]).well();
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    let here = ["memory_limit_bytes", "inodes_in_memory", "directories_in_memory", "directory_departures"];
    assert_eq!(here.map(|field| stat[field].as_u64()), [64 << 20, 1, 1, 0].map(Some), "{stat}");
    assert!(stat["memory_used_bytes"].as_u64().is_some_and(|used| (1..4096).contains(&used)), "{stat}");
    let (store, other) = (stored.store.to_str().expect("text"), scratch.dir("other"));
    let other = other.to_str().expect("text");
    let commands: [&[&str]; 3] = [&["fsck", store], &["fsck", "--repair", store], &["mount", store, other]];
    for command in commands {
        let line = sluice(command).complaint(if command[0] == "fsck" { 8 } else { 1 });
        assert!(line.contains(&format!("in use by process {server} ")), "{line}");
    }
    let info = stored.info();
    assert!(info["in_use"] == true && info["pid"] == server && info["log_used"].is_u64(), "{info}");
    assert_eq!(info["uuid"].as_str().map(str::len), Some(36));
    stored.umount();
    // `umount` returns when the store can be had.
    stored.assert_clean();
    assert_eq!(stored.info()["in_use"], false);
}

#[test]
fn a_tree_that_is_larger_than_memory_leaves_it_also_when_a_kernel_has_seen_it() {
    if !can_mount("a_tree_that_is_larger_than_memory_leaves_it_also_when_a_kernel_has_seen_it") {
        return;
    }
    let scratch = Scratch::new();
    let stored = Stored::new(&scratch);
    // A quarter of that is for names and inodes of a KiB each.
    stored.mount("memory=8M");
    const FILES: u64 = 6_000;
    let file = |n: u64| stored.dir.join(format!("{}/{n}", n / 100));
    for n in 0..FILES {
        if n % 100 == 0 {
            fs::create_dir(stored.dir.join((n / 100).to_string())).expect("room");
        }
        fs::write(file(n), n.to_string()).expect("room");
    }
    let in_memory = || {
        let stat = sluice(["stat".as_ref(), "--json".as_ref(), stored.dir.as_os_str()]).well();
        let stat: Value = serde_json::from_str(&stat).expect("JSON");
        (stat["inodes_in_memory"].as_u64().expect("a number"), stat["live_inodes"].as_u64())
    };
    assert_eq!(in_memory().1, Some(FILES + FILES / 100 + 1));
    // NOTIFY_PRUNE is of Linux 6.18: an older kernel keeps what it has seen.
    if kernel() >= (6, 18) {
        until("most inodes have left memory", || {
            // The server handles the kernel's FORGETs when a request comes.
            drop(fs::read_dir(stored.dir.join("0")).map(Iterator::count));
            in_memory().0 < FILES / 2
        });
    }
    for n in (0..FILES).rev() {
        assert_eq!(fs::read_to_string(file(n)).ok(), Some(n.to_string()));
    }
    stored.umount();
    stored.assert_clean();
}

#[test]
fn a_volatile_store_is_kept_when_it_is_unmounted_and_made_anew_when_its_server_was_killed() {
    if !can_mount("a_volatile_store_is_kept_when_it_is_unmounted_and_made_anew_when_its_server_was_killed") {
        return;
    }
    let scratch = Scratch::new();
    let stored = Stored::new(&scratch);
    stored.mount("volatile");
    write_through(&stored.dir.join("kept"), b"kept").expect("room");
    stored.umount();
    stored.assert_clean();
    stored.mount("volatile");
    assert_eq!(fs::read(stored.dir.join("kept")).expect("it is there"), b"kept");
    stored.kill();
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let (store, dir) = (text(&stored.store), text(&stored.dir));
    for command in [&["mount", &store, &dir][..], &["fsck", &store]] {
        let line = sluice(command).complaint(if command[0] == "fsck" { 8 } else { 1 });
        assert!(line.contains("volatile") && line.contains("sluice mkfs"), "{line}");
    }
    assert_eq!(sluice(["mkfs", &store]).well(), "");
    stored.mount("locks=kernel");
    assert_eq!(fs::read_dir(&stored.dir).expect("it is there").count(), 0);
    stored.umount();
    stored.assert_clean();
}

#[test]
fn fsck_finds_damage_and_says_where() {
    let scratch = Scratch::new();
    let store = scratch.0.join("store");
    let text = store.to_str().expect("text");
    sluice(["mkfs", text]).well();
    let tree = fs::read(store.join("tree")).expect("a store");
    let mut damaged = tree.clone();
    damaged.iter_mut().skip(4096).for_each(|byte| *byte ^= 0x10);
    fs::write(store.join("tree"), damaged).expect("ours");
    let ran = sluice(["fsck", text]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(4), ""), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("damage: ") && ran.stdout.contains("no repair brings it back"),
        "{}",
        ran.stdout
    );
    fs::write(store.join("tree"), tree).expect("ours");
    assert!(sluice(["fsck", text]).well().contains("clean"));
}

#[test]
fn fsck_of_an_object_store_tells_damage_of_its_manifest_in_a_line_and_does_not_panic() {
    let scratch = Scratch::new();
    let store = scratch.0.join("store");
    let address = format!("file://{}", store.display());
    sluice(["mkfs", &address]).well();
    let names = fs::read_dir(store.join("records/manifest")).expect("a store").flatten();
    let newest = names.map(|entry| entry.path()).max().expect("it has one");
    let whole = fs::read(&newest).expect("ours");
    let mut found = 0;
    for cut in (0..whole.len()).step_by(16) {
        let mut damaged = whole.clone();
        damaged[cut..].fill(0);
        fs::write(&newest, damaged).expect("ours");
        let ran = sluice(["fsck", &address]);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.lines().count() <= 1 && !said.contains("panicked"), "{cut}: {said}");
        assert!(matches!(ran.status, Some(0 | 4 | 8)), "{cut}: {:?} {said}", ran.status);
        found += u32::from(ran.status == Some(4));
    }
    assert!(found > 0);
    fs::write(&newest, whole).expect("ours");
    assert!(sluice(["fsck", &address]).well().contains("clean"));
}

#[test]
fn nothing_that_was_fsynced_is_lost_when_the_server_is_killed() {
    if !can_mount("nothing_that_was_fsynced_is_lost_when_the_server_is_killed") {
        return;
    }
    let rounds =
        std::env::var("SLUICE_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(20);
    let scratch = Scratch::new();
    let stored = Stored::new(&scratch);
    const WRITERS: u64 = 2;
    let contents = |writer: u64, number: u64| {
        let len = 100 + (number * 7919 + writer) as usize % 50_000;
        vec![(number * 3 + writer) as u8; len]
    };
    let name = |writer, number| stored.dir.join(format!("{writer}-{number}"));
    // For each writer: how many of its files are durable.
    let durable: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    for round in 0..rounds {
        stored.mount(LOCK_MODES[round % 2]);
        for (writer, durable) in (0..).zip(&durable) {
            for number in 0..durable.load(Ordering::SeqCst) {
                let kept = fs::read(name(writer, number)).unwrap_or_else(|error| {
                    panic!("round {round}: file {number} of {writer} was fsynced and is lost: {error}")
                });
                assert!(
                    kept == contents(writer, number),
                    "round {round}: file {number} of {writer} is wrong"
                );
            }
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (writer, durable) in (0..).zip(&durable) {
                let (name, contents, stop) = (&name, &contents, &stop);
                scope.spawn(move || {
                    // The server dies under one of these calls.
                    while !stop.load(Ordering::SeqCst) {
                        let number = durable.load(Ordering::SeqCst);
                        if write_through(&name(writer, number), &contents(writer, number)).is_err() {
                            break;
                        }
                        durable.store(number + 1, Ordering::SeqCst);
                    }
                });
            }
            let written = || durable.iter().map(|count| count.load(Ordering::SeqCst)).sum::<u64>();
            let before = written();
            until("files are written", || written() >= before + 3 + (round as u64 * 5) % 17);
            stored.kill();
            stop.store(true, Ordering::SeqCst);
        });
        stored.assert_clean();
    }
    assert!(durable.iter().all(|count| count.load(Ordering::SeqCst) > 0));
}

#[test]
fn a_snapshot_is_durable_when_its_command_returns_and_of_one_moment() {
    if !can_mount("a_snapshot_is_durable_when_its_command_returns_and_of_one_moment") {
        return;
    }
    let rounds =
        std::env::var("SLUICE_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(10);
    let scratch = Scratch::new();
    let stored = Stored::new(&scratch);
    // By name, of a directory of files.
    let read_all = |dir: &Path| -> BTreeMap<OsString, Vec<u8>> {
        let entries = fs::read_dir(dir).expect("it is there").map(|entry| entry.expect("readable"));
        entries.map(|entry| (entry.file_name(), fs::read(entry.path()).expect("readable"))).collect()
    };
    let mut number = 0_u64;
    let mut taken: Vec<(PathBuf, BTreeMap<_, _>)> = Vec::new();
    for round in 0..rounds {
        stored.mount(LOCK_MODES[round % 2]);
        for (snapshot, was) in &taken {
            assert!(read_all(snapshot) == *was, "round {round}: {} is lost", snapshot.display());
        }
        let dir = stored.dir.join(format!("files-{round}"));
        fs::create_dir(&dir).expect("there is room");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                // Nothing is synchronised, and the server dies under one of these calls.
                for number in (number..).take_while(|_| !stop.load(Ordering::SeqCst)) {
                    let bytes = vec![number as u8; 1 + number as usize * 797 % 20_000];
                    if fs::write(dir.join(format!("{number:08}")), bytes).is_err() {
                        return number;
                    }
                }
                number
            });
            until("files are written", || fs::read_dir(&dir).is_ok_and(|names| names.count() > 3 + round));
            let name = format!("s{round}");
            sluice(["snapshot".as_ref(), "create".as_ref(), stored.dir.as_os_str(), name.as_ref()]).well();
            let snapshot = stored.dir.join(".snapshots").join(name).join(format!("files-{round}"));
            let was = read_all(&snapshot);
            stored.kill();
            stop.store(true, Ordering::SeqCst);
            writer.join().expect("it ends");
            for (at, (name, bytes)) in was.iter().enumerate() {
                let expected = number + at as u64;
                assert_eq!(name.to_str(), Some(format!("{expected:08}").as_str()), "round {round}: a gap");
                // The last was made, and perhaps not written.
                let len = if at + 1 == was.len() && bytes.is_empty() {
                    0
                } else {
                    1 + expected as usize * 797 % 20_000
                };
                assert_eq!(bytes.len(), len, "round {round}: file {expected}");
            }
            taken.push((snapshot, was));
        });
        number += 1_000;
        stored.assert_clean();
    }
}

#[test]
fn on_a_full_disk_writes_fail_cleanly_deletes_work_and_nothing_fsynced_is_lost() {
    let test = "on_a_full_disk_writes_fail_cleanly_deletes_work_and_nothing_fsynced_is_lost";
    if !can_mount(test) {
        return;
    }
    let scratch = Scratch::new();
    let Some(host) = small_disk(&scratch, "host", "32m") else {
        return skipped(test, "may not mount a tmpfs");
    };
    let stored = Stored { store: host.join("store"), dir: scratch.dir("m") };
    sluice(["mkfs".as_ref(), stored.store.as_os_str()]).well();
    stored.mount("locks=kernel");
    let name = |number: usize| stored.dir.join(number.to_string());
    let contents = |number: usize| vec![number as u8 + 1; 256 << 10];
    let mut count = 0;
    let error = loop {
        match write_through(&name(count), &contents(count)) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 128, "more than the disk holds");
    };
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()), "{error}");
    // How many segments are begun depends on the CPUs that the writer ran on.
    assert!(count > 8, "only {count} files");
    for number in 0..count {
        assert!(fs::read(name(number)).expect("fsynced") == contents(number), "file {number}");
    }
    // Files of a full store can be removed, durably.
    for number in (0..count).step_by(2) {
        fs::remove_file(name(number)).expect("a deletion needs no room");
    }
    let _ = fs::remove_file(name(count));
    File::open(&stored.dir).and_then(|dir| dir.sync_all()).expect("deletions become durable");
    stored.umount();
    stored.assert_clean();
    stored.mount("locks=sluice");
    for number in 0..count {
        match fs::read(name(number)) {
            Ok(kept) => assert!(number % 2 == 1 && kept == contents(number), "file {number}"),
            Err(error) => assert!(number % 2 == 0, "file {number}: {error}"),
        }
    }
    stored.umount();
}
