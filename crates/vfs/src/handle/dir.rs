//! Dir: an open directory.

use super::{File, OpenOptions, ProcessFd, ReadDir};
use crate::{AtFlags, Cred, Errno, Fd, Fs, OpenFlags, Process, RenameFlags, Stat};
use sluice_sync::Arc;
use std::path::{Path, PathBuf};

/// An open directory. Paths given to its calls start there, also after the directory was renamed.
///
/// ```
/// use sluice_vfs::{Dir, Fs, OpenOptions};
/// use std::io::Write;
///
/// let fs = Fs::new();
/// fs.create_dir("/inbox")?;
/// let inbox = Dir::open(&fs, "/inbox")?;
/// fs.rename("/inbox", "/archive")?;
/// inbox.open_file("mail", OpenOptions::new().write(true).create(true))?.write_all(b"hello")?;
/// assert_eq!(fs.read("/archive/mail")?, b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Dir(ProcessFd);

impl Dir {
    /// Opens the directory at `path`, as the superuser.
    ///
    /// # Errors
    /// Errors of [`Process::open`]; `ENOTDIR`.
    pub fn open(fs: &Fs, path: impl AsRef<Path>) -> Result<Dir, Errno> {
        Dir::open_as(&Arc::new(fs.process(Cred::root())), path)
    }

    /// Opens the directory at `path` as `process` sees it, with a descriptor of that process.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn open_as(process: &Arc<Process>, path: impl AsRef<Path>) -> Result<Dir, Errno> {
        Dir::open_in(process, Fd::CWD, path.as_ref())
    }

    fn open_in(process: &Arc<Process>, dir: Fd, path: &Path) -> Result<Dir, Errno> {
        ProcessFd::open(process, dir, path, OpenFlags::RDONLY | OpenFlags::DIRECTORY, 0).map(Dir)
    }

    /// Opens a directory below.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir, Errno> {
        Dir::open_in(&self.0.process, self.0.fd, path.as_ref())
    }

    /// Opens a file below.
    ///
    /// # Errors
    /// Errors of [`OpenOptions::open`].
    pub fn open_file(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File, Errno> {
        options.open_in(&self.0.process, self.0.fd, path.as_ref())
    }

    /// Creates a directory with these permission bits, less the umask.
    ///
    /// # Errors
    /// Errors of [`Process::mkdir`].
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Errno> {
        self.0.process.mkdirat(self.0.fd, path, mode)
    }

    /// Removes a file's name.
    ///
    /// # Errors
    /// Errors of [`Process::unlink`].
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Errno> {
        self.0.process.unlinkat(self.0.fd, path, AtFlags::empty())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Errors of [`Process::rmdir`].
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Errno> {
        self.0.process.unlinkat(self.0.fd, path, AtFlags::REMOVEDIR)
    }

    /// Moves a name, to the same or to another directory of the same process.
    ///
    /// # Errors
    /// Errors of [`Process::rename`]; `EBADF` when `to` was opened as another process.
    pub fn rename(&self, name: impl AsRef<Path>, to: &Dir, new: impl AsRef<Path>) -> Result<(), Errno> {
        if !Arc::ptr_eq(&self.0.process, &to.0.process) {
            return Err(Errno::EBADF);
        }
        self.0.process.renameat2(self.0.fd, name, to.0.fd, new, RenameFlags::empty())
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// Errors of [`Process::readlink`].
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Errno> {
        self.0.process.readlinkat(self.0.fd, path)
    }

    /// The attributes of a file below, of a symbolic link itself.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Stat, Errno> {
        self.0.stat(path.as_ref(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The directory's own attributes.
    ///
    /// # Errors
    /// None that a directory opened here meets.
    pub fn metadata(&self) -> Result<Stat, Errno> {
        self.0.stat(Path::new(""), AtFlags::EMPTY_PATH)
    }

    /// The entries of the directory, from its begin. Each call has a position of its own. Paths of the entries are their names.
    ///
    /// # Errors
    /// `ENOENT` when the directory was removed.
    pub fn entries(&self) -> Result<ReadDir, Errno> {
        ReadDir::open(&self.0.process, self.0.fd, Path::new("."), Path::new(""))
    }
}
