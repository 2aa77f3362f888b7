//! Library: the target `lib`, this project's file system in this process, without a mount.

use super::{CallResult, Calls, Handle, Lock, Meta, Open, Target};
use crate::failure::Result;
use sluice_vfs::{
    Cred, Errno, Fd, FileLock, FileType, FlockOperation, Fs, LockType, OpenFlags, Options, Process,
    Superblock,
};
use std::ffi::OsString;
use std::marker::PhantomData;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::rc::Rc;

/// A fresh file system in memory. Each task is a [`Process`] on it.
pub struct Library {
    fs: Fs,     // immutable
    cred: Cred, // immutable: the user who runs the program, so that permissions are checked as on a host
}

impl Library {
    /// An empty file system that belongs to the user who runs the program.
    pub fn new() -> Library {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let options = Options { root_uid: uid, root_gid: gid, root_mode: 0o755, ..Options::default() };
        Library { fs: Fs::with_superblock(Superblock::new(options)), cred: Cred::user(uid, gid) }
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
        Ok(Box::new(ProcessCalls { process, files: Vec::new(), here: PhantomData }))
    }
}

/// How many entries of a directory one call may return: about what fits the buffer of a system call.
const ENTRIES_PER_CALL: usize = 1024;

struct ProcessCalls {
    process: Process,          // owner only
    files: Vec<Option<Fd>>,    // owner only; a handle is an index
    here: PhantomData<Rc<()>>, // not Send, as on every target
}

impl ProcessCalls {
    fn file(&self, file: Handle) -> CallResult<Fd> {
        self.files.get(file.0).copied().flatten().ok_or(Errno::EBADF)
    }
}

impl Calls for ProcessCalls {
    fn open(&mut self, path: &str, how: Open) -> CallResult<Handle> {
        let (flags, mode) = match how {
            Open::Read => (OpenFlags::RDONLY, 0),
            Open::ReadWrite => (OpenFlags::RDWR, 0),
            Open::New(mode) => (OpenFlags::RDWR | OpenFlags::CREAT | OpenFlags::EXCL, mode),
        };
        let file = self.process.open(path, flags, mode)?;
        let free = self.files.iter().position(Option::is_none).unwrap_or(self.files.len());
        if free == self.files.len() {
            self.files.push(None);
        }
        self.files[free] = Some(file);
        Ok(Handle(free))
    }

    fn close(&mut self, file: Handle) -> CallResult<()> {
        let file = self.files.get_mut(file.0).and_then(Option::take).ok_or(Errno::EBADF)?;
        self.process.close(file)
    }

    fn pread(&mut self, file: Handle, buf: &mut [u8], offset: u64) -> CallResult<usize> {
        self.process.pread(self.file(file)?, buf, offset.cast_signed())
    }

    fn pwrite(&mut self, file: Handle, data: &[u8], offset: u64) -> CallResult<usize> {
        self.process.pwrite(self.file(file)?, data, offset.cast_signed())
    }

    fn fsync(&mut self, file: Handle) -> CallResult<()> {
        self.process.fsync(self.file(file)?)
    }

    fn stat(&mut self, path: &str) -> CallResult<Meta> {
        let stat = self.process.lstat(path)?;
        Ok(Meta { size: stat.size, nlink: u64::from(stat.nlink), mode: stat.mode })
    }

    fn unlink(&mut self, path: &str) -> CallResult<()> {
        self.process.unlink(path)
    }

    fn rename(&mut self, from: &str, to: &str) -> CallResult<()> {
        self.process.rename(from, to)
    }

    fn mkdir(&mut self, path: &str) -> CallResult<()> {
        self.process.mkdir(path, 0o755)
    }

    fn rmdir(&mut self, path: &str) -> CallResult<()> {
        self.process.rmdir(path)
    }

    fn symlink(&mut self, to: &str, path: &str) -> CallResult<()> {
        self.process.symlink(to, path)
    }

    fn readlink(&mut self, path: &str) -> CallResult<Vec<u8>> {
        self.process.readlink(path).map(|to| OsString::from(to).into_vec())
    }

    fn read_dir(&mut self, path: &str, visit: &mut dyn FnMut(&[u8], bool)) -> CallResult<()> {
        let dir = self.process.open(path, OpenFlags::RDONLY | OpenFlags::DIRECTORY, 0)?;
        let outcome = loop {
            match self.process.getdents(dir, ENTRIES_PER_CALL) {
                Ok(entries) if entries.is_empty() => break Ok(()),
                Ok(entries) => {
                    for entry in entries.iter().filter(|entry| entry.name != "." && entry.name != "..") {
                        visit(entry.name.as_bytes(), entry.file_type == FileType::Directory);
                    }
                }
                Err(errno) => break Err(errno),
            }
        };
        self.process.close(dir)?;
        outcome
    }

    fn posix_lock(&mut self, file: Handle, lock: Lock) -> CallResult<()> {
        let kind = match lock {
            Lock::Exclusive => LockType::Write,
            Lock::Unlock => LockType::Unlock,
        };
        self.process.fcntl_setlk(self.file(file)?, &FileLock::whole(kind))
    }

    fn flock(&mut self, file: Handle, lock: Lock) -> CallResult<()> {
        let operation = match lock {
            Lock::Exclusive => FlockOperation::Exclusive,
            Lock::Unlock => FlockOperation::Unlock,
        };
        self.process.flock(self.file(file)?, operation)
    }
}
