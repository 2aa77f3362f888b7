//! Call: one call of the API with its arguments, as the model and the file system both understand it.

use std::fmt;

/// Bytes of a block: the unit of all offsets and lengths here. Two make a page, so that two blocks can lie in one
/// page or in two.
pub(super) const BLOCK: usize = 2048;

/// How a path is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct How {
    pub(super) write: bool,
    pub(super) create: bool,
    pub(super) exclusive: bool,
    pub(super) truncate: bool,
    pub(super) append: bool,
    pub(super) directory: bool,
}

/// For reading.
pub(super) const READ: How =
    How { write: false, create: false, exclusive: false, truncate: false, append: false, directory: false };
/// For reading and writing.
pub(super) const WRITE: How = How { write: true, ..READ };
/// A new file.
pub(super) const CREATE: How = How { create: true, exclusive: true, ..WRITE };

/// From where an offset counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum From {
    Start,
    Here,
    End,
}

/// The operation on a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lock {
    Shared,
    Exclusive,
    Unlock,
}

/// One call. Offsets, lengths and sizes are in blocks; paths are absolute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Open(&'static str, How),
    Close(i32),
    Dup(i32),
    Stat(&'static str),
    Lstat(&'static str),
    Fstat(i32),
    Lseek(i32, i64, From),
    Read(i32, usize),
    Write(i32, usize),
    Pread(i32, usize, usize),
    Pwrite(i32, usize, usize),
    Truncate(&'static str, usize),
    Ftruncate(i32, usize),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Rename(&'static str, &'static str),
    Mkdir(&'static str),
    Rmdir(&'static str),
    Symlink(&'static str, &'static str),
    Readlink(&'static str),
    Chmod(&'static str, u32),
    /// Up to so many entries.
    Readdir(i32, usize),
    /// Sets a lock of the process on blocks from, to; does not wait.
    Posix(i32, Lock, u8, u8),
    /// Sets a lock of the open file on blocks from, to; does not wait.
    Ofd(i32, Lock, u8, u8),
    /// Does not wait.
    Flock(i32, Lock),
    /// A new file system of the caller's.
    Mount(&'static str),
    Umount(&'static str),
    Bind(&'static str, &'static str),
}

impl Call {
    /// The name under which calls are counted.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Call::Open(_, How { create: true, .. }) => "creat",
            Call::Open(..) => "open",
            Call::Close(..) => "close",
            Call::Dup(..) => "dup",
            Call::Stat(..) => "stat",
            Call::Lstat(..) => "lstat",
            Call::Fstat(..) => "fstat",
            Call::Lseek(..) => "lseek",
            Call::Read(..) => "read",
            Call::Write(..) => "write",
            Call::Pread(..) => "pread",
            Call::Pwrite(..) => "pwrite",
            Call::Truncate(..) => "truncate",
            Call::Ftruncate(..) => "ftruncate",
            Call::Link(..) => "link",
            Call::Unlink(..) => "unlink",
            Call::Rename(..) => "rename",
            Call::Mkdir(..) => "mkdir",
            Call::Rmdir(..) => "rmdir",
            Call::Symlink(..) => "symlink",
            Call::Readlink(..) => "readlink",
            Call::Chmod(..) => "chmod",
            Call::Readdir(..) => "readdir",
            Call::Posix(..) => "posix-lock",
            Call::Ofd(..) => "ofd-lock",
            Call::Flock(..) => "flock",
            Call::Mount(..) => "mount",
            Call::Umount(..) => "umount",
            Call::Bind(..) => "bind",
        }
    }

    /// Whether it matters to the call whose descriptors it sees.
    pub(super) fn uses_descriptors(&self) -> bool {
        self.descriptor().is_some() || matches!(self, Call::Open(..))
    }

    /// The descriptor that it is given.
    pub(super) fn descriptor(&self) -> Option<i32> {
        match *self {
            Call::Close(fd)
            | Call::Dup(fd)
            | Call::Fstat(fd)
            | Call::Lseek(fd, ..)
            | Call::Read(fd, _)
            | Call::Write(fd, _)
            | Call::Pread(fd, ..)
            | Call::Pwrite(fd, ..)
            | Call::Ftruncate(fd, _)
            | Call::Readdir(fd, _)
            | Call::Posix(fd, ..)
            | Call::Ofd(fd, ..)
            | Call::Flock(fd, _) => Some(fd),
            _ => None,
        }
    }

    /// Whether file locks may matter to it.
    pub(super) fn concerns_locks(&self) -> bool {
        matches!(self, Call::Posix(..) | Call::Ofd(..) | Call::Flock(..))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Call::Open(path, how) => {
                let words = [
                    (how.truncate, " trunc"),
                    (how.append, " append"),
                    (how.directory, " directory"),
                    (how.write, " rw"),
                    (how.exclusive, " excl"),
                ];
                write!(f, "{name}({path}")?;
                words.iter().filter(|(on, _)| *on).try_for_each(|(_, word)| f.write_str(word))?;
                f.write_str(")")
            }
            Call::Link(old, new)
            | Call::Rename(old, new)
            | Call::Symlink(old, new)
            | Call::Bind(old, new) => {
                write!(f, "{name}({old}, {new})")
            }
            Call::Stat(path)
            | Call::Lstat(path)
            | Call::Unlink(path)
            | Call::Mkdir(path)
            | Call::Rmdir(path)
            | Call::Readlink(path)
            | Call::Mount(path)
            | Call::Umount(path) => write!(f, "{name}({path})"),
            Call::Truncate(path, size) => write!(f, "{name}({path}, {size})"),
            Call::Chmod(path, mode) => write!(f, "{name}({path}, {mode:o})"),
            Call::Close(fd) | Call::Dup(fd) | Call::Fstat(fd) => write!(f, "{name}({fd})"),
            Call::Lseek(fd, offset, from) => write!(f, "{name}({fd}, {offset}, {from:?})"),
            Call::Read(fd, n) | Call::Write(fd, n) | Call::Ftruncate(fd, n) | Call::Readdir(fd, n) => {
                write!(f, "{name}({fd}, {n})")
            }
            Call::Pread(fd, n, at) | Call::Pwrite(fd, n, at) => write!(f, "{name}({fd}, {n} at {at})"),
            Call::Posix(fd, lock, from, to) | Call::Ofd(fd, lock, from, to) => {
                write!(f, "{name}({fd}, {lock:?} {from}..{to})")
            }
            Call::Flock(fd, lock) => write!(f, "{name}({fd}, {lock:?})"),
        }
    }
}
