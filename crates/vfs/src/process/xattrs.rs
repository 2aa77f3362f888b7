//! Extended attributes, by path and by descriptor. Names are bytes with their name space (`user.mine`).

use super::{Fd, Process};
use crate::mount::Location;
use crate::ops::xattr::{check_xattr, check_xattr_name};
use crate::{Errno, XattrFlags};
use std::path::Path;

impl Process {
    /// The value of attribute `name` of the file at `path`.
    ///
    /// # Errors
    /// Errors of [`Inode::get_xattr`](crate::Inode::get_xattr), and those of the path walk.
    pub fn getxattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        check_xattr_name(name)?;
        self.resolve(Fd::CWD, path.as_ref(), true)?.inode.get_xattr(&self.cred, name)
    }

    /// The extended attribute `name` of a file; a symbolic link at the end of `path` is not followed.
    ///
    /// # Errors
    /// Errors of [`getxattr`](Self::getxattr).
    pub fn lgetxattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        check_xattr_name(name)?;
        self.resolve(Fd::CWD, path.as_ref(), false)?.inode.get_xattr(&self.cred, name)
    }

    /// The extended attribute `name` of an open file.
    ///
    /// # Errors
    /// Errors of [`getxattr`](Self::getxattr); `EBADF`.
    pub fn fgetxattr(&self, fd: Fd, name: &[u8]) -> Result<Vec<u8>, Errno> {
        check_xattr_name(name)?;
        self.opened_location(fd)?.inode.get_xattr(&self.cred, name)
    }

    /// Sets attribute `name` of the file at `path`.
    ///
    /// # Errors
    /// Errors of [`Inode::set_xattr`](crate::InodeRef::set_xattr); `EROFS`; those of the path walk.
    pub fn setxattr(
        &self,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<(), Errno> {
        check_xattr(name, value, flags)?;
        self.set_at(&self.resolve(Fd::CWD, path.as_ref(), true)?, name, value, flags)
    }

    /// Sets an extended attribute of a file; a symbolic link at the end of `path` is not followed.
    ///
    /// # Errors
    /// Errors of [`setxattr`](Self::setxattr).
    pub fn lsetxattr(
        &self,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<(), Errno> {
        check_xattr(name, value, flags)?;
        self.set_at(&self.resolve(Fd::CWD, path.as_ref(), false)?, name, value, flags)
    }

    /// Sets an extended attribute of an open file; see [`setxattr`](Self::setxattr).
    ///
    /// # Errors
    /// Errors of [`setxattr`](Self::setxattr); `EBADF`.
    pub fn fsetxattr(&self, fd: Fd, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
        check_xattr(name, value, flags)?;
        self.set_at(&self.opened_location(fd)?, name, value, flags)
    }

    /// The names of the attributes of the file at `path`.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn listxattr(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(self.resolve(Fd::CWD, path.as_ref(), true)?.inode.list_xattr(&self.cred))
    }

    /// The names of a file's extended attributes; a symbolic link at the end of `path` is not followed.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn llistxattr(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(self.resolve(Fd::CWD, path.as_ref(), false)?.inode.list_xattr(&self.cred))
    }

    /// The names of an open file's extended attributes; see [`listxattr`](Self::listxattr).
    ///
    /// # Errors
    /// `EBADF`.
    pub fn flistxattr(&self, fd: Fd) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(self.opened_location(fd)?.inode.list_xattr(&self.cred))
    }

    /// Removes attribute `name` of the file at `path`.
    ///
    /// # Errors
    /// Errors of [`Inode::remove_xattr`](crate::InodeRef::remove_xattr); `EROFS`; those of the path walk.
    pub fn removexattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<(), Errno> {
        check_xattr_name(name)?;
        self.remove_from(&self.resolve(Fd::CWD, path.as_ref(), true)?, name)
    }

    /// Removes an extended attribute of a file; a symbolic link at the end of `path` is not followed.
    ///
    /// # Errors
    /// Errors of [`removexattr`](Self::removexattr).
    pub fn lremovexattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<(), Errno> {
        check_xattr_name(name)?;
        self.remove_from(&self.resolve(Fd::CWD, path.as_ref(), false)?, name)
    }

    /// Removes an extended attribute of an open file.
    ///
    /// # Errors
    /// Errors of [`removexattr`](Self::removexattr); `EBADF`.
    pub fn fremovexattr(&self, fd: Fd, name: &[u8]) -> Result<(), Errno> {
        check_xattr_name(name)?;
        self.remove_from(&self.opened_location(fd)?, name)
    }

    fn set_at(&self, at: &Location, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
        at.mount.check_writable()?;
        at.inode.set_xattr(&self.cred, name, value, flags)
    }

    fn remove_from(&self, at: &Location, name: &[u8]) -> Result<(), Errno> {
        at.mount.check_writable()?;
        at.inode.remove_xattr(&self.cred, name)
    }
}
