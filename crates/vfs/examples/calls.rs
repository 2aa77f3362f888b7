//! Calls: one call again and again, so that what a single one takes can be counted: twice, with different numbers of them.
//!
//! `calls LOAD COUNT [STORE]`, in memory or over a new store in the directory STORE; how the instructions are counted stands in
//! docs/measuring.md.

use sluice_vfs::{Cred, Errno, Fd, FileLock, FlockOperation, Fs, LockType, OpenFlags, Process, Whence};

const NEW: OpenFlags = OpenFlags::RDWR.union(OpenFlags::CREAT).union(OpenFlags::EXCL);
const PAGES: usize = 256;
const NAMES: usize = 1_000;
/// Files in each directory of a tree.
const IN_A_DIRECTORY: usize = 20;

fn main() -> Result<(), Errno> {
    let mut args = std::env::args().skip(1);
    let (load, count) = (args.next().unwrap_or_default(), args.next().and_then(|count| count.parse().ok()));
    let seat = Seat::new(args.next().as_deref())?;
    let Some(count) = count else { return Err(Errno::EINVAL) };
    match load.as_str() {
        "untar" => return seat.tree(count, &[7; 4096], Then::Stays),
        "untar-tiny" => return seat.tree(count, &[7; 10], Then::Stays),
        "rmtree" => return seat.tree(count, &[7; 4096], Then::Goes),
        "untar-sync" => return seat.tree(count, &[7; 4096], Then::IsSynced),
        "rmtree-synced" => return seat.tree(count, &[7; 4096], Then::IsSyncedAndGoes),
        _ => {}
    }
    (0..count).try_for_each(|at| seat.call(&load, at))
}

/// The fate of a tree that was made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Stays,
    Goes,
    IsSynced,
    IsSyncedAndGoes,
}

/// The file system, process and files of the calls.
struct Seat {
    fs: Fs,
    process: Process,
    /// Open on "/seat/file", and on a file of `PAGES` pages.
    small: Fd,
    large: Fd,
}

impl Seat {
    fn new(store: Option<&str>) -> Result<Seat, Errno> {
        let made = store.map(Fs::create_store).transpose();
        let fs = made.map_err(|error| Errno::from_raw(error.errno()))?.unwrap_or_default();
        let process = fs.process(Cred::user(0, 0));
        process.mkdir("/seat", 0o755)?;
        process.mkdir("/seat/many", 0o755)?;
        for name in 0..NAMES {
            process.close(process.open(format!("/seat/many/name-{name:04}"), NEW, 0o600)?)?;
        }
        let small = process.open("/seat/file", NEW, 0o600)?;
        let large = process.open("/seat/large", NEW, 0o600)?;
        let seat = Seat { fs, process, small, large };
        (0..PAGES).try_for_each(|at| seat.call("write4k", at))?;
        Ok(seat)
    }

    fn call(&self, load: &str, at: usize) -> Result<(), Errno> {
        let Seat { fs, process, small, large } = self;
        let (small, offset) = (*small, (at % PAGES * 4096) as i64);
        let whole = || [LockType::Write, LockType::Unlock].map(FileLock::whole);
        match load {
            "nothing" => Ok(()),
            "open-close" => process.close(process.open("/seat/file", OpenFlags::RDONLY, 0)?),
            "creat-unlink" => {
                process.close(process.open("/seat/new", NEW, 0o600)?)?;
                process.unlink("/seat/new")
            }
            "stat" => process.stat("/seat/file").map(drop),
            "fstat" => process.fstat(small).map(drop),
            "rename" => match at % 2 {
                0 => process.rename("/seat/file", "/seat/other"),
                _ => process.rename("/seat/other", "/seat/file"),
            },
            "readdir" => {
                let dir = process.open("/seat/many", OpenFlags::RDONLY | OpenFlags::DIRECTORY, 0)?;
                while !process.getdents(dir, 1024)?.is_empty() {}
                process.close(dir)
            }
            "read4k" => process.pread(*large, &mut [0; 4096], offset).map(drop),
            "write4k" => process.pwrite(*large, &[7; 4096], offset).map(drop),
            "lseek" => process.lseek(small, offset, Whence::Set).map(drop),
            "ftruncate" => process.ftruncate(small, (at % 2 * 100) as i64),
            "dup" => process.close(process.dup(small)?),
            "posix02" => whole().iter().try_for_each(|lock| process.fcntl_setlk(small, lock)),
            "ofd02" => whole().iter().try_for_each(|lock| process.ofd_setlk(small, lock)),
            "flock02" => {
                process.flock(small, FlockOperation::Exclusive)?;
                process.flock(small, FlockOperation::Unlock)
            }
            "fork" => {
                drop(process.fork());
                Ok(())
            }
            "fs-read" => fs.read("/seat/file").map(drop),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Makes a tree of `count` files that hold `bytes`.
    fn tree(&self, count: usize, bytes: &[u8], then: Then) -> Result<(), Errno> {
        let process = &self.process;
        for at in 0..count {
            if at % IN_A_DIRECTORY == 0 {
                process.mkdir(dir(at), 0o755)?;
            }
            let file = process.open(path(at), NEW, 0o644)?;
            process.write(file, bytes)?;
            process.close(file)?;
        }
        if matches!(then, Then::IsSynced | Then::IsSyncedAndGoes) {
            self.fs.sync()?;
        }
        if matches!(then, Then::Goes | Then::IsSyncedAndGoes) { self.remove(count) } else { Ok(()) }
    }

    /// Takes the tree away again. A function of its own, so that what it does can be counted alone.
    #[inline(never)]
    fn remove(&self, count: usize) -> Result<(), Errno> {
        for at in 0..count {
            self.process.unlink(path(at))?;
            if at % IN_A_DIRECTORY == IN_A_DIRECTORY - 1 {
                self.process.rmdir(dir(at))?;
            }
        }
        Ok(())
    }
}

/// The directory of a file of the tree.
fn dir(at: usize) -> String {
    format!("/seat/tree-{}", at / IN_A_DIRECTORY)
}

/// A file of the tree.
fn path(at: usize) -> String {
    format!("{}/file-{at}", dir(at))
}
