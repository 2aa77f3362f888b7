//! Space that files have reserved and nobody has written: it is there after a mount, and counted.

use super::crash_tests::shared;
use super::keys::Key;
use super::record::{self, InodeRecord, tail_of};
use super::tests::{limited, options};
use crate::data::{PageSet, RANGES_MAX};
use crate::{
    AtFlags, Cred, Errno, FallocateMode, Fd, Fs, OpenFlags, Process, SetTime, Superblock, Timestamp,
    XattrFlags,
};
use sluice_store::disk::Disk;
use sluice_store::disk::crash::CrashDisk;
use sluice_store::{Gravity, Info, Store};
use sluice_sync::face::HOSTS_SHARE;
use std::collections::BTreeMap;

const PAGE: i64 = 4096;
const KEEP: FallocateMode = FallocateMode::KEEP_SIZE;

fn create() -> (CrashDisk, Fs) {
    let disk = CrashDisk::new();
    let superblock = Superblock::create_on(shared(&disk), options()).expect("an empty disk");
    (disk, Fs::with_superblock(superblock))
}

fn open(disk: &CrashDisk) -> Fs {
    let fs = Fs::with_superblock(Superblock::open_on(shared(disk), options()).expect("a file system"));
    assert!(fs.superblock().check_idle().is_clean(), "{}", fs.superblock().check_idle());
    assert_held_back(&fs);
    fs
}

/// Room of the disk is held back for all pages that are reserved and not written.
fn assert_held_back(fs: &Fs) {
    let root = fs.superblock().root();
    let names = root.list_names(|_| true).expect("the disk works");
    // A file may have several names.
    let unwritten: BTreeMap<u64, u64> =
        names.iter().map(|(_, inode)| (inode.ino(), inode.data.unwritten_pages())).collect();
    assert_eq!(root.shared.durable().expect("a store").store.held_back(), unwritten.values().sum::<u64>());
}

fn root(fs: &Fs) -> Process {
    fs.process(Cred::root())
}

/// `/file` with these ranges of reserved pages.
fn reserve(fs: &Fs, ranges: impl IntoIterator<Item = (i64, i64)>) -> (Process, Fd) {
    let process = root(fs);
    let fd = process.open("/file", OpenFlags::RDWR | OpenFlags::CREAT, 0o644).expect("room");
    for (first, pages) in ranges {
        process.fallocate(fd, KEEP, first * PAGE, pages * PAGE).expect("room");
    }
    (process, fd)
}

/// The blocks that `/file` takes, and the bytes that all files count for.
fn counted(fs: &Fs) -> (u64, u64) {
    (fs.metadata("/file").expect("it is there").blocks, fs.superblock().bytes_used())
}

#[test]
fn reserved_space_is_there_after_a_clean_end_and_after_a_crash() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = create();
    let (process, fd) = reserve(&fs, [(3, 5), (100, 1000)]);
    process.pwrite(fd, &[7; 2 * 4096], 4 * PAGE).expect("room");
    process.fsync(fd).expect("the disk works");
    let before = counted(&fs);
    assert_eq!(before, (8 * 1005, 4096 * 1005));
    let crashed = CrashDisk::with(disk.files());
    drop((process, fs));
    for disk in [disk, crashed] {
        let fs = open(&disk);
        assert_eq!(counted(&fs), before);
        let process = root(&fs);
        let fd = process.open("/file", OpenFlags::RDWR, 0).expect("it is there");
        // A write into reserved space takes nothing more, and a write into a hole takes a page.
        process.pwrite(fd, &[8; 4096], 500 * PAGE).expect("room");
        assert_eq!(counted(&fs), before);
        process.pwrite(fd, &[8; 4096], 50 * PAGE).expect("room");
        assert_eq!(counted(&fs).0, before.0 + 8);
        assert_held_back(&fs);
        process.fallocate(fd, FallocateMode::ZERO_RANGE | KEEP, 2 * PAGE, 49 * PAGE).expect("room");
        process.fallocate(fd, FallocateMode::PUNCH_HOLE | KEEP, 10 * PAGE, 30 * PAGE).expect("room");
        process.copy_file_range(fd, Some(&mut 0), fd, Some(&mut (700 * PAGE)), 8 * 4096).expect("room");
        assert_held_back(&fs);
        process.ftruncate(fd, 4 * PAGE).expect("room");
        assert_eq!(counted(&fs), (16, 8192));
        assert_held_back(&fs);
    }
}

#[test]
fn of_more_ranges_than_a_record_keeps_the_longest_stay_and_what_is_counted_is_there() {
    if !HOSTS_SHARE {
        return;
    }
    let most = RANGES_MAX as i64;
    let (disk, fs) = create();
    // Twice as many ranges as a record keeps: two of three have ten pages, the others one.
    let ranges = (0..most * 2).map(|n| (n * 20, if n % 3 == 0 { 1 } else { 10 }));
    let (process, fd) = reserve(&fs, ranges);
    process.fsync(fd).expect("the disk works");
    drop((process, fs));
    let fs = open(&disk);
    assert_eq!(counted(&fs).0, 8 * 10 * RANGES_MAX as u64);
    drop(fs);
    assert_eq!(counted(&open(&disk)).0, 8 * 10 * RANGES_MAX as u64);
}

#[test]
fn a_file_with_more_ranges_than_a_record_keeps_stays_in_memory_and_others_leave_it() {
    if !HOSTS_SHARE {
        return;
    }
    for (ranges, leaves) in [(RANGES_MAX as i64, true), (RANGES_MAX as i64 + 1, false)] {
        let (_disk, fs) = limited(1 << 20);
        let durable = fs.superblock().root().shared.durable().expect("a store");
        durable.names().shrink();
        let (process, fd) = reserve(&fs, (0..ranges).map(|n| (2 * n, 1)));
        process.close(fd).expect("it is open");
        let before = counted(&fs);
        fs.sync().expect("the disk works");
        durable.store.checkpoint().expect("the disk works");
        fs.write("/other", "").expect("room");
        assert_eq!(durable.names().counts().departures > 0, leaves, "{ranges} ranges");
        assert_eq!(counted(&fs), before);
        assert!(fs.superblock().check_idle().is_clean(), "{}", fs.superblock().check_idle());
    }
}

#[test]
fn calls_that_change_attributes_alone_keep_the_reserved_pages() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = create();
    let (process, fd) = reserve(&fs, (0..RANGES_MAX as i64).map(|n| (2 * n, 1)));
    type Calls<'c> = [(&'c str, &'c dyn Fn() -> Result<(), Errno>); 7];
    let calls: Calls<'_> = [
        ("chmod", &|| process.chmod("/file", 0o600)),
        ("utimens", &|| process.utimens("/file", [Some(SetTime::At(Timestamp { sec: 1, nsec: 0 })), None])),
        ("link", &|| process.link("/file", "/second")),
        ("unlink", &|| process.unlink("/second")),
        ("rename", &|| process.rename("/file", "/moved").and_then(|()| process.rename("/moved", "/file"))),
        ("read", &|| process.pread(fd, &mut [0; 1], 0).map(drop)),
        ("xattr", &|| process.fsetxattr(fd, b"user.a", b"b", XattrFlags::empty())),
    ];
    for (name, call) in calls {
        process.fsync(fd).expect("the disk works");
        call().unwrap_or_else(|error| panic!("{name}: {error}"));
        process.fsync(fd).expect("the disk works");
        assert_eq!(counted(&open(&CrashDisk::with(disk.files()))).0, 8 * RANGES_MAX as u64, "{name}");
    }
}

#[test]
fn a_file_that_gets_its_first_name_brings_its_reserved_space() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = create();
    let process = root(&fs);
    let fd = process.open("/", OpenFlags::TMPFILE | OpenFlags::RDWR, 0o644).expect("room");
    process.fallocate(fd, KEEP, 0, 70 * PAGE).expect("room");
    process.linkat(fd, "", Fd::CWD, "/file", AtFlags::EMPTY_PATH).expect("it has none");
    process.fsync(fd).expect("the disk works");
    assert_eq!(counted(&open(&CrashDisk::with(disk.files()))), (8 * 70, 4096 * 70));
    process.unlink("/file").expect("it is there");
    process.close(fd).expect("it is open");
    fs.superblock().settle();
    assert_held_back(&fs);
    drop((process, fs));
    assert_eq!(open(&disk).superblock().bytes_used(), 0);
}

#[test]
fn a_file_whose_reserved_pages_are_all_written_is_as_any_other() {
    if !HOSTS_SHARE {
        return;
    }
    let (_disk, fs) = create();
    let (process, fd) = reserve(&fs, [(0, 10)]);
    let file = || fs.superblock().root().lookup(&Cred::root(), b"file").expect("it is there");
    assert!(file().data.has_reserved());
    (0..10).for_each(|page| _ = process.pwrite(fd, &[1; 4096], page * PAGE).expect("room"));
    assert!(!file().data.has_reserved());
}

/// Changes the record of `/file` behind the file system's back, which then counts anew.
fn set_tail(disk: &CrashDisk, ino: u64, tail: &[u8]) {
    let store = Store::open(shared(disk), options().store).expect("a store");
    let value = store.get(&Key::inode(ino)).expect("whole").expect("it is there");
    let changed = InodeRecord { tail, ..InodeRecord::decode_head(&value).expect("an inode") }.encode();
    let mut change = store.begin(20_000).expect("room");
    change.put(&Key::inode(ino), 1, &changed);
    change.put(&Key::common(), 1, &record::common(ino + 1, None));
}

#[test]
fn fsck_finds_reserved_pages_that_are_no_ranges_or_have_contents_and_mends_them() {
    if !HOSTS_SHARE {
        return;
    }
    let range = |ranges: &[(u64, u64)]| {
        let mut pages = PageSet::new();
        ranges.iter().for_each(|(start, end)| pages.insert(*start..*end));
        tail_of(&pages)
    };
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let too_many: Vec<_> = (0..=RANGES_MAX as u64).map(|n| (100 + 2 * n, 101 + 2 * n)).collect();
    // The file has pages 10 and 11. After a repair it has so many blocks.
    let cases = [
        (range(&[(5, 10), (12, 20)]), None),
        (range(&[(5, 11), (12, 20)]), Some(13)),
        (range(&[(10, 12)]), Some(0)),
        (range(&too_many), Some(0)),
        (words(&[5, 0]), Some(0)),
        (words(&[5, 2, 7, 1]), Some(0)),
        (words(&[20, 2, 5, 1]), Some(0)),
        (words(&[u64::MAX, 2]), Some(0)),
        (words(&[1 << 51, 1]), Some(0)),
        (words(&[5]), Some(0)),
        (vec![1; 17], Some(0)),
    ];
    for (tail, left) in cases {
        let (disk, fs) = create();
        let (process, fd) = reserve(&fs, []);
        process.pwrite(fd, &[7; 2 * 4096], 10 * PAGE).expect("room");
        let ino = process.fstat(fd).expect("it is open").ino;
        drop((process, fs));
        set_tail(&disk, ino, &tail);
        let found = || Superblock::check_store(shared(&disk), &mut |_| ()).expect("it can be looked at");
        let Some(left) = left else {
            assert_eq!((found().found, counted(&open(&disk)).0), (0, 8 * 15), "{:?}", found());
            continue;
        };
        let report = found();
        let is_it = |one: &sluice_store::Finding| {
            one.gravity == Gravity::Count && one.text.starts_with("reserved pages of \"/file\" (inode ")
        };
        assert!(report.findings.iter().all(is_it) && report.found == 1, "{tail:?}: {report:?}");
        if let Ok(superblock) = Superblock::open_on(shared(&disk), options()) {
            assert_eq!(Fs::with_superblock(superblock).read("/file"), Err(Errno::EIO), "never other bytes");
        }
        Superblock::repair_store(shared(&disk)).expect("it can be mended");
        assert_eq!(found().found, 0, "{tail:?}: {:?}", found());
        let fs = open(&disk);
        assert_eq!(counted(&fs).0, 8 * (2 + left), "{tail:?}");
        assert_eq!(fs.read("/file").expect("whole")[10 * 4096..], [7; 2 * 4096]);
    }
}

#[test]
fn a_store_of_the_format_before_opens_and_keeps_what_is_reserved_from_then_on() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = create();
    fs.write("/old", "old").expect("room");
    drop(fs);
    let older = Info { version: 7, ..Store::info(&disk).expect("a store") };
    disk.open("super").and_then(|file| file.write_at(&older.encode(), 0)).expect("memory");
    let fs = open(&disk);
    assert_eq!(fs.read_to_string("/old").expect("it is there"), "old");
    drop(reserve(&fs, [(0, 9)]));
    drop(fs);
    assert!(Store::info(&disk).expect("a store").version >= 8);
    assert_eq!(counted(&open(&disk)).0, 8 * 9);
}
