//! A full machine: file systems without limits stop with ENOSPC while there is memory left, and go on when some is given back.

use sluice_sync::OnceLock;
use sluice_sync::memory::machine::Bound;
use sluice_sync::memory::{bound_by, resident_bytes};
use sluice_vfs::{Cred, Errno, FallocateMode, Fs, OpenFlags, Options, XattrFlags};

/// The memory that the machine of this test has for file systems.
const TOTAL: u64 = 128 << 20;
/// So much is never given out of it.
const FLOOR: u64 = 16 << 20;
/// The memory of the process when the test began, in bytes.
static BASE: OnceLock<u64> = OnceLock::new();

fn grown() -> u64 {
    let now = resident_bytes().expect("proc is mounted");
    now.saturating_sub(*BASE.get_or_init(|| now))
}

fn machine() -> Vec<Bound> {
    vec![Bound { total: TOTAL, left: TOTAL.saturating_sub(grown()) }]
}

/// Calls `take` until there is no memory: there was some, and there is still some left of the machine's.
fn until_full(what: &str, mut take: impl FnMut(u32) -> Result<(), Errno>) {
    let error = (0..2_000_000).find_map(|n| take(n).err().map(|error| (n, error)));
    let (taken, error) = error.expect("the machine is full some time");
    assert_eq!(error, Errno::ENOSPC, "{what}");
    assert!(grown() < TOTAL, "{what}: {} bytes of {TOTAL} are in use after {taken}", grown());
    // Later calls are refused too, however small.
    assert!((0..2_000).filter(|n| take(taken + n).is_ok()).count() < 1_999, "{what} goes on");
    assert!(grown() < TOTAL, "{what}");
    println!("{what}: {taken} times, {} bytes", grown());
}

/// After what took the memory is gone, there is some again.
fn takes_again(what: &str, fs: &Fs) {
    fs.write("/again", vec![7; 32 << 20]).unwrap_or_else(|error| panic!("{error} after {what}"));
    fs.remove_file("/again").expect("it is there");
}

// One test, since the memory is that of the whole process.
#[test]
fn what_takes_memory_is_refused_before_there_is_none() {
    if cfg!(not(target_env = "gnu")) {
        return;
    }
    grown();
    assert!(bound_by(machine), "nobody has asked yet");
    let [fs, other] = [(); 2].map(|()| Fs::new());
    let mebibyte = vec![7; 1 << 20];

    let two = [&fs, &other];
    until_full("contents of two file systems", |n| two[n as usize % 2].append("/contents", &mebibyte));
    assert!(fs.metadata("/contents").expect("it is there").size > 10 << 20);
    assert_eq!(fs.read("/contents").map(|read| read.iter().all(|byte| *byte == 7)), Ok(true));
    two.iter().for_each(|fs| fs.remove_file("/contents").expect("removing needs no memory"));
    takes_again("contents", &fs);

    let limited = Options::default().size_limit(1 << 40);
    let limited = limited.build();
    until_full("contents within a limit", |_| limited.append("/contents", &mebibyte));
    let statfs = limited.superblock().statfs();
    assert!(statfs.blocks_free * 4096 < FLOOR, "{statfs:?}");
    drop(limited);
    takes_again("a file system", &fs);

    let process = fs.process(Cred::root());
    let file = process.open("/reserved", OpenFlags::RDWR | OpenFlags::CREAT, 0o644).expect("a fresh name");
    process.fallocate(file, FallocateMode::empty(), 0, 64 << 20).expect("so much is there");
    process.fallocate(file, FallocateMode::empty(), 64 << 20, 64 << 20).expect("none of it is used yet");
    until_full("what is reserved", |n| process.pwrite(file, &mebibyte, i64::from(n) << 20).map(drop));
    process.close(file).expect("it is open");
    process.unlink("/reserved").expect("it is there");
    takes_again("what is reserved", &fs);

    (0..60).for_each(|_| fs.append("/shared", &mebibyte).expect("so much is there"));
    let snapshots = [(); 3].map(|()| fs.snapshot("/").expect("that shares all contents"));
    let writers: Vec<_> = snapshots.iter().map(|snapshot| snapshot.process(Cred::root())).collect();
    let files: Vec<_> = writers
        .iter()
        .map(|writer| writer.open("/shared", OpenFlags::RDWR, 0).expect("it is there"))
        .collect();
    until_full("what is shared", |n| {
        let (which, at) = (n as usize / 60 % 3, i64::from(n) % 60);
        writers[which].pwrite(files[which], &mebibyte, at << 20).map(drop)
    });
    drop((writers, snapshots));
    fs.remove_file("/shared").expect("it is there");
    takes_again("what is shared", &fs);

    fs.create_dir("/d").expect("a fresh name");
    until_full("empty files", |n| fs.write(format!("/d/{n}"), ""));
    fs.remove_dir_all("/d").expect("removing needs no memory");
    takes_again("empty files", &fs);

    fs.create_dir("/d").expect("a fresh name");
    fs.write("/d/file", "").expect("there is room");
    until_full("names", |n| fs.hard_link("/d/file", format!("/d/{n:0>200}")));
    fs.remove_dir_all("/d").expect("removing needs no memory");
    takes_again("names", &fs);

    fs.create_dir("/d").expect("a fresh name");
    let value = [7; 60_000];
    until_full("extended attributes", |n| {
        fs.write(format!("/d/{n}"), "")?;
        process.setxattr(format!("/d/{n}"), b"user.large", &value, XattrFlags::empty())
    });
    fs.remove_dir_all("/d").expect("removing needs no memory");
    takes_again("extended attributes", &fs);
    assert!(fs.check().is_clean());
}
