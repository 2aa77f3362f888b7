//! Leases: opens and leases of one file in random order, in process and on the host's tmpfs.

use crate::sys;
use sluice_sync::random::{Random, fresh_seed};
use sluice_sync::thread;
use sluice_vfs::{Cred, Errno, Fd, Fs, LockType, Notice, OpenFlags, Process};
use std::fs;
use std::path::PathBuf;

/// Open files that a sequence uses.
const FILES: usize = 4;
const STEPS: usize = 40;
const SEQUENCES: usize = 1_000;

/// Where nothing is open.
const CLOSED: i32 = -1;

#[derive(Clone, Copy, Debug)]
enum LeaseStep {
    /// Opens the file anew, without waiting.
    Open(usize, OpenFlags),
    Close(usize),
    Set(usize, LockType),
    Get(usize),
}

impl LeaseStep {
    fn random(random: &mut Random) -> LeaseStep {
        let file = random.below(FILES);
        let flags = [
            OpenFlags::RDONLY,
            OpenFlags::WRONLY,
            OpenFlags::RDWR,
            OpenFlags::RDWR | OpenFlags::TRUNC,
            OpenFlags::RDONLY | OpenFlags::TRUNC,
        ];
        match random.below(8) {
            0..3 => LeaseStep::Open(file, random.pick(&flags) | OpenFlags::NONBLOCK),
            3 => LeaseStep::Close(file),
            4..7 => LeaseStep::Set(file, random.pick(&[LockType::Read, LockType::Write, LockType::Unlock])),
            _ => LeaseStep::Get(file),
        }
    }
}

/// One side of the comparison.
trait Side {
    fn open(&mut self, flags: OpenFlags) -> Result<i32, Errno>;
    fn close(&mut self, fd: i32) -> Result<(), Errno>;
    fn set(&mut self, fd: i32, lease: LockType) -> Result<(), Errno>;
    fn get(&mut self, fd: i32) -> Result<LockType, Errno>;
}

struct LeaseProcess(Process);

impl Side for LeaseProcess {
    fn open(&mut self, flags: OpenFlags) -> Result<i32, Errno> {
        self.0.open("/f", flags, 0).map(|fd| fd.0)
    }

    fn close(&mut self, fd: i32) -> Result<(), Errno> {
        self.0.close(Fd(fd))
    }

    fn set(&mut self, fd: i32, lease: LockType) -> Result<(), Errno> {
        self.0.fcntl_setlease(Fd(fd), lease, Notice::unheard())
    }

    fn get(&mut self, fd: i32) -> Result<LockType, Errno> {
        self.0.fcntl_getlease(Fd(fd))
    }
}

/// A file of the host's tmpfs, removed when dropped.
struct OnHost(PathBuf);

impl OnHost {
    fn new(number: usize) -> OnHost {
        let path = format!("/dev/shm/sluice-oracle-leases-{}-{number}", std::process::id());
        fs::write(&path, "").expect("/dev/shm is writable");
        OnHost(path.into())
    }
}

impl Side for OnHost {
    fn open(&mut self, flags: OpenFlags) -> Result<i32, Errno> {
        sys::openat(libc::AT_FDCWD, self.0.as_os_str().as_encoded_bytes(), flags.bits(), 0)
    }

    fn close(&mut self, fd: i32) -> Result<(), Errno> {
        sys::close(fd).map(drop)
    }

    fn set(&mut self, fd: i32, lease: LockType) -> Result<(), Errno> {
        let kind = match lease {
            LockType::Read => libc::F_RDLCK,
            LockType::Write => libc::F_WRLCK,
            LockType::Unlock => libc::F_UNLCK,
        };
        sys::fcntl(fd, libc::F_SETLEASE, kind as u32)?;
        // Nobody: the signal that tells a holder would end this program.
        sys::fcntl(fd, libc::F_SETOWN, 0).map(drop)
    }

    fn get(&mut self, fd: i32) -> Result<LockType, Errno> {
        sys::fcntl(fd, libc::F_GETLEASE, 0).map(|kind| match kind as i32 {
            libc::F_RDLCK => LockType::Read,
            libc::F_WRLCK => LockType::Write,
            _ => LockType::Unlock,
        })
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Does `steps` and says what came of each.
fn perform(side: &mut dyn Side, steps: &[LeaseStep]) -> Vec<Result<LockType, Errno>> {
    let mut files = [CLOSED; FILES];
    let done = |result: Result<(), Errno>| result.map(|()| LockType::Unlock);
    let outcomes = steps.iter().map(|step| match *step {
        LeaseStep::Open(file, flags) => {
            let _ = side.close(std::mem::replace(&mut files[file], CLOSED));
            side.open(flags).map(|fd| {
                files[file] = fd;
                LockType::Unlock
            })
        }
        LeaseStep::Close(file) => done(side.close(std::mem::replace(&mut files[file], CLOSED))),
        LeaseStep::Set(file, lease) => done(side.set(files[file], lease)),
        LeaseStep::Get(file) => side.get(files[file]),
    });
    let outcomes = outcomes.collect();
    for fd in files {
        let _ = side.close(fd);
    }
    outcomes
}

#[test]
fn leases_are_given_refused_broken_and_told_as_on_the_hosts_tmpfs() {
    let seed = std::env::var("SLUICE_ORACLE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(fresh_seed);
    println!("SLUICE_ORACLE_SEED={seed}");
    // A thread with descriptors of its own: nobody else opens or closes there.
    let compared = thread::spawn(move || {
        sys::unshare_process().expect("it needs no rights");
        let mut random = Random::new(seed);
        for number in 0..SEQUENCES {
            let steps: Vec<LeaseStep> = (0..STEPS).map(|_| LeaseStep::random(&mut random)).collect();
            let fs = Fs::new();
            fs.write("/f", b"").expect("it is new");
            let ours = perform(&mut LeaseProcess(fs.process(Cred::root())), &steps);
            let theirs = perform(&mut OnHost::new(number), &steps);
            if let Some(at) = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs) {
                let (ours, theirs) = (&ours[at], &theirs[at]);
                panic!("sequence {number}: {:?} is {ours:?}, on tmpfs {theirs:?}", &steps[..=at]);
            }
        }
    });
    compared.join().expect("no difference");
}
