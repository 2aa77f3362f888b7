//! Lock notes: whatever the moment, a POSIX lock does not outlive a close that began when it was held, though closes
//! forget which files the process has locked.

use sluice_machine::Machine;
use sluice_vfs_sim::{Cred, Fd, FileLock, FileType, Fs, LockType, OpenFlags, Process};

/// Descriptors 0 to 2 of one process are open on "/f", and so is descriptor 0 of the other.
fn processes() -> [Process; 2] {
    let fs = Fs::new();
    let [first, second] = [(); 2].map(|()| fs.process(Cred::root()));
    first.mknod("/f", FileType::Regular, 0o644, 0).unwrap();
    for process in [&first, &first, &first, &second] {
        process.open("/f", OpenFlags::RDWR, 0).unwrap();
    }
    [first, second]
}

fn is_free(asker: &Process) -> bool {
    asker.fcntl_getlk(Fd(0), &FileLock::whole(LockType::Write)).unwrap().kind == LockType::Unlock
}

#[test]
fn a_close_that_forgets_the_file_does_not_hide_a_lock_from_the_next_close() {
    for seed in 0..300 {
        let machine = Machine::named("uma-2").seed(seed);
        let processes = machine.prepare(2, processes);
        let [locker, asker] = &processes;
        let lock = FileLock::whole(LockType::Write);
        machine.run(2, |cpu| match cpu.id() {
            0 => {
                // Noted, so that the close has something to forget.
                locker.fcntl_setlk(Fd(0), &FileLock::range(LockType::Read, 0, 1)).unwrap();
                locker.close(Fd(0)).unwrap();
            }
            _ => locker.fcntl_setlk(Fd(1), &lock).unwrap(),
        });
        machine.run(2, |cpu| {
            if cpu.id() == 0 {
                locker.close(Fd(2)).unwrap();
                assert!(is_free(asker), "seed {seed}");
            }
        });
    }
}

#[test]
fn a_lock_granted_while_its_descriptor_is_closed_is_given_back() {
    for seed in 0..300 {
        let machine = Machine::named("uma-2").seed(seed);
        let processes = machine.prepare(2, processes);
        let [locker, asker] = &processes;
        machine.run(2, |cpu| match cpu.id() {
            0 => locker.close(Fd(1)).unwrap(),
            // EBADF, or granted and then closed.
            _ => drop(locker.fcntl_setlk(Fd(1), &FileLock::whole(LockType::Write))),
        });
        machine.run(2, |cpu| assert!(cpu.id() != 0 || is_free(asker), "seed {seed}"));
    }
}
