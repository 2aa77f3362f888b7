//! Attributes: stat, chmod, chown, times, access, statfs.

use super::{Fd, Process};
use crate::inode::settle;
use crate::mount::Location;
use crate::{
    Access, AtFlags, Caps, Errno, FileType, InodeFlags, QuotaUse, SetAttr, SetTime, Stat, StatFs, Statx,
};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

impl Process {
    /// The attributes of the file at `path`, at the end of a symbolic link if it is one.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Stat, Errno> {
        self.look_at(Fd::CWD, path.as_ref(), AtFlags::empty(), |found| Ok(found.inode.stat()))
    }

    /// The attributes of the file at `path`; a symbolic link at its end is not followed.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn lstat(&self, path: impl AsRef<Path>) -> Result<Stat, Errno> {
        self.look_at(Fd::CWD, path.as_ref(), AtFlags::SYMLINK_NOFOLLOW, |found| Ok(found.inode.stat()))
    }

    /// The attributes of an open file.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn fstat(&self, fd: Fd) -> Result<Stat, Errno> {
        self.use_file(fd, |file| file.inode().stat_at_once(), |file| Ok(file.inode().stat()))
    }

    /// The attributes of the file at `path`, relative to `dir`: with `SYMLINK_NOFOLLOW` of a symbolic link itself, with
    /// `EMPTY_PATH` and an empty path of the file that `dir` is open on.
    ///
    /// # Errors
    /// Errors of the path walk; `EBADF`; `EINVAL` for other flags.
    pub fn fstatat(&self, dir: Fd, path: impl AsRef<Path>, flags: AtFlags) -> Result<Stat, Errno> {
        self.statx_any(dir, path.as_ref(), flags).map(|statx| statx.stat)
    }

    /// The attributes that [`fstatat`](Self::fstatat) returns, with creation time and mount.
    ///
    /// # Errors
    /// Errors of [`fstatat`](Self::fstatat).
    pub fn statx(&self, dir: Fd, path: impl AsRef<Path>, flags: AtFlags) -> Result<Statx, Errno> {
        if flags.contains(AtFlags::STATX_FORCE_SYNC | AtFlags::STATX_DONT_SYNC) {
            return Err(Errno::EINVAL);
        }
        self.statx_any(dir, path.as_ref(), flags)
    }

    fn statx_any(&self, dir: Fd, path: &Path, flags: AtFlags) -> Result<Statx, Errno> {
        let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let ignored = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC | AtFlags::STATX_DONT_SYNC;
        if !(how | ignored).contains(flags) {
            return Err(Errno::EINVAL);
        }
        self.look_at(dir, path, flags, |found| {
            let mount_root = found.is_mount_root();
            Ok(Statx { stat: found.inode.stat(), mount_id: found.mount.id, mount_root })
        })
    }

    /// Sets the permission bits of the file at `path`.
    ///
    /// # Errors
    /// `EPERM` (not the owner), `EROFS`, and those of the path walk.
    pub fn chmod(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Errno> {
        self.fchmodat(Fd::CWD, path, mode, AtFlags::empty())
    }

    /// Sets the permission bits of an open file.
    ///
    /// # Errors
    /// `EBADF`, `EPERM`, `EROFS`.
    pub fn fchmod(&self, fd: Fd, mode: u32) -> Result<(), Errno> {
        self.change(&self.opened_location(fd)?, &SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    /// Changes the permission bits of the file at `path`, relative to `dir`; see [`chmod`](Self::chmod).
    ///
    /// # Errors
    /// Errors of [`chmod`](Self::chmod); `EOPNOTSUPP` for a symbolic link itself; `EINVAL` for other flags.
    pub fn fchmodat(&self, dir: Fd, path: impl AsRef<Path>, mode: u32, flags: AtFlags) -> Result<(), Errno> {
        check_flags(flags)?;
        let location = self.resolve_at(dir, path.as_ref(), flags)?;
        location.mount.check_writable()?;
        if location.inode.file_type() == FileType::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        self.change(&location, &SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    /// Sets owner and group of the file at `path`; `None` leaves one as it is.
    ///
    /// # Errors
    /// `EPERM`, `EROFS`, and those of the path walk.
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        self.fchownat(Fd::CWD, path, uid, gid, AtFlags::empty())
    }

    /// Changes the owner or group of a symbolic link itself; see [`chown`](Self::chown).
    ///
    /// # Errors
    /// Errors of [`chown`](Self::chown).
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        self.fchownat(Fd::CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Changes the owner or group of an open file; see [`chown`](Self::chown).
    ///
    /// # Errors
    /// `EBADF`, `EPERM`, `EROFS`.
    pub fn fchown(&self, fd: Fd, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        self.change(&self.opened_location(fd)?, &SetAttr { uid, gid, chown: true, ..SetAttr::default() })
    }

    /// Changes the owner or group of the file at `path`, relative to `dir`; see [`chown`](Self::chown).
    ///
    /// # Errors
    /// Errors of [`chown`](Self::chown); `EINVAL` for unknown flags.
    pub fn fchownat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
        flags: AtFlags,
    ) -> Result<(), Errno> {
        check_flags(flags)?;
        let location = self.resolve_at(dir, path.as_ref(), flags)?;
        self.change(&location, &SetAttr { uid, gid, chown: true, ..SetAttr::default() })
    }

    /// Sets access and modification time of the file at `path`; `None` leaves one as it is.
    ///
    /// # Errors
    /// `EPERM`, `EACCES`, `EINVAL` (nanoseconds out of range), `EROFS`, and those of the path walk.
    pub fn utimens(&self, path: impl AsRef<Path>, times: [Option<SetTime>; 2]) -> Result<(), Errno> {
        self.utimensat(Fd::CWD, path, times, AtFlags::empty())
    }

    /// Sets the times of an open file; see [`utimens`](Self::utimens).
    ///
    /// # Errors
    /// `EBADF`, `EPERM`, `EACCES`, `EINVAL`, `EROFS`.
    pub fn futimens(&self, fd: Fd, times: [Option<SetTime>; 2]) -> Result<(), Errno> {
        if times == [None, None] {
            return Ok(());
        }
        let location = self.opened_location(fd)?;
        let [atime, mtime] = checked_times(times)?;
        self.change(&location, &SetAttr { atime, mtime, ..SetAttr::default() })
    }

    /// Sets the times of the file at `path`, relative to `dir`; see [`utimens`](Self::utimens). To change nothing succeeds
    /// without a look at the path, as on Linux.
    ///
    /// # Errors
    /// Errors of [`utimens`](Self::utimens); `EINVAL` for unknown flags.
    pub fn utimensat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        times: [Option<SetTime>; 2],
        flags: AtFlags,
    ) -> Result<(), Errno> {
        if times == [None, None] {
            return Ok(());
        }
        check_flags(flags)?;
        let location = self.resolve_at(dir, path.as_ref(), flags)?;
        let [atime, mtime] = checked_times(times)?;
        self.change(&location, &SetAttr { atime, mtime, ..SetAttr::default() })
    }

    /// The flags of an open file (`FS_IOC_GETFLAGS`).
    ///
    /// # Errors
    /// `EBADF`; `ENOTTY` when it is neither a regular file nor a directory.
    pub fn ioctl_getflags(&self, fd: Fd) -> Result<InodeFlags, Errno> {
        let inode = self.opened_location(fd)?.inode;
        match inode.file_type() {
            FileType::Regular | FileType::Directory => Ok(inode.flags()),
            _ => Err(Errno::ENOTTY),
        }
    }

    /// Sets the flags of an open file, all of them (`FS_IOC_SETFLAGS`).
    ///
    /// # Errors
    /// `EBADF`, `EROFS`, and those of [`InodeRef::set_flags`](crate::InodeRef::set_flags).
    pub fn ioctl_setflags(&self, fd: Fd, flags: InodeFlags) -> Result<(), Errno> {
        let location = self.opened_location(fd)?;
        location.mount.check_writable()?;
        location.inode.set_flags(&self.cred, flags)
    }

    fn change(&self, location: &Location, change: &SetAttr) -> Result<(), Errno> {
        location.mount.check_writable()?;
        location.inode.set_attr(&self.cred, change)
    }

    /// May this process use the file at `path` as `want` asks? Empty: does it exist?
    ///
    /// # Errors
    /// `EACCES`, `EROFS` (writing), `EINVAL` (unknown bits), and those of the path walk.
    pub fn access(&self, path: impl AsRef<Path>, want: Access) -> Result<(), Errno> {
        self.faccessat(Fd::CWD, path, want, AtFlags::empty())
    }

    /// Checks the access to the file at `path`, relative to `dir`; see [`access`](Self::access).
    ///
    /// # Errors
    /// Errors of [`access`](Self::access).
    pub fn faccessat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        want: Access,
        flags: AtFlags,
    ) -> Result<(), Errno> {
        let known = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH | AtFlags::EACCESS;
        if !(Access::READ | Access::WRITE | Access::EXEC).contains(want) || !known.contains(flags) {
            return Err(Errno::EINVAL);
        }
        self.look_at(dir, path.as_ref(), flags, |found| {
            found.inode.access(&self.cred, want)?;
            let stored = matches!(
                found.inode.file_type(),
                FileType::Regular | FileType::Directory | FileType::Symlink
            );
            if want.contains(Access::WRITE) && stored { found.mount.check_writable() } else { Ok(()) }
        })
    }

    /// The target of the symbolic link at `path`.
    ///
    /// # Errors
    /// `EINVAL` when the file is no symbolic link; errors of the path walk.
    pub fn readlink(&self, path: impl AsRef<Path>) -> Result<PathBuf, Errno> {
        self.readlinkat(Fd::CWD, path)
    }

    /// The target of the symbolic link at `path`, relative to `dir`; an empty path names the link that `dir` is open on.
    ///
    /// # Errors
    /// Errors of [`readlink`](Self::readlink); `ENOENT` for an empty path when `dir` is no symbolic link.
    pub fn readlinkat(&self, dir: Fd, path: impl AsRef<Path>) -> Result<PathBuf, Errno> {
        let path = path.as_ref();
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        self.look_at(dir, path, flags, |found| {
            if path.as_os_str().is_empty() && found.inode.file_type() != FileType::Symlink {
                return Err(Errno::ENOENT);
            }
            found
                .inode
                .read_link(found.mount.updates_atime())
                .map(|target| PathBuf::from(OsString::from_vec(target)))
        })
    }

    /// The state of the file system that holds `path`; in a directory with a quota, that of the quota.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn statfs(&self, path: impl AsRef<Path>) -> Result<StatFs, Errno> {
        Ok(self.resolve(Fd::CWD, path.as_ref(), true)?.inode.statfs())
    }

    /// The quota for which the file at `path` counts, if there is one. Releases what has lost its last user first, so it is exact.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn quota(&self, path: impl AsRef<Path>) -> Result<Option<QuotaUse>, Errno> {
        let inode = self.resolve(Fd::CWD, path.as_ref(), true)?.inode;
        settle();
        Ok(inode.quota())
    }

    /// Lets the contents of the directory at `path`, with all that is below it, be `limit` bytes at most; see
    /// [`InodeRef::set_quota`](crate::InodeRef::set_quota).
    ///
    /// # Errors
    /// `EPERM` unless the caller has `SYS_ADMIN` or owns the root of the file system; `EROFS`; errors of that call and of the path walk.
    pub fn set_quota(&self, path: impl AsRef<Path>, limit: Option<u64>) -> Result<(), Errno> {
        let Location { mount, inode } = self.resolve(Fd::CWD, path.as_ref(), true)?;
        if !self.cred.has(Caps::SYS_ADMIN) && self.cred.uid != mount.superblock.root().stat().uid {
            return Err(Errno::EPERM);
        }
        mount.check_writable()?;
        inode.set_quota(limit)
    }

    /// The state of the file system that holds an open file.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn fstatfs(&self, fd: Fd) -> Result<StatFs, Errno> {
        Ok(self.file(fd)?.location.inode.statfs())
    }
}

fn checked_times(times: [Option<SetTime>; 2]) -> Result<[Option<SetTime>; 2], Errno> {
    let bad = |time: &Option<SetTime>| matches!(time, Some(SetTime::At(at)) if at.nsec > 999_999_999);
    if times.iter().any(bad) { Err(Errno::EINVAL) } else { Ok(times) }
}

fn check_flags(flags: AtFlags) -> Result<(), Errno> {
    let known = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    if known.contains(flags) { Ok(()) } else { Err(Errno::EINVAL) }
}
