//! Reading ahead: how often the disk is read for a file that is read in order, and for one that is not.

use super::crash_tests::shared;
use super::tests::{assert_within_limit, options, pattern};
use crate::{Cred, Fs, OpenFlags, Options, Superblock};
use sluice_store::disk::crash::CrashDisk;
use sluice_sync::face::HOSTS_SHARE;

const CHUNK: usize = 65_536;
const CHUNKS: usize = 128;

/// A file of which nothing is in memory, with so much memory for it.
fn unread(memory_limit: Option<u64>) -> (CrashDisk, Fs) {
    let disk = CrashDisk::new();
    let store = options().store.segment_size(16 << 20).background(false);
    let options = Options { store, memory_limit, ..options() };
    let made = Superblock::create_on(shared(&disk), options.clone()).expect("an empty disk");
    let fs = Fs::with_superblock(made);
    fs.write("/f", pattern(0, CHUNKS * CHUNK)).expect("room");
    fs.superblock().close().expect("the disk works");
    let opened = Superblock::open_on(shared(&disk), options).expect("it was closed");
    (disk, Fs::with_superblock(opened))
}

/// Reads `len` bytes from each of these places, and says how often the disk was read for that.
fn disk_reads(disk: &CrashDisk, fs: &Fs, places: impl Iterator<Item = usize>, len: usize) -> u64 {
    let before = disk.reads("segment");
    let process = fs.process(Cred::root());
    let fd = process.open("/f", OpenFlags::RDONLY, 0).expect("it is there");
    let mut buf = vec![0; len];
    for at in places {
        assert_eq!(process.pread(fd, &mut buf, at as i64), Ok(len));
        assert!(buf == pattern(at, len), "at {at}");
    }
    disk.reads("segment") - before
}

#[test]
fn a_file_that_is_read_in_order_takes_one_read_of_the_disk_for_many_chunks() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = unread(Some(1 << 30));
    // 2, 3, 5, 9, 17, 33, 33 and 26 chunks, of which one disk read takes 32 at most. Pushes on several CPUs wrote them to as many
    // segments, and a read ends with each.
    let reads = disk_reads(&disk, &fs, (0..CHUNKS * CHUNK).step_by(4096), 4096);
    assert!((8..=16).contains(&reads), "{reads} reads of {CHUNKS} chunks");
    assert_eq!(disk_reads(&disk, &fs, (0..CHUNKS * CHUNK).step_by(4096), 4096), 0, "all is in memory");
}

#[test]
fn of_a_file_that_is_read_here_and_there_nothing_else_is_read() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = unread(Some(1 << 30));
    let chunks = [90, 10, 50, 20, 120, 4, 64, 30];
    assert_eq!(disk_reads(&disk, &fs, chunks.into_iter().map(|chunk| chunk * CHUNK + 70), 900), 8);
    let file = fs.superblock().root().lookup(&Cred::root(), b"f").expect("it is there");
    let absent = file.stored().expect("of a store").kept.lock().absent.len();
    assert_eq!(absent, CHUNKS - chunks.len());
}

#[test]
fn what_is_read_ahead_keeps_to_the_limit_of_memory() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = unread(Some(6 << 20));
    let path = ["/f".to_owned()];
    let reads = (0..CHUNKS).map(|chunk| {
        let reads = disk_reads(&disk, &fs, std::iter::once(chunk * CHUNK), CHUNK);
        assert_within_limit(&fs, &path);
        reads
    });
    let reads: u64 = reads.sum();
    assert!(reads < CHUNKS as u64 / 3, "{reads} reads of {CHUNKS} chunks");
}

#[test]
fn damage_of_what_was_not_asked_for_is_no_error_yet() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = unread(Some(1 << 30));
    fs.superblock().close().expect("the disk works");
    let mut files = disk.files();
    let second = pattern(CHUNK, 4096);
    let segments = files.iter_mut().filter(|(name, _)| name.starts_with("segment"));
    let mut copies = segments.filter_map(|(_, segment)| {
        let at = segment.windows(4096).position(|bytes| bytes == &second[..])?;
        Some(&mut segment[at])
    });
    *copies.next().expect("the second chunk is there") ^= 1;
    drop(copies);
    let opened = Superblock::open_on(shared(&CrashDisk::with(files)), options()).expect("it was closed");
    let fs = Fs::with_superblock(opened);
    let process = fs.process(Cred::root());
    let fd = process.open("/f", OpenFlags::RDONLY, 0).expect("it is there");
    let mut buf = vec![0; 4096];
    assert_eq!(process.pread(fd, &mut buf, 0), Ok(4096));
    assert!(buf == pattern(0, 4096));
    assert!(process.pread(fd, &mut buf, CHUNK as i64).is_err());
    assert_eq!(process.pread(fd, &mut buf, 2 * CHUNK as i64), Ok(4096));
}
