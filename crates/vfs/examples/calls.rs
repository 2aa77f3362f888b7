//! Calls: one call again and again, so that what a single one takes can be counted: twice, with different numbers of them.
//!
//! `calls LOAD COUNT`; how the instructions are counted stands in docs/measuring.md.

use sluice_vfs::{Cred, Errno, Fd, FileLock, FlockOperation, Fs, LockType, OpenFlags, Process, Whence};

const NEW: OpenFlags = OpenFlags::RDWR.union(OpenFlags::CREAT).union(OpenFlags::EXCL);
const PAGES: usize = 256;
const NAMES: usize = 1_000;
/// Files in each directory of a tree.
const IN_A_DIRECTORY: usize = 20;

fn main() -> Result<(), Errno> {
    let mut args = std::env::args().skip(1);
    let (load, count) = (args.next().unwrap_or_default(), args.next().and_then(|count| count.parse().ok()));
    let seat = Seat::new()?;
    let Some(count) = count else { return Err(Errno::EINVAL) };
    match load.as_str() {
        "untar" => return seat.tree(count, &[7; 4096], false),
        "untar-tiny" => return seat.tree(count, &[7; 10], false),
        "rmtree" => return seat.tree(count, &[7; 4096], true),
        _ => {}
    }
    (0..count).try_for_each(|at| seat.call(&load, at))
}

/// What the calls are made on.
struct Seat {
    fs: Fs,
    process: Process,
    /// Open on "/seat/file", and on a file of `PAGES` pages.
    small: Fd,
    large: Fd,
}

impl Seat {
    fn new() -> Result<Seat, Errno> {
        let fs = Fs::new();
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

    /// Makes a tree of `count` files that hold `bytes`, and takes it away again if so `removed`.
    fn tree(&self, count: usize, bytes: &[u8], removed: bool) -> Result<(), Errno> {
        let process = &self.process;
        let dir = |at: usize| format!("/seat/tree-{}", at / IN_A_DIRECTORY);
        let path = |at: usize| format!("{}/file-{at}", dir(at));
        for at in 0..count {
            if at % IN_A_DIRECTORY == 0 {
                process.mkdir(dir(at), 0o755)?;
            }
            let file = process.open(path(at), NEW, 0o644)?;
            process.write(file, bytes)?;
            process.close(file)?;
        }
        for at in (0..count).filter(|_| removed) {
            process.unlink(path(at))?;
            if at % IN_A_DIRECTORY == IN_A_DIRECTORY - 1 {
                process.rmdir(dir(at))?;
            }
        }
        Ok(())
    }
}
