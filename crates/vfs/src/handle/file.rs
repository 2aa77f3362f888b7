//! File: an open file.

use super::{OpenOptions, ProcessFd};
use crate::{AtFlags, Cancel, Errno, Fd, FileLock, FlockOperation, Fs, LockType, Process, Stat, Whence};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::{Bound, RangeBounds};
use std::path::Path;

/// An open file: it is read, written and moved by the traits of [`std::io`], and closed when it is dropped.
///
/// ```
/// use sluice_vfs::{File, Fs};
/// use std::io::{BufRead, BufReader, Seek, Write};
///
/// let fs = Fs::new();
/// let mut log = File::create(&fs, "/log")?;
/// writeln!(log, "first")?;
/// writeln!(log, "second")?;
/// log.rewind()?;
/// assert_eq!(BufReader::new(&log).lines().nth(1).unwrap()?, "second");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct File(ProcessFd);

impl File {
    pub(super) fn new(handle: ProcessFd) -> File {
        File(handle)
    }

    /// Opens a file for reading, as the superuser.
    ///
    /// # Errors
    /// Errors of [`Process::open`].
    pub fn open(fs: &Fs, path: impl AsRef<Path>) -> Result<File, Errno> {
        OpenOptions::new().read(true).open(fs, path)
    }

    /// Opens a file for reading and writing, as the superuser; makes it, or makes it empty.
    ///
    /// # Errors
    /// Errors of [`Process::open`].
    pub fn create(fs: &Fs, path: impl AsRef<Path>) -> Result<File, Errno> {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(fs, path)
    }

    /// How a file is to be opened, for all other ways: [`OpenOptions::new`].
    ///
    /// ```
    /// # use sluice_vfs::{Errno, File, Fs};
    /// let fs = Fs::new();
    /// let log = File::options().append(true).create(true).open(&fs, "/log")?;
    /// assert!(log.metadata()?.is_file());
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// The process and the descriptor of this file, for calls without a method here. The descriptor is the file's; a
    /// caller that closes it makes later calls fail with `EBADF`.
    pub fn descriptor(&self) -> (&Process, Fd) {
        (&self.0.process, self.0.fd)
    }

    /// A second handle with the same position and the same locks.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn try_clone(&self) -> Result<File, Errno> {
        self.0.dup().map(File)
    }

    /// Reads at `offset`, and leaves the position alone. Fewer bytes than `buf` has mean the end of the file.
    ///
    /// # Errors
    /// Errors of [`Process::pread`].
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let (process, fd) = self.descriptor();
        process.pread(fd, buf, offset_of(offset)?)
    }

    /// Writes at `offset`, and leaves the position alone. Returns the bytes written.
    ///
    /// # Errors
    /// Errors of [`Process::pwrite`].
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let (process, fd) = self.descriptor();
        process.pwrite(fd, data, offset_of(offset)?)
    }

    /// Writes all of `data` at `offset`, and leaves the position alone.
    ///
    /// # Errors
    /// Errors of [`Process::pwrite`]; some of `data` may be written then.
    pub fn write_all_at(&self, mut data: &[u8], mut offset: u64) -> Result<(), Errno> {
        while !data.is_empty() {
            let written = self.write_at(data, offset)?;
            data = &data[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Makes the file `size` bytes long.
    ///
    /// # Errors
    /// Errors of [`Process::ftruncate`].
    pub fn set_len(&self, size: u64) -> Result<(), Errno> {
        let (process, fd) = self.descriptor();
        process.ftruncate(fd, offset_of(size)?)
    }

    /// Makes contents and attributes durable.
    ///
    /// # Errors
    /// Errors of [`Process::fsync`].
    pub fn sync_all(&self) -> Result<(), Errno> {
        let (process, fd) = self.descriptor();
        process.fsync(fd)
    }

    /// Makes the contents durable, and what is needed to read them.
    ///
    /// # Errors
    /// Errors of [`Process::fdatasync`].
    pub fn sync_data(&self) -> Result<(), Errno> {
        let (process, fd) = self.descriptor();
        process.fdatasync(fd)
    }

    /// The file's attributes.
    ///
    /// # Errors
    /// None that a file opened here meets.
    pub fn metadata(&self) -> Result<Stat, Errno> {
        self.0.stat(Path::new(""), AtFlags::EMPTY_PATH)
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// Errors of [`Process::fchmod`].
    pub fn set_permissions(&self, mode: u32) -> Result<(), Errno> {
        let (process, fd) = self.descriptor();
        process.fchmod(fd, mode)
    }

    /// Locks the whole file for itself alone, and waits for it (`flock`). The lock ends with the last clone of the handle.
    ///
    /// # Errors
    /// Errors of [`Process::flock_wait`].
    pub fn lock(&self) -> Result<(), Errno> {
        self.flock_wait(FlockOperation::Exclusive)
    }

    /// Waits for a shared lock on the whole file; see [`lock`](Self::lock).
    ///
    /// # Errors
    /// Errors of [`lock`](Self::lock).
    pub fn lock_shared(&self) -> Result<(), Errno> {
        self.flock_wait(FlockOperation::Shared)
    }

    /// Takes an exclusive lock on the whole file if it is free; see [`lock`](Self::lock).
    ///
    /// ```
    /// # use sluice_vfs::{Errno, File, Fs};
    /// let fs = Fs::new();
    /// let (one, other) = (File::create(&fs, "/db")?, File::open(&fs, "/db")?);
    /// one.try_lock()?;
    /// assert_eq!(other.try_lock_shared(), Err(Errno::EAGAIN));
    /// drop(one);
    /// other.try_lock_shared()?;
    /// # Ok::<(), Errno>(())
    /// ```
    ///
    /// # Errors
    /// `EAGAIN` when another handle's lock is in the way; others as [`Process::flock`].
    pub fn try_lock(&self) -> Result<(), Errno> {
        self.flock(FlockOperation::Exclusive)
    }

    /// Takes a shared lock on the whole file if it is free; see [`lock`](Self::lock).
    ///
    /// # Errors
    /// Errors of [`try_lock`](Self::try_lock).
    pub fn try_lock_shared(&self) -> Result<(), Errno> {
        self.flock(FlockOperation::Shared)
    }

    /// Gives up the lock of the whole file.
    ///
    /// # Errors
    /// Errors of [`Process::flock`].
    pub fn unlock(&self) -> Result<(), Errno> {
        self.flock(FlockOperation::Unlock)
    }

    /// Locks the bytes of `range`, or gives them up, and waits until it can. The lock belongs to the handle and its clones
    /// (`F_OFD_SETLKW`), and is independent of [`lock`](Self::lock).
    ///
    /// ```
    /// # use sluice_vfs::{Errno, File, Fs, LockType, OpenOptions};
    /// let fs = Fs::new();
    /// let one = File::create(&fs, "/db")?;
    /// let other = OpenOptions::new().read(true).write(true).open(&fs, "/db")?;
    /// one.lock_range(0..100, LockType::Write)?;
    /// other.lock_range(100.., LockType::Write)?;
    /// assert_eq!(other.try_lock_range(50..60, LockType::Read), Err(Errno::EAGAIN));
    /// one.lock_range(.., LockType::Unlock)?;
    /// other.try_lock_range(50..60, LockType::Read)?;
    /// # Ok::<(), Errno>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`Process::ofd_setlkw`]; `EINVAL` for an empty range.
    pub fn lock_range(&self, range: impl RangeBounds<u64>, kind: LockType) -> Result<(), Errno> {
        let (process, fd) = self.descriptor();
        process.ofd_setlkw(fd, &lock_of(&range, kind)?, &Cancel::new())
    }

    /// Locks a range of bytes if it is free; see [`lock_range`](Self::lock_range).
    ///
    /// # Errors
    /// Errors of [`Process::ofd_setlk`]; `EINVAL` for an empty range.
    pub fn try_lock_range(&self, range: impl RangeBounds<u64>, kind: LockType) -> Result<(), Errno> {
        let (process, fd) = self.descriptor();
        process.ofd_setlk(fd, &lock_of(&range, kind)?)
    }

    fn flock(&self, operation: FlockOperation) -> Result<(), Errno> {
        let (process, fd) = self.descriptor();
        process.flock(fd, operation)
    }

    fn flock_wait(&self, operation: FlockOperation) -> Result<(), Errno> {
        let (process, fd) = self.descriptor();
        process.flock_wait(fd, operation, &Cancel::new())
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let (process, fd) = self.descriptor();
        Ok(process.read(fd, buf)?)
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let (process, fd) = self.descriptor();
        Ok(process.write(fd, data)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (offset, whence) = match to {
            SeekFrom::Start(offset) => (offset_of(offset)?, Whence::Set),
            SeekFrom::Current(offset) => (offset, Whence::Cur),
            SeekFrom::End(offset) => (offset, Whence::End),
        };
        let (process, fd) = self.descriptor();
        Ok(process.lseek(fd, offset, whence)?)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

/// An offset as the calls take it.
fn offset_of(offset: u64) -> Result<i64, Errno> {
    i64::try_from(offset).map_err(|_| Errno::EINVAL)
}

/// The lock of `kind` on the bytes of `range`.
fn lock_of(range: &impl RangeBounds<u64>, kind: LockType) -> Result<FileLock, Errno> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.checked_add(1).ok_or(Errno::EINVAL)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => Some(last.checked_add(1).ok_or(Errno::EINVAL)?),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => None,
    };
    // To fcntl a length of 0 is "to the end", so an empty range must not get there.
    let len = match end {
        Some(end) if end <= start => return Err(Errno::EINVAL),
        Some(end) => offset_of(end - start)?,
        None => 0,
    };
    Ok(FileLock::range(kind, offset_of(start)?, len))
}
