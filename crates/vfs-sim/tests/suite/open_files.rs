//! Open files: a thread that lists them while others pass them from descriptor to descriptor finds each exactly once.

use sluice_machine::Machine;
use sluice_sync::random::Random;
use sluice_vfs_sim::{Cred, Fd, FileType, Fs, OpenFlags, Process};
use std::cell::RefCell;

/// A process with descriptor 0 for a file that stays open throughout.
fn process(fs: &Fs, path: &str) -> Process {
    let process = fs.process(Cred::root());
    process.mknod(path, FileType::Regular, 0o644, 0).unwrap();
    assert_eq!(process.open(path, OpenFlags::RDWR, 0), Ok(Fd(0)));
    process
}

/// Passes the file of descriptor 0 on to higher descriptors and back, and to a child for a while; opens and closes another
/// file.
fn pass_on(process: &Process, seed: u64) {
    let mut random = Random::new(seed);
    for _ in 0..4 {
        let up = Fd(1 + random.below(6));
        match random.below(16) {
            0..8 => {
                process.dup2(Fd(0), up).unwrap();
                process.close(Fd(0)).unwrap();
                assert_eq!(process.dup(up), Ok(Fd(0)));
                process.close(up).unwrap();
            }
            8..12 => drop(process.fork()),
            _ => {
                let fleeting = process.open("/fleeting", OpenFlags::RDONLY, 0).unwrap();
                process.close(fleeting).unwrap();
            }
        }
    }
}

/// The file of descriptor 0 goes to a child, which then has it alone, and from that to its child.
fn inherit(parent: Process) -> Process {
    let child = parent.fork();
    drop(parent);
    child
}

#[test]
fn a_file_that_is_open_throughout_is_listed_exactly_once() {
    let mut only_noted = 0;
    for seed in 0..300 {
        let machine = Machine::named("skylake-4").seed(seed);
        let (fs, [passing, parent], kept) = machine.prepare(3, || {
            let fs = Fs::new();
            fs.write("/fleeting", "").unwrap();
            let processes = ["/a", "/b"].map(|path| process(&fs, path));
            let kept = processes.each_ref().map(|process| process.fstat(Fd(0)).unwrap().ino);
            (fs, processes, kept)
        });
        let (family, seen) = (RefCell::new(Some(parent)), RefCell::new(Vec::new()));
        machine.run(3, |cpu| match cpu.id() {
            0 => pass_on(&passing, seed),
            1 => {
                let parent = family.take().unwrap();
                let heir = (0..3).fold(parent, |parent, _| inherit(parent));
                family.replace(Some(heir));
            }
            _ => (0..3).for_each(|_| seen.borrow_mut().push(fs.open_files())),
        });
        for files in seen.into_inner() {
            for ino in kept {
                let count = files.iter().filter(|file| file.ino == ino).count();
                assert_eq!(count, 1, "inode {ino}, seed {seed}: {files:?}");
            }
            only_noted += files.iter().filter(|file| file.holders.is_empty()).count();
        }
    }
    assert!(only_noted > 0, "no file was ever passed by the reader");
}
