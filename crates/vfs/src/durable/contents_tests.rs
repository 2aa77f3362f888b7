//! Contents in records: what appends that are synchronised cost, by counts, and that what they wrote is there after a crash.

use super::crash_tests::shared;
use super::mutant::Mutant;
use super::tests::options;
use crate::{Cred, Fs, OpenFlags, Options, Process, Superblock};
use sluice_store::disk::crash::{CrashDisk, Survivors};
use sluice_sync::face::HOSTS_SHARE;

const PAGE: usize = 4096;
const APPENDS: usize = 40;
/// Bytes of a chunk.
const CHUNK: usize = 16 * PAGE;

/// The bytes of the n-th append.
fn block(n: usize) -> Vec<u8> {
    vec![n as u8 + 1; PAGE]
}

fn file(tasks: usize) -> Vec<String> {
    (0..tasks).map(|task| format!("/{task}")).collect()
}

/// Each of `tasks` appends a page to its file and waits, in turns, with one push for all: what was written to the log and to
/// segments, and the flushes.
fn append(disk: &CrashDisk, fs: &Fs, tasks: usize) -> (u64, u64, usize) {
    let process: Process = fs.process(Cred::root());
    let flags = OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::APPEND;
    let files: Vec<_> =
        file(tasks).iter().map(|path| process.open(path, flags, 0o644).expect("room")).collect();
    fs.sync().expect("the disk works");
    let counts = || (disk.written("log"), disk.written("segment"), disk.flushes());
    let before = counts();
    for n in 0..APPENDS {
        files.iter().for_each(|file| assert_eq!(process.write(*file, &block(n)), Ok(PAGE)));
        fs.sync().expect("the disk works");
    }
    let after = counts();
    (after.0 - before.0, after.1 - before.1, after.2 - before.2)
}

fn is_right(fs: &Fs, tasks: usize) -> bool {
    let expected: Vec<u8> = (0..APPENDS).flat_map(block).collect();
    file(tasks).iter().all(|path| fs.read(path).expect("it is there") == expected)
}

/// An empty file system, and its disk. The log holds all that the tests write.
fn made() -> (CrashDisk, Fs) {
    let disk = CrashDisk::new();
    let store = options().store.log_size(16 << 20).background(false);
    let made = Superblock::create_on(shared(&disk), Options { store, ..options() });
    (disk, Fs::with_superblock(made.expect("an empty disk")))
}

fn opened(disk: &CrashDisk) -> Fs {
    let store = options().store.background(false);
    let opened = Superblock::open_on(shared(disk), Options { store, ..options() });
    Fs::with_superblock(opened.expect("a store"))
}

#[test]
fn an_append_that_is_synchronised_logs_its_page_alone_and_flushes_once() {
    if !HOSTS_SHARE {
        return;
    }
    for tasks in [1, 8] {
        let (disk, fs) = made();
        let (logged, in_segments, flushes) = append(&disk, &fs, tasks);
        // A page and less than a fifth of one beside it for each; whole blocks for each push.
        let most = APPENDS * ((tasks * PAGE * 6 / 5).next_multiple_of(PAGE) + PAGE);
        assert!(logged as usize <= most, "{logged} bytes for {tasks} tasks");
        assert_eq!((in_segments, flushes), (0, APPENDS), "{tasks} tasks");
        assert!(is_right(&fs, tasks));
        // After a crash the log has it all, ...
        let crashed = disk.crash(disk.steps(), Survivors::None);
        assert!(is_right(&opened(&crashed), tasks));
        // ... and after a checkpoint the segments: two whole chunks of each file, and half a one.
        let tree = disk.written("tree");
        let store = &fs.superblock().root().shared.durable().expect("a store").store;
        store.write_out().expect("the disk works");
        assert_eq!(disk.written("segment"), (tasks * APPENDS * PAGE) as u64);
        let in_tree = disk.written("tree") - tree;
        // With a block of checksums for each flush, and the page that counts the bytes of records.
        assert!(in_tree < 55_000, "{in_tree} bytes for {tasks} tasks");
        assert_eq!(store.stats().data_bytes, (tasks * APPENDS * PAGE) as u64);
        assert!(is_right(&fs, tasks));
        drop(fs);
        assert!(is_right(&opened(&disk), tasks));
    }
}

#[test]
fn a_splice_that_keeps_other_pages_is_found() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = made();
    let planted = &fs.superblock().root().shared.durable().expect("a store").pending.planted;
    planted.plant(Some(Mutant::SpliceMisplaced));
    append(&disk, &fs, 1);
    assert!(!is_right(&opened(&disk.crash(disk.steps(), Survivors::None)), 1));
}

#[test]
fn a_file_that_is_deleted_while_its_chunks_are_heavy_leaves_nothing() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = made();
    append(&disk, &fs, 2);
    fs.remove_file("/0").expect("it is there");
    let store = &fs.superblock().root().shared.durable().expect("a store").store;
    store.write_out().expect("the disk works");
    assert_eq!(disk.written("segment"), (APPENDS * PAGE) as u64);
    drop(fs);
    let report = Superblock::check_store(shared(&disk), &mut |_| ()).expect("it can be looked at");
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn whole_chunks_are_written_ahead_and_given_back_if_they_change() {
    if !HOSTS_SHARE {
        return;
    }
    // Nothing happens meanwhile; a page changes; a file is cut; a file is deleted; a page changes, and nobody looks.
    for case in 0..5 {
        let (disk, fs) = made();
        let durable = || fs.superblock().root().shared.durable().expect("a store");
        append(&disk, &fs, 2);
        durable().store.write_ahead().expect("the disk works");
        let whole = (2 * 2 * CHUNK) as u64;
        assert_eq!(disk.written("segment"), whole, "two whole chunks of each");
        let process = fs.process(Cred::root());
        let file = process.open("/0", OpenFlags::RDWR, 0).expect("it is there");
        let mut expected: Vec<u8> = (0..APPENDS).flat_map(block).collect();
        match case {
            0 => {}
            2 => {
                expected.truncate(CHUNK + 1);
                process.ftruncate(file, expected.len() as i64).expect("room");
            }
            3 => fs.remove_file("/0").expect("it is there"),
            _ => {
                expected[PAGE..][..3].copy_from_slice(b"new");
                process.pwrite(file, b"new", PAGE as i64).expect("room");
            }
        }
        process.close(file).expect("open");
        let planted = (case == 4).then_some(Mutant::AheadUnchecked);
        durable().pending.planted.plant(planted);
        durable().store.write_out().expect("the disk works");
        if case == 0 {
            assert_eq!(disk.written("segment"), (2 * APPENDS * PAGE) as u64, "each byte once");
        }
        let again = opened(&disk.crash(disk.steps(), Survivors::None));
        let found = again.read("/0").ok();
        assert_eq!(found.as_ref() == (case != 3).then_some(&expected), case != 4, "case {case}");
        assert!(again.read("/1").is_ok_and(|bytes| bytes.len() == APPENDS * PAGE));
        if case != 4 {
            drop((again, fs));
            let report = Superblock::check_store(shared(&disk), &mut |_| ()).expect("it can be looked at");
            assert!(report.findings.is_empty(), "{case}: {report:?}");
        }
    }
}

#[test]
fn a_heavy_chunk_that_changes_with_much_else_is_written_out_once() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = made();
    append(&disk, &fs, 1);
    // So much that it goes to extents, and the heavy chunks with it, in a push that writes those out.
    let much = vec![7; 100 * PAGE];
    fs.write("/0", &much).expect("room");
    let store = &fs.superblock().root().shared.durable().expect("a store").store;
    store.write_out().expect("the disk works");
    assert_eq!(disk.written("segment"), much.len() as u64);
    assert_eq!(fs.read("/0").expect("it is there"), much);
    drop(fs);
    let report = Superblock::check_store(shared(&disk), &mut |_| ()).expect("it can be looked at");
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn bytes_that_no_push_has_collected_are_counted() {
    assert_eq!(Fs::with_superblock(Superblock::new(Options::default())).superblock().changed_bytes(), None);
    let (_disk, fs) = made();
    assert_eq!(fs.superblock().changed_bytes(), Some(0));
    fs.write("/file", [7; 3 * PAGE]).expect("room");
    assert_eq!(fs.superblock().changed_bytes(), Some(3 * PAGE as u64));
    fs.sync().expect("the disk works");
    assert_eq!(fs.superblock().changed_bytes(), Some(0));
}

#[test]
fn a_store_tells_how_it_keeps_contents_and_what_they_took_since_it_was_opened() {
    assert_eq!(Fs::with_superblock(Superblock::new(Options::default())).superblock().store_use(), None);
    let (_disk, fs) = made();
    let kept = || fs.superblock().store_use().expect("a store");
    assert_eq!((kept().written, kept().written_stored, kept().is_compressed), (0, 0, false));
    let (contents, more) = (100 * PAGE, 50 * PAGE);
    fs.write("/0", vec![7; contents]).expect("room");
    fs.sync().expect("the disk works");
    assert_eq!((kept().written, kept().written_stored), (contents as u64, contents as u64));
    // Freed contents stay counted as written, and are stored no more.
    fs.remove_file("/0").expect("it is there");
    fs.settle();
    fs.write("/1", vec![8; more]).expect("room");
    fs.sync().expect("the disk works");
    fs.superblock().root().shared.durable().expect("a store").store.checkpoint().expect("the disk works");
    assert_eq!(kept().written, (contents + more) as u64);
    assert_eq!(kept().stored, more as u64);
}
