//! Owners of file locks that go while a thread waits for a lock of theirs: what the thread is told, and what stays.

use sluice_sync::thread;
use sluice_vfs::{Cancel, Cred, Errno, Fd, FileLock, FlockOperation, Fs, LockType, OpenFlags, Process};

const KINDS: [&str; 3] = ["posix", "ofd", "flock"];

fn process() -> Process {
    let process = Fs::new().process(Cred::root());
    process.mknod("/f", sluice_vfs::FileType::Regular, 0o644, 0).unwrap();
    process
}

fn open(process: &Process) -> Fd {
    process.open("/f", OpenFlags::RDWR, 0).unwrap()
}

fn wait(process: &Process, kind: &str, fd: Fd, lock: &FileLock) -> Result<(), Errno> {
    let cancel = Cancel::new();
    match kind {
        "posix" => process.fcntl_setlkw(fd, lock, &cancel),
        "ofd" => process.ofd_setlkw(fd, lock, &cancel),
        _ => process.flock_wait(fd, FlockOperation::Exclusive, &cancel),
    }
}

fn until_waiting(process: &Process, requests: usize) {
    let list = || process.fs().superblock().lock_domain().list();
    while list().iter().filter(|entry| entry.waits_for.is_some()).count() < requests {
        thread::yield_now();
    }
}

#[test]
fn an_owner_that_goes_while_it_waits_leaves_no_lock() {
    let whole = FileLock::whole(LockType::Write);
    for kind in KINDS {
        for way in ["close", "dup2", "copy"] {
            let process = process();
            let holder = process.fs().process(Cred::root());
            let (held, waiter) = (open(&holder), open(&process));
            let copy = process.dup(waiter).unwrap();
            let other = process.open("/", OpenFlags::RDONLY, 0).unwrap();
            if way != "copy" {
                process.close(copy).unwrap();
            }
            wait(&holder, kind, held, &whole).unwrap();
            let told = thread::scope(|scope| {
                let waiting = scope.spawn(|| wait(&process, kind, waiter, &whole));
                until_waiting(&process, 1);
                match way {
                    "dup2" => drop(process.dup2(other, waiter).unwrap()),
                    "copy" => process.close(copy).unwrap(),
                    _ => process.close(waiter).unwrap(),
                }
                holder.close(held).unwrap();
                waiting.join().unwrap()
            });
            let is_told_so = kind == "posix" && way != "copy";
            assert_eq!(told, if is_told_so { Err(Errno::EBADF) } else { Ok(()) }, "{kind} {way}");
            let stays = usize::from(way == "copy");
            assert_eq!(process.fs().superblock().lock_domain().list().len(), stays, "{kind} {way}");
        }
    }
}

#[test]
fn open_files_that_wait_for_each_other_are_no_deadlock() {
    let process = process();
    let range = |kind, start| FileLock::range(kind, start, 10);
    let [one, two] = [open(&process), open(&process)];
    process.ofd_setlk(one, &range(LockType::Write, 0)).unwrap();
    process.ofd_setlk(two, &range(LockType::Write, 10)).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| wait(&process, "ofd", one, &range(LockType::Write, 10)));
        until_waiting(&process, 1);
        let second = scope.spawn(|| wait(&process, "ofd", two, &range(LockType::Write, 0)));
        until_waiting(&process, 2);
        process.ofd_setlk(one, &range(LockType::Unlock, 0)).unwrap();
        assert_eq!(second.join().unwrap(), Ok(()));
        process.ofd_setlk(two, &range(LockType::Unlock, 10)).unwrap();
        assert_eq!(first.join().unwrap(), Ok(()));
    });
}
