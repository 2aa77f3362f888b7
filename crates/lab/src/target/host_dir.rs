//! Host directory: the target `dir:PATH`, any mounted file system, by system calls.
//!
//! # Theory
//! Tasks are threads (or processes of one thread), and each takes a table of descriptors of its own (`unshare(CLONE_FILES)`), because
//! Linux makes that table the owner of POSIX locks, and because threads that share one contend for it at
//! every open. To the file system the tasks then look like processes. Where that call is forbidden (a container
//! without `--cap-add SYS_ADMIN`) tasks share one table: everything but POSIX locks still works, and those fail
//! with `EPERM` rather than measure locks that exclude nobody.
//!
//! # Clients must
//! Use the calls of a task, and drop them, on the thread that made them: a descriptor number means nothing in
//! another thread's table. [`Calls`] objects here are not `Send`, so the compiler sees to it.

use super::open_files::OpenFiles;
use super::{CallResult, Calls, Handle, Lock, Meta, Open, Target};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RawDir, SeekFrom};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::private_dir::PrivateDir;
use sluice_vfs::Errno;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A directory of a mounted file system.
pub struct HostDir {
    path: PathBuf,                // immutable
    _private: Option<PrivateDir>, // removed with its contents when dropped
}

impl HostDir {
    /// A fresh private directory below `parent`, gone with its contents when this value is dropped.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn below(parent: &Path) -> Result<HostDir> {
        let dir = PrivateDir::below(parent)?;
        Ok(HostDir { path: dir.path().to_owned(), _private: Some(dir) })
    }

    /// The current directory, which somebody else looks after.
    pub fn here() -> HostDir {
        HostDir { path: PathBuf::from("."), _private: None }
    }
}

impl Target for HostDir {
    fn task(&self) -> Result<Box<dyn Calls>> {
        let own_table = match nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES) {
            Ok(()) => true,
            Err(nix::errno::Errno::EPERM | nix::errno::Errno::ENOSYS) => false,
            Err(errno) => return Err(Failure::Failed(format!("a table of descriptors for a task: {errno}"))),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &self.path, flags, Mode::empty())
            .map_err(errno)
            .context(|| self.path.display().to_string())?;
        Ok(Box::new(SystemCalls {
            root,
            own_table,
            files: OpenFiles::new(),
            entries: vec![MaybeUninit::uninit(); 32 * 1024],
            here: PhantomData,
        }))
    }

    fn place(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

struct SystemCalls {
    root: OwnedFd,                 // owner only
    own_table: bool,               // immutable
    files: OpenFiles<OwnedFd>,     // owner only
    entries: Vec<MaybeUninit<u8>>, // owner only; room for getdents
    here: PhantomData<Rc<()>>,     // not Send: see the header
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

impl Calls for SystemCalls {
    fn open(&mut self, path: &str, how: Open) -> CallResult<Handle> {
        let (flags, mode) = match how {
            Open::Read => (OFlags::RDONLY, 0),
            Open::ReadWrite => (OFlags::RDWR, 0),
            Open::New(mode) => (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode),
            Open::Create(mode) => (OFlags::RDWR | OFlags::CREATE, mode),
            Open::Append => (OFlags::WRONLY | OFlags::APPEND, 0),
            Open::Direct => (OFlags::RDWR | OFlags::DIRECT, 0),
        };
        let mode = Mode::from_raw_mode(mode);
        match rustix::fs::openat(&self.root, path, flags | OFlags::CLOEXEC, mode) {
            Ok(file) => Ok(self.files.keep(file)),
            // Linux says so of a file system that has no direct I/O.
            Err(rustix::io::Errno::INVAL) if how == Open::Direct => Err(Errno::EOPNOTSUPP),
            Err(error) => Err(errno(error)),
        }
    }

    fn close(&mut self, file: Handle) -> CallResult<()> {
        self.files.take(file).map(drop)
    }

    fn pread(&mut self, file: Handle, buf: &mut [u8], offset: u64) -> CallResult<usize> {
        rustix::io::pread(self.files.get(file)?, buf, offset).map_err(errno)
    }

    fn pwrite(&mut self, file: Handle, data: &[u8], offset: u64) -> CallResult<usize> {
        rustix::io::pwrite(self.files.get(file)?, data, offset).map_err(errno)
    }

    fn read(&mut self, file: Handle, buf: &mut [u8]) -> CallResult<usize> {
        rustix::io::read(self.files.get(file)?, buf).map_err(errno)
    }

    fn write(&mut self, file: Handle, data: &[u8]) -> CallResult<usize> {
        rustix::io::write(self.files.get(file)?, data).map_err(errno)
    }

    fn lseek(&mut self, file: Handle, position: u64) -> CallResult<()> {
        rustix::fs::seek(self.files.get(file)?, SeekFrom::Start(position)).map(drop).map_err(errno)
    }

    fn ftruncate(&mut self, file: Handle, size: u64) -> CallResult<()> {
        rustix::fs::ftruncate(self.files.get(file)?, size).map_err(errno)
    }

    fn fallocate(&mut self, file: Handle, offset: u64, length: u64) -> CallResult<()> {
        rustix::fs::fallocate(self.files.get(file)?, FallocateFlags::empty(), offset, length).map_err(errno)
    }

    fn dup(&mut self, file: Handle) -> CallResult<Handle> {
        let same = rustix::io::dup(self.files.get(file)?).map_err(errno)?;
        Ok(self.files.keep(same))
    }

    fn fsync(&mut self, file: Handle) -> CallResult<()> {
        rustix::fs::fsync(self.files.get(file)?).map_err(errno)
    }

    fn clone(&mut self, from: Handle, to: Handle, length: u64) -> CallResult<()> {
        let (from, to) = (self.files.get(from)?, self.files.get(to)?);
        if rustix::fs::ioctl_ficlone(to, from).is_ok() {
            return Ok(());
        }
        // As `cp --reflink=auto` does where the file system has no reflinks.
        let (mut read, mut written) = (0, 0);
        while read < length {
            let left = usize::try_from(length - read).unwrap_or(usize::MAX);
            let copied = rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), left);
            if copied.map_err(errno)? == 0 {
                return Err(Errno::EIO);
            }
        }
        Ok(())
    }

    fn stat(&mut self, path: &str) -> CallResult<Meta> {
        let stat = rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)?;
        #[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
        Ok(Meta { size: stat.st_size as u64, nlink: stat.st_nlink as u64, mode: stat.st_mode as u32 })
    }

    fn unlink(&mut self, path: &str) -> CallResult<()> {
        rustix::fs::unlinkat(&self.root, path, AtFlags::empty()).map_err(errno)
    }

    fn rename(&mut self, from: &str, to: &str) -> CallResult<()> {
        rustix::fs::renameat(&self.root, from, &self.root, to).map_err(errno)
    }

    fn mkdir(&mut self, path: &str) -> CallResult<()> {
        rustix::fs::mkdirat(&self.root, path, Mode::from_raw_mode(0o755)).map_err(errno)
    }

    fn rmdir(&mut self, path: &str) -> CallResult<()> {
        rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR).map_err(errno)
    }

    fn symlink(&mut self, to: &str, path: &str) -> CallResult<()> {
        rustix::fs::symlinkat(to, &self.root, path).map_err(errno)
    }

    fn readlink(&mut self, path: &str) -> CallResult<Vec<u8>> {
        rustix::fs::readlinkat(&self.root, path, Vec::new()).map(std::ffi::CString::into_bytes).map_err(errno)
    }

    fn read_dir(&mut self, path: &str, visit: &mut dyn FnMut(&[u8], bool)) -> CallResult<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.root, path, flags, Mode::empty()).map_err(errno)?;
        let mut names = RawDir::new(dir.as_fd(), &mut self.entries);
        while let Some(entry) = names.next() {
            let entry = entry.map_err(errno)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not keep the type in the directory.
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)?;
                    FileType::from_raw_mode(stat.st_mode)
                }
                kind => kind,
            };
            visit(name.to_bytes(), kind == FileType::Directory);
        }
        Ok(())
    }

    fn posix_lock(&mut self, file: Handle, lock: Lock, length: u64) -> CallResult<()> {
        if !self.own_table {
            return Err(Errno::EPERM);
        }
        let range = range_of(lock, length);
        let operation = match lock {
            Lock::ExclusiveWait => FcntlArg::F_SETLKW(&range),
            Lock::Exclusive | Lock::Unlock => FcntlArg::F_SETLK(&range),
        };
        let done = fcntl(self.files.get(file)?, operation);
        done.map(drop).map_err(|errno| Errno::from_raw(errno as i32))
    }

    fn flock(&mut self, file: Handle, lock: Lock) -> CallResult<()> {
        rustix::fs::flock(self.files.get(file)?, operation_of(lock)).map_err(errno)
    }

    fn ofd_lock(&mut self, file: Handle, lock: Lock) -> CallResult<()> {
        let whole = range_of(lock, 0);
        let operation = match lock {
            Lock::ExclusiveWait => FcntlArg::F_OFD_SETLKW(&whole),
            Lock::Exclusive | Lock::Unlock => FcntlArg::F_OFD_SETLK(&whole),
        };
        let done = fcntl(self.files.get(file)?, operation);
        done.map(drop).map_err(|errno| Errno::from_raw(errno as i32))
    }

    /// No library offers `F_SETLEASE` safely.
    fn lease(&mut self, _: Handle, _: bool) -> CallResult<()> {
        Err(Errno::EOPNOTSUPP)
    }
}

/// The first `length` bytes, or all of them for 0.
fn range_of(lock: Lock, length: u64) -> libc::flock {
    let kind = if lock == Lock::Unlock { libc::F_UNLCK } else { libc::F_WRLCK };
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: length as i64,
        l_pid: 0,
    }
}

fn operation_of(lock: Lock) -> FlockOperation {
    match lock {
        Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Lock::ExclusiveWait => FlockOperation::LockExclusive,
        Lock::Unlock => FlockOperation::Unlock,
    }
}
