//! Leases: whatever the moment, nobody has a file open in a way that a lease granted meanwhile excludes.

use sluice_locks::Notice;
use sluice_machine::Machine;
use sluice_vfs_sim::{Cred, Errno, Fd, FileType, Fs, LockType, OpenFlags, Process};
use std::cell::Cell;

fn lease(process: &Process, fd: Fd, lease: LockType) -> Result<(), Errno> {
    process.fcntl_setlease(fd, lease, Notice::unheard())
}

/// Opens without waiting for leases.
fn open(process: &Process, path: &str, flags: OpenFlags) -> Result<Fd, Errno> {
    process.open(path, flags | OpenFlags::NONBLOCK, 0o644)
}

/// Two processes; descriptor 0 of the first is "/f", open for reading.
fn processes() -> [Process; 2] {
    let fs = Fs::new();
    let [holder, opener] = [(); 2].map(|()| fs.process(Cred::root()));
    holder.mknod("/f", FileType::Regular, 0o644, 0).unwrap();
    holder.open("/f", OpenFlags::RDONLY, 0).unwrap();
    // So that leases are known to be used.
    lease(&holder, Fd(0), LockType::Read).unwrap();
    [holder, opener]
}

/// The holder leases, the opener opens, in many orders, and never both succeed. Whether they ever did.
fn never_both(
    prepare: impl Fn(&Process),
    leases: impl Fn(&Process) -> Result<(), Errno>,
    opens: impl Fn(&Process) -> Result<Fd, Errno>,
) -> [bool; 2] {
    let mut succeeded = [false; 2];
    for seed in 0..400 {
        let machine = Machine::named("uma-2").seed(seed);
        let [holder, opener] = &machine.prepare(2, || {
            let processes = processes();
            prepare(&processes[0]);
            processes
        });
        let (leased, opened) = (Cell::new(false), Cell::new(false));
        machine.run(2, |cpu| {
            // One of them comes later, by more or less.
            let process = [holder, opener][cpu.id()];
            if cpu.id() == seed as usize % 2 {
                (0..1 << (seed / 2 % 12)).for_each(|_| assert!(process.stat("/f").is_ok()));
                (0..seed / 24).for_each(|_| assert!(process.umask(0) < 0o1000));
            }
            match cpu.id() {
                0 => leased.set(leases(holder).is_ok()),
                _ => opened.set(opens(opener).is_ok()),
            }
        });
        assert!(!leased.get() || !opened.get(), "a lease and an open, seed {seed}");
        succeeded = [succeeded[0] | leased.get(), succeeded[1] | opened.get()];
    }
    succeeded
}

#[test]
fn a_shared_lease_on_a_file_that_nobody_was_writing_sees_the_writer_who_comes() {
    let succeeded = never_both(
        |holder| lease(holder, Fd(0), LockType::Unlock).unwrap(),
        |holder| lease(holder, Fd(0), LockType::Read),
        |opener| open(opener, "/f", OpenFlags::WRONLY),
    );
    assert_eq!(succeeded, [true; 2]);
}

#[test]
fn a_lease_is_made_exclusive_only_while_nobody_else_has_the_file_open() {
    let succeeded = never_both(
        |_| (),
        |holder| lease(holder, Fd(0), LockType::Write),
        |opener| open(opener, "/f", OpenFlags::RDONLY),
    );
    assert_eq!(succeeded, [true; 2]);
}

#[test]
fn a_thread_that_creates_a_file_sees_the_lease_of_one_who_found_it_at_once() {
    let [_, created] = never_both(
        |_| (),
        |holder| {
            let found = open(holder, "/new", OpenFlags::RDONLY)?;
            lease(holder, found, LockType::Read)
        },
        |opener| open(opener, "/new", OpenFlags::RDWR | OpenFlags::CREAT),
    );
    assert!(created);
}
