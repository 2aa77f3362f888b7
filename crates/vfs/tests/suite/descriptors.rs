//! Descriptors and mounts used by several threads: numbers, ends of descriptions, and which mounts are busy.

use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::random::Random;
use sluice_sync::thread;
use sluice_vfs::{
    Cred, Errno, Fd, FileLock, FlockOperation, Fs, LockType, MountFlags, OpenFlags, Options, Process,
    Superblock, UmountFlags, Whence,
};

fn root() -> Process {
    let process = Fs::new().process(Cred::root());
    process.mknod("/f", sluice_vfs::FileType::Regular, 0o644, 0).unwrap();
    process
}

fn open(process: &Process) -> Fd {
    process.open("/f", OpenFlags::RDWR, 0).unwrap()
}

#[test]
fn numbers_are_the_lowest_again_after_threads_opened_and_closed_at_random() {
    let process = root();
    thread::scope(|scope| {
        for seed in 1u64..4 {
            let process = &process;
            scope.spawn(move || {
                let (mut random, mut mine) = (Random::new(seed), Vec::new());
                for _ in 0..3_000 {
                    if mine.len() < 40 && random.below(3) != 0 {
                        mine.push(open(process));
                    } else if !mine.is_empty() {
                        let fd = mine.swap_remove(random.below(mine.len()));
                        process.close(fd).unwrap();
                        assert!(mine.iter().all(|fd| process.fstat(*fd).is_ok()));
                    }
                }
                mine.into_iter().for_each(|fd| process.close(fd).unwrap());
            });
        }
    });
    assert!((0..50).all(|number| open(&process) == Fd(number)));
    for number in [30, 7, 41] {
        process.close(Fd(number)).unwrap();
    }
    assert_eq!([(); 4].map(|()| open(&process).0), [7, 30, 41, 50]);
}

#[test]
fn a_call_on_a_descriptor_that_others_close_and_open_finds_a_whole_file_or_none() {
    let process = root();
    let ino = process.stat("/f").unwrap().ino;
    process.truncate("/f", 100).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (fd, mut buf) = (Fd(0), [1; 10]);
                while !done.load(Ordering::Relaxed) {
                    let found = [
                        process.fstat(fd).map(|stat| assert_eq!((stat.ino, stat.size), (ino, 100))),
                        process.lseek(fd, 5, Whence::Set).map(|at| assert_eq!(at, 5)),
                        process.lseek(fd, 0, Whence::End).map(|at| assert_eq!(at, 100)),
                        process.pread(fd, &mut buf, 0).map(|read| assert_eq!((read, buf), (10, [0; 10]))),
                        process.fcntl_getfl(fd).map(|flags| assert_eq!(flags, OpenFlags::RDWR)),
                        process.fsync(fd),
                    ];
                    assert!(found.iter().all(|found| matches!(found, Ok(()) | Err(Errno::EBADF))));
                }
            });
        }
        for round in 0..20_000 {
            assert_eq!(open(&process), Fd(0));
            process.close(Fd(0)).unwrap();
            if round % 1_000 == 0 {
                // Looks for everything that has lost its last user.
                process.statfs("/").unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_call_that_finds_others_at_work_on_its_file_waits_for_them() {
    let process = root();
    let fd = open(&process);
    process.pwrite(fd, &[7; 5000], 0).unwrap();
    let done = AtomicBool::new(false);
    let works: [&(dyn Fn() -> Result<(), Errno> + Sync); 3] = [
        &|| process.fchmod(fd, 0o600).and_then(|()| process.fchmod(fd, 0o644)),
        &|| process.ftruncate(fd, 4097).and_then(|()| process.pwrite(fd, &[7; 5000], 0).map(drop)),
        &|| process.read(fd, &mut [0; 64]).and_then(|_| process.lseek(fd, 0, Whence::Set).map(drop)),
    ];
    thread::scope(|scope| {
        for work in works {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    work().unwrap();
                }
            });
        }
        for _ in 0..20_000 {
            process.fstat(fd).unwrap();
            process.lseek(fd, 8, Whence::Cur).unwrap();
            let mut buf = [0; 5000];
            let read = process.pread(fd, &mut buf, 0).unwrap();
            assert!(read >= 4097 && buf[..read].iter().all(|byte| *byte == 7));
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_child_has_its_parents_descriptors_few_or_many() {
    let process = root();
    let first = open(&process);
    let few = (1..5).map(Fd);
    let many = (5..100).chain([5_000]).map(Fd);
    for numbers in [few.collect::<Vec<_>>(), many.collect()] {
        for number in &numbers {
            assert_eq!(process.dup2(first, *number), Ok(*number));
        }
        let child = process.fork();
        assert!(numbers.iter().all(|number| child.fstat(*number) == process.fstat(first)));
        let beyond = Fd(numbers.last().map_or(0, |last| last.0 + 1));
        assert_eq!(child.fstat(beyond).err(), Some(Errno::EBADF));
        assert_eq!(child.dup_from(first, beyond.0), Ok(beyond));
        assert_eq!(process.fstat(beyond).err(), Some(Errno::EBADF));
    }
}

#[test]
fn a_lock_and_the_close_of_its_descriptor_at_once_leave_no_lock() {
    let lock = FileLock::whole(LockType::Write);
    type Ask<'a> = &'a (dyn Fn(&Process, Fd) -> Result<(), Errno> + Sync);
    let asks: [Ask<'_>; 3] = [
        &|process, fd| process.fcntl_setlk(fd, &lock),
        &|process, fd| process.ofd_setlk(fd, &lock),
        &|process, fd| process.flock(fd, FlockOperation::Exclusive),
    ];
    let process = root();
    for round in 0..300 {
        // A process that never locked anything: its first lock is what the close may miss.
        let process = process.fork();
        let fd = open(&process);
        thread::scope(|scope| {
            let asking = scope.spawn(|| asks[round % asks.len()](&process, fd));
            process.close(fd).unwrap();
            // Granted just before the close, or too late.
            assert!(matches!(asking.join().unwrap(), Ok(()) | Err(Errno::EBADF)));
        });
        assert_eq!(process.fs().superblock().lock_domain().list(), [], "round {round}");
    }
}

#[test]
fn locks_of_a_description_end_with_its_last_descriptor_at_once() {
    let process = root();
    let (first, other) = (open(&process), open(&process));
    let second = process.dup(first).unwrap();
    process.ofd_setlk(first, &FileLock::whole(LockType::Write)).unwrap();
    process.close(first).unwrap();
    assert_eq!(process.ofd_setlk(other, &FileLock::whole(LockType::Write)), Err(Errno::EAGAIN));
    process.close(second).unwrap();
    assert_eq!(process.ofd_setlk(other, &FileLock::whole(LockType::Write)), Ok(()));
}

#[test]
fn a_mount_is_free_the_moment_its_last_user_left_it() {
    let process = root();
    process.mkdir("/m", 0o755).unwrap();
    for _ in 0..50 {
        process.mount(Superblock::new(Options::default()), "/m", MountFlags::empty()).unwrap();
        process.chdir("/m").unwrap();
        let fd = process.open("f", OpenFlags::RDWR | OpenFlags::CREAT, 0o644).unwrap();
        let child = process.fork();
        let umount = || process.umount("/m", UmountFlags::empty());
        assert_eq!(umount(), Err(Errno::EBUSY));
        process.chdir("/").unwrap();
        process.close(fd).unwrap();
        assert_eq!(umount(), Err(Errno::EBUSY));
        drop(child);
        assert_eq!(umount(), Ok(()));
    }
}

#[test]
fn a_file_is_opened_in_a_mount_or_the_mount_goes_but_not_both() {
    let process = root();
    process.mkdir("/m", 0o755).unwrap();
    for _ in 0..200 {
        process.mount(Superblock::new(Options::default()), "/m", MountFlags::empty()).unwrap();
        process.mknod("/m/f", sluice_vfs::FileType::Regular, 0o644, 0).unwrap();
        let (opened, gone) = thread::scope(|scope| {
            let opener = scope.spawn(|| process.open("/m/f", OpenFlags::RDONLY, 0));
            let gone = process.umount("/m", UmountFlags::empty());
            (opener.join().unwrap(), gone)
        });
        match (opened, gone) {
            (Ok(fd), Err(Errno::EBUSY)) => {
                process.close(fd).unwrap();
                process.umount("/m", UmountFlags::empty()).unwrap();
            }
            (Err(Errno::ENOENT), Ok(())) => {}
            both => panic!("{both:?}"),
        }
    }
}
