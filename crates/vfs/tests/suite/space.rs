//! Space: what counts against the size of a file system, and is given back.

use sluice_sync::time::Duration;
use sluice_sync::{mpsc, rcu, thread};
use sluice_vfs::{Cred, Errno, FallocateMode, Fs, OpenFlags, Process, XATTR_SIZE_MAX, XattrFlags};

const SIZE: u64 = 16 << 20;

fn limited() -> (Fs, Process) {
    let fs = Fs::builder().size_limit(SIZE).build();
    let process = fs.process(Cred::root());
    (fs, process)
}

fn free(fs: &Fs) -> u64 {
    fs.settle();
    let statfs = fs.superblock().statfs();
    statfs.blocks_free * u64::from(statfs.block_size)
}

fn assert_sound(fs: &Fs) {
    let report = fs.superblock().check_idle();
    assert!(report.is_clean(), "{report}");
}

/// How often `call` works until it says that there is no space.
fn until_full(mut call: impl FnMut(u32) -> Result<(), Errno>) -> u64 {
    let error = (0..100_000).find_map(|n| call(n).err().map(|error| (n, error)));
    let (count, error) = error.expect("there is a limit");
    assert_eq!(error, Errno::ENOSPC);
    u64::from(count)
}

/// An access control list that names `users`.
fn acl_of(users: u32) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, id: u32| {
        value.extend([tag.to_le_bytes(), 6_u16.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    };
    entry(0x01, u32::MAX);
    (0..users).for_each(|user| entry(0x02, 1000 + user));
    [0x04, 0x10, 0x20].iter().for_each(|tag| entry(*tag, u32::MAX));
    value
}

#[test]
fn extended_attributes_count_and_are_given_back() {
    let (fs, process) = limited();
    let value = vec![7; XATTR_SIZE_MAX];
    process.mkdir("/d", 0o755).expect("a fresh name");
    let made = until_full(|n| {
        fs.write(format!("/d/{n}"), "")?;
        process.setxattr(format!("/d/{n}"), b"user.large", &value, XattrFlags::empty())
    });
    assert!((250..=SIZE / XATTR_SIZE_MAX as u64).contains(&made), "{made} fit");
    assert!(free(&fs) < XATTR_SIZE_MAX as u64 + 4096);
    assert_eq!(
        fs.write("/d/contents", &value),
        Err(Errno::ENOSPC),
        "contents and attributes share the space"
    );
    process.removexattr("/d/0", b"user.large").expect("it is there");
    fs.write("/d/contents", &value[..XATTR_SIZE_MAX - 8192]).expect("there is room now");
    assert_sound(&fs);
    // As with tmpfs, the new value must find room beside the old one.
    let replaced = process.setxattr("/d/1", b"user.large", &value, XattrFlags::REPLACE);
    assert_eq!(replaced, Err(Errno::ENOSPC));
    let nodata = process.setxattr("/d/1", b"user.absent", b"", XattrFlags::REPLACE);
    assert_eq!(nodata, Err(Errno::ENODATA));
    process.setxattr("/d/1", b"user.large", b"short", XattrFlags::REPLACE).expect("it is there");
    assert_sound(&fs);
    fs.remove_dir_all("/d").expect("it is there");
    assert_eq!(free(&fs), SIZE);
    assert_sound(&fs);
}

#[test]
fn an_attribute_of_a_removed_file_counts_until_the_file_is_closed() {
    let (fs, process) = limited();
    let file = process.open("/file", OpenFlags::RDWR | OpenFlags::CREAT, 0o644).expect("a fresh name");
    process.setxattr("/file", b"user.a", &[7; 5000], XattrFlags::empty()).expect("there is room");
    process.unlink("/file").expect("it is there");
    assert!(free(&fs) < SIZE);
    process.close(file).expect("it is open");
    assert_eq!(free(&fs), SIZE);
}

#[test]
fn access_control_lists_and_long_targets_count_too() {
    let (fs, process) = limited();
    let (acl, target) = (acl_of(8000), "t".repeat(4000));
    let lists = until_full(|n| {
        let dir = format!("/{n}");
        process.mkdir(&dir, 0o755)?;
        process.setxattr(&dir, b"system.posix_acl_default", &acl, XattrFlags::empty())
    });
    assert!(lists <= SIZE / acl.len() as u64, "{lists} lists");
    fs.write("/0/inherits", "").expect_err("no room for a list of its own");
    process.removexattr("/1", b"system.posix_acl_default").expect("it is there");
    process.rmdir("/1").expect("it is empty");
    fs.write("/0/inherits", "").expect("there is room now");
    assert_sound(&fs);
    fs.remove_dir_all("/0").expect("it is there");
    let links = until_full(|n| process.symlink(&target, format!("/link{n}")));
    assert!(links > 0 && links <= 3 * acl.len() as u64 / target.len() as u64, "{links} links");
    assert_sound(&fs);
    for entry in fs.read_dir("/").expect("the root") {
        let path = entry.expect("an entry").path();
        process.unlink(&path).or_else(|_| process.rmdir(&path)).expect("it is there");
    }
    assert_eq!(free(&fs), SIZE);
}

#[test]
fn a_snapshot_pays_for_its_own_attributes() {
    let (fs, process) = limited();
    let value = vec![7; XATTR_SIZE_MAX];
    fs.write("/file", "contents").expect("there is room");
    process.setxattr("/file", b"user.large", &value, XattrFlags::empty()).expect("there is room");
    process.setxattr("/", b"user.large", &value, XattrFlags::empty()).expect("there is room");
    process.symlink("t".repeat(1000), "/link").expect("a fresh name");
    let snapshot = fs.snapshot("/").expect("there is room");
    assert_eq!(free(&snapshot), free(&fs));
    assert_sound(&snapshot);
    snapshot.remove_file("/file").expect("it is there");
    snapshot.remove_file("/link").expect("it is there");
    snapshot.process(Cred::root()).removexattr("/", b"user.large").expect("it is there");
    assert_eq!(free(&snapshot), SIZE);
    assert!(free(&fs) < SIZE);
    assert_sound(&fs);
}

#[test]
fn a_limit_beyond_the_memory_of_the_machine_does_not_count_as_used() {
    let fs = Fs::builder().size_limit(1 << 60).build();
    fs.write("/file", [7; 50_000]).expect("there is space");
    let statfs = fs.superblock().statfs();
    assert!(statfs.blocks < (1 << 60) / 4096, "no machine has as much");
    assert!((13..100).contains(&(statfs.blocks - statfs.blocks_free)), "{statfs:?}");
}

#[test]
fn neither_statfs_nor_dropping_a_file_system_waits_for_a_call_on_another() {
    const GENEROUS: Duration = Duration::from_secs(60);
    let ((ready, is_ready), (stop, stopped), (done, is_done)) =
        (mpsc::channel(), mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        // As a call that reads, and does not end.
        scope.spawn(move || {
            let _section = rcu::domain().read();
            ready.send(()).expect("the test waits");
            // An error: the test has failed.
            let _ = stopped.recv();
        });
        is_ready.recv().expect("the reader begins");
        scope.spawn(move || {
            for _ in 0..20 {
                let (fs, process) = limited();
                fs.write("/file", [7; 5000]).expect("there is space");
                process.unlink("/file").expect("it is there");
                assert_eq!(process.statfs("/").expect("it is there").blocks, SIZE / 4096);
                drop((process, fs));
            }
            done.send(()).expect("the test waits");
        });
        let in_time = is_done.recv_timeout(GENEROUS);
        stop.send(()).expect("the reader waits");
        assert_eq!(in_time, Ok(()));
    });
}

#[test]
fn a_removed_file_gives_up_unwritten_pages_while_another_one_takes_them() {
    let (fs, process) = limited();
    let flags = OpenFlags::RDWR | OpenFlags::CREAT;
    for round in 0..20 {
        let reserved = process.open("/reserved", flags, 0o644).unwrap();
        process.fallocate(reserved, FallocateMode::empty(), 0, SIZE as i64 * 3 / 4).unwrap();
        process.close(reserved).unwrap();
        process.unlink("/reserved").unwrap();
        // The pages of the removed file come back while the contents of this one are locked.
        let written = process.open("/written", flags, 0o644).unwrap();
        let all = vec![1; SIZE as usize * 3 / 4];
        assert_eq!(process.write(written, &all), Ok(all.len()), "round {round}");
        process.close(written).unwrap();
        process.unlink("/written").unwrap();
    }
    drop(process);
    assert_sound(&fs);
}
