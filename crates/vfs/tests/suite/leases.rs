//! Leases and delegations of a process: when they are given, what breaks them.

use sluice_locks::{Kind, LeaseBreak, Notice};
use sluice_sync::{Arc, Mutex, thread};
use sluice_vfs::{AtFlags, Caps, Cred, Errno, Fd, Fs, InodeRef, LockType, NewInode, NewKind, OpenFlags};
use sluice_vfs::{Process, RenameFlags, SetAttr, XattrFlags};

fn root() -> Process {
    let process = Fs::new().process(Cred::root());
    process.mkdir("/d", 0o755).unwrap();
    process.mknod("/d/f", sluice_vfs::FileType::Regular, 0o644, 0).unwrap();
    process
}

fn read(process: &Process) -> Fd {
    process.open("/d/f", OpenFlags::RDONLY, 0).unwrap()
}

#[test]
fn a_lease_is_given_as_on_linux() {
    let process = root();
    let fd = read(&process);
    let ask = |process: &Process, fd, lease| process.fcntl_setlease(fd, lease, Notice::unheard());
    assert_eq!(ask(&process, fd, LockType::Unlock), Err(Errno::EAGAIN));
    assert_eq!(ask(&process, fd, LockType::Write), Ok(()));
    assert_eq!(process.fcntl_getlease(fd), Ok(LockType::Write));
    assert_eq!(ask(&process, fd, LockType::Read), Ok(()));
    assert_eq!(ask(&process, fd, LockType::Unlock), Ok(()));
    // A second open is in the way of an exclusive lease, one for writing of any.
    let second = read(&process);
    assert_eq!(ask(&process, fd, LockType::Write), Err(Errno::EAGAIN));
    assert_eq!(ask(&process, fd, LockType::Read), Ok(()));
    assert_eq!(ask(&process, second, LockType::Read), Ok(()));
    process.close(second).unwrap();
    process.close(fd).unwrap();
    let writer = process.open("/d/f", OpenFlags::RDWR, 0).unwrap();
    assert_eq!(ask(&process, writer, LockType::Read), Err(Errno::EAGAIN));
    assert_eq!(ask(&process, writer, LockType::Write), Ok(()));
    // A duplicate is the same open file; the lease ends with the last.
    let same = process.dup(writer).unwrap();
    process.close(writer).unwrap();
    assert_eq!(process.fcntl_getlease(same), Ok(LockType::Write));
    process.close(same).unwrap();
    assert_eq!(process.fs().superblock().lock_domain().list(), []);
    // Whose file, and what.
    let stranger = process.fork_as(Cred { caps: Caps::empty(), ..Cred::user(1, 1) });
    let fd = stranger.open("/d/f", OpenFlags::RDONLY, 0).unwrap();
    assert_eq!(ask(&stranger, fd, LockType::Read), Err(Errno::EACCES));
    let dir = process.open("/d", OpenFlags::DIRECTORY, 0).unwrap();
    assert_eq!(ask(&process, dir, LockType::Read), Err(Errno::EINVAL));
    assert_eq!(process.fcntl_setdeleg(dir, LockType::Write, Notice::unheard()), Err(Errno::EINVAL));
}

#[test]
fn opens_and_truncation_break_a_lease_and_wait_unless_told_not_to() {
    let process = root();
    let fd = read(&process);
    process.fcntl_setlease(fd, LockType::Write, Notice::unheard()).unwrap();
    let try_open = |flags| process.open("/d/f", flags | OpenFlags::NONBLOCK, 0);
    assert_eq!(try_open(OpenFlags::RDONLY), Err(Errno::EAGAIN));
    assert_eq!(process.fcntl_getlease(fd), Ok(LockType::Read));
    assert_eq!(try_open(OpenFlags::WRONLY), Err(Errno::EAGAIN));
    assert_eq!(process.fcntl_getlease(fd), Ok(LockType::Unlock));
    // Attributes and names are not what a lease is about.
    process.chmod("/d/f", 0o600).unwrap();
    process.rename("/d/f", "/d/g").unwrap();
    process.rename("/d/g", "/d/f").unwrap();
    process.fcntl_setlease(fd, LockType::Unlock, Notice::unheard()).unwrap();
    process.close(try_open(OpenFlags::WRONLY).unwrap()).unwrap();

    // A refused open is not counted among the opens of the file.
    let holder = Arc::new(process.fork());
    let (told, teller) = (Arc::new(Mutex::new(0)), holder.clone());
    process.close(fd).unwrap();
    let fd = Fd(fd.0);
    let notes = told.clone();
    let gives_up = Notice::new(move |LeaseBreak { keep, .. }| {
        assert_eq!(keep, None::<Kind>);
        *notes.lock() += 1;
        teller.fcntl_setlease(fd, LockType::Unlock, Notice::unheard()).unwrap();
    });
    for round in 1..3 {
        holder.fcntl_setlease(fd, LockType::Read, gives_up.clone()).unwrap();
        if round == 1 {
            process.truncate("/d/f", 10).unwrap();
        } else {
            process.close(process.open("/d/f", OpenFlags::WRONLY | OpenFlags::TRUNC, 0).unwrap()).unwrap();
        }
        assert_eq!(*told.lock(), round);
    }
    assert_eq!(process.stat("/d/f").unwrap().size, 0);
}

#[test]
fn a_delegation_is_broken_by_changes_of_names_and_attributes() {
    type Change = fn(&Process) -> Result<(), Errno>;
    // Each with whether it is against a delegation of the file, and of its directory.
    let changes: [(Change, bool, bool); 11] = [
        (|p| p.chmod("/d/f", 0o640), true, false),
        (|p| p.link("/d/f", "/d/h"), true, true),
        (|p| p.unlink("/d/h"), true, true),
        (|p| p.rename("/d/f", "/d/g"), true, true),
        (|p| p.renameat2(Fd::CWD, "/d/g", Fd::CWD, "/d/f", RenameFlags::empty()), true, true),
        (|p| p.mkdir("/d/s", 0o755), false, true),
        (|p| p.unlinkat(Fd::CWD, "/d/s", AtFlags::REMOVEDIR), false, true),
        (|p| p.stat("/d/f").map(drop), false, false),
        (|p| p.setxattr("/d/f", b"user.a", b"1", XattrFlags::empty()), true, false),
        (|p| p.getxattr("/d/f", b"user.a").map(drop), false, false),
        (|p| p.removexattr("/d/f", b"user.a"), true, false),
    ];
    let process = root();
    let file = read(&process);
    let dir = process.open("/d", OpenFlags::DIRECTORY, 0).unwrap();
    let holder = Arc::new(process.fork());
    for (number, (change, of_file, of_dir)) in changes.into_iter().enumerate() {
        for (fd, is_broken) in [(file, of_file), (dir, of_dir)] {
            let (told, teller) = (Arc::new(Mutex::new(false)), holder.clone());
            let notes = told.clone();
            let gives_up = Notice::new(move |_| {
                *notes.lock() = true;
                teller.fcntl_setdeleg(fd, LockType::Unlock, Notice::unheard()).unwrap();
            });
            holder.fcntl_setdeleg(fd, LockType::Read, gives_up).unwrap();
            assert_eq!(holder.fcntl_getdeleg(fd), Ok(LockType::Read));
            assert_eq!(holder.fcntl_getlease(fd), Ok(LockType::Unlock), "a delegation is no lease");
            // The second time around the change may be impossible; it breaks before it knows.
            let done = change(&process);
            assert!(fd == dir || done.is_ok(), "change {number}: {done:?}");
            if fd == file {
                assert_eq!(*told.lock(), is_broken, "change {number} and the file");
                undo(&process, number);
            } else if done.is_ok() {
                assert_eq!(*told.lock(), is_broken, "change {number} and the directory");
            }
            let _ = holder.fcntl_setdeleg(fd, LockType::Unlock, Notice::unheard());
        }
    }
}

/// Takes a change back, so that it can be done again.
fn undo(process: &Process, number: usize) {
    let _ = match number {
        1 => process.unlink("/d/h"),
        2 => process.link("/d/f", "/d/h"),
        3 => process.rename("/d/g", "/d/f"),
        4 => process.rename("/d/f", "/d/g"),
        5 => process.rmdir("/d/s"),
        6 => process.mkdir("/d/s", 0o755),
        10 => process.setxattr("/d/f", b"user.a", b"1", XattrFlags::empty()),
        _ => Ok(()),
    };
}

#[test]
fn of_a_lease_and_an_open_at_once_one_sees_the_other() {
    let process = root();
    for _ in 0..300 {
        let holder = process.fork();
        let fd = read(&holder);
        let (leased, opened) = thread::scope(|scope| {
            let opening = scope.spawn(|| process.open("/d/f", OpenFlags::WRONLY | OpenFlags::NONBLOCK, 0));
            (holder.fcntl_setlease(fd, LockType::Read, Notice::unheard()), opening.join().unwrap())
        });
        assert!(leased.is_err() || opened.is_err(), "a lease and a writer");
        if let Ok(fd) = opened {
            process.close(fd).unwrap();
        }
    }
}

/// Changes that a server of files, such as a mount, makes in "/d", in turn; and whether each is one of the file, too.
const SERVED: [(Served, bool); 8] = [
    (|cred, dir, _| dir.create(cred, b"s", &NEW_DIR).map(drop), false),
    (|cred, dir, _| dir.rmdir(cred, b"s"), false),
    (|cred, _, file| file.set_attr(cred, &SetAttr { mode: Some(0o600), ..SetAttr::default() }), true),
    (|cred, _, file| file.set_xattr(cred, b"user.a", b"1", XattrFlags::empty()), true),
    (|cred, _, file| file.remove_xattr(cred, b"user.a"), true),
    (|cred, dir, file| dir.link(cred, b"h", file), true),
    (|cred, dir, _| dir.unlink(cred, b"h"), true),
    (|cred, dir, _| dir.rename(cred, b"f", dir, b"g", RenameFlags::empty()), true),
];
type Served = fn(&Cred, &InodeRef, &InodeRef) -> Result<(), Errno>;
const NEW_DIR: NewInode<'static> = NewInode { kind: NewKind::Directory, mode: 0o755, umask: 0 };

#[test]
fn a_delegation_is_broken_by_changes_that_a_server_of_files_makes() {
    for of_file in [true, false] {
        let process = Arc::new(root());
        let cred = Cred::checked_elsewhere(0, 0, None);
        let dir = process.fs().superblock().root().lookup(&cred, b"d").unwrap();
        let file = dir.lookup(&cred, b"f").unwrap();
        let fd = if of_file { read(&process) } else { process.open("/d", OpenFlags::DIRECTORY, 0).unwrap() };
        for (number, (change, is_of_file)) in SERVED.into_iter().enumerate() {
            let (told, teller) = (Arc::new(Mutex::new(false)), process.clone());
            let notes = told.clone();
            let gives_up = Notice::new(move |_| {
                *notes.lock() = true;
                teller.fcntl_setdeleg(fd, LockType::Unlock, Notice::unheard()).unwrap();
            });
            process.fcntl_setdeleg(fd, LockType::Read, gives_up).unwrap();
            change(&cred, &dir, &file).unwrap();
            // Attributes of the file are none of the directory's.
            let is_broken = if of_file { is_of_file } else { !(2..5).contains(&number) };
            assert_eq!(*told.lock(), is_broken, "change {number}, of the file: {of_file}");
            let _ = process.fcntl_setdeleg(fd, LockType::Unlock, Notice::unheard());
        }
    }
}
