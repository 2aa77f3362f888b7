//! Conflict-free: calls that commute write no line that the other touches, as the simulated machine sees it.

use sluice_machine::Machine;
use sluice_vfs_sim::{Access, AtFlags, Cred, Fd, FileType, Fs, OpenFlags, Process};

#[global_allocator]
static HEAP: sluice_machine::Heap = sluice_machine::Heap;

/// What two CPUs do to one file system by calls of a process each, `first` and `second`, after `set_up`.
fn conflicts(set_up: fn(&Process), first: fn(&Process), second: fn(&Process)) -> Vec<String> {
    let machine = Machine::named("uma-2");
    let processes = machine.prepare(2, || {
        let fs = Fs::new();
        let processes = [(); 2].map(|()| fs.process(Cred::root()));
        processes[0].mkdir("/a", 0o755).unwrap();
        processes[0].mkdir("/a/b", 0o755).unwrap();
        processes[0].mkdir("/a/b/c", 0o755).unwrap();
        for name in ["/a/b/c/f", "/a/b/c/g"] {
            processes[0].mknod(name, FileType::Regular, 0o644, 0).unwrap();
        }
        processes[0].symlink("f", "/a/b/c/l").unwrap();
        set_up(&processes[0]);
        // What a thread makes once is made.
        for process in &processes {
            first(process);
            second(process);
            set_up(process);
        }
        processes
    });
    let report = machine.conflicts(|| first(&processes[0]), || second(&processes[1])).unwrap();
    report.lines.iter().map(|line| line.labels().join(" and ")).collect()
}

const NONE: [String; 0] = [];

fn stat(process: &Process) {
    assert_eq!(process.stat("/a/b/c/f").unwrap().nlink, 1);
}

fn look_around(process: &Process) {
    process.access("/a/b/../b/c/l", Access::READ).unwrap();
    process.statx(Fd::CWD, "/a/b/c", AtFlags::empty()).unwrap();
    process.readlink("/a/b/c/l").unwrap();
    process.stat("/a/b/c/none").unwrap_err();
}

fn create(process: &Process, name: &str) {
    process.mknod(format!("/a/b/c/{name}"), FileType::Regular, 0o600, 0).unwrap();
}

fn list(process: &Process) {
    let fd = process.open("/a/b/c", OpenFlags::DIRECTORY, 0).unwrap();
    assert!(process.getdents(fd, 100).unwrap().len() >= 5);
    process.close(fd).unwrap();
}

#[test]
fn looking_at_one_file_stores_nothing_that_another_cpu_uses() {
    assert_eq!(conflicts(|_| (), stat, stat), NONE);
    assert_eq!(conflicts(|_| (), look_around, look_around), NONE);
    assert_eq!(conflicts(|_| (), stat, look_around), NONE);
}

#[test]
fn files_of_different_names_come_and_go_in_one_directory_without_a_common_line() {
    let first: fn(&Process) = |process| {
        create(process, "x");
        process.rename("/a/b/c/x", "/a/b/c/y").unwrap();
        process.unlink("/a/b/c/y").unwrap();
    };
    let second: fn(&Process) = |process| {
        create(process, "0");
        process.rename("/a/b/c/0", "/a/b/c/1").unwrap();
        process.unlink("/a/b/c/1").unwrap();
    };
    assert_eq!(conflicts(|_| (), first, second), NONE);
    assert_eq!(conflicts(|_| (), first, stat), NONE);
}

#[test]
fn one_directory_is_listed_by_two_cpus_without_a_common_line() {
    assert_eq!(conflicts(|_| (), list, list), NONE);
}
