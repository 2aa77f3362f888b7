//! Descriptors and mounts: two threads of one process that use different numbers, or one file, share no written line.

use sluice_machine::Machine;
use sluice_vfs_sim::{Cred, Errno, Fd, FileType, Fs, MountFlags, OpenFlags, Options, Process, Superblock};

/// Descriptors 0 to 5, all of them for "/m/f" in a mount of its own; the working directory is "/m".
fn process() -> Process {
    let fs = Fs::new();
    let process = fs.process(Cred::root());
    process.mkdir("/m", 0o755).unwrap();
    process.mount(Superblock::new(Options::default()), "/m", MountFlags::empty()).unwrap();
    process.chdir("/m").unwrap();
    process.mknod("f", FileType::Regular, 0o644, 0).unwrap();
    for number in 0..6 {
        assert_eq!(process.open("/m/f", OpenFlags::RDWR, 0), Ok(Fd(number)));
    }
    process
}

/// The lines in conflict when two CPUs do `first` and `second` to one process in the state that `prepare` brings about, from the
/// beginning and after they have been done once.
fn conflicts(prepare: fn(&Process), first: fn(&Process), second: fn(&Process)) -> Vec<String> {
    let machine = Machine::named("uma-2");
    let process = machine.prepare(2, process);
    prepare(&process);
    // Each thread has made its own objects.
    machine.run(2, |cpu| if cpu.id() == 0 { first(&process) } else { second(&process) });
    prepare(&process);
    let report = machine.conflicts(|| first(&process), || second(&process)).unwrap();
    report.lines.iter().map(ToString::to_string).collect()
}

const NONE: [String; 0] = [];

fn open_as(process: &Process, expected: i32) {
    assert_eq!(process.open("f", OpenFlags::RDONLY, 0), Ok(Fd(expected)));
}

#[test]
fn one_descriptor_is_used_by_two_threads() {
    let fstat: fn(&Process) = |process| assert_eq!(process.fstat(Fd(3)).unwrap().nlink, 1);
    let getfl: fn(&Process) = |process| assert!(process.fcntl_getfl(Fd(3)).unwrap().writable());
    assert_eq!(conflicts(|_| (), fstat, fstat), NONE);
    assert_eq!(conflicts(|_| (), fstat, getfl), NONE);
}

#[test]
fn different_descriptors_are_closed_by_two_threads() {
    let prepare: fn(&Process) = |process| {
        process.dup2(Fd(0), Fd(2)).unwrap();
        process.dup2(Fd(1), Fd(4)).unwrap();
    };
    let use_another: fn(&Process) = |process| {
        process.fstat(Fd(3)).unwrap();
        process.close(Fd(99)).unwrap_err();
    };
    let close: fn(&Process) = |process| process.close(Fd(2)).unwrap();
    assert_eq!(conflicts(prepare, close, |process| process.close(Fd(4)).unwrap()), NONE);
    assert_eq!(conflicts(prepare, close, use_another), NONE);
}

#[test]
fn one_thread_opens_while_another_closes_a_higher_number() {
    let prepare: fn(&Process) = |process| {
        let _ = process.close(Fd(6));
        process.dup2(Fd(0), Fd(8)).unwrap();
    };
    let open: fn(&Process) = |process| open_as(process, 6);
    assert_eq!(conflicts(prepare, open, |process| process.close(Fd(8)).unwrap()), NONE);
}

#[test]
fn two_processes_open_and_close_one_file_in_a_mount() {
    let machine = Machine::named("uma-2");
    let processes = machine.prepare(2, || {
        let first = process();
        [first.fork(), first]
    });
    let work = |process: &Process| {
        open_as(process, 6);
        process.close(Fd(6)).unwrap();
    };
    machine.run(2, |cpu| work(&processes[cpu.id()]));
    let report = machine.conflicts(|| work(&processes[0]), || work(&processes[1])).unwrap();
    assert!(report.is_empty(), "{report}");
    let busy = processes[0].umount("/m", Default::default());
    assert_eq!(busy, Err(Errno::EBUSY), "the sum over the CPUs is exact");
}
