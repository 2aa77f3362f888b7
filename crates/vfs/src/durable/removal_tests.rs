//! Large files that are deleted or truncated: how much goes at a time, and what a crash in between leaves.

use super::Durable;
use super::audit::audit;
use super::copy_contents;
use super::crash_calls_tests::Call::{self, *};
use super::crash_calls_tests::{KEEP, NONE};
use super::crash_tests::{begin, run, shared};
use super::keys::Key;
use super::mutant::Mutant;
use super::record::InodeRecord;
use super::share_tests::live;
use super::tests::{counted, options};
use crate::{Cred, FallocateMode, Fs, NewInode, NewKind, OpenFlags, Options, Superblock};
use sluice_store::disk::crash::CrashDisk;
use sluice_sync::face::HOSTS_SHARE;
use sluice_sync::time::Duration;
use sluice_sync::{rcu, thread};

/// How many chunks of contents the store has.
fn chunks_in_store(durable: &Durable) -> usize {
    durable.store.checkpoint().expect("the disk works");
    let mut count = 0;
    let visit = &mut |_: &[u8], _: &[u8]| {
        count += 1;
        true
    };
    durable.store.scan(b"d", b"e", visit).expect("the disk works");
    count
}

#[test]
fn a_push_removes_so_many_chunks_of_what_was_deleted_or_cut_off_and_leaves_the_rest_to_later_ones() {
    if !HOSTS_SHARE {
        return;
    }
    type Shrink = fn(&Fs);
    let shrink: [(Shrink, usize); 3] = [
        (|fs| fs.remove_file("/f").expect("it is there"), 0),
        (|fs| fs.process(Cred::root()).truncate("/f", 0).expect("it is there"), 0),
        (|fs| fs.process(Cred::root()).truncate("/f", 65_536).expect("it is there"), 1),
    ];
    for (shrink, stay) in shrink {
        for is_read in [true, false] {
            let (disk, mut fs) = counted();
            fs.write("/f", vec![1; 40 * 65_536]).expect("room");
            if !is_read {
                fs.superblock().close().expect("the disk works");
                let store = options().store.background(false);
                let opened = Superblock::open_on(shared(&disk), Options { store, ..options() });
                fs = Fs::with_superblock(opened.expect("it was closed"));
            }
            fs.sync().expect("the disk works");
            let durable = fs.superblock().root().shared.durable().expect("a store");
            durable.pending.removals.limit(4);
            shrink(&fs);
            fs.settle();
            let mut left = vec![chunks_in_store(durable)];
            while !durable.pending.is_idle() {
                fs.sync().expect("the disk works");
                left.push(chunks_in_store(durable));
            }
            let expected: Vec<usize> = (0..=10).map(|push| (40 - 4 * push).max(stay)).collect();
            assert_eq!(left, expected, "read before: {is_read}");
            audit(&fs).expect("nothing is left over");
        }
    }
}

#[test]
fn the_store_goes_on_removing_unasked() {
    if !HOSTS_SHARE {
        return;
    }
    let store = options().store.age(Duration::from_secs(3_600));
    let made = Superblock::create_on(shared(&CrashDisk::new()), Options { store, ..options() });
    let fs = Fs::with_superblock(made.expect("an empty disk"));
    fs.write("/deleted", vec![1; 40 * 65_536]).expect("room");
    fs.write("/cut", vec![1; 40 * 65_536]).expect("room");
    fs.sync().expect("the disk works");
    let durable = fs.superblock().root().shared.durable().expect("a store");
    durable.pending.removals.limit(1);
    fs.remove_file("/deleted").expect("it is there");
    fs.process(Cred::root()).truncate("/cut", 0).expect("it is there");
    fs.settle();
    fs.sync().expect("the disk works");
    while !durable.pending.is_idle() {
        thread::sleep(Duration::from_millis(1));
    }
    durable.store.sync().expect("the disk works");
    assert_eq!(chunks_in_store(durable), 0);
}

/// Bytes of data that are left when a file that was deleted before the last change has lost its last user, and what it shares with a
/// copy that has no name. No call of the file system or the store follows.
fn left_by_the_last_user(planted: Option<Mutant>, borrows: bool) -> u64 {
    let age = Duration::from_millis(10);
    let made = |store| Superblock::create_on(shared(&CrashDisk::new()), Options { store, ..options() });
    let fs = Fs::with_superblock(made(options().store.age(age)).expect("an empty disk"));
    fs.write("/f", vec![1; 300_000]).expect("room");
    fs.sync().expect("the disk works");
    let (root, cred) = (fs.superblock().root().clone(), Cred::root());
    let mut user = root.lookup(&cred, b"f").expect("it is there");
    if borrows {
        let new = NewInode { kind: NewKind::Regular, mode: 0o600, umask: 0 };
        let copy = root.create_unnamed(&cred, &new).expect("room");
        copy_contents(&[(&user, copy.clone())]).expect("room");
        user = copy;
    }
    fs.remove_file("/f").expect("it is there");
    fs.settle();
    fs.sync().expect("the disk works");
    let durable = root.shared.durable().expect("a store");
    let bytes = || durable.store.stats().data_bytes;
    assert!(live(&fs) > 0, "somebody has the file");
    durable.pending.planted.plant(planted);
    // The thread of the store sleeps by now, most likely.
    thread::sleep(age * 10);
    drop(user);
    fs.settle();
    for _ in 0..if planted.is_some() { 100 } else { 6_000 } {
        if bytes() == 0 {
            break;
        }
        thread::sleep(age);
    }
    bytes()
}

#[test]
fn the_disk_has_back_what_was_deleted_though_nothing_changes_after_the_last_user_let_go() {
    if !HOSTS_SHARE {
        return;
    }
    for borrows in [false, true] {
        assert_eq!(left_by_the_last_user(None, borrows), 0, "a copy: {borrows}");
        // The push of an earlier change may come late.
        let is_found = (0..20).any(|_| left_by_the_last_user(Some(Mutant::DeadFilesWait), borrows) > 0);
        assert!(is_found, "a copy: {borrows}");
    }
}

#[test]
fn what_is_removed_by_several_pushes_is_gone_after_a_crash_at_any_step() {
    if !HOSTS_SHARE {
        return;
    }
    let punch = |at, len| Fallocate("/f", FallocateMode::PUNCH_HOLE.union(KEEP), at, len);
    let afterwards: &[&[Call]] = &[
        &[Sync, Sync, Sync],
        &[Write("/f", 0, 70_000), Sync, Append("/f", 100_000), Sync],
        &[Truncate("/f", 400_000), Sync, Write("/f", 200_000, 10), Sync, Sync],
        &[Write("/f", 330_000, 5_000), Sync],
        &[Unlink("/f"), Sync, Sync, Sync],
        &[UnlinkOpenSync("/f"), Sync, Sync],
        &[Rename("/b", "/f", NONE), Sync, Sync],
        &[Reflink("/b", "/f"), Sync, Read("/f"), Sync],
        &[Clone("/f", "/d/copy"), Sync, Sync],
        &[Fallocate("/f", FallocateMode::INSERT_RANGE, 0, 65_536), Sync, Sync],
        &[Write("/f", 0, 300_000), Truncate("/f", 0), Sync, Sync],
    ];
    let large = [Write("/f", 0, 400_000), Sync];
    let base = begin();
    for first in [Truncate("/f", 0), Truncate("/f", 100_000), punch(65_536, 300_000), Unlink("/f")] {
        for rest in afterwards {
            let calls = [&large[..], &[first, Sync], rest].concat();
            let found = run(&base, &calls, None).and_then(|ran| ran.crash_everywhere(1, 2));
            found.unwrap_or_else(|what| panic!("{calls:?}: {what}"));
        }
    }
}

#[test]
fn what_is_cut_off_and_not_put_down_is_found() {
    if !HOSTS_SHARE {
        return;
    }
    let again = [Write("/f", 0, 10), Truncate("/f", 300_000), Sync];
    let calls = [&[Write("/f", 0, 300_000), Sync, Truncate("/f", 0), Sync], &again[..]].concat();
    let outcome = |mutant| run(&begin(), &calls, mutant).and_then(|ran| ran.crash_everywhere(1, 1));
    outcome(None).expect("without the fault all is well");
    outcome(Some(Mutant::CutOffForgotten)).expect_err("the planted fault");
}

#[test]
fn an_unlink_waits_for_what_is_known_of_its_file_outside_of_its_read_section() {
    if !HOSTS_SHARE {
        return;
    }
    let (_disk, fs) = counted();
    fs.write("/f", "text").expect("room");
    let process = fs.process(Cred::root());
    let file = fs.superblock().root().lookup(&Cred::root(), b"f").expect("it is there");
    let kept = file.stored().expect("a store").kept.lock();
    let unlink = thread::spawn(move || process.unlink("/f"));
    while fs.exists("/f") {
        thread::sleep(Duration::from_millis(1));
    }
    // As a thread may do that takes contents out of memory.
    rcu::domain().synchronize();
    drop(kept);
    unlink.join().expect("no panic").expect("it was there");
    drop(file);
    audit(&fs).expect("nothing is left over");
}

/// The mode in the record of inode `ino` in the tree of the store.
fn recorded_mode(durable: &Durable, ino: u64) -> Option<u32> {
    durable.store.checkpoint().expect("the disk works");
    let record = durable.store.get(&Key::inode(ino)).expect("the disk works")?;
    Some(InodeRecord::decode(&record).expect("whole").mode & 0o7777)
}

#[test]
fn a_change_that_is_left_to_the_push_is_put_down_when_the_file_loses_its_name_before() {
    if !HOSTS_SHARE {
        return;
    }
    let outcome = |unlink_first| {
        let (_disk, fs) = counted();
        let process = fs.process(Cred::root());
        let durable = fs.superblock().root().shared.durable().expect("a store");
        fs.write("/f", "text").expect("room");
        let file = process.open("/f", OpenFlags::RDWR, 0).expect("it is there");
        let ino = process.fstat(file).expect("it is open").ino;
        if unlink_first {
            process.unlink("/f").expect("it is there");
        }
        // The file is listed, since it was written.
        let waiting = durable.store.stats().waiting_bytes;
        process.fchmod(file, 0o751).expect("root may");
        let is_put_down = durable.store.stats().waiting_bytes > waiting;
        if !unlink_first {
            process.unlink("/f").expect("it is there");
        }
        fs.sync().expect("the disk works");
        (is_put_down, recorded_mode(durable, ino))
    };
    assert_eq!(outcome(false), (false, Some(0o751)));
    assert_eq!(outcome(true), (true, Some(0o751)));
}

#[test]
fn a_file_that_was_listed_and_has_lost_its_name_is_not_held_by_a_later_write() {
    if !HOSTS_SHARE {
        return;
    }
    let (_disk, fs) = counted();
    let process = fs.process(Cred::root());
    fs.write("/f", "").expect("room");
    fs.sync().expect("the disk works");
    fs.settle();
    let live = fs.superblock().live_inodes();
    let file = process.open("/f", OpenFlags::RDWR, 0).expect("it is there");
    process.ftruncate(file, 0).expect("it is open for writing");
    process.unlink("/f").expect("it is there");
    process.pwrite(file, b"text", 1 << 20).expect("room");
    process.close(file).expect("it is open");
    fs.settle();
    assert_eq!(fs.superblock().live_inodes(), live - 1);
}
