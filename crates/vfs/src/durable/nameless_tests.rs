//! Files without a name, larger than the limit of memory: they are written, leave memory, come back, and are gone when they are closed,
//! or after a crash.

use super::audit::audit;
use super::crash_tests::shared;
use super::mutant::Mutant;
use super::tests::{options, pattern};
use crate::{AtFlags, Cred, Fd, Fs, OpenFlags, Options, Process, Superblock};
use sluice_store::disk::crash::{CrashDisk, Survivors};
use sluice_store::{Gravity, Report};
use sluice_sync::face::HOSTS_SHARE;
use std::collections::BTreeSet;

/// How a file comes to have no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Unlinked,
    /// Written in part before.
    UnlinkedLater,
    Tmpfile,
}

const WAYS: [Way; 3] = [Way::Unlinked, Way::UnlinkedLater, Way::Tmpfile];
const STEP: usize = 50_000;

fn limited(memory_limit: u64, volatile: bool) -> Options {
    let store = options().store.segment_size(1 << 20).background(false).volatile(volatile);
    Options { store, memory_limit: Some(memory_limit), ..options() }
}

fn create(disk: &CrashDisk, options: Options) -> Fs {
    Fs::with_superblock(Superblock::create_on(shared(disk), options).expect("an empty disk"))
}

fn reopen(disk: &CrashDisk, memory_limit: u64) -> Fs {
    let opened = Superblock::open_on(shared(disk), limited(memory_limit, false));
    Fs::with_superblock(opened.expect("a store"))
}

fn check(disk: &CrashDisk) -> Report {
    Superblock::check_store(shared(disk), &mut |_| ()).expect("it can be looked at")
}

fn used(fs: &Fs) -> u64 {
    fs.superblock().memory_use().expect("a store").used
}

fn write(process: &Process, fd: Fd, from: usize, to: usize, mut then: impl FnMut()) {
    for at in (from..to).step_by(STEP) {
        process.pwrite(fd, &pattern(at, STEP), at as i64).expect("room");
        then();
    }
}

/// A file of `len` bytes without a name; `then` is called after each write.
fn made(process: &Process, way: Way, len: usize, mut then: impl FnMut()) -> Fd {
    let fd = match way {
        Way::Tmpfile => process.open("/", OpenFlags::TMPFILE | OpenFlags::RDWR, 0o600),
        _ => process.open("/f", OpenFlags::CREAT | OpenFlags::RDWR, 0o600),
    };
    let fd = fd.expect("room");
    let half = if way == Way::UnlinkedLater { len / 2 / STEP * STEP } else { 0 };
    write(process, fd, 0, half, &mut then);
    if way != Way::Tmpfile {
        process.unlink("/f").expect("it is there");
    }
    write(process, fd, half, len, then);
    fd
}

fn read(process: &Process, fd: Fd, len: usize) {
    let mut bytes = vec![0; STEP];
    for at in (0..len).step_by(STEP) {
        assert_eq!(process.pread(fd, &mut bytes, at as i64), Ok(STEP));
        assert!(bytes == pattern(at, STEP), "other bytes at {at}");
    }
}

#[test]
fn a_file_without_a_name_takes_no_more_memory_than_it_may_and_its_space_comes_back() {
    if !HOSTS_SHARE {
        return;
    }
    const LIMIT: u64 = 2 << 20;
    const LEN: usize = 10_000_000;
    for volatile in [false, true] {
        // As much as one with a name takes.
        let fs = create(&CrashDisk::new(), limited(LIMIT, volatile));
        let (process, mut most) = (fs.process(Cred::root()), 0);
        let fd = process.open("/f", OpenFlags::CREAT | OpenFlags::RDWR, 0o600).expect("room");
        write(&process, fd, 0, LEN, || most = most.max(used(&fs)));
        drop((process, fs));
        for way in WAYS {
            let disk = CrashDisk::new();
            let fs = create(&disk, limited(LIMIT, volatile));
            let process = fs.process(Cred::root());
            let durable = fs.superblock().root().shared.durable().expect("a store");
            let mut peak = 0;
            let fd = made(&process, way, LEN, || peak = peak.max(used(&fs)));
            assert!(peak <= most + LIMIT / 16, "{way:?}: {peak} bytes are counted");
            assert!(disk.written("segment") > LEN as u64 * 3 / 4, "{way:?}: it is written");
            // The counted chunks are those in memory.
            let file = process.file(fd).expect("it is open");
            let chunks = || file.inode().data.chunks_with_data(0..u64::MAX).len();
            assert!(chunks() * 65_536 < LIMIT, "{way:?}: {} chunks are in memory", chunks());
            // A file that nobody calls: another file takes the memory.
            let other = process.open("/other", OpenFlags::CREAT | OpenFlags::RDWR, 0o600).expect("room");
            write(&process, other, 0, LEN / 2, || ());
            process.close(other).expect("it is open");
            assert!(used(&fs) <= most + LIMIT / 16, "{way:?}: {} bytes are counted", used(&fs));
            read(&process, fd, LEN);
            assert!(fs.check().is_clean(), "{}", fs.check());
            assert!(chunks() * 65_536 < LIMIT, "{way:?}: {} chunks are in memory", chunks());
            drop(file);
            fs.remove_file("/other").expect("it is there");
            durable.store.checkpoint().expect("the disk works");
            assert!(durable.store.stats().data_bytes > LEN as u64 / 2);
            process.close(fd).expect("it is open");
            fs.settle();
            assert_eq!(fs.superblock().live_inodes(), 1, "{way:?}");
            audit(&fs).expect("nothing is left over");
            assert_eq!(durable.store.stats().data_bytes, 0, "{way:?}");
            drop(process);
            fs.superblock().close().expect("the disk works");
            assert_eq!(check(&disk).found, 0, "{way:?}: {:?}", check(&disk));
        }
    }
}

#[test]
fn what_is_removed_or_cut_off_counts_no_more() {
    if !HOSTS_SHARE {
        return;
    }
    const LEN: usize = 3_000_000;
    let fs = create(&CrashDisk::new(), limited(64 << 20, false));
    let before = used(&fs);
    let fill = || {
        fs.write("/f", pattern(0, LEN)).expect("room");
        fs.sync().expect("the disk works");
        assert!(used(&fs) > before + LEN as u64);
    };
    let is_little = |what| {
        let left = used(&fs) - before;
        assert!(left < 65_536, "{what}: {left} bytes count");
    };
    fill();
    fs.remove_file("/f").expect("it is there");
    fs.settle();
    is_little("removed");
    fill();
    fs.process(Cred::root()).truncate("/f", 0).expect("it is there");
    fs.sync().expect("the disk works");
    is_little("cut off");
    // Chunks that are cut off hold no file: this one is gone with its name.
    fs.remove_file("/f").expect("it is there");
    fs.settle();
    assert_eq!(fs.superblock().live_inodes(), 1);
    fill();
    fs.write("/other", "o").expect("room");
    fs.rename("/other", "/f").expect("both are there");
    fs.settle();
    is_little("replaced");
}

#[test]
fn a_spilled_file_is_deleted_after_a_crash_at_any_step() {
    if !HOSTS_SHARE {
        return;
    }
    const LIMIT: u64 = 512 << 10;
    const LEN: usize = 1_000_000;
    let crashes = |mutant, way| -> Result<(), String> {
        let disk = CrashDisk::new();
        let fs = create(&disk, limited(LIMIT, false));
        fs.write("/stays", pattern(0, 100_000)).expect("room");
        fs.sync().expect("the disk works");
        fs.superblock().root().shared.durable().expect("a store").pending.planted.plant(mutant);
        let process = fs.process(Cred::root());
        let first = disk.steps();
        let fd = made(&process, way, LEN, || ());
        read(&process, fd, LEN);
        process.ftruncate(fd, 300_000).expect("room");
        write(&process, fd, 300_000, 600_000, || ());
        fs.sync().expect("the disk works");
        let stays = process.open("/stays", OpenFlags::RDONLY, 0).expect("it is there");
        // Extents of another file: they have one owner more, and then one less.
        process.copy_file_range(stays, Some(&mut 0), fd, Some(&mut 0), 65_536).expect("room");
        fs.sync().expect("the disk works");
        process.close(fd).expect("it is open");
        fs.settle();
        fs.sync().expect("the disk works");
        for steps in first..=disk.steps() {
            for survivors in [Survivors::None, Survivors::All, Survivors::Some(steps as u64)] {
                let crashed = disk.crash(steps, survivors);
                let report = check(&crashed);
                if report.worst() > Some(Gravity::Note) {
                    return Err(format!("after step {steps}: {report:?}"));
                }
                let fs = reopen(&crashed, LIMIT);
                fs.sync().map_err(|error| format!("{error:?}"))?;
                audit(&fs).map_err(|what| format!("after step {steps}: {what}"))?;
                assert!(fs.read("/stays").expect("it is there") == pattern(0, 100_000));
                fs.superblock().close().expect("the disk works");
            }
        }
        drop(process);
        Ok(())
    };
    for way in WAYS {
        crashes(None, way).unwrap_or_else(|what| panic!("{way:?}: {what}"));
    }
    crashes(Some(Mutant::SpillForgotten), Way::Tmpfile).expect_err("the fault was not found");
}

#[test]
fn a_spilled_file_that_gets_a_name_is_there_after_a_crash_whole_or_not_at_all() {
    if !HOSTS_SHARE {
        return;
    }
    const LIMIT: u64 = 512 << 10;
    const LEN: usize = 1_000_000;
    for unlinks in [false, true] {
        let disk = CrashDisk::new();
        let fs = create(&disk, limited(LIMIT, false));
        fs.sync().expect("the disk works");
        let process = fs.process(Cred::root());
        let first = disk.steps();
        let fd = made(&process, Way::Tmpfile, LEN, || ());
        process.linkat(fd, "", Fd::CWD, "/named", AtFlags::EMPTY_PATH).expect("it may have a name");
        if unlinks {
            process.unlink("/named").expect("it is there");
        }
        process.fsync(fd).expect("the disk works");
        let named = disk.steps();
        read(&process, fd, LEN);
        assert!(unlinks || fs.read("/named").expect("it is there") == pattern(0, LEN));
        assert!(fs.check().is_clean(), "{}", fs.check());
        for steps in first..=disk.steps() {
            for survivors in [Survivors::None, Survivors::All, Survivors::Some(steps as u64)] {
                let crashed = disk.crash(steps, survivors);
                let report = check(&crashed);
                assert!(report.worst() <= Some(Gravity::Note), "after step {steps}: {report:?}");
                let fs = reopen(&crashed, LIMIT);
                let is_there = fs.exists("/named");
                assert!(!is_there || !unlinks, "it was unlinked in the same push");
                assert!(unlinks || is_there || steps < named, "it was synchronised before step {steps}");
                assert!(!is_there || fs.read("/named").expect("whole") == pattern(0, LEN));
                fs.sync().expect("the disk works");
                audit(&fs).unwrap_or_else(|what| panic!("after step {steps}: {what}"));
                fs.superblock().close().expect("the disk works");
            }
        }
        process.close(fd).expect("it is open");
        drop(process);
        fs.settle();
        audit(&fs).expect("nothing is left over");
        fs.superblock().close().expect("the disk works");
        assert_eq!(check(&disk).found, 0, "{:?}", check(&disk));
        let fs = reopen(&disk, LIMIT);
        assert_eq!(fs.exists("/named"), !unlinks);
        fs.superblock().close().expect("the disk works");
    }
}

#[test]
fn files_that_are_written_and_deleted_are_not_spilled() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = CrashDisk::new();
    let fs = create(&disk, limited(64 << 20, false));
    for _ in 0..200 {
        fs.write("/f", pattern(0, 100_000)).expect("room");
        fs.remove_file("/f").expect("it is there");
    }
    assert_eq!(disk.written("segment"), 0);
    fs.settle();
    audit(&fs).expect("nothing is left over");
}

#[test]
fn contents_of_files_without_a_name_are_there_for_the_next_process_if_they_were_synchronised_for_it() {
    if !HOSTS_SHARE {
        return;
    }
    const LEN: usize = 300_000;
    for way in WAYS {
        let disk = CrashDisk::new();
        let fs = create(&disk, limited(64 << 20, false));
        let process = fs.process(Cred::root());
        let fd = made(&process, way, LEN, || ());
        let ino = process.fstat(fd).expect("it is open").ino;
        let stays = process.open("/stays", OpenFlags::CREAT | OpenFlags::RDWR, 0o600).expect("room");
        fs.superblock().checkpoint().expect("the disk works");
        // Nothing but the file without a name changes from here on.
        process.pwrite(fd, b"last", 7).expect("room");
        fs.superblock().sync_nameless().expect("the disk works");
        let crashed = disk.crash(disk.steps(), Survivors::None);
        drop((process, stays));
        let next = reopen(&crashed, 64 << 20);
        let wanted = BTreeSet::from([ino]);
        assert_eq!(next.superblock().nameless_inodes(), wanted, "{way:?}");
        let found = next.superblock().adopt_nameless(&wanted).remove(&ino).expect("it is there");
        let mut bytes = vec![0; LEN / STEP * STEP];
        assert_eq!(found.read_at(0, &mut bytes, false), Ok(bytes.len()));
        let expected: Vec<u8> =
            (0..LEN / STEP * STEP).step_by(STEP).flat_map(|at| pattern(at, STEP)).collect();
        assert_eq!(&bytes[7..11], b"last", "{way:?}");
        assert!(bytes[..7] == expected[..7] && bytes[11..] == expected[11..], "{way:?}");
        drop(found);
        next.superblock().close().expect("the disk works");
        assert!(check(&crashed).worst() <= Some(Gravity::Note), "{way:?}: {:?}", check(&crashed));
    }
}
