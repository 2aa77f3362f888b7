//! Names and inodes of a file system with more of them than memory.

use super::crash_tests::shared;
use super::mutant::Mutant;
use super::tests::limited;
use crate::{Cred, Fs, MemoryUse, OpenFlags, Options, Superblock};
use sluice_sync::face::HOSTS_SHARE;
use std::path::Path;

/// Inodes and their names, in so much memory.
fn assert_names_within(fs: &Fs, limit: u64) {
    let MemoryUse { used, inodes, .. } = fs.superblock().memory_use().expect("a store");
    assert!(used <= limit + limit / 10, "{used} bytes of {limit} count, {inodes} inodes");
}

#[test]
fn a_tree_whose_inodes_are_more_than_memory_is_made_and_walked_and_removed() {
    if !HOSTS_SHARE {
        return;
    }
    const LIMIT: u64 = 1 << 20;
    let (disk, fs) = limited(LIMIT);
    let paths: Vec<_> = (0..40).flat_map(|dir| (0..50).map(move |file| format!("/{dir}/{file}"))).collect();
    for (n, path) in paths.iter().enumerate() {
        if n % 50 == 0 {
            fs.create_dir(Path::new(path).parent().expect("it has one")).expect("room");
        }
        fs.write(path, path).expect("room");
        assert_names_within(&fs, LIMIT);
    }
    for (n, path) in paths.iter().enumerate().rev() {
        assert_eq!(fs.read_to_string(path).expect("it is there"), *path);
        if n % 50 == 0 {
            assert_names_within(&fs, LIMIT);
            let dir = Path::new(path).parent().expect("it has one");
            assert_eq!(fs.read_dir(dir).expect("it is there").count(), 50);
            assert_eq!(fs.metadata(dir).expect("it is there").size, 52 * 20);
        }
    }
    let departures = fs.superblock().memory_use().expect("a store").departures;
    assert!(departures > 40, "names of {departures} directories have left");
    assert_eq!(fs.superblock().live_inodes(), 2_041);
    assert_eq!(fs.metadata("/").expect("it is there").nlink, 42);
    let before = fs.superblock().bytes_used();
    assert!(fs.superblock().check_idle().is_clean(), "{}", fs.superblock().check_idle());
    drop(fs);
    let again = Options::default().memory_limit(LIMIT);
    let fs = Fs::with_superblock(Superblock::open_on(shared(&disk), again).expect("it was closed"));
    assert_eq!((fs.superblock().live_inodes(), fs.superblock().bytes_used()), (2_041, before));
    (0..40).for_each(|dir| fs.remove_dir_all(format!("/{dir}")).expect("it is there"));
    assert_eq!((fs.superblock().live_inodes(), fs.superblock().bytes_used()), (1, 0));
    assert!(fs.superblock().check_idle().is_clean(), "{}", fs.superblock().check_idle());
}

#[test]
fn a_directory_larger_than_its_share_is_not_loaded_anew_for_each_change() {
    if !HOSTS_SHARE {
        return;
    }
    const LIMIT: u64 = 1 << 20;
    let (_disk, fs) = limited(LIMIT);
    fs.create_dir("/large").expect("room");
    let share = LIMIT / 4 / crate::superblock::INODE_BYTES;
    for n in 0..8 * share {
        fs.write(format!("/large/{n}"), "").expect("room");
    }
    let large = fs.metadata("/large").expect("it is there").ino;
    let departures = || fs.superblock().memory_use().expect("a store").departures;
    let before = departures();
    for n in 0..200 {
        fs.write(format!("/large/new-{n}"), "").expect("room");
        fs.remove_file(format!("/large/{n}")).expect("it is there");
    }
    // The names of the root directory leave now and then.
    assert!(departures() - before <= 16, "the names left {} times", departures() - before);
    // When other names need the room it leaves like any other.
    for n in 0..4 * super::names::STAY {
        fs.create_dir_all(format!("/others/{n}/below")).expect("room");
        fs.write(format!("/others/{n}/below/file"), "").expect("room");
    }
    let durable = fs.superblock().root().shared.durable().expect("a store");
    assert!(durable.names().with_names(large).is_none());
    assert_names_within(&fs, LIMIT);
    assert!(fs.superblock().check_idle().is_clean());
}

#[test]
fn a_file_in_use_whose_name_left_memory_is_the_same_when_it_is_looked_up_again() {
    if !HOSTS_SHARE {
        return;
    }
    let outcome = |mutant| {
        let (_disk, fs) = limited(1 << 20);
        fs.create_dir("/d").expect("room");
        fs.write("/d/open", "before").expect("room");
        fs.write("/d/linked", "both").expect("room");
        fs.hard_link("/d/linked", "/other").expect("room");
        fs.create_dir("/d/cwd").expect("room");
        fs.sync().expect("the disk works");
        let durable = fs.superblock().root().shared.durable().expect("a store");
        durable.store.checkpoint().expect("the disk works");
        let process = fs.process(Cred::root());
        let fd = process.open("/d/open", OpenFlags::RDWR, 0).expect("it is there");
        process.chdir("/d/cwd").expect("it is there");
        durable.pending.planted.plant(mutant);
        durable.names().shrink();
        // Names leave before a file is made.
        fs.write("/x", "").expect("room");
        fs.sync().expect("the disk works");
        durable.store.checkpoint().expect("the disk works");
        fs.write("/y", "").expect("room");
        let departures = durable.names().counts().departures;
        assert!(departures > 1);
        process.pwrite(fd, b"after!", 0).expect("room");
        process.fchmod(fd, 0o640).expect("root may");
        let again = process.stat("/d/open").map(|stat| stat.permissions());
        let text = fs.read_to_string("/d/open");
        process.chmod("/other", 0o611).expect("it is there");
        let linked = process.stat("/d/linked").map(|stat| stat.permissions());
        (again, text, linked, process.getcwd(), fs.check().is_clean())
    };
    let expected = (Ok(0o640), Ok("after!".into()), Ok(0o611), Ok("/d/cwd".into()), true);
    assert_eq!(outcome(None), expected);
    assert_ne!(outcome(Some(Mutant::UsedForgotten)), expected, "the planted fault is found");
}

#[test]
fn names_leave_memory_when_the_tree_of_the_store_has_them_and_not_before() {
    if !HOSTS_SHARE {
        return;
    }
    let outcome = |mutant| {
        let (_disk, fs) = limited(1 << 20);
        let durable = fs.superblock().root().shared.durable().expect("a store");
        durable.pending.planted.plant(mutant);
        durable.names().shrink();
        let departed = || durable.names().counts().departures;
        for n in 0..4 {
            fs.write(format!("/{n}"), "").expect("room");
        }
        let before = departed();
        let are_there = (0..4).all(|n| fs.exists(format!("/{n}")));
        fs.sync().expect("the disk works");
        durable.store.checkpoint().expect("the disk works");
        fs.write("/4", "").expect("room");
        (before, departed(), are_there && fs.exists("/0"))
    };
    assert_eq!(outcome(None), (0, 1, true));
    assert!(!outcome(Some(Mutant::ChangedNamesLeave)).2, "the planted fault is found");
}
