//! Defects of other in-process file systems, each of which must not be ours.

use sluice_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sluice_sync::{Arc, Barrier, thread};
use sluice_vfs::{
    Cred, Errno, FileLock, FlockOperation, Fs, LockType, OpenFlags, Process, RenameFlags, Whence,
};

const CREATE: OpenFlags = OpenFlags::CREAT.union(OpenFlags::RDWR);

fn root(fs: &Fs) -> Process {
    fs.process(Cred::root())
}

fn assert_in_order(fs: &Fs) {
    let report = fs.check();
    assert!(report.is_clean(), "{report}");
    assert_eq!(fs.superblock().live_inodes(), report.inodes, "inodes without a name are left over");
}

#[test]
fn a_directory_cannot_be_renamed_into_its_own_child() {
    let fs = Fs::new();
    fs.create_dir_all("/a/b/c").expect("an empty tree takes directories");
    for target in ["/a/x", "/a/b/x", "/a/b/c/x", "/a/b/../b/x"] {
        assert_eq!(fs.rename("/a", target), Err(Errno::EINVAL), "{target}");
    }
    let process = root(&fs);
    let exchange = RenameFlags::EXCHANGE;
    let into_child = process.renameat2(sluice_vfs::Fd::CWD, "/a", sluice_vfs::Fd::CWD, "/a/b", exchange);
    assert_eq!(into_child, Err(Errno::EINVAL));
    assert!(fs.exists("/a/b/c"));
    assert_in_order(&fs);
}

/// Two renames, each of which is right alone, must not make two directories each other's descendants.
#[test]
fn racing_renames_do_not_tie_two_directories_into_a_loop() {
    let fs = Fs::new();
    for _ in 0..2000 {
        fs.create_dir_all("/a").expect("a fresh name");
        fs.create_dir_all("/b").expect("a fresh name");
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            for (from, to) in [("/a", "/b/a"), ("/b", "/a/b")] {
                let (fs, barrier) = (&fs, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    // One of the two is refused, or comes second and finds its source moved.
                    let _ = fs.rename(from, to);
                });
            }
        });
        assert!(fs.exists("/a") != fs.exists("/b"), "exactly one is left at the top");
        let top = if fs.exists("/a") { "/a" } else { "/b" };
        fs.remove_dir_all(top).expect("a tree without a loop can be removed");
    }
    assert_in_order(&fs);
}

#[test]
fn rmdir_racing_create_leaves_no_orphan() {
    let fs = Fs::new();
    let mut orphans = 0;
    for round in 0..5000 {
        fs.create_dir_all("/d").expect("a fresh name");
        let barrier = Barrier::new(2);
        let created = thread::scope(|scope| {
            let creator = scope.spawn(|| {
                let process = root(&fs);
                barrier.wait();
                process.open("/d/f", CREATE, 0o644).and_then(|fd| process.close(fd)).is_ok()
            });
            barrier.wait();
            let removed = fs.remove_dir("/d").is_ok();
            let created = creator.join().expect("the creator does not panic");
            assert!(!(created && removed), "round {round}: a file was created in a removed directory");
            created
        });
        orphans += u32::from(created);
        let _ = fs.remove_dir_all("/d");
    }
    assert_in_order(&fs);
    println!("the creator won {orphans} of 5000 races");
}

#[test]
fn closing_a_writer_does_not_bring_an_unlinked_file_back() {
    let fs = Fs::new();
    let process = root(&fs);
    let fd = process.open("/f", CREATE, 0o644).expect("a fresh name");
    process.write(fd, b"before").expect("open for writing");
    process.unlink("/f").expect("the name is there");
    process.write(fd, b" and after").expect("the open file lives on");
    process.lseek(fd, 0, Whence::Set).expect("a file can seek");
    let mut contents = [0; 16];
    assert_eq!(process.read(fd, &mut contents), Ok(16));
    assert_eq!(&contents, b"before and after");
    process.close(fd).expect("open");
    assert_eq!(process.stat("/f"), Err(Errno::ENOENT));
    assert_in_order(&fs);
}

/// One file system panics here within a second.
#[test]
fn threads_unlink_their_own_files_side_by_side() {
    let fs = Fs::new();
    thread::scope(|scope| {
        for me in 0..4 {
            let process = root(&fs);
            scope.spawn(move || {
                for round in 0..5000 {
                    let name = format!("/mine-{me}-{}", round % 7);
                    let fd = process.open(&name, CREATE | OpenFlags::EXCL, 0o644).expect("my own name");
                    process.close(fd).expect("open");
                    process.unlink(&name).expect("my own name");
                }
            });
        }
    });
    assert!(fs.read_dir("/").expect("the root can be read").next().is_none());
    assert_in_order(&fs);
}

/// Two exclusive locks at once, seen by counting the holders.
#[test]
fn an_exclusive_lock_excludes() {
    type Lock = fn(&Process, sluice_vfs::Fd, bool) -> Result<(), Errno>;
    let flock: Lock = |process, fd, lock| {
        process.flock(fd, if lock { FlockOperation::Exclusive } else { FlockOperation::Unlock })
    };
    let posix: Lock = |process, fd, lock| {
        process.fcntl_setlk(fd, &FileLock::whole(if lock { LockType::Write } else { LockType::Unlock }))
    };
    let ofd: Lock = |process, fd, lock| {
        process.ofd_setlk(fd, &FileLock::whole(if lock { LockType::Write } else { LockType::Unlock }))
    };
    for (name, lock) in [("flock", flock), ("POSIX", posix), ("OFD", ofd)] {
        let fs = Fs::new();
        let inside = AtomicU32::new(0);
        let granted = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                let process = root(&fs);
                let (inside, granted) = (&inside, &granted);
                scope.spawn(move || {
                    let fd = process.open("/lock", CREATE, 0o644).expect("the root may create");
                    for _ in 0..20_000 {
                        if lock(&process, fd, true).is_ok() {
                            let others = inside.fetch_add(1, Ordering::SeqCst);
                            assert_eq!(others, 0, "{name}: two exclusive locks");
                            granted.fetch_add(1, Ordering::Relaxed);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            lock(&process, fd, false).expect("what is locked can be unlocked");
                        }
                    }
                });
            }
        });
        assert!(granted.load(Ordering::Relaxed) > 0, "{name}: nobody ever got the lock");
    }
}

/// Where an overwrite costs as much as the file is long, this takes hours.
#[test]
fn a_small_overwrite_costs_the_same_in_a_large_file() {
    const SIZE: usize = 64 << 20;
    let fs = Fs::new();
    fs.write("/large", vec![1; SIZE]).expect("there is memory");
    let process = root(&fs);
    let fd = process.open("/large", OpenFlags::RDWR, 0).expect("it is there");
    let page = [2; 4096];
    for round in 0..200_000_i64 {
        let offset = (round * 7919 * 4096) % SIZE as i64;
        assert_eq!(process.pwrite(fd, &page, offset), Ok(4096));
    }
    assert_eq!(process.fstat(fd).expect("open").size, SIZE as u64);
}

/// Where listing one directory looks at the names of all, this takes hours.
#[test]
fn listing_a_directory_does_not_look_at_the_names_of_others() {
    let fs = Fs::new();
    let process = root(&fs);
    process.mkdir("/full", 0o755).expect("a fresh name");
    for n in 0..100_000 {
        process.mknod(format!("/full/{n}"), sluice_vfs::FileType::Regular, 0o644, 0).expect("a fresh name");
    }
    fs.create_dir_all("/small/inner").expect("a fresh name");
    for _ in 0..100_000 {
        assert_eq!(fs.read_dir("/small").expect("it is there").count(), 1);
    }
}

/// Maps that are not made for threads break when one lists while another adds.
#[test]
fn listing_while_others_add_and_remove_returns_what_stays_exactly_once() {
    let fs = Fs::new();
    for n in 0..100 {
        fs.write(format!("/stays-{n}"), b"").expect("a fresh name");
    }
    let done = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        for me in 0..2 {
            let (process, done) = (root(&fs), done.clone());
            scope.spawn(move || {
                let mut n = 0;
                while !done.load(Ordering::Relaxed) {
                    let (name, moved) = (format!("/comes-{me}-{n}"), format!("/goes-{me}-{n}"));
                    let fd = process.open(&name, CREATE, 0o644).expect("a fresh name");
                    process.close(fd).expect("open");
                    process.rename(&name, &moved).expect("nobody else touches it");
                    process.unlink(&moved).expect("nobody else touches it");
                    n = (n + 1) % 50;
                }
            });
        }
        for _ in 0..300 {
            let entries = fs.read_dir("/").expect("the root can be read");
            let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
            names.sort();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a name came twice");
            let staying = names.iter().filter(|name| name.as_encoded_bytes().starts_with(b"stays-")).count();
            assert_eq!(staying, 100);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_in_order(&fs);
}
