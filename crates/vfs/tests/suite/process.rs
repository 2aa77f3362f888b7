//! The calls of `Process` as a program uses them.

use sluice_sync::thread;
use sluice_vfs::{
    AtFlags, Cancel, Cred, Errno, Fd, FileLock, FileType, FlockOperation, Fs, LockType, MountFlags,
    OpenFlags, Options, Process, RenameFlags, SetTime, Superblock, Timestamp, UmountFlags, Whence,
};
use std::path::Path;

fn root() -> Process {
    Fs::new().process(Cred::root())
}

const RW_CREATE: OpenFlags = OpenFlags::RDWR.union(OpenFlags::CREAT);

#[test]
fn what_is_written_is_read_back() {
    let p = root();
    let fd = p.open("/a", RW_CREATE, 0o644).unwrap();
    assert_eq!(fd, Fd(0));
    assert_eq!(p.write(fd, b"hello"), Ok(5));
    assert_eq!(p.lseek(fd, 0, Whence::Set), Ok(0));
    let mut buf = [0; 8];
    assert_eq!(p.read(fd, &mut buf), Ok(5));
    assert_eq!(&buf[..5], b"hello");
    assert_eq!(p.fstat(fd).unwrap().size, 5);
    assert_eq!(p.close(fd), Ok(()));
    assert_eq!(p.close(fd), Err(Errno::EBADF));
}

#[test]
fn a_file_is_read_whole_or_not_at_all() {
    let fs = Fs::new();
    for len in [0, 1, 4095, 4096, 4097, 3 * 4096] {
        let contents: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        fs.write("/a", &contents).unwrap();
        assert_eq!(fs.read("/a"), Ok(contents), "{len} bytes");
    }
    fs.process(Cred::root()).truncate("/a", 1 << 60).unwrap();
    assert_eq!(fs.read("/a"), Err(Errno::ENOMEM));
}

#[test]
fn unlink_keeps_an_open_file_readable() {
    let p = root();
    let superblock = p.fs().superblock().clone();
    let fd = p.open("/a", RW_CREATE, 0o644).unwrap();
    p.write(fd, b"still here").unwrap();
    p.unlink("/a").unwrap();
    assert_eq!(p.stat("/a"), Err(Errno::ENOENT));
    let mut buf = [0; 10];
    assert_eq!(p.pread(fd, &mut buf, 0), Ok(10));
    assert_eq!(p.fstat(fd).unwrap().nlink, 0);
    assert_eq!(superblock.live_inodes(), 2);
    p.close(fd).unwrap();
    assert_eq!(superblock.live_inodes(), 1);
    assert!(superblock.check_idle().is_clean());
}

#[test]
fn a_directory_cannot_become_its_own_descendant() {
    let p = root();
    p.mkdir("/a", 0o755).unwrap();
    p.mkdir("/a/b", 0o755).unwrap();
    assert_eq!(p.rename("/a", "/a/b/c"), Err(Errno::EINVAL));
    assert_eq!(p.rename("/a/b", "/a"), Err(Errno::ENOTEMPTY));
    p.mkdir("/c", 0o755).unwrap();
    p.renameat2(Fd::CWD, "/a/b", Fd::CWD, "/c", RenameFlags::EXCHANGE).unwrap();
    assert!(p.fs().check().is_clean());
}

#[test]
fn a_rename_can_leave_a_whiteout() {
    let p = root();
    p.mkdir("/d", 0o755).unwrap();
    p.fs().write("/d/f", "x").unwrap();
    p.mkdir("/d/sub", 0o755).unwrap();
    p.mkdir("/e", 0o755).unwrap();
    let rename = |old, new, flags| p.renameat2(Fd::CWD, old, Fd::CWD, new, flags | RenameFlags::WHITEOUT);
    let is_whiteout = |path| {
        let stat = p.lstat(path).unwrap();
        assert_eq!((stat.file_type(), stat.rdev, stat.mode & 0o7777), (FileType::CharDevice, 0, 0));
        assert_eq!((stat.nlink, stat.size), (1, 0));
    };
    rename("/d/f", "/d/g", RenameFlags::NOREPLACE).unwrap();
    is_whiteout("/d/f");
    assert_eq!(p.fs().read("/d/g").unwrap(), b"x");
    // Over a file, and between directories.
    rename("/d/g", "/d/f", RenameFlags::empty()).unwrap();
    is_whiteout("/d/g");
    rename("/d/sub", "/e/sub", RenameFlags::empty()).unwrap();
    is_whiteout("/d/sub");
    assert_eq!((p.stat("/d").unwrap().nlink, p.stat("/e").unwrap().nlink), (2, 3));
    assert_eq!(rename("/d/f", "/d/g", RenameFlags::NOREPLACE), Err(Errno::EEXIST));
    assert_eq!(rename("/d/f", "/d/g", RenameFlags::EXCHANGE), Err(Errno::EINVAL));
    assert_eq!(rename("/d/missing", "/d/g", RenameFlags::empty()), Err(Errno::ENOENT));
    rename("/d/f", "/d/f", RenameFlags::empty()).unwrap();
    assert_eq!(p.fs().read("/d/f").unwrap(), b"x");
    assert!(p.fs().check().is_clean());
}

#[test]
fn a_whiteout_needs_an_inode() {
    let superblock = Superblock::new(Options::default().inode_limit(3));
    let p = Fs::with_superblock(superblock).process(Cred::root());
    p.fs().write("/a", "a").unwrap();
    p.fs().write("/b", "b").unwrap();
    let rename = || p.renameat2(Fd::CWD, "/a", Fd::CWD, "/c", RenameFlags::WHITEOUT);
    assert_eq!(rename(), Err(Errno::ENOSPC));
    assert_eq!(p.fs().read("/a").unwrap(), b"a");
    p.unlink("/b").unwrap();
    rename().unwrap();
    assert_eq!(p.fs().read("/c").unwrap(), b"a");
    assert!(p.fs().check().is_clean());
}

#[test]
fn symbolic_links_lead_on_and_loops_are_refused() {
    let p = root();
    p.mkdir("/d", 0o755).unwrap();
    p.fs().write("/d/f", "x").unwrap();
    p.symlink("d", "/l").unwrap();
    assert_eq!(p.stat("/l/f").unwrap().size, 1);
    assert!(p.lstat("/l/").unwrap().file_type() == sluice_vfs::FileType::Directory);
    p.symlink("loop", "/loop").unwrap();
    assert_eq!(p.stat("/loop/x"), Err(Errno::ELOOP));
    assert_eq!(p.open("/l", OpenFlags::NOFOLLOW, 0), Err(Errno::ELOOP));
}

#[test]
fn a_mount_hides_what_is_below_and_is_busy_while_used() {
    let p = root();
    p.mkdir("/m", 0o755).unwrap();
    p.fs().write("/m/below", "").unwrap();
    p.mount(Superblock::new(Options::default()), "/m", MountFlags::empty()).unwrap();
    assert_eq!(p.stat("/m/below"), Err(Errno::ENOENT));
    let fd = p.open("/m/f", RW_CREATE, 0o644).unwrap();
    assert_eq!(p.rename("/m/f", "/f"), Err(Errno::EXDEV));
    assert_eq!(p.umount("/m", UmountFlags::empty()), Err(Errno::EBUSY));
    assert_eq!(p.rmdir("/m"), Err(Errno::EBUSY));
    p.chdir("/m").unwrap();
    assert_eq!(p.getcwd().unwrap().to_str(), Some("/m"));
    p.umount("/m", UmountFlags::DETACH).unwrap();
    assert!(p.stat("/m/below").is_ok());
    assert_eq!(p.write(fd, b"a detached mount lives on"), Ok(25));
    assert_eq!(p.getcwd(), Err(Errno::ENOENT));
    assert_eq!(p.umount("/m", UmountFlags::empty()), Err(Errno::EINVAL));
}

#[test]
fn a_bind_mount_shows_a_directory_twice_and_can_be_read_only() {
    let p = root();
    p.mkdir("/a", 0o755).unwrap();
    p.mkdir("/b", 0o755).unwrap();
    p.bind("/a", "/b", MountFlags::RDONLY).unwrap();
    p.fs().write("/a/f", "x").unwrap();
    assert_eq!(p.fs().read("/b/f").unwrap(), b"x");
    assert_eq!(p.unlink("/b/f"), Err(Errno::EROFS));
    assert_eq!(p.chdir("/b/.."), Ok(()));
    assert_eq!(p.getcwd().unwrap().to_str(), Some("/"));
    p.umount("/b", UmountFlags::empty()).unwrap();
    assert!(!p.fs().exists("/b/f"));
}

#[test]
fn listing_reading_and_following_move_access_times_as_the_mount_says() {
    let early = Timestamp { sec: 100, nsec: 0 };
    for (flags, [list, read, follow]) in [
        (MountFlags::empty(), [true, true, true]),
        (MountFlags::NODIRATIME, [false, true, true]),
        (MountFlags::NOATIME, [false, false, false]),
        (MountFlags::RDONLY, [false, false, false]),
    ] {
        let p = root();
        p.fs().create_dir_all("/a/dir").unwrap();
        p.mkdir("/b", 0o755).unwrap();
        p.symlink("dir", "/a/read").unwrap();
        p.symlink("dir", "/a/followed").unwrap();
        p.bind("/a", "/b", flags).unwrap();
        let names = ["/a/dir", "/a/read", "/a/followed"];
        for name in names {
            let times = [Some(SetTime::At(early)); 2];
            p.utimensat(Fd::CWD, name, times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
        let dir = p.open("/b/dir", OpenFlags::DIRECTORY, 0).unwrap();
        assert!(p.getdents(dir, 10).is_ok());
        assert_eq!(p.readlink("/b/read").unwrap(), Path::new("dir"));
        assert!(p.stat("/b/followed/.").is_ok());
        let moved = names.map(|name| p.lstat(name).unwrap().atime != early);
        assert_eq!(moved, [list, read, follow], "{flags:?}");
    }
}

#[test]
fn any_close_releases_a_process_posix_locks_and_no_others() {
    let p = root();
    let other = p.fork();
    let fd = p.open("/f", RW_CREATE, 0o644).unwrap();
    let second = p.open("/f", OpenFlags::RDWR, 0).unwrap();
    let theirs = other.open("/f", OpenFlags::RDWR, 0).unwrap();
    p.fcntl_setlk(fd, &FileLock::range(LockType::Write, 0, 10)).unwrap();
    let wanted = FileLock::range(LockType::Write, 5, 1);
    assert_eq!(other.fcntl_setlk(theirs, &wanted), Err(Errno::EAGAIN));
    let found = other.fcntl_getlk(theirs, &wanted).unwrap();
    assert_eq!((found.kind, found.start, found.len, found.pid), (LockType::Write, 0, 10, p.pid()));
    p.close(second).unwrap();
    assert_eq!(other.fcntl_setlk(theirs, &wanted), Ok(()));
}

#[test]
fn a_flock_belongs_to_the_open_file_and_goes_with_its_last_descriptor() {
    let p = root();
    let fd = p.open("/f", RW_CREATE, 0o644).unwrap();
    let copy = p.dup(fd).unwrap();
    let other = p.open("/f", OpenFlags::RDONLY, 0).unwrap();
    p.flock(fd, FlockOperation::Exclusive).unwrap();
    assert_eq!(p.flock(other, FlockOperation::Shared), Err(Errno::EAGAIN));
    p.close(fd).unwrap();
    assert_eq!(p.flock(other, FlockOperation::Shared), Err(Errno::EAGAIN));
    p.close(copy).unwrap();
    assert_eq!(p.flock(other, FlockOperation::Shared), Ok(()));
}

#[test]
fn a_wait_that_would_close_a_cycle_is_refused() {
    let (a, cancel) = (root(), Cancel::new());
    let b = a.fork();
    let fa = a.open("/f", RW_CREATE, 0o644).unwrap();
    let fb = b.open("/f", OpenFlags::RDWR, 0).unwrap();
    a.fcntl_setlk(fa, &FileLock::range(LockType::Write, 0, 1)).unwrap();
    b.fcntl_setlk(fb, &FileLock::range(LockType::Write, 1, 1)).unwrap();
    sluice_sync::thread::scope(|scope| {
        let waiter = scope.spawn(|| a.fcntl_setlkw(fa, &FileLock::range(LockType::Write, 1, 1), &cancel));
        let waits = |entry: &sluice_locks::LockEntry| entry.waits_for.is_some();
        while !a.fs().superblock().lock_domain().list().iter().any(waits) {
            sluice_sync::thread::yield_now();
        }
        let wanted = FileLock::range(LockType::Write, 0, 1);
        assert_eq!(b.fcntl_setlkw(fb, &wanted, &Cancel::new()), Err(Errno::EDEADLK));
        b.fcntl_setlk(fb, &FileLock::whole(LockType::Unlock)).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
}

#[test]
fn positions_fit_a_signed_word_of_32_bits_and_each_leads_to_the_next_name() {
    let (p, fd) = directory_of(100_000);
    let all = p.getdents(fd, usize::MAX).unwrap();
    assert_eq!(all.len(), 100_002);
    assert!(all.iter().all(|entry| i32::try_from(entry.position).is_ok()));
    for (entry, next) in all.iter().zip(all.iter().skip(1)) {
        p.lseek(fd, entry.position.cast_signed(), Whence::Set).unwrap();
        assert_eq!(p.getdents(fd, 1).unwrap().get(0), Some(next));
    }
}

/// A process that has `/d` open, with that many files in it.
fn directory_of(files: usize) -> (Process, Fd) {
    let p = root();
    p.mkdir("/d", 0o755).unwrap();
    for i in 0..files {
        p.mknod(format!("/d/{i}"), sluice_vfs::FileType::Regular, 0o644, 0).unwrap();
    }
    let fd = p.open("/d", OpenFlags::DIRECTORY, 0).unwrap();
    (p, fd)
}

#[test]
fn a_program_that_renames_each_file_it_reads_comes_to_an_end() {
    let (p, fd) = directory_of(50);
    let mut renamed = 0;
    // A new name may lie ahead and be read again, but each time with half the chance.
    while let Some(entry) = p.getdents(fd, 1).unwrap().get(0) {
        let name = entry.name.to_str().unwrap();
        if !name.starts_with('.') {
            p.rename(format!("/d/{name}"), format!("/d/{name}+")).unwrap();
            renamed += 1;
        }
    }
    assert!(renamed >= 50);
    assert!(
        p.fs().read_dir("/d").unwrap().all(|entry| entry.unwrap().name().as_encoded_bytes().ends_with(b"+"))
    );
}

#[test]
fn a_directory_stream_resumes_after_a_seek() {
    let (p, fd) = directory_of(10);
    let first = p.getdents(fd, 5).unwrap();
    let rest = p.getdents(fd, 100).unwrap();
    assert_eq!((first.len(), rest.len()), (5, 7));
    p.lseek(fd, first.get(3).unwrap().position.cast_signed(), Whence::Set).unwrap();
    p.unlink(Path::new("/d").join(first.get(2).unwrap().name)).unwrap();
    let again = p.getdents(fd, 100).unwrap();
    assert_eq!(again.len(), 8);
    assert_eq!(again.get(0), first.get(4));
}

#[test]
fn an_unnamed_file_can_be_given_a_name_unless_exclusive() {
    let p = root();
    let fd = p.open("/", OpenFlags::TMPFILE | OpenFlags::RDWR, 0o600).unwrap();
    p.write(fd, b"x").unwrap();
    assert_eq!(p.fstat(fd).unwrap().nlink, 0);
    p.linkat(fd, "", Fd::CWD, "/named", AtFlags::EMPTY_PATH).unwrap();
    assert_eq!(p.stat("/named").unwrap().nlink, 1);
    let fd = p.open("/", OpenFlags::TMPFILE | OpenFlags::RDWR | OpenFlags::EXCL, 0o600).unwrap();
    assert_eq!(p.linkat(fd, "", Fd::CWD, "/no", AtFlags::EMPTY_PATH), Err(Errno::ENOENT));
}

#[test]
fn a_chain_of_removed_directories_ends_without_overflowing_the_stack() {
    let p = root();
    let superblock = p.fs().superblock().clone();
    const DEPTH: usize = 200_000;
    for _ in 0..DEPTH {
        p.mkdir("d", 0o755).unwrap();
        p.chdir("d").unwrap();
    }
    let deepest = p.open(".", OpenFlags::RDONLY, 0).unwrap();
    for _ in 0..DEPTH {
        p.chdir("..").unwrap();
        p.rmdir("d").unwrap();
    }
    assert_eq!(superblock.live_inodes(), DEPTH as u64 + 1);
    p.close(deepest).unwrap();
    assert_eq!(superblock.live_inodes(), 1);
}

#[test]
fn a_deep_tree_is_dropped_without_overflowing_the_stack() {
    let fs = Fs::new();
    let p = fs.process(Cred::root());
    for _ in 0..200_000 {
        p.mkdir("d", 0o755).unwrap();
        p.chdir("d").unwrap();
    }
    drop((p, fs));
}

#[test]
fn a_dead_file_system_is_taken_apart_by_a_thread_that_takes_another_apart() {
    let large = root();
    let superblock = large.fs().superblock().clone();
    (0..20_000).for_each(|n| large.mkdir(n.to_string(), 0o755).unwrap());
    drop(large);
    assert_eq!(superblock.live_inodes(), 20_001, "only we hold it");
    (0..100).for_each(|_| root().mkdir("/d", 0o755).unwrap());
    // The references that this drops are counted, and a thread that counts frees what is dead.
    drop(superblock);
}

#[test]
fn a_dead_file_system_is_taken_apart_by_a_thread_that_holds_a_name_of_a_living_one() {
    let living = root();
    thread::scope(|scope| {
        let dying = || (0..2_000).for_each(|_| root().mkdir("/d", 0o755).unwrap());
        let dying = scope.spawn(dying);
        // Whatever counts a reference frees what is dead: also `mkdir`, with the new name locked.
        (0..).take_while(|_| !dying.is_finished()).for_each(|n| living.mkdir(n.to_string(), 0o755).unwrap());
    });
}
