//! Shared extents: what a clone reads and writes, who owns what after each crash, and that nothing is left when all owners are gone.

use super::audit::audit;
use super::copy_contents;
use super::crash_calls_tests::Call::{self, *};
use super::crash_tests::{begin, run, shared};
use super::mutant::Mutant;
use super::tests::{counted, options, pattern};
use crate::{Cred, Errno, FallocateMode, Fs, NewInode, NewKind, OpenFlags, Options, Superblock};
use sluice_store::disk::crash::{CrashDisk, Survivors};
use sluice_store::disk::{Disk, DiskFile};
use sluice_store::{Gravity, Report};
use sluice_sync::Arc;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::face::HOSTS_SHARE;
use std::io;

/// The last chunk stands in its record.
const LEN: usize = 40 * 65_536 + 3_000;

pub(super) fn opened(disk: &CrashDisk, memory_limit: Option<u64>) -> Fs {
    let store = options().store.background(false);
    let opened = Superblock::open_on(shared(disk), Options { store, memory_limit, ..options() });
    Fs::with_superblock(opened.expect("a store"))
}

pub(super) fn close(fs: &Fs) {
    fs.superblock().close().expect("the disk works");
}

pub(super) fn live(fs: &Fs) -> u64 {
    let durable = fs.superblock().root().shared.durable().expect("a store");
    durable.store.checkpoint().expect("the disk works");
    durable.store.stats().data_bytes
}

pub(super) fn check(disk: &CrashDisk) -> Report {
    Superblock::check_store(shared(disk), &mut |_| ()).expect("it can be looked at")
}

/// A disk that says how much room it has.
#[derive(Debug, Clone)]
struct SmallDisk {
    below: CrashDisk,
    free: Arc<AtomicU64>,
}

impl Disk for SmallDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.below.open(name)
    }
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.below.create(name, len)
    }
    fn names(&self) -> io::Result<Vec<String>> {
        self.below.names()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.free.load(Ordering::SeqCst))
    }
    fn sync_names(&self) -> io::Result<()> {
        self.below.sync_names()
    }
}

#[test]
fn a_write_to_shared_bytes_leaves_the_room_that_is_held_back_for_another_file() {
    if !HOSTS_SHARE {
        return;
    }
    const PAGE: i64 = 4096;
    let disk = SmallDisk { below: CrashDisk::new(), free: Arc::new(AtomicU64::new(1 << 30)) };
    let made = Superblock::create_on(Arc::from(Box::new(disk.clone()) as Box<dyn Disk>), options());
    let fs = Fs::with_superblock(made.expect("an empty disk"));
    for name in ["/original", "/own"] {
        fs.write(name, pattern(0, LEN)).expect("room");
    }
    fs.sync().expect("the disk works");
    fs.clone_tree("/original", "/clone").expect("room");
    let process = fs.process(Cred::root());
    let open = |name| process.open(name, OpenFlags::RDWR | OpenFlags::CREAT, 0o644).expect("room");
    let [original, clone, own, reserved] = ["/original", "/clone", "/own", "/reserved"].map(open);
    let store = &fs.superblock().root().shared.durable().expect("a store").store;
    let pages = (store.room_bytes().expect("it tells") / (4096 + 256)) as i64;
    process.fallocate(reserved, FallocateMode::empty(), 0, pages * PAGE).expect("room");
    let write = |fd, page: i64| process.pwrite(fd, &[9; PAGE as usize], page * PAGE);
    // One block less than is held back, and nothing may grow.
    let lose_a_block = || {
        disk.free.fetch_sub(4096 + 256, Ordering::SeqCst);
        store.hold_back_anyway(0);
    };
    for is_pushed in [false, true] {
        lose_a_block();
        let taken: Vec<_> = (0..40).map(|chunk| write(clone, 16 * chunk)).collect();
        assert_eq!(taken, [Err(Errno::ENOSPC); 40], "the clone, pushed: {is_pushed}");
        let taken: Vec<_> = (0..40).map(|chunk| write(original, 16 * chunk)).collect();
        assert_eq!(taken, [Err(Errno::ENOSPC); 40], "the original, pushed: {is_pushed}");
        assert_eq!(write(own, 3), Ok(PAGE as usize));
        assert_eq!(write(reserved, 3), Ok(PAGE as usize));
        fs.sync().expect("the disk works");
    }
    for file in ["/original", "/own", "/clone"] {
        assert_eq!(fs.read(file).expect("the disk works").len(), LEN);
    }
    // The clone is alone with its bytes again.
    fs.remove_file("/original").expect("a deletion goes on");
    process.close(original).expect("it is open");
    fs.superblock().settle();
    fs.sync().expect("the disk works");
    lose_a_block();
    assert_eq!(write(clone, 700), Err(Errno::ENOSPC), "behind the end");
    assert_eq!(write(clone, 16), Ok(PAGE as usize));
    fs.sync().expect("the disk works");
    assert!(fs.superblock().check_idle().is_clean(), "{}", fs.superblock().check_idle());
}

#[test]
fn contents_that_are_not_pushed_are_not_written_for_each_clone() {
    if !HOSTS_SHARE {
        return;
    }
    const LARGE: usize = 3 << 20;
    const CLONES: usize = 40;
    let (_disk, fs) = counted();
    fs.create_dir("/tree").expect("room");
    let room = |before: u64| (live(&fs) - before) as usize;
    for original in ["/file", "/tree"] {
        let before = live(&fs);
        let file = if original == "/tree" { "/tree/file" } else { original };
        fs.write(file, pattern(0, LARGE)).expect("room");
        for clone in 0..CLONES {
            fs.clone_tree(original, format!("{original}{clone}")).expect("room");
        }
        assert!(room(before) < 2 * LARGE, "{original}: {} bytes", room(before));
    }
    // Few bytes are copied at once, and count as changes of each clone.
    fs.write("/little", pattern(0, 100_000)).expect("room");
    let most = fs.superblock().root().shared.durable().expect("a store").pending.changed_max;
    for clone in 0..CLONES {
        fs.clone_tree("/little", format!("/little{clone}")).expect("room");
        let changed = fs.superblock().changed_bytes().expect("a store");
        assert!(changed <= most + 2 * 100_000, "{changed} bytes");
    }
    assert_eq!(fs.read("/tree39/file").expect("whole"), pattern(0, LARGE));
}

#[test]
fn a_call_that_would_write_more_than_the_disk_has_writes_less() {
    if !HOSTS_SHARE {
        return;
    }
    const LARGE: usize = 8 << 20;
    let disk = SmallDisk { below: CrashDisk::new(), free: Arc::new(AtomicU64::new(1 << 30)) };
    let made = Superblock::create_on(Arc::from(Box::new(disk.clone()) as Box<dyn Disk>), options());
    let fs = Fs::with_superblock(made.expect("an empty disk"));
    fs.write("/f", pattern(0, LARGE)).expect("room");
    fs.sync().expect("the disk works");
    let process = fs.process(Cred::root());
    let open = |name| process.open(name, OpenFlags::RDWR | OpenFlags::CREAT, 0o644).expect("room");
    let [from, to] = ["/f", "/to"].map(open);
    let store = &fs.superblock().root().shared.durable().expect("a store").store;
    // Two MiB more than growth leaves alone.
    let room = store.room_bytes().expect("it tells");
    disk.free.fetch_sub(room - (2 << 20), Ordering::SeqCst);
    let written = process.pwrite(to, &vec![1; LARGE], 0).expect("there is room for a part");
    assert_eq!(written, 1 << 20);
    let copied = process.copy_file_range(from, Some(&mut 0), to, Some(&mut 1), LARGE);
    assert_eq!(copied, Ok(1 << 20), "at another place in a chunk");
    assert_eq!(process.pwrite(to, &vec![1; 1 << 20], 0), Ok(1 << 20));
    disk.free.fetch_add(room, Ordering::SeqCst);
    assert_eq!(process.pwrite(to, &vec![1; LARGE], 0), Ok(LARGE));
    let ahead = &fs.superblock().root().shared.durable().expect("a store").pending.ahead;
    assert_eq!(ahead.used(), 0, "it is counted no more");
}

#[test]
fn a_clone_neither_reads_nor_writes_what_is_on_disk() {
    if !HOSTS_SHARE {
        return;
    }
    for is_in_memory in [true, false] {
        let (disk, mut fs) = counted();
        fs.create_dir("/tree").expect("room");
        fs.write("/tree/f", pattern(0, LEN)).expect("room");
        fs.sync().expect("the disk works");
        if !is_in_memory {
            close(&fs);
            fs = opened(&disk, None);
        }
        let traffic = || (disk.reads("segment"), disk.written("segment"));
        let (before, used) = (traffic(), live(&fs));
        fs.clone_tree("/tree", "/clone").expect("room");
        fs.sync().expect("the disk works");
        assert_eq!(traffic(), before, "in memory: {is_in_memory}");
        assert_eq!(live(&fs), used);
        // A snapshot of the clone, which nobody has read.
        fs.superblock().take_snapshot(b"one").expect("room");
        fs.sync().expect("the disk works");
        assert_eq!((traffic(), live(&fs)), (before, used), "in memory: {is_in_memory}");
        audit(&fs).expect("counts are right");
        let copies = ["/tree/f", "/clone/f", "/.snapshots/one/tree/f", "/.snapshots/one/clone/f"];
        for path in copies {
            assert!(fs.read(path).expect("whole") == pattern(0, LEN), "{path}");
        }
        let process = fs.process(Cred::root());
        let fd = process.open("/clone/f", OpenFlags::WRONLY, 0).expect("it is there");
        process.pwrite(fd, &[1; 70_000], 65_536).expect("room");
        process.close(fd).expect("it is open");
        fs.remove_file("/tree/f").expect("it is there");
        drop(process);
        close(&fs);
        let (content, shared_bytes) = Superblock::store_content(shared(&disk)).expect("it was closed");
        assert_eq!(
            (shared_bytes, content.data_bytes),
            (used, used + 65_536),
            "one chunk is the clone's alone"
        );
        let fs = opened(&disk, None);
        audit(&fs).expect("counts are right");
        for path in &copies[2..] {
            assert!(fs.read(path).expect("whole") == pattern(0, LEN), "{path}");
        }
        let mut expected = pattern(0, LEN);
        expected[65_536..135_536].fill(1);
        assert!(fs.read("/clone/f").expect("whole") == expected);
        fs.remove_dir_all("/clone").expect("it is there");
        fs.superblock().drop_snapshot(b"one").expect("it is there");
        fs.settle();
        audit(&fs).expect("counts are right");
        assert_eq!(live(&fs), 0, "nobody has anything");
    }
}

#[test]
fn after_a_crash_at_any_step_extents_have_the_owners_that_are_counted() {
    if !HOSTS_SHARE {
        return;
    }
    let base = begin();
    let workloads: &[&[Call]] = &[
        &[Clone("/b", "/c"), Sync, Unlink("/b"), Sync, Unlink("/c"), Sync],
        &[Clone("/b", "/c"), Unlink("/b"), Sync, Write("/c", 0, 100_000), Sync],
        &[Clone("/b", "/c"), Unlink("/c"), Sync],
        &[
            Clone("/d", "/e/c"),
            Sync,
            Clone("/e", "/e2"),
            Sync,
            Write("/d/g", 70_000, 10),
            Sync,
            Unlink("/d/g"),
        ],
        &[Clone("/d", "/e/c"), Write("/e/c/g", 70_000, 10), Sync, Truncate("/e/c/g", 0), Sync, Sync],
        &[
            Write("/b", 70_000, 10),
            Sync,
            Clone("/b", "/c"),
            Write("/b", 80_000, 10),
            Sync,
            Write("/c", 9, 9),
            Sync,
        ],
        &[
            Write("/b", 0, 90_000),
            Clone("/b", "/c"),
            Clone("/c", "/c2"),
            Write("/c", 3, 3),
            UnlinkOpen("/c2"),
            Sync,
        ],
        &[Read("/b"), Clone("/b", "/c"), UnlinkOpenSync("/c"), Truncate("/b", 0), Sync],
        &[Truncate("/b", 70_000), Clone("/b", "/c"), Truncate("/c", 100), Clone("/c", "/c2"), Sync],
    ];
    for calls in workloads {
        for more in [&[][..], &[Sync]] {
            // With one call more the other half of the memory is there: see run().
            let calls = [*calls, more].concat();
            let found = run(&base, &calls, None).and_then(|ran| ran.crash_everywhere(1, 1));
            found.unwrap_or_else(|what| panic!("{calls:?}: {what}"));
        }
    }
    let uncounted = run(&base, workloads[0], Some(Mutant::OwnerNotCounted));
    uncounted.and_then(|ran| ran.crash_everywhere(1, 1)).expect_err("the fault was not found");
}

#[test]
fn an_extent_that_its_last_owner_loses_while_a_copy_is_made_is_not_freed_and_a_crash_does_not_keep_it() {
    if !HOSTS_SHARE {
        return;
    }
    let made = |mutant| -> Result<(), String> {
        let (disk, fs) = counted();
        fs.write("/f", pattern(0, LEN)).expect("room");
        close(&fs);
        let fs = opened(&disk, None);
        let root = fs.superblock().root().clone();
        let durable = root.shared.durable().expect("a store");
        durable.pending.planted.plant(mutant);
        let new = NewInode { kind: NewKind::Regular, mode: 0o600, umask: 0 };
        let copy = root.create_unnamed(&Cred::root(), &new).expect("room");
        let original = root.lookup(&Cred::root(), b"f").expect("it is there");
        copy_contents(&[(&original, copy.clone())]).expect("room");
        drop(original);
        fs.remove_file("/f").expect("it is there");
        fs.settle();
        let first = disk.steps();
        for _ in 0..3 {
            fs.sync().expect("the disk works");
        }
        durable.store.checkpoint().expect("the disk works");
        if live(&fs) == 0 {
            return Err("the extents are free".into());
        }
        for steps in first..=disk.steps() {
            for way in [Survivors::None, Survivors::All] {
                let crashed = disk.crash(steps, way);
                let report = check(&crashed);
                if report.worst() > Some(Gravity::Note) {
                    return Err(format!("after step {steps}: {report:?}"));
                }
                let fs = opened(&crashed, None);
                fs.sync().expect("the disk works");
                audit(&fs)?;
                close(&fs);
            }
        }
        root.link(&Cred::root(), b"copy", &copy).map_err(|error| format!("{error:?}"))?;
        drop(copy);
        fs.sync().map_err(|error| format!("{error:?}"))?;
        audit(&fs)?;
        close(&fs);
        let report = check(&disk);
        if report.found > 0 {
            return Err(format!("{report:?}"));
        }
        let fs = opened(&disk, None);
        let bytes = fs.read("/copy").map_err(|error| format!("{error:?}"))?;
        if bytes == pattern(0, LEN) { Ok(()) } else { Err("other bytes".into()) }
    };
    made(None).expect("without the fault all is well");
    made(Some(Mutant::BorrowedFreed)).expect_err("the fault was not found");
    // A copy that is given up: the next push frees the extents that it borrowed.
    let (disk, fs) = counted();
    fs.write("/f", pattern(0, LEN)).expect("room");
    close(&fs);
    let fs = opened(&disk, None);
    let root = fs.superblock().root().clone();
    let new = NewInode { kind: NewKind::Regular, mode: 0o600, umask: 0 };
    let copy = root.create_unnamed(&Cred::root(), &new).expect("room");
    let original = root.lookup(&Cred::root(), b"f").expect("it is there");
    copy_contents(&[(&original, copy.clone())]).expect("room");
    drop(original);
    fs.remove_file("/f").expect("it is there");
    fs.settle();
    fs.sync().expect("the disk works");
    assert!(live(&fs) > 0, "it is borrowed");
    drop(copy);
    fs.settle();
    audit(&fs).expect("nothing is left over");
    assert_eq!(live(&fs), 0);
}

#[test]
fn a_clone_of_a_chunk_that_is_partly_in_its_record_and_partly_not_in_memory_has_all_of_it() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = counted();
    let mut expected = pattern(0, 65_536);
    fs.write("/f", &expected).expect("room");
    fs.sync().expect("the disk works");
    let process = fs.process(Cred::root());
    let fd = process.open("/f", OpenFlags::WRONLY, 0).expect("it is there");
    process.pwrite(fd, &[7; 8 * 4096], 0).expect("room");
    expected[..8 * 4096].fill(7);
    process.close(fd).expect("it is open");
    fs.sync().expect("the disk works");
    // As after a crash: what is patched is in memory, and the other pages are not.
    drop(process);
    let disk = disk.crash(disk.steps(), Survivors::None);
    let fs = opened(&disk, None);
    fs.clone_tree("/f", "/clone").expect("room");
    // With this the push has more than a few pages.
    fs.write("/other", pattern(1, 80 * 4096)).expect("room");
    fs.sync().expect("the disk works");
    assert!(fs.read("/clone").expect("whole") == expected);
    audit(&fs).expect("counts are right");
    close(&fs);
    assert!(opened(&disk, None).read("/clone").expect("whole") == expected);
}

#[test]
fn a_tree_is_cloned_with_next_to_no_memory_while_others_write() {
    if !HOSTS_SHARE {
        return;
    }
    const FILES: usize = 6;
    let (disk, fs) = counted();
    fs.create_dir("/tree").expect("room");
    for file in 0..FILES {
        fs.write(format!("/tree/{file}"), vec![1; 200_000]).expect("room");
    }
    close(&fs);
    let fs = opened(&disk, Some(256 << 10));
    sluice_sync::thread::scope(|scope| {
        let (write, push) = (fs.process(Cred::root()), fs.process(Cred::root()));
        scope.spawn(move || {
            for round in 2..40_u8 {
                for file in 0..FILES {
                    let path = format!("/tree/{file}");
                    let fd = write.open(path, OpenFlags::WRONLY, 0).expect("it is there");
                    // Whole files: a clone has one of the values everywhere.
                    write.pwrite(fd, &[round; 200_000], 0).expect("room");
                    write.close(fd).expect("it is open");
                }
            }
        });
        scope.spawn(move || (0..60).for_each(|_| push.fs().sync().expect("the disk works")));
        for clone in 0..12 {
            fs.clone_tree("/tree", format!("/clone{clone}")).expect("room");
        }
    });
    let sound = |fs: &Fs| {
        for clone in 0..12 {
            for file in 0..FILES {
                let bytes = fs.read(format!("/clone{clone}/{file}")).expect("whole");
                assert_eq!(bytes.len(), 200_000);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "file {file} of clone {clone} is torn");
            }
        }
    };
    sound(&fs);
    fs.sync().expect("the disk works");
    audit(&fs).expect("counts are right");
    close(&fs);
    assert_eq!(check(&disk).found, 0, "{:?}", check(&disk));
    let fs = opened(&disk, Some(256 << 10));
    sound(&fs);
}
