//! The command line with stores and the disk below them: its room, its directory, and who may look into it.

use crate::harness::{Scratch, can_mount, sluice, small_disk, umount, until};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

fn mkfs(store: &Path) {
    assert_eq!(sluice(["mkfs".as_ref(), store.as_os_str()]).well(), "");
}

fn mount(store: &Path, dir: &Path) {
    assert_eq!(sluice(["mount".as_ref(), store.as_os_str(), dir.as_os_str()]).well(), "");
}

/// A disk of so many bytes with an empty store, which [`Scratch`] unmounts, and a directory to mount the store on. None, and a
/// line that says so, where `test` may mount nothing.
fn small_store(test: &str, size: &str) -> Option<(Scratch, PathBuf, PathBuf, PathBuf)> {
    let scratch = Scratch::new();
    let Some(disk) = can_mount(test).then(|| small_disk(&scratch, "disk", size)).flatten() else {
        crate::harness::skipped(test, "no tmpfs can be mounted: run as root");
        return None;
    };
    let (store, dir) = (disk.join("store"), scratch.dir("m"));
    mkfs(&store);
    Some((scratch, disk, store, dir))
}

/// MiB that the store on `disk` takes.
fn used_mib(disk: &Path) -> u64 {
    let files = fs::read_dir(disk.join("store")).expect("a store").flatten();
    files.map(|file| file.metadata().expect("it stays").blocks() * 512).sum::<u64>() >> 20
}

/// Writes files of 1 MiB until there is no room.
fn fill(dir: &Path) -> usize {
    for count in 0.. {
        let written = File::create(dir.join(count.to_string())).and_then(|mut file| {
            file.write_all(&vec![count as u8 | 1; 1 << 20]).and_then(|()| file.sync_all())
        });
        match written {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(28) => return count,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the disk is small")
}

#[test]
fn a_full_disk_has_room_at_once_after_files_were_deleted() {
    let name = "a_full_disk_has_room_at_once_after_files_were_deleted";
    let Some((_scratch, disk, store, dir)) = small_store(name, "96m") else { return };
    mount(&store, &dir);
    for _ in 0..3 {
        let count = fill(&dir);
        assert!(count > 20, "{count} MiB");
        fs::read_dir(&dir).expect("a directory").flatten().for_each(|file| {
            fs::remove_file(file.path()).expect("a deletion needs no room");
        });
        fs::write(dir.join("more"), vec![1; 1 << 20]).expect("what was deleted is room");
    }
    fs::remove_file(dir.join("more")).expect("a deletion needs no room");
    umount(&dir);
    assert!(used_mib(&disk) < 16, "{} MiB are left after everything was deleted", used_mib(&disk));
    sluice(["fsck".as_ref(), store.as_os_str()]).well();
}

#[test]
fn a_disk_that_another_program_fills_for_a_while_stops_no_mount() {
    let name = "a_disk_that_another_program_fills_for_a_while_stops_no_mount";
    let Some((_scratch, disk, store, dir)) = small_store(name, "160m") else { return };
    mount(&store, &dir);
    (0..1_000).for_each(|number| fs::write(dir.join(format!("small{number}")), "x").expect("room"));
    fs::write(dir.join("big"), vec![7; 10 << 20]).expect("room");
    let path = [dir.as_os_str()];
    let commands = |what: &[&str], more: &[&str]| {
        let words = what.iter().map(AsRef::as_ref).chain(path).chain(more.iter().map(AsRef::as_ref));
        sluice(words.collect::<Vec<_>>())
    };
    for round in 0..3_u64 {
        // The last mount has written the tree; now another program takes all that is left.
        umount(&dir);
        mount(&store, &dir);
        let big = File::options().write(true).open(dir.join("big")).expect("it is there");
        let other = disk.join("other");
        let mut others = File::create(&other).expect("room");
        for len in [1 << 20, 4096] {
            while others.write_all(&vec![1; len]).is_ok() {}
        }
        match round {
            0 => assert!(commands(&["snapshot", "create"], &["full"]).stderr.contains("ENOSPC")),
            1 => {
                let upgraded = commands(&["upgrade"], &[]);
                let goes_on = upgraded.stderr.contains("the mount goes on as before");
                assert!(upgraded.status == Some(0) || goes_on, "{}", upgraded.stderr);
            }
            _ => {
                let overwrite = |number: u64| big.write_all_at(&vec![9; 4096], number * 37 % 2_500 * 4096);
                let full = (0..600).find_map(|number| overwrite(number).and_then(|()| big.sync_all()).err());
                assert!(full.is_none_or(|error| error.raw_os_error() == Some(28)));
            }
        }
        drop(others);
        fs::remove_file(&other).expect("it is there");
        let write = || fs::write(dir.join(format!("after{round}")), "written").is_ok();
        until("the room is found", write);
        fs::remove_file(dir.join(format!("small{round}"))).expect("the mount is not read-only");
        big.sync_all().expect("the store works");
        commands(&["snapshot", "create"], &[&format!("s{round}")]).well();
    }
    umount(&dir);
    sluice(["fsck".as_ref(), store.as_os_str()]).well();
    mount(&store, &dir);
    (0..3).for_each(|round| {
        assert_eq!(fs::read(dir.join(format!("after{round}"))).expect("kept"), b"written");
    });
    let contents = fs::read(dir.join("big")).expect("kept");
    assert!(contents.len() == 10 << 20 && contents.iter().all(|byte| matches!(byte, 7 | 9)));
    umount(&dir);
    // No process has the disk any more.
    let unmounted = Command::new("umount").arg(&disk).output().expect("umount runs");
    assert!(unmounted.status.success(), "{}", String::from_utf8_lossy(&unmounted.stderr));
}

#[test]
fn copies_and_clones_that_fill_a_disk_leave_a_store_that_goes_on() {
    let name = "copies_and_clones_that_fill_a_disk_leave_a_store_that_goes_on";
    let Some((_scratch, _, store, dir)) = small_store(name, "160m") else { return };
    mount(&store, &dir);
    fs::write(dir.join("original"), vec![7; 30 << 20]).expect("room");
    let original = File::open(dir.join("original")).expect("it is there");
    original.sync_all().expect("room");
    // Not at a multiple of a chunk: each byte is written again. All of it is asked for at once.
    let copy = |number: usize| {
        let target = File::create(dir.join(format!("copy{number}")))?;
        let (mut from, mut to) = (0, 1);
        while from < 30 << 20 {
            let left = (30 << 20) - from as usize;
            rustix::fs::copy_file_range(&original, Some(&mut from), &target, Some(&mut to), left)?;
        }
        Ok::<_, std::io::Error>(())
    };
    let refusal = (0..20).find_map(|number| copy(number).err()).expect("the disk is small");
    assert_eq!(refusal.raw_os_error(), Some(28), "{refusal}");
    File::open(&dir).and_then(|dir| dir.sync_all()).expect("the store works");
    fs::remove_file(dir.join("copy0")).expect("a deletion needs no room");
    // Contents that no push has written yet.
    let write = || fs::write(dir.join("new"), vec![8; 5 << 20]).is_ok();
    until("what was deleted is room", write);
    for number in 0..60 {
        let clone = dir.join(format!("clone{number}"));
        sluice(["clone".as_ref(), dir.join("new").as_os_str(), clone.as_os_str()]).well();
    }
    File::open(&dir).and_then(|dir| dir.sync_all()).expect("the clones share");
    assert_eq!(fs::read(dir.join("clone59")).expect("whole"), vec![8; 5 << 20]);
    drop(original);
    umount(&dir);
    sluice(["fsck".as_ref(), store.as_os_str()]).well();
}

#[test]
fn the_room_of_a_store_is_that_of_its_disk_or_what_size_says() {
    let name = "the_room_of_a_store_is_that_of_its_disk_or_what_size_says";
    let Some((_scratch, _, store, dir)) = small_store(name, "96m") else { return };
    let sizes = || {
        let told = rustix::fs::statvfs(&dir).expect("a mount");
        ((told.f_blocks * told.f_frsize) >> 20, (told.f_bavail * told.f_frsize) >> 20)
    };
    mount(&store, &dir);
    let (all, free) = sizes();
    assert!((40..96).contains(&all) && free <= all && free > 40, "{all} MiB, {free} free");
    umount(&dir);
    let options = ["mount", "-o", "size=8M"].map(AsRef::as_ref);
    sluice(options.into_iter().chain([store.as_os_str(), dir.as_os_str()])).well();
    assert_eq!(sizes().0, 8);
    assert!(fill(&dir) < 9);
    umount(&dir);
    let share = ["mount", "-o", "size=50%"].map(AsRef::as_ref);
    let line = sluice(share.into_iter().chain([store.as_os_str(), dir.as_os_str()])).complaint(2);
    assert!(line.contains("give bytes"), "{line}");
}

#[test]
fn what_fallocate_reserved_can_be_written_after_a_mount_while_others_take_what_they_can() {
    let name = "what_fallocate_reserved_can_be_written_after_a_mount_while_others_take_what_they_can";
    let Some((_scratch, _, store, dir)) = small_store(name, "128m") else { return };
    mount(&store, &dir);
    let file = File::create(dir.join("reserved")).expect("room");
    let reserve = |len| rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len);
    // All room, less and less, until it is there.
    let free = rustix::fs::statvfs(&dir).expect("a mount");
    let mut len = free.f_bavail * free.f_frsize;
    while let Err(error) = reserve(len) {
        assert_eq!(error, rustix::io::Errno::NOSPC);
        len -= 1 << 20;
    }
    assert!(len > 40 << 20, "{} MiB", len >> 20);
    file.sync_all().expect("the disk works");
    drop(file);
    umount(&dir);
    mount(&store, &dir);
    let taken = fill(&dir);
    assert!(taken < 12, "{taken} MiB were held back for somebody else");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let _ = fs::write(dir.join("greedy"), vec![3; 1 << 20]);
            }
        });
        let file = File::options().write(true).open(dir.join("reserved")).expect("it is there");
        let (mut at, end) = (0, len);
        let written = std::iter::from_fn(|| {
            // Pieces that are whole chunks, whole pages, and neither.
            let piece = [65_536, 4096, 700, 8192][at as usize / 1000 % 4].min(end - at);
            let bytes = vec![at as u8 | 1; piece as usize];
            let done = file.write_all_at(&bytes, at);
            let done = done.and_then(|()| if at % 37 == 0 { file.sync_all() } else { Ok(()) });
            at += piece;
            (piece > 0).then_some((at, done))
        });
        let failed =
            written.filter(|(_, done)| done.is_err()).map(|(at, done)| format!("{at}: {done:?}")).next();
        let synced = file.sync_all();
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(failed, None, "of {len}");
        synced.expect("all of it");
    });
    assert!(!fs::read(dir.join("reserved")).expect("it is there").contains(&0), "all was written");
    // Who gives reserved space up gives it to all.
    fs::remove_file(dir.join("reserved")).expect("a deletion needs no room");
    let taken = fill(&dir);
    assert!(taken > 30, "only {taken} MiB");
    umount(&dir);
    sluice(["fsck".as_ref(), store.as_os_str()]).well();
}

#[test]
fn a_directory_that_is_moved_while_it_is_mounted_stays_the_store() {
    let name = "a_directory_that_is_moved_while_it_is_mounted_stays_the_store";
    if !can_mount(name) {
        return;
    }
    let scratch = Scratch::new();
    let (store, dir) = (scratch.0.join("store"), scratch.dir("m"));
    mkfs(&store);
    mount(&store, &dir);
    let moved = scratch.0.join("moved");
    fs::rename(&store, &moved).expect("it can be moved");
    fs::create_dir(&store).expect("another in its place");
    fs::write(dir.join("file"), vec![7; 3 << 20])
        .and_then(|()| File::open(dir.join("file"))?.sync_all())
        .expect("room");
    let second = sluice(["mount".as_ref(), moved.as_os_str(), scratch.dir("second").as_os_str()]);
    assert!(second.stderr.contains("the store is in use by process"), "{}", second.stderr);
    umount(&dir);
    assert_eq!(fs::read_dir(&store).expect("a directory").count(), 0, "nothing was written to the other");
    sluice(["fsck".as_ref(), moved.as_os_str()]).well();
    mount(&moved, &dir);
    assert!(fs::read(dir.join("file")).expect("it is there") == vec![7; 3 << 20]);
    umount(&dir);
}

#[test]
fn a_mount_over_or_in_its_own_store_is_refused() {
    let name = "a_mount_over_or_in_its_own_store_is_refused";
    if !can_mount(name) {
        return;
    }
    let scratch = Scratch::new();
    let outer = scratch.dir("outer");
    let store = outer.join("store");
    mkfs(&store);
    for dir in [&store, &outer] {
        let line = sluice(["mount".as_ref(), store.as_os_str(), dir.as_os_str()]).complaint(1);
        assert!(line.contains("give another directory"), "{line}");
    }
    // The directory to mount on was forgotten.
    let line = sluice(["mount".as_ref(), store.as_os_str()]).complaint(2);
    assert!(line.contains("is a store: give a directory to mount it on"), "{line}");
}

#[test]
fn of_two_mkfs_at_once_one_makes_the_store_and_one_that_was_killed_is_in_nobodys_way() {
    let scratch = Scratch::new();
    for round in 0..5 {
        let store = scratch.0.join(format!("store-{round}"));
        let start = || Command::new(crate::harness::SLUICE).arg("mkfs").arg(&store).output();
        let made = std::thread::scope(|scope| {
            [scope.spawn(start), scope.spawn(start)]
                .map(|one| one.join().expect("no panic").expect("it starts"))
        });
        assert_eq!(made.iter().filter(|one| one.status.success()).count(), 1, "{made:?}");
        sluice(["fsck".as_ref(), store.as_os_str()]).well();
    }
    // The files that mkfs makes one after the other.
    let parts = ["mkfs-unfinished", "log", "tree", "super"];
    for count in 1..=parts.len() {
        let store = scratch.dir(&format!("killed-{count}"));
        parts[..count].iter().for_each(|part| fs::write(store.join(part), "").expect("room"));
        mkfs(&store);
        sluice(["fsck".as_ref(), store.as_os_str()]).well();
        assert!(!store.join(parts[0]).exists());
    }
    let last = scratch.0.join("store-0");
    fs::write(last.join(parts[0]), "").expect("room");
    for command in [&["fsck"][..], &["mount", "-o", "ro"]] {
        let dir = (command[0] == "mount").then(|| scratch.dir("m"));
        let places = [Some(&last), dir.as_ref()].into_iter().flatten().map(|place| place.as_os_str());
        let ran = sluice(command.iter().map(AsRef::as_ref).chain(places));
        assert!(ran.status != Some(0) && ran.stderr.contains("sluice mkfs"), "{}", ran.stderr);
    }
    mkfs(&last);
    let foreign = scratch.dir("foreign");
    ["mkfs-unfinished", "log", "letter"]
        .iter()
        .for_each(|part| fs::write(foreign.join(part), "").expect("room"));
    let line = sluice(["mkfs".as_ref(), foreign.as_os_str()]).complaint(1);
    assert!(line.contains("no store") && foreign.join("letter").exists(), "{line}");
}

#[test]
fn a_limit_of_the_size_of_files_is_an_error_and_the_next_attempt_makes_the_store() {
    let scratch = Scratch::new();
    let store = scratch.0.join("store");
    let line = format!("ulimit -f 1000; exec '{}' mkfs '{}'", crate::harness::SLUICE, store.display());
    let limited = Command::new("sh").args(["-c", &line]).output().expect("sh runs");
    let said = String::from_utf8_lossy(&limited.stderr).into_owned();
    assert!(limited.status.code() == Some(1) && said.contains("File too large"), "{limited:?}");
    mkfs(&store);
}

#[test]
fn a_read_only_mount_refuses_what_it_could_not_keep() {
    if !can_mount("a_read_only_mount_refuses_what_it_could_not_keep") {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let address = PathBuf::from(format!("file://{}", scratch.0.join("objects").display()));
    for store in [scratch.0.join("store"), address] {
        mkfs(&store);
        mount(&store, &dir);
        fs::create_dir(dir.join("dir")).expect("made");
        sluice(["snapshot".as_ref(), "create".as_ref(), dir.as_os_str(), "kept".as_ref()]).well();
        umount(&dir);
        let read_only = ["mount".as_ref(), "-o".as_ref(), "ro".as_ref(), store.as_os_str(), dir.as_os_str()];
        assert_eq!(sluice(read_only).well(), "");
        let (below, copy) = (dir.join("dir"), dir.join("copy"));
        let orders: [&[&std::ffi::OsStr]; 5] = [
            &["snapshot".as_ref(), "create".as_ref(), dir.as_ref(), "new".as_ref()],
            &["snapshot".as_ref(), "delete".as_ref(), dir.as_ref(), "kept".as_ref()],
            &["snapshot".as_ref(), "restore".as_ref(), dir.as_ref(), "kept".as_ref()],
            &["clone".as_ref(), below.as_ref(), copy.as_ref()],
            &["quota".as_ref(), below.as_ref(), "1M".as_ref()],
        ];
        for order in orders {
            let refused = sluice(order.iter().copied()).complaint(1);
            assert!(refused.contains("the mount is read-only"), "{order:?}: {refused}");
        }
        umount(&dir);
    }
}

#[test]
fn a_file_store_whose_directory_is_moved_while_it_is_mounted_keeps_all_and_promises_nothing_more() {
    let test =
        "a_file_store_whose_directory_is_moved_while_it_is_mounted_keeps_all_and_promises_nothing_more";
    if !can_mount(test) {
        return;
    }
    let scratch = Scratch::new();
    let (store, moved, dir) = (scratch.0.join("store"), scratch.0.join("moved"), scratch.dir("mnt"));
    let address = PathBuf::from(format!("file://{}", store.display()));
    mkfs(&address);
    let synced = |name: &str| {
        let file = File::create(dir.join(name))
            .and_then(|mut file| file.write_all(&vec![7; 3 << 20]).and_then(|()| file.sync_all()));
        file.map_err(|error| error.raw_os_error())
    };
    for replaced in [false, true] {
        mount(&address, &dir);
        let before = format!("before{replaced}");
        assert_eq!(synced(&before), Ok(()));
        fs::rename(&store, &moved).expect("renamed");
        if replaced {
            mkfs(&address);
        }
        assert!(synced("after").is_err(), "nothing is durable where nobody looks");
        assert_eq!(store.exists(), replaced, "no directory is made anew");
        let ended = sluice(["umount".as_ref(), dir.as_os_str()]).complaint(1);
        assert!(ended.contains("was moved or replaced: put it back, unmount, and mount again"), "{ended}");
        if replaced {
            fs::remove_dir_all(&store).expect("removed");
        }
        fs::rename(&moved, &store).expect("renamed");
        assert_eq!(sluice(["fsck".as_ref(), address.as_os_str()]).stderr, "");
        mount(&address, &dir);
        assert_eq!(fs::metadata(dir.join(&before)).map(|found| found.len()).ok(), Some(3 << 20));
        umount(&dir);
    }
}

/// Runs `sluice` with these arguments where the umask takes nothing away.
fn without_umask(arguments: &[&str]) {
    let line = format!("umask 000; exec '{}' \"$@\"", crate::harness::SLUICE);
    let ran = Command::new("sh").args(["-c", &line, "sh"]).args(arguments).status();
    assert!(ran.expect("sh runs").success(), "{arguments:?}");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o777
}

#[test]
fn nobody_but_the_owner_reads_a_store_whatever_the_umask() {
    let scratch = Scratch::new();
    // A new directory, and one that others may use.
    let (store, open) = (scratch.0.join("store"), scratch.dir("open"));
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let address = format!("file://{}", open.display());
    let stores = [(&*store.to_string_lossy(), &store), (&*address, &open)];
    for (named, dir) in stores {
        without_umask(&["mkfs", named]);
        assert_eq!(mode(dir), 0o700, "{named}");
        let checked = || sluice(["fsck", named]);
        assert_eq!(checked().stderr, "");
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let warned = checked();
        let cure = format!("chmod 700 {}", dir.display());
        assert!(warned.status == Some(0) && warned.stderr.contains(&cure), "{}", warned.stderr);
    }
    for file in fs::read_dir(&store).expect("a store").flatten() {
        assert_eq!(mode(&file.path()), 0o600, "{:?}", file.file_name());
    }
}

#[test]
fn nobody_but_the_owner_changes_what_the_nodes_of_a_cluster_trust_whatever_the_umask() {
    let scratch = Scratch::new();
    let cluster = scratch.0.join("cluster");
    without_umask(&["cluster", "init", &cluster.to_string_lossy()]);
    let mut pending = vec![cluster];
    while let Some(path) = pending.pop() {
        assert_eq!(mode(&path) & 0o022, 0, "{}", path.display());
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.expect("listed").path()));
        } else if path.extension().is_some_and(|kind| kind == "key") {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }
}
