//! Mounting file systems in the tree, and making them of it. Every call here needs the `SYS_ADMIN` capability.

use super::{Fd, Process};
use crate::{Caps, Errno, MountFlags, Superblock, UmountFlags};
use sluice_sync::Arc;
use std::path::Path;

impl Process {
    /// Mounts the root of `superblock` on the directory at `path`.
    ///
    /// # Errors
    /// `EPERM`, `ENOTDIR`, `EROFS` (in a snapshot), and those of the path walk.
    pub fn mount(
        &self,
        superblock: Arc<Superblock>,
        path: impl AsRef<Path>,
        flags: MountFlags,
    ) -> Result<(), Errno> {
        self.permit_mounting()?;
        let on = self.resolve(Fd::CWD, path.as_ref(), true)?;
        let root = superblock.root().clone();
        self.fs.mounts().attach(superblock, root, &on, flags)
    }

    /// Makes the directory at `from` appear at `to` too. Mounts below `from` do not come along.
    ///
    /// # Errors
    /// `EPERM`, `ENOTDIR`, `EROFS` (in a snapshot), and those of the path walks.
    pub fn bind(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, flags: MountFlags) -> Result<(), Errno> {
        self.permit_mounting()?;
        let source = self.resolve(Fd::CWD, from.as_ref(), true)?;
        let on = self.resolve(Fd::CWD, to.as_ref(), true)?;
        self.fs.mounts().attach(source.mount.superblock.clone(), source.inode, &on, flags)
    }

    /// Takes the mount at `path` out of the tree.
    ///
    /// # Errors
    /// `EPERM`; `EINVAL` (nothing is mounted there); `EBUSY` (in use, unless `DETACH`); those of the path
    /// walk.
    pub fn umount(&self, path: impl AsRef<Path>, flags: UmountFlags) -> Result<(), Errno> {
        self.permit_mounting()?;
        let at = self.resolve(Fd::CWD, path.as_ref(), true)?;
        self.fs.mounts().detach(&at, flags)
    }

    /// A new, independent file system with the directory at `path` and everything below it as it is now, the contents of files
    /// shared until one side writes them. Mounts below do not come along. See [`InodeRef::snapshot`](crate::InodeRef::snapshot).
    ///
    /// # Errors
    /// `EPERM`, those of that call and of the path walk.
    pub fn snapshot(&self, path: impl AsRef<Path>) -> Result<Arc<Superblock>, Errno> {
        self.permit_mounting()?;
        self.resolve(Fd::CWD, path.as_ref(), true)?.inode.snapshot()
    }

    pub(super) fn permit_mounting(&self) -> Result<(), Errno> {
        if self.cred.has(Caps::SYS_ADMIN) { Ok(()) } else { Err(Errno::EPERM) }
    }
}
