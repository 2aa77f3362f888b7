//! Tests of a durable file system in a directory of the host: what a user sees of opening, closing and failing.

use super::crash_tests::shared;
use crate::{
    AtFlags, Cred, Errno, FileType, Fs, InodeFlags, InodeRef, MemoryUse, OpenFlags, Options, StoreError,
    StoreOptions, Superblock,
};
use sluice_store::disk::crash::CrashDisk;
use sluice_store::disk::fault::FaultDisk;
use sluice_store::disk::{Disk, HostDisk};
use sluice_sync::Arc;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::face::HOSTS_SHARE;

use std::path::{Path, PathBuf};

/// A directory of the host that goes with this.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        Dir(std::env::temp_dir().join(format!("sluice-durable-{}-{number}", std::process::id())))
    }
}

impl AsRef<Path> for Dir {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Files that cannot be removed are left to the host.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn options() -> Options {
    let store = StoreOptions::default().log_size(1 << 20);
    Options { store, ..Options::default() }
}

#[test]
fn what_was_written_is_there_when_the_file_system_is_opened_again() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    let fs = options().create_store(&dir).expect("a new directory");
    fs.create_dir_all("/a/b").expect("room");
    fs.write("/a/b/file", vec![7; 300_000]).expect("room");
    fs.hard_link("/a/b/file", "/a/other").expect("room");
    // Not synchronised: closing does it.
    drop(fs);
    for _ in 0..2 {
        let fs = options().open_store(&dir).expect("it was closed");
        assert!(fs.check().is_clean(), "{}", fs.check());
        assert_eq!(fs.metadata("/a").expect("it is there").nlink, 3);
        assert!(fs.read("/a/other").expect("it is there") == vec![7; 300_000]);
        assert_eq!(
            fs.metadata("/a/b/file").expect("it is there").ino,
            fs.metadata("/a/other").expect("too").ino
        );
        fs.write("/a/new", "more").expect("room");
    }
}

#[test]
fn a_directory_is_loaded_when_it_is_first_looked_into() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    let fs = options().create_store(&dir).expect("a new directory");
    for n in 0..20 {
        fs.create_dir_all(format!("/{n}/below")).expect("room");
        fs.write(format!("/{n}/below/file"), "x").expect("room");
    }
    drop(fs);
    let fs = options().open_store(&dir).expect("it was closed");
    let live = |fs: &Fs| fs.superblock().inodes_in_memory();
    assert_eq!((live(&fs), fs.superblock().live_inodes()), (1, 61), "the root");
    assert_eq!(fs.read_to_string("/3/below/file").expect("it is there"), "x");
    assert_eq!(live(&fs), 1 + 20 + 1 + 1);
    assert!(!fs.exists("/4/below/nothing"));
    assert_eq!(live(&fs), 1 + 20 + 2 + 2);
    // By its inodes, as a mount works.
    let root = fs.superblock().root();
    let lookup = |dir: &InodeRef, name: &[u8]| dir.lookup(&Cred::root(), name).expect("it is there");
    let below = lookup(&lookup(root, b"5"), b"below");
    assert_eq!(below.stat().nlink, 2);
    assert_eq!(fs.remove_dir("/6"), Err(Errno::ENOTEMPTY), "though nobody has looked into it");
    fs.remove_dir_all("/7").expect("it is there");
    assert_eq!(fs.rename("/8", "/9"), Err(Errno::ENOTEMPTY));
    assert!(fs.check().is_clean(), "{}", fs.check());
}

#[test]
fn a_store_is_in_use_as_long_as_it_is_open_and_is_made_once() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    assert!(matches!(options().open_store(&dir), Err(StoreError::NotAStore)));
    let fs = options().create_store(&dir).expect("a new directory");
    assert!(matches!(options().open_store(&dir), Err(StoreError::InUse(_))));
    drop(fs);
    assert!(matches!(options().create_store(&dir), Err(StoreError::Exists)));
}

/// An empty file system on a disk that counts.
pub(super) fn counted() -> (CrashDisk, Fs) {
    let disk = CrashDisk::new();
    let store = options().store.segment_size(1 << 20).background(false);
    let made = Superblock::create_on(shared(&disk), Options { store, ..options() });
    (disk, Fs::with_superblock(made.expect("an empty disk")))
}

#[test]
fn contents_are_written_once_and_little_ones_need_no_segment() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = counted();
    let records = |disk: &CrashDisk| disk.written("log") + disk.written("tree");
    fs.write("/little", vec![1; 4096]).expect("room");
    fs.sync().expect("the disk works");
    assert_eq!(disk.written("segment"), 0);
    let before = records(&disk);
    fs.write("/file", vec![1; 200_000]).expect("room");
    fs.sync().expect("the disk works");
    assert_eq!(disk.written("segment"), 3 * 65_536, "the rest is little");
    assert!(records(&disk) - before < 20_000, "{} bytes", records(&disk) - before);
    // Little that changes goes to the log, and nothing of what is there; a chunk of which much did is written again later.
    let process = fs.process(Cred::root());
    let file = process.open("/file", OpenFlags::WRONLY, 0).expect("it is there");
    let write = |bytes: &[u8], at| {
        let before = disk.written("log");
        process.pwrite(file, bytes, at).expect("room");
        fs.sync().expect("the disk works");
        (disk.written("log") - before, disk.written("segment") / 65_536)
    };
    assert_eq!(write(b"x", 70_000), (2 * 4096, 3));
    assert_eq!(write(b"y", 80_000), (2 * 4096, 3));
    assert_eq!(write(&[5; 16_384], 65_536), (5 * 4096, 3));
    assert_eq!(write(&[1], 90_000), (2 * 4096, 3));
    assert_eq!(write(&[6; 16_384], 131_072), (5 * 4096, 3));
    fs.superblock().root().shared.durable().expect("a store").store.write_out().expect("the disk works");
    assert_eq!(disk.written("segment"), 4 * 65_536);
    drop(process);
    drop(fs);
    let fs = Fs::with_superblock(Superblock::open_on(shared(&disk), options()).expect("it was closed"));
    let live = fs.superblock().root().shared.durable().expect("a store").store.stats().data_bytes;
    assert_eq!(live, 3 * 65_536, "the former bytes are free");
    let read = fs.read("/file").expect("it is there");
    let parts = [
        (0, 65_536, 1),
        (65_536, 81_920, 5),
        (81_920, 131_072, 1),
        (131_072, 147_456, 6),
        (147_456, 200_000, 1),
    ];
    parts.iter().for_each(|(from, to, byte)| assert!(read[*from..*to].iter().all(|is| is == byte), "{from}"));
}

#[test]
fn what_is_deleted_before_a_push_never_reaches_the_disk() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = counted();
    fs.write("/file", vec![1; 200_000]).expect("room");
    fs.remove_file("/file").expect("it is there");
    fs.write("/other", vec![2; 100_000]).expect("room");
    fs.sync().expect("the disk works");
    assert_eq!(disk.written("segment"), 100_000);
    fs.write("/other", vec![3; 100_000]).expect("room");
    fs.write("/other", "little").expect("room");
    fs.sync().expect("the disk works");
    assert_eq!(disk.written("segment"), 100_000, "nobody saw what was overwritten");
}

#[test]
fn numbers_of_inodes_are_not_given_again() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    let fs = options().create_store(&dir).expect("a new directory");
    fs.write("/first", "").expect("room");
    let first = fs.metadata("/first").expect("it is there").ino;
    fs.remove_file("/first").expect("it is there");
    drop(fs);
    let fs = options().open_store(&dir).expect("it was closed");
    fs.write("/second", "").expect("room");
    assert!(fs.metadata("/second").expect("it is there").ino > first);
}

#[test]
fn limits_count_what_is_there_when_the_file_system_is_opened() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    let limited = options().size_limit(1 << 20).inode_limit(10);
    let fs = limited.clone().create_store(&dir).expect("a new directory");
    fs.create_dir("/d").expect("room");
    fs.write("/d/f", vec![1; 600_000]).expect("room");
    let used = (fs.superblock().bytes_used(), fs.superblock().live_inodes());
    drop(fs);
    let fs = limited.open_store(&dir).expect("it was closed");
    assert_eq!((fs.superblock().bytes_used(), fs.superblock().live_inodes()), used);
    assert_eq!(fs.write("/g", vec![1; 600_000]), Err(Errno::ENOSPC));
    fs.remove_file("/d/f").expect("it is there");
    fs.write("/g", vec![1; 600_000]).expect("there is room now");
    assert!(fs.superblock().check_idle().is_clean(), "{}", fs.superblock().check_idle());
}

#[test]
fn nothing_is_left_of_a_file_that_was_deleted_unread() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    let fs = options().create_store(&dir).expect("a new directory");
    let sizes = [0, 100, 5_000, 300_000];
    sizes.iter().for_each(|size| fs.write(format!("/{size}"), vec![1; *size]).expect("room"));
    fs.write("/stays", vec![2; 5_000]).expect("room");
    drop(fs);
    let fs = options().open_store(&dir).expect("it was closed");
    sizes.iter().for_each(|size| fs.remove_file(format!("/{size}")).expect("it is there"));
    fs.settle();
    fs.sync().expect("room");
    drop(fs);
    let disk = HostDisk::lock_read_only(dir.as_ref()).expect("it was closed");
    let disk = Arc::<dyn Disk>::from(Box::new(disk) as Box<dyn Disk>);
    let report = Superblock::check_store(disk, &mut |_| ()).expect("it can be read");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let fs = options().open_store(&dir).expect("it was closed");
    assert_eq!(fs.read("/stays").expect("it is there"), vec![2; 5_000]);
    assert_eq!(fs.read_dir("/").expect("readable").count(), 1);
}

#[test]
fn a_writer_does_not_run_ahead_of_the_store() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    let fs = options().create_store(&dir).expect("a new directory");
    let process = fs.process(Cred::root());
    let fd = process.open("/big", OpenFlags::CREAT | OpenFlags::RDWR, 0o644).expect("room");
    let piece: Vec<u8> = (0..1 << 18).map(|at| at as u8).collect();
    for _ in 0..64 {
        process.write(fd, &piece).expect("room");
    }
    drop(process);
    drop(fs);
    let fs = options().open_store(&dir).expect("it was closed");
    let whole = fs.read("/big").expect("it is there");
    assert!(whole.len() == 64 << 18 && whole.chunks(1 << 18).all(|part| part == piece));
}

#[test]
fn when_the_disk_fails_calls_say_so_what_was_synchronised_stays_and_nothing_can_be_changed() {
    if !HOSTS_SHARE {
        return;
    }
    let shared = |disk: &CrashDisk| Arc::<dyn Disk>::from(Box::new(disk.clone()) as Box<dyn Disk>);
    let quiet = || {
        let store = StoreOptions::default().log_size(64 << 10).background(false).cache(1 << 20);
        Options { store, ..Options::default() }
    };
    let disk = CrashDisk::new();
    let made = Superblock::create_on(shared(&disk), quiet()).expect("an empty disk");
    made.close().expect("the disk works");
    let base = disk.files();
    for errno in [rustix::io::Errno::IO, rustix::io::Errno::NOSPC] {
        for at in 0.. {
            let disk = CrashDisk::with(base.clone());
            let fault = FaultDisk::new(shared(&disk), at, true, errno.raw_os_error());
            let faulty = Arc::<dyn Disk>::from(Box::new(fault.clone()) as Box<dyn Disk>);
            let mut safe = 0;
            if let Ok(superblock) = Superblock::open_on(faulty, quiet()) {
                let fs = Fs::with_superblock(superblock);
                for n in 0..12 {
                    let path = format!("/{n}");
                    let written = fs.write(&path, vec![n; 9_000]).and_then(|()| fs.sync());
                    if let Err(error) = written {
                        assert!(
                            [errno.raw_os_error(), Errno::EIO.raw(), Errno::EROFS.raw()]
                                .contains(&error.raw()),
                            "{error}"
                        );
                        assert!(fs.superblock().failure().is_some());
                        assert_eq!(fs.write("/later", ""), Err(Errno::EROFS));
                        let removed = fs.remove_file("/0");
                        assert!([Err(Errno::EROFS), Err(Errno::ENOENT)].contains(&removed), "{removed:?}");
                        break;
                    }
                    safe = n + 1;
                }
                let _ = fs.superblock().close();
            }
            let fs = Fs::with_superblock(
                Superblock::open_on(shared(&CrashDisk::with(disk.files())), quiet()).expect("a store"),
            );
            for n in 0..safe {
                assert!(
                    fs.read(format!("/{n}")).expect("it was synchronised") == vec![n; 9_000],
                    "step {at}: {n} of {safe}"
                );
            }
            let _ = fs.superblock().close();
            if fault.steps() <= at {
                assert_eq!(safe, 12, "without a fault all is done");
                break;
            }
        }
    }
}

#[test]
fn a_copy_in_memory_of_a_directory_on_disk_is_whole() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    let fs = options().create_store(&dir).expect("a new directory");
    fs.create_dir_all("/a/b").expect("room");
    fs.write("/a/b/c", vec![5; 100_000]).expect("room");
    drop(fs);
    let fs = options().open_store(&dir).expect("it was closed");
    let copy = fs.snapshot("/a").expect("it is there");
    assert!(!copy.superblock().is_durable());
    assert!(copy.read("/b/c").expect("it is there") == vec![5; 100_000]);
    assert_eq!(copy.metadata("/b").expect("it is there").file_type(), FileType::Directory);
}

#[test]
fn a_file_that_is_written_after_it_lost_its_name_goes_with_its_last_user() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    let quiet = options().store.background(false);
    let fs = Options { store: quiet, ..options() }.create_store(&dir).expect("a new directory");
    let process = fs.process(Cred::root());
    let fd = process.open("/f", OpenFlags::CREAT | OpenFlags::RDWR, 0o644).expect("room");
    process.unlink("/f").expect("it is there");
    process.write(fd, &[1; 5_000]).expect("room");
    process.fchmod(fd, 0o600).expect("root may");
    process.close(fd).expect("it is open");
    drop(process);
    assert_eq!((fs.superblock().live_inodes(), fs.superblock().bytes_used()), (1, 0));
}

#[test]
fn what_is_deleted_when_the_store_is_opened_was_never_in_memory() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    let fs = options().create_store(&dir).expect("a new directory");
    let process = fs.process(Cred::root());
    let fd = process.open("/f", OpenFlags::CREAT | OpenFlags::RDWR, 0o644).expect("room");
    process.write(fd, &[1; 300_000]).expect("room");
    fs.sync().expect("room");
    // A page that stands beside its extent.
    process.pwrite(fd, b"changed", 100_000).expect("room");
    fs.sync().expect("room");
    process.unlink("/f").expect("it is there");
    fs.superblock().close().expect("room");
    drop((process, fs));
    let fs = options().open_store(&dir).expect("it was closed");
    fs.sync().expect("room");
    let MemoryUse { limit, used, .. } = fs.superblock().memory_use().expect("a store");
    assert!(used < limit, "{used} bytes in memory");
}

#[test]
fn a_symbolic_link_with_a_long_target_can_be_changed_with_and_without_a_name() {
    if !HOSTS_SHARE {
        return;
    }
    let dir = Dir::new();
    let fs = options().create_store(&dir).expect("a new directory");
    let process = fs.process(Cred::root());
    let target = "t".repeat(4_000);
    process.symlink(&target, "/link").expect("room");
    process.link("/link", "/other").expect("room");
    process.lchown("/link", Some(5), None).expect("root may");
    let how = OpenFlags::PATH | OpenFlags::NOFOLLOW;
    let fd = process.open("/link", how, 0).expect("it is there");
    process.rename("/link", "/moved").expect("it is there");
    for name in ["/moved", "/other"] {
        process.fchownat(fd, "", Some(7), None, AtFlags::EMPTY_PATH).expect("root may");
        process.unlink(name).expect("it is there");
    }
    process.fchownat(fd, "", Some(8), None, AtFlags::EMPTY_PATH).expect("root may");
    process.symlink(&target, "/kept").expect("room");
    process.lchown("/kept", Some(9), None).expect("root may");
    fs.superblock().close().expect("the disk works");
    let again = options().open_store(&dir).expect("it was closed");
    let kept = again.symlink_metadata("/kept").expect("it is there");
    assert_eq!((kept.uid, kept.size, again.read_dir("/").expect("whole").count()), (9, 4_000, 1));
}

#[test]
fn flags_of_files_survive_and_are_inherited_and_forbid_what_they_did() {
    let disk = CrashDisk::new();
    let made = Superblock::create_on(shared(&disk), options()).expect("an empty disk");
    let fs = Fs::with_superblock(made);
    let set = |fs: &Fs, path: &str, flags| {
        let process = fs.process(Cred::root());
        let fd = process.open(path, OpenFlags::RDONLY, 0).expect("it is there");
        process.ioctl_setflags(fd, flags)
    };
    fs.create_dir("/d").expect("room");
    set(&fs, "/d", InodeFlags::NODUMP | InodeFlags::NOATIME).expect("root may");
    fs.write("/d/fixed", "x").expect("room");
    fs.write("/free", "x").expect("room");
    set(&fs, "/d/fixed", InodeFlags::IMMUTABLE | InodeFlags::NODUMP).expect("root may");
    set(&fs, "/free", InodeFlags::APPEND).expect("root may");
    set(&fs, "/free", InodeFlags::empty()).expect("root may");
    fs.superblock().close().expect("memory");
    let opened =
        Superblock::open_on(shared(&CrashDisk::with(disk.files())), options()).expect("it was closed");
    let fs = Fs::with_superblock(opened);
    let flags = |path: &str| {
        let process = fs.process(Cred::root());
        process.ioctl_getflags(process.open(path, OpenFlags::RDONLY, 0).expect("it is there"))
    };
    assert_eq!(flags("/d"), Ok(InodeFlags::NODUMP | InodeFlags::NOATIME));
    assert_eq!(flags("/d/fixed"), Ok(InodeFlags::IMMUTABLE | InodeFlags::NODUMP));
    assert_eq!(flags("/free"), Ok(InodeFlags::empty()));
    assert_eq!(fs.write("/d/fixed", "y"), Err(Errno::EPERM));
    assert_eq!(fs.remove_file("/d/fixed"), Err(Errno::EPERM));
    fs.write("/d/new", "x").expect("room");
    assert_eq!(flags("/d/new"), Ok(InodeFlags::NODUMP | InodeFlags::NOATIME));
    assert_eq!(set(&fs, "/d/fixed", InodeFlags::empty()), Ok(()));
    fs.remove_file("/d/fixed").expect("nothing forbids it");
    fs.superblock().close().expect("memory");
}

/// A file system that takes so much memory at most.
pub(super) fn limited(limit: u64) -> (CrashDisk, Fs) {
    let disk = CrashDisk::new();
    let store = options().store.segment_size(1 << 20);
    let made =
        Superblock::create_on(shared(&disk), Options { store, memory_limit: Some(limit), ..options() });
    (disk, Fs::with_superblock(made.expect("an empty disk")))
}

/// Asserts that files have no more contents in memory than the limit allows, and that the file system knows how many they have.
pub(super) fn assert_within_limit(fs: &Fs, paths: &[String]) {
    let mut here = 0;
    for path in paths {
        let file = fs.superblock().root().lookup(&Cred::root(), &path.as_bytes()[1..]).expect("it is there");
        let absent: u32 = file
            .stored()
            .expect("of a store")
            .kept
            .lock()
            .absent
            .values()
            .map(|pages| pages.count_ones())
            .sum();
        here += (file.pages() - u64::from(absent)) * 4096;
    }
    let MemoryUse { limit, used, .. } = fs.superblock().memory_use().expect("a store");
    assert!(here <= limit + limit / 10, "{here} bytes of {limit} are in memory");
    assert!(
        used <= limit + limit / 10 && here <= used + limit / 10,
        "{used} of {limit} count, {here} are there"
    );
}

/// The bytes of a file from `at` on: every page is another.
pub(super) fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (at / 4096 * 31 + at % 255) as u8 | 1).collect()
}

#[test]
fn a_file_four_times_as_large_as_memory_is_written_and_read_and_changed() {
    if !HOSTS_SHARE {
        return;
    }
    const LIMIT: usize = 2_000_000;
    const PART: usize = 100_000;
    let (disk, fs) = limited(LIMIT as u64);
    let path = [String::from("/large")];
    let process = fs.process(Cred::root());
    let fd = process.open(&path[0], OpenFlags::CREAT | OpenFlags::RDWR, 0o644).expect("room");
    for at in (0..4 * LIMIT).step_by(PART) {
        process.pwrite(fd, &pattern(at, PART), at as i64).expect("room");
        assert_within_limit(&fs, &path);
    }
    let mut buf = vec![0; PART];
    for at in (0..4 * LIMIT).step_by(PART) {
        assert_eq!(process.pread(fd, &mut buf, at as i64), Ok(PART));
        assert!(buf == pattern(at, PART), "at {at}");
        assert_within_limit(&fs, &path);
    }
    // Single bytes all over it.
    for at in (0..4 * LIMIT).step_by(70_001) {
        process.pwrite(fd, &[0], at as i64).expect("room");
        assert_within_limit(&fs, &path);
    }
    let zeros = |buf: &[u8]| buf.iter().filter(|byte| **byte == 0).count();
    let whole = fs.read(&path[0]).expect("it is there");
    assert_eq!(zeros(&whole), (4 * LIMIT).div_ceil(70_001));
    assert!((0..whole.len()).step_by(70_001).all(|at| whole[at] == 0));
    assert_within_limit(&fs, &path);
    assert!(fs.check().is_clean(), "{}", fs.check());
    drop(process);
    drop(fs);
    let again = options().memory_limit(LIMIT as u64);
    let fs = Fs::with_superblock(Superblock::open_on(shared(&disk), again).expect("it was closed"));
    assert!(fs.read(&path[0]).expect("it is there") == whole);
    assert_within_limit(&fs, &path);
    // Chunks that are cut off are not read for that.
    let process = fs.process(Cred::root());
    process.truncate(&path[0], 100_000).expect("it is there");
    process.truncate(&path[0], 3_000_000).expect("it is there");
    let cut = fs.read(&path[0]).expect("it is there");
    assert!(cut[..100_000] == whole[..100_000] && cut[100_000..].iter().all(|byte| *byte == 0));
    assert!(fs.check().is_clean(), "{}", fs.check());
    let blocks = fs.metadata(&path[0]).expect("it is there").blocks;
    assert_eq!(blocks, 100_000_u64.div_ceil(4096) * 8, "what is cut off takes no space");
}

#[test]
fn a_tree_larger_than_memory_is_written_and_read_by_threads() {
    if !HOSTS_SHARE {
        return;
    }
    const LIMIT: u64 = 2 << 20;
    let (_disk, fs) = limited(LIMIT);
    let paths: Vec<String> = (0..24).map(|n| format!("/{n}")).collect();
    let contents = |n: usize| pattern(n * 7, 400_000);
    sluice_sync::thread::scope(|scope| {
        for thread in 0..3 {
            let (fs, paths) = (&fs, &paths);
            scope.spawn(move || {
                for (n, path) in paths.iter().enumerate().skip(thread).step_by(3) {
                    fs.write(path, contents(n)).expect("room");
                    assert!(fs.read(&paths[thread]).expect("it is there") == contents(thread), "after {n}");
                }
            });
        }
    });
    // Threads may have written beyond it at the same time.
    fs.sync().expect("the disk works");
    assert_within_limit(&fs, &paths);
    for (n, path) in paths.iter().enumerate() {
        assert!(fs.read(path).expect("it is there") == contents(n));
    }
    assert_within_limit(&fs, &paths);
    paths.iter().for_each(|path| fs.remove_file(path).expect("it is there"));
    fs.sync().expect("the disk works");
    fs.sync().expect("the disk works");
    assert!(fs.check().is_clean(), "{}", fs.check());
}
