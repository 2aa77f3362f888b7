//! Conflict-free: calls that commute write no line that the other touches, as the simulated machine sees it.

use sluice_machine::Machine;
use sluice_vfs_sim::{
    Access, AtFlags, Cred, Fd, FileType, Fs, InodeRef, NewInode, NewKind, Process, RenameFlags,
};

/// One side of a comparison: its process, and the directory `/a/b/c`.
type Call = fn(&Process, &InodeRef);

/// The lines on which two CPUs meet while one does `first` and the other `second` to one file system.
fn conflicts(first: Call, second: Call) -> Vec<String> {
    conflicts_within(None, first, second)
}

/// The lines on which two CPUs meet, with a quota of `/a` of so many bytes; see [`conflicts`].
fn conflicts_within(quota: Option<u64>, first: Call, second: Call) -> Vec<String> {
    let machine = Machine::named("uma-2");
    let (processes, dir) = machine.prepare(2, || {
        let fs = Fs::new();
        let processes = [(); 2].map(|()| fs.process(Cred::root()));
        let mut dir = fs.superblock().root().clone();
        for name in ["a", "b", "c"] {
            let new = NewInode { kind: NewKind::Directory, mode: 0o755, umask: 0 };
            dir = dir.create(&Cred::root(), name.as_bytes(), &new).unwrap();
        }
        processes[0].mknod("/a/b/c/f", FileType::Regular, 0o644, 0).unwrap();
        processes[0].symlink("f", "/a/b/c/l").unwrap();
        processes[0].mknod("/a/b/c/g", FileType::Regular, 0o644, 0).unwrap();
        if quota.is_some() {
            fs.set_quota("/a", quota).unwrap();
        }
        (processes, dir)
    });
    // The first calls of each CPU are over, and the clock has ticked.
    for _ in 0..2 {
        machine.run(2, |cpu| [first, second][cpu.id()](&processes[cpu.id()], &dir));
    }
    let report = machine.conflicts(|| first(&processes[0], &dir), || second(&processes[1], &dir)).unwrap();
    report.lines.iter().map(ToString::to_string).collect()
}

const NONE: [String; 0] = [];

fn look(process: &Process, _: &InodeRef) {
    process.access("/a/b/../b/c/l", Access::READ).unwrap();
    process.statx(Fd::CWD, "/a/b/c", AtFlags::empty()).unwrap();
    process.lstat("/a/b/c/l").unwrap();
    process.stat("/a/b/c/f").unwrap();
    process.readlink("/a/b/c/l").unwrap();
    process.stat("/a/b/c/none").unwrap_err();
}

fn come_and_go(dir: &InodeRef, [one, two]: [&[u8]; 2]) {
    let cred = Cred::root();
    let new = NewInode { kind: NewKind::Regular, mode: 0o600, umask: 0 };
    let file = dir.create(&cred, one, &new).unwrap();
    dir.rename(&cred, one, dir, two, RenameFlags::empty()).unwrap();
    dir.link(&cred, one, &file).unwrap();
    dir.unlink(&cred, one).unwrap();
    dir.unlink(&cred, two).unwrap();
}

fn list(_: &Process, dir: &InodeRef) {
    let mut names = 0;
    dir.read_dir(0, true, &mut |_| {
        names += 1;
        true
    })
    .unwrap();
    assert!(names >= 4);
}

#[test]
fn looking_at_one_file_stores_nothing_that_another_cpu_uses() {
    assert_eq!(conflicts(look, look), NONE);
}

#[test]
fn files_of_different_names_come_and_go_in_one_directory_without_a_common_line() {
    assert_eq!(
        conflicts(|_, dir| come_and_go(dir, [b"x", b"y"]), |_, dir| come_and_go(dir, [b"0", b"1"])),
        NONE
    );
}

#[test]
fn one_directory_is_listed_by_two_cpus_without_a_common_line() {
    assert_eq!(conflicts(list, list), NONE);
}

/// A page is written into a file, and written over; then the file is empty again.
fn write_and_cut(dir: &InodeRef, name: &[u8]) {
    let cred = Cred::root();
    let file = dir.lookup(&cred, name).unwrap();
    for _ in 0..2 {
        assert_eq!(file.write_at(&cred, 0, &[7; 4096]), Ok(4096));
    }
    file.truncate(&cred, 0).unwrap();
}

#[test]
fn two_files_in_one_quota_are_written_without_a_common_line() {
    let quota = Some(1 << 40);
    let write =
        |quota| conflicts_within(quota, |_, dir| write_and_cut(dir, b"f"), |_, dir| write_and_cut(dir, b"g"));
    assert_eq!(write(None), NONE);
    assert_eq!(write(quota), NONE);
    let come_and_go = conflicts_within(
        quota,
        |_, dir| come_and_go(dir, [b"x", b"y"]),
        |_, dir| come_and_go(dir, [b"0", b"1"]),
    );
    assert_eq!(come_and_go, NONE);
    // Near the limit the two have to ask each other.
    assert_ne!(write(Some(4 * 4096)), NONE);
}
