//! Library: the target `lib`, this project's file system in this process, without a mount.
//!
//! This source is compiled twice: with the library itself, and, for `target/simulated.rs`, with its twin
//! on the simulated machine. `vfs` is whichever of them the module above names.

use super::vfs::{
    Cancel, Cred, FallocateMode, Fd, FileLock, FileType, FlockOperation, Fs, LockType, Notice, OpenFlags,
    Options, Process, Superblock, Whence,
};
use crate::target::open_files::OpenFiles;
use crate::target::{CallResult, Calls, Handle, Lock, Meta, Open, Target};
use sluice_console::failure::{Failure, Result};
use sluice_vfs::Errno;
use std::ffi::OsString;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;

/// A fresh file system in memory, or a directory of another one. Each task is a [`Process`] on it.
pub struct Library {
    fs: Fs,      // immutable
    cred: Cred,  // immutable: the user who runs the program, so that permissions are checked as on a host
    dir: String, // immutable: where tasks begin
}

impl Library {
    /// An empty file system that belongs to the user who runs the program.
    pub fn new() -> Library {
        Library::within(Fs::with_superblock(Superblock::new(Library::options())), "/")
    }

    /// Options of a file system that belongs to the user who runs the program.
    pub fn options() -> Options {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Options::default().root_owner(uid, gid)
    }

    /// The directory `dir` of `fs`.
    pub fn within(fs: Fs, dir: &str) -> Library {
        let cred = Cred::user(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Library { fs, cred, dir: dir.to_owned() }
    }
}

impl Default for Library {
    fn default() -> Self {
        Library::new()
    }
}

impl Target for Library {
    fn task(&self) -> Result<Box<dyn Calls>> {
        let process = self.fs.process(self.cred.clone());
        process.chdir(&self.dir).map_err(|error| Failure::Failed(format!("{}: {error}", self.dir)))?;
        let unheard = Notice::unheard();
        Ok(Box::new(ProcessCalls { process, files: OpenFiles::new(), unheard, here: PhantomData }))
    }

    /// A simulated file system can be used from one host thread only.
    fn changes_thread(&self) -> bool {
        false
    }
}

struct ProcessCalls {
    process: Process,          // owner only
    files: OpenFiles<Fd>,      // owner only
    unheard: Notice,           // immutable: nobody breaks the leases of a workload
    here: PhantomData<Rc<()>>, // not Send, as on every target
}

/// The library's error as the lab's: the twin has a type of its own for the same numbers.
fn errno(error: super::vfs::Errno) -> Errno {
    Errno::from_raw(error.raw())
}

impl Calls for ProcessCalls {
    fn open(&mut self, path: &str, how: Open) -> CallResult<Handle> {
        let (flags, mode) = match how {
            Open::Read => (OpenFlags::RDONLY, 0),
            Open::ReadWrite => (OpenFlags::RDWR, 0),
            Open::New(mode) => (OpenFlags::RDWR | OpenFlags::CREAT | OpenFlags::EXCL, mode),
            Open::Create(mode) => (OpenFlags::RDWR | OpenFlags::CREAT, mode),
            Open::Append => (OpenFlags::WRONLY | OpenFlags::APPEND, 0),
            Open::Direct => (OpenFlags::RDWR | OpenFlags::DIRECT, 0),
        };
        let file = self.process.open(path, flags, mode).map_err(errno)?;
        Ok(self.files.keep(file))
    }

    fn close(&mut self, file: Handle) -> CallResult<()> {
        self.process.close(self.files.take(file)?).map_err(errno)
    }

    fn pread(&mut self, file: Handle, buf: &mut [u8], offset: u64) -> CallResult<usize> {
        self.process.pread(*self.files.get(file)?, buf, offset.cast_signed()).map_err(errno)
    }

    fn pwrite(&mut self, file: Handle, data: &[u8], offset: u64) -> CallResult<usize> {
        self.process.pwrite(*self.files.get(file)?, data, offset.cast_signed()).map_err(errno)
    }

    fn read(&mut self, file: Handle, buf: &mut [u8]) -> CallResult<usize> {
        self.process.read(*self.files.get(file)?, buf).map_err(errno)
    }

    fn write(&mut self, file: Handle, data: &[u8]) -> CallResult<usize> {
        self.process.write(*self.files.get(file)?, data).map_err(errno)
    }

    fn lseek(&mut self, file: Handle, position: u64) -> CallResult<()> {
        self.process
            .lseek(*self.files.get(file)?, position.cast_signed(), Whence::Set)
            .map(drop)
            .map_err(errno)
    }

    fn ftruncate(&mut self, file: Handle, size: u64) -> CallResult<()> {
        self.process.ftruncate(*self.files.get(file)?, size.cast_signed()).map_err(errno)
    }

    fn fallocate(&mut self, file: Handle, offset: u64, length: u64) -> CallResult<()> {
        let (offset, length) = (offset.cast_signed(), length.cast_signed());
        self.process.fallocate(*self.files.get(file)?, FallocateMode::empty(), offset, length).map_err(errno)
    }

    fn dup(&mut self, file: Handle) -> CallResult<Handle> {
        let same = self.process.dup(*self.files.get(file)?).map_err(errno)?;
        Ok(self.files.keep(same))
    }

    fn fsync(&mut self, file: Handle) -> CallResult<()> {
        self.process.fsync(*self.files.get(file)?).map_err(errno)
    }

    fn clone(&mut self, from: Handle, to: Handle, length: u64) -> CallResult<()> {
        let (from, to) = (*self.files.get(from)?, *self.files.get(to)?);
        let length = usize::try_from(length).map_err(|_| Errno::EFBIG)?;
        let (mut read, mut written) = (0, 0);
        let copied = self.process.copy_file_range(from, Some(&mut read), to, Some(&mut written), length);
        if copied.map_err(errno)? == length { Ok(()) } else { Err(Errno::EIO) }
    }

    fn stat(&mut self, path: &str) -> CallResult<Meta> {
        let stat = self.process.lstat(path).map_err(errno)?;
        Ok(Meta { size: stat.size, nlink: u64::from(stat.nlink), mode: stat.mode })
    }

    fn unlink(&mut self, path: &str) -> CallResult<()> {
        self.process.unlink(path).map_err(errno)
    }

    fn rename(&mut self, from: &str, to: &str) -> CallResult<()> {
        self.process.rename(from, to).map_err(errno)
    }

    fn mkdir(&mut self, path: &str) -> CallResult<()> {
        self.process.mkdir(path, 0o755).map_err(errno)
    }

    fn rmdir(&mut self, path: &str) -> CallResult<()> {
        self.process.rmdir(path).map_err(errno)
    }

    fn symlink(&mut self, to: &str, path: &str) -> CallResult<()> {
        self.process.symlink(to, path).map_err(errno)
    }

    fn readlink(&mut self, path: &str) -> CallResult<Vec<u8>> {
        self.process.readlink(path).map(|to| OsString::from(to).into_vec()).map_err(errno)
    }

    fn read_dir(&mut self, path: &str, visit: &mut dyn FnMut(&[u8], bool)) -> CallResult<()> {
        let dir = self.process.open(path, OpenFlags::RDONLY | OpenFlags::DIRECTORY, 0).map_err(errno)?;
        let outcome = self.process.visit_entries(dir, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                visit(entry.name, entry.file_type() == FileType::Directory);
            }
            true
        });
        self.process.close(dir).map_err(errno)?;
        outcome.map_err(errno)
    }

    fn posix_lock(&mut self, file: Handle, lock: Lock, length: u64) -> CallResult<()> {
        let (file, range) = (*self.files.get(file)?, FileLock { len: length as i64, ..whole(lock) });
        let done = match lock {
            Lock::ExclusiveWait => self.process.fcntl_setlkw(file, &range, &Cancel::never()),
            Lock::Exclusive | Lock::Unlock => self.process.fcntl_setlk(file, &range),
        };
        done.map_err(errno)
    }

    fn ofd_lock(&mut self, file: Handle, lock: Lock) -> CallResult<()> {
        let (file, whole) = (*self.files.get(file)?, whole(lock));
        let done = match lock {
            Lock::ExclusiveWait => self.process.ofd_setlkw(file, &whole, &Cancel::never()),
            Lock::Exclusive | Lock::Unlock => self.process.ofd_setlk(file, &whole),
        };
        done.map_err(errno)
    }

    fn flock(&mut self, file: Handle, lock: Lock) -> CallResult<()> {
        let file = *self.files.get(file)?;
        let done = match lock {
            Lock::Exclusive => self.process.flock(file, FlockOperation::Exclusive),
            Lock::ExclusiveWait => self.process.flock_wait(file, FlockOperation::Exclusive, &Cancel::never()),
            Lock::Unlock => self.process.flock(file, FlockOperation::Unlock),
        };
        done.map_err(errno)
    }

    fn lease(&mut self, file: Handle, held: bool) -> CallResult<()> {
        let lease = if held { LockType::Read } else { LockType::Unlock };
        self.process.fcntl_setlease(*self.files.get(file)?, lease, self.unheard.clone()).map_err(errno)
    }
}

/// The lock as `fcntl` describes it.
fn whole(lock: Lock) -> FileLock {
    FileLock::whole(if lock == Lock::Unlock { LockType::Unlock } else { LockType::Write })
}
