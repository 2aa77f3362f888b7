//! Access times that only reads move.

use super::crash_tests::shared;
use super::tests::{limited, options};
use crate::{Cred, Fs, OpenFlags, SetAttr, SetTime, Superblock, Timestamp};
use sluice_store::disk::crash::{CrashDisk, Survivors};
use sluice_sync::face::HOSTS_SHARE;

const LONG_AGO: Timestamp = Timestamp { sec: 1_000, nsec: 0 };

/// A file, a directory and a symbolic link that nobody has read for long; all is in the store.
fn begin(disk: &CrashDisk) -> Fs {
    let fs = Fs::with_superblock(Superblock::create_on(shared(disk), options()).expect("an empty disk"));
    fs.write("/file", "contents").expect("room");
    fs.create_dir("/dir").expect("room");
    fs.write("/dir/below", "").expect("room");
    fs.symlink("file", "/link").expect("room");
    let root = fs.superblock().root();
    for name in ["file", "dir", "link"] {
        let change = SetAttr { atime: Some(SetTime::At(LONG_AGO)), ..SetAttr::default() };
        let inode = root.lookup(&Cred::root(), name.as_bytes()).expect("it is there");
        inode.set_attr(&Cred::root(), &change).expect("root may");
    }
    fs.sync().expect("the disk works");
    fs
}

fn open(disk: &CrashDisk) -> Fs {
    Fs::with_superblock(Superblock::open_on(shared(disk), options()).expect("a store"))
}

fn read_all(fs: &Fs) {
    for _ in 0..3 {
        assert_eq!(fs.read_to_string("/link").expect("it is there"), "contents");
        assert_eq!(fs.read_dir("/dir").expect("it is there").count(), 1);
    }
}

/// Whether the access times of the file, the directory and the link have moved.
fn moved(fs: &Fs) -> [bool; 3] {
    let process = fs.process(Cred::root());
    ["/file", "/dir", "/link"].map(|path| process.lstat(path).expect("it is there").atime != LONG_AGO)
}

#[test]
fn an_access_time_that_reads_moved_reaches_the_store_with_a_close_and_a_sync() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = CrashDisk::new();
    let fs = begin(&disk);
    let waiting = |fs: &Fs| {
        let durable = fs.superblock().root().shared.durable().expect("a store");
        durable.store.stats().waiting_bytes
    };
    assert_eq!(waiting(&fs), 0);
    read_all(&fs);
    assert_eq!((moved(&fs), waiting(&fs)), ([true; 3], 0), "a read puts nothing down");
    // A crash.
    let steps = disk.steps();
    assert_eq!(moved(&open(&disk.crash(steps, Survivors::All))), [false; 3]);
    fs.sync().expect("the disk works");
    assert_eq!(moved(&open(&disk.crash(disk.steps(), Survivors::None))), [true; 3]);
    drop(fs);
    let disk = CrashDisk::new();
    let fs = begin(&disk);
    read_all(&fs);
    drop(fs);
    assert_eq!(moved(&open(&disk)), [true; 3]);
}

#[test]
fn an_fsync_puts_down_the_access_time_of_its_file() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = CrashDisk::new();
    let fs = begin(&disk);
    read_all(&fs);
    let file = fs.superblock().root().lookup(&Cred::root(), b"file").expect("it is there");
    file.sync().expect("the disk works");
    assert_eq!(moved(&open(&disk.crash(disk.steps(), Survivors::None))), [true, false, false]);
}

#[test]
fn a_file_that_was_read_goes_when_it_is_removed_and_when_memory_is_short() {
    if !HOSTS_SHARE {
        return;
    }
    let (_disk, fs) = limited(1 << 20);
    let live = fs.superblock().live_inodes();
    fs.write("/file", "contents").expect("room");
    assert_eq!(fs.read_to_string("/file").expect("it is there"), "contents");
    fs.remove_file("/file").expect("it is there");
    assert_eq!(fs.superblock().live_inodes(), live);
    // While it is open nothing lists it again.
    fs.write("/open", "contents").expect("room");
    let process = fs.process(Cred::root());
    let fd = process.open("/open", OpenFlags::RDONLY, 0).expect("it is there");
    process.unlink("/open").expect("it is there");
    assert_eq!(process.read(fd, &mut [0; 8]), Ok(8));
    drop(process);
    assert_eq!(fs.superblock().live_inodes(), live);
    for dir in 0..40 {
        fs.create_dir(format!("/{dir}")).expect("room");
        for file in 0..50 {
            let path = format!("/{dir}/{file}");
            fs.write(&path, "x").expect("room");
            assert_eq!(fs.read(&path).expect("it is there"), b"x");
        }
    }
    let used = fs.superblock().memory_use().expect("a store");
    assert!(used.inodes < 2_000, "{} inodes in memory", used.inodes);
}
