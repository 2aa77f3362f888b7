//! Inodes that are found by their numbers, as handles of files have them.

use super::audit::audit;
use super::crash_tests::shared;
use super::mutant::Mutant;
use super::tests::options;
use crate::inode::{Body, InodeInit};
use crate::{Cred, Errno, FileType, Fs, Inode, InodeRef, Options, Superblock, Timestamp};
use sluice_store::disk::crash::CrashDisk;
use sluice_sync::face::HOSTS_SHARE;
use std::collections::BTreeSet;

fn create(disk: &CrashDisk) -> Fs {
    Fs::with_superblock(Superblock::create_on(shared(disk), options()).expect("an empty disk"))
}

fn open(disk: &CrashDisk) -> Fs {
    Fs::with_superblock(Superblock::open_on(shared(disk), options()).expect("it was closed"))
}

fn named(fs: &Fs, path: &str) -> InodeRef {
    let mut found = fs.superblock().root().clone();
    for name in path.split('/').skip(1) {
        found = found.lookup(&Cred::root(), name.as_bytes()).expect("it is there");
    }
    found
}

/// The inode number and generation in a handle.
fn handle(fs: &Fs, path: &str) -> (u64, u32) {
    let inode = named(fs, path);
    (inode.ino(), inode.generation())
}

#[test]
fn an_inode_is_found_by_its_number_when_the_file_system_is_opened_again() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = CrashDisk::new();
    let fs = create(&disk);
    fs.create_dir_all("/a/b").expect("room");
    for n in 0..50 {
        fs.write(format!("/a/b/{n}"), n.to_string()).expect("room");
    }
    fs.symlink("b", "/a/link").expect("room");
    fs.write("/a/moved", "moved").expect("room");
    fs.create_dir("/c").expect("room");
    fs.rename("/a/moved", "/c/moved").expect("it is there");
    let process = fs.process(Cred::root());
    process.mknod("/a/fifo", FileType::Fifo, 0o600, 0).expect("room");
    process.mknod("/a/device", FileType::CharDevice, 0o600, 0x103).expect("root may");
    let paths = ["/a/b", "/a/b/7", "/a/link", "/c/moved", "/a/fifo", "/a/device"];
    let handles = paths.map(|path| handle(&fs, path));
    drop((process, fs));
    // By its number alone, and what leads to it is known when its name is looked up: it is not there twice.
    for ((ino, generation), path) in handles.into_iter().zip(paths) {
        let fs = open(&disk);
        let found = fs.superblock().find_inode(ino).expect("it is there");
        if path == "/a/b/7" {
            assert_eq!(fs.superblock().inodes_in_memory(), 2, "the root, and the file");
        }
        assert_eq!((found.ino(), found.generation()), (ino, generation), "{path}");
        assert!(found.is_same(&fs.superblock().find_inode(ino).expect("it is there")), "{path}");
        let by_name = named(&fs, path);
        assert!(found.is_same(&by_name), "{path}");
        assert!(found.is_same(&fs.superblock().find_inode(ino).expect("it is there")), "{path}");
        let parent = path.rsplit_once('/').expect("a path").0;
        if found.is_dir() {
            assert!(found.parent().expect("a directory").is_same(&named(&fs, parent)));
        }
        drop((found, by_name));
        assert!(fs.superblock().check_idle().is_clean(), "{}", fs.superblock().check_idle());
    }
    let fs = open(&disk);
    assert_eq!(fs.superblock().find_inode(1 << 40).err(), Some(Errno::ESTALE));
    // Removed inodes are not found.
    for path in ["/a/b/7", "/c/moved"] {
        let (ino, _) = handle(&fs, path);
        let kept = named(&fs, path);
        fs.remove_file(path).expect("it is there");
        assert_eq!(fs.superblock().find_inode(ino).err(), Some(Errno::ESTALE), "{path}");
        drop(kept);
        assert_eq!(fs.superblock().find_inode(ino).err(), Some(Errno::ESTALE), "{path}");
    }
    drop(fs);
    let fs = open(&disk);
    assert_eq!(fs.superblock().find_inode(handles[1].0).err(), Some(Errno::ESTALE));
}

#[test]
fn what_was_lost_with_another_process_is_not_searched_for_in_the_whole_tree() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = CrashDisk::new();
    let fs = create(&disk);
    fs.create_dir_all("/a/b").expect("room");
    fs.write("/a/b/file", "contents").expect("room");
    let (dir, _) = handle(&fs, "/a");
    drop(fs);
    let fs = open(&disk);
    let superblock = fs.superblock();
    let has_names = || superblock.root().shared.durable().expect("a store").names().with_names(dir).is_some();
    assert!(superblock.adopt(&BTreeSet::from([1 << 40])).is_empty() && !has_names());
    fs.read("/a/b/file").expect("it is there");
    assert!(has_names(), "what would have been seen");
}

#[test]
fn a_file_that_lost_its_last_user_is_not_adopted_with_what_it_had_before() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = CrashDisk::new();
    let fs = create(&disk);
    fs.write("/file", "old").expect("room");
    fs.superblock().sync().expect("room");
    let (ino, _) = handle(&fs, "/file");
    let kept = named(&fs, "/file");
    fs.remove_file("/file").expect("it is there");
    fs.superblock().sync().expect("room");
    drop(kept);
    crate::inode::settle();
    // Its records go with the next push.
    let wanted = BTreeSet::from([ino]);
    assert!(fs.superblock().adopt_nameless(&wanted).is_empty());
    assert!(fs.superblock().adopt(&wanted).is_empty());
}

#[test]
fn an_inode_is_found_whichever_of_its_names_is_left() {
    if !HOSTS_SHARE {
        return;
    }
    const PATHS: [&str; 4] = ["/a/only", "/c/g", "/b/f", "/c/f"];
    let outcome = |mutant| {
        let disk = CrashDisk::new();
        let fs = create(&disk);
        fs.superblock().root().shared.durable().expect("a store").pending.planted.plant(mutant);
        for dir in ["/a", "/b", "/c"] {
            fs.create_dir(dir).expect("room");
        }
        for dir in ["/a", "/b", "/c"] {
            fs.write(format!("{dir}/f"), dir).expect("room");
            fs.hard_link(format!("{dir}/f"), "/b/linked").expect("room");
            fs.remove_file("/b/linked").expect("it is there");
        }
        fs.write("/a/only", "").expect("room");
        fs.hard_link("/a/only", "/b/only").expect("room");
        fs.remove_file("/b/only").expect("it is there");
        fs.hard_link("/a/f", "/c/g").expect("room");
        fs.remove_file("/a/f").expect("it is there");
        let process = fs.process(Cred::root());
        process
            .renameat2(crate::Fd::CWD, "/b/f", crate::Fd::CWD, "/c/f", crate::RenameFlags::EXCHANGE)
            .expect("both are there");
        drop(process);
        audit(&fs)?;
        let inos = PATHS.map(|path| handle(&fs, path).0);
        drop(fs);
        for first in 0..2 {
            let fs = open(&disk);
            // Other names may be in memory.
            let _ = ["/c", "/b"].map(|dir| if first == 0 { fs.read_dir(dir).map(drop) } else { Ok(()) });
            let found = inos.map(|ino| fs.superblock().find_inode(ino).expect("it is there"));
            for (found, path) in found.iter().zip(PATHS) {
                assert!(found.is_same(&named(&fs, path)), "{path}");
            }
            drop(found);
            assert!(fs.superblock().check_idle().is_clean(), "{}", fs.superblock().check_idle());
        }
        Ok::<(), String>(())
    };
    assert_eq!(outcome(None), Ok(()));
    assert!(outcome(Some(Mutant::HolderStays)).is_err(), "the planted fault is found");
}

#[test]
fn files_that_had_one_number_after_another_are_of_different_generations() {
    let superblock = Superblock::new(Options::default());
    let shared = &superblock.root().shared;
    shared.count_found(100, 0);
    let of = |tick: u32| {
        let born = Timestamp { sec: 1_800_000_000, nsec: tick * 4_000_000 };
        let file_type = FileType::Regular;
        let init = InodeInit { file_type, mode: 0o644, uid: 0, gid: 0, nlink: 1, origin: 0, born };
        Inode::allocate(shared, 5, init, Body::Regular).generation()
    };
    let generations: BTreeSet<u32> = (0..100).map(of).collect();
    assert_eq!((generations.len(), of(7)), (100, of(7)));
}
