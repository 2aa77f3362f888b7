//! OpenOptions: how a file is to be opened.

use super::{File, ProcessFd};
use crate::{Cred, Errno, Fd, Fs, OpenFlags};
use sluice_sync::Arc;
use std::path::Path;

/// How a file is to be opened; the names and rules of [`std::fs::OpenOptions`].
///
/// ```
/// use sluice_vfs::{Errno, Fs, OpenOptions};
///
/// let fs = Fs::new();
/// let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fs, "/lock")?;
/// assert_eq!(OpenOptions::new().write(true).create_new(true).open(&fs, "/lock").err(), Some(Errno::EEXIST));
/// assert_eq!(lock.metadata()?.permissions(), 0o600);
/// # Ok::<(), Errno>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
    custom: OpenFlags,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Nothing is allowed yet; new files get mode 666 less the umask.
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
            custom: OpenFlags::empty(),
        }
    }

    /// Whether the file may be read.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// Whether the file may be written.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// Whether each write goes to the end of the file. It implies that the file may be written.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// Whether the file is made empty.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Whether the file is made when it is missing.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// Whether the file is created and must not exist before.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// The permission bits of a new file, before the umask.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = mode;
        self
    }

    /// Further flags, such as [`OpenFlags::NOFOLLOW`].
    pub fn custom_flags(&mut self, flags: OpenFlags) -> &mut OpenOptions {
        self.custom = flags;
        self
    }

    /// Opens the file at `path` as the superuser, with umask 022.
    ///
    /// # Errors
    /// Errors of [`Process::open`](crate::Process::open); `EINVAL` for options that contradict each other.
    pub fn open(&self, fs: &Fs, path: impl AsRef<Path>) -> Result<File, Errno> {
        self.open_in(&Arc::new(fs.process(Cred::root())), Fd::CWD, path.as_ref())
    }

    /// Opens the file at `path` as `process` sees it, with a descriptor of that process.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn open_as(&self, process: &Arc<crate::Process>, path: impl AsRef<Path>) -> Result<File, Errno> {
        self.open_in(process, Fd::CWD, path.as_ref())
    }

    pub(super) fn open_in(&self, process: &Arc<crate::Process>, dir: Fd, path: &Path) -> Result<File, Errno> {
        ProcessFd::open(process, dir, path, self.flags()?, self.mode).map(File::new)
    }

    /// The flags of `open`.
    fn flags(&self) -> Result<OpenFlags, Errno> {
        let writes = self.write || self.append;
        let access = match (self.read, writes) {
            (true, true) => OpenFlags::RDWR,
            (true, false) => OpenFlags::RDONLY,
            (false, true) => OpenFlags::WRONLY,
            (false, false) => return Err(Errno::EINVAL),
        };
        let makes = self.create || self.create_new;
        let empties = self.truncate && !self.create_new;
        if (makes || self.truncate) && !writes || empties && self.append {
            return Err(Errno::EINVAL);
        }
        let mut flags = access | self.custom;
        for (wanted, flag) in [
            (self.append, OpenFlags::APPEND),
            (empties, OpenFlags::TRUNC),
            (makes, OpenFlags::CREAT),
            (self.create_new, OpenFlags::EXCL),
        ] {
            if wanted {
                flags |= flag;
            }
        }
        Ok(flags)
    }
}
