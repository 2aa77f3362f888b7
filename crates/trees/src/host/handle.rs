//! Handle: a file of the host, held open or just held, whose attributes can be read and set.

use super::{ACL_PREFIX, Identity, Xattrs, failed, refused};
use rustix::fs::{self, AtFlags, Dir, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use sluice_vfs::{FileType, Timestamp, XATTR_SIZE_MAX};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A file of the host.
pub(super) enum Handle {
    /// A regular file or directory that is open.
    Open(File),
    /// A file of any type that is held (`O_PATH`) and not opened: opening a pipe or a device has effects.
    Held(OwnedFd),
}

/// A file's attributes as the host tells them.
#[derive(Clone, Copy)]
pub(super) struct HostStat {
    pub(super) identity: Identity,
    pub(super) mode: u32,
    pub(super) nlink: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u64,
    pub(super) size: u64,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
}

// The kernel's types differ between architectures: what is a conversion on one is none on another.
#[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
impl From<fs::Stat> for HostStat {
    fn from(stat: fs::Stat) -> HostStat {
        let time = |sec, nsec: u64| Timestamp { sec, nsec: nsec as u32 };
        HostStat {
            identity: (stat.st_dev.into(), stat.st_ino.into()),
            mode: stat.st_mode,
            nlink: stat.st_nlink as u64,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev as u64,
            size: stat.st_size as u64,
            atime: time(stat.st_atime as i64, stat.st_atime_nsec as u64),
            mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as u64),
        }
    }
}

impl HostStat {
    pub(super) fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode)
    }
}

/// Attributes of `name` in `dir`, of a symbolic link itself.
pub(super) fn stat(dir: &File, name: &OsStr) -> Result<HostStat, Errno> {
    fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(HostStat::from)
}

/// Attributes of what `fd` is open on.
pub(super) fn stat_open(fd: impl AsFd) -> Result<HostStat, Errno> {
    fs::fstat(fd).map(HostStat::from)
}

/// Opens the directory at `path` as a user gave it.
pub(super) fn open_top(path: &Path) -> Result<File, Errno> {
    let dir = fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map(File::from)?;
    open_dir(&dir, OsStr::new("."))
}

/// Opens the directory `name` in `dir`.
pub(super) fn open_dir(dir: &File, name: &OsStr) -> Result<File, Errno> {
    open_quietly(dir, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC)
}

/// Opens the regular file `name` in `dir` for reading, without waiting if it has become something else.
pub(super) fn open_file(dir: &File, name: &OsStr) -> Result<File, Errno> {
    open_quietly(dir, name, OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC)
}

/// Opens for reading that leaves the access time alone, where the caller may do so (the owner and root may).
fn open_quietly(dir: &File, name: &OsStr, flags: OFlags) -> Result<File, Errno> {
    match fs::openat(dir, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => fs::openat(dir, name, flags, Mode::empty()),
        opened => opened,
    }
    .map(File::from)
}

/// Holds `name` in `dir` without opening it.
pub(super) fn hold(dir: &File, name: &OsStr) -> Result<OwnedFd, Errno> {
    fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Names in `dir`, without "." and "..".
pub(super) fn names(dir: &File) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    Ok(names)
}

/// True when the caller may give files away.
pub(super) fn caller_is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Handle {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Handle::Open(file) => file.as_fd(),
            Handle::Held(fd) => fd.as_fd(),
        }
    }

    /// A name for a held file, which the calls on descriptors refuse.
    fn magic_path(fd: &OwnedFd) -> String {
        format!("/proc/self/fd/{}", fd.as_raw_fd())
    }

    /// The extended attributes, as many as the file system shows this caller.
    pub(super) fn xattrs(&self) -> Result<Xattrs, Errno> {
        let mut buf = vec![0; XATTR_SIZE_MAX];
        let listed = match self {
            Handle::Open(file) => fs::flistxattr(file, &mut buf),
            Handle::Held(fd) => fs::listxattr(Self::magic_path(fd), &mut buf),
        };
        let len = match listed {
            Ok(len) => len,
            Err(Errno::NOTSUP | Errno::PERM | Errno::ACCESS) => return Ok(Vec::new()),
            // No /proc. Pipes, sockets, devices and symbolic links have no `user.` attributes to lose.
            Err(Errno::NOENT | Errno::NOTDIR) if matches!(self, Handle::Held(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let names: Vec<Vec<u8>> =
            buf[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
        let mut xattrs = Vec::new();
        for name in names {
            let key = OsStr::from_bytes(&name);
            let got = match self {
                Handle::Open(file) => fs::fgetxattr(file, key, &mut buf),
                Handle::Held(fd) => fs::getxattr(Self::magic_path(fd), key, &mut buf),
            };
            match got {
                Ok(len) => xattrs.push((name, buf[..len].to_vec())),
                Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM | Errno::ACCESS) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(xattrs)
    }

    /// Sets the extended attributes: `user.` ones and ACLs or an error, others as far as they are allowed.
    pub(super) fn set_xattrs(&self, path: &Path, xattrs: &Xattrs) -> io::Result<()> {
        for (name, value) in xattrs {
            let key = CString::new(name.clone()).map_err(|error| failed(path, error))?;
            let flags = fs::XattrFlags::empty();
            let set = match self {
                Handle::Open(file) => fs::fsetxattr(file, &key, value, flags),
                Handle::Held(fd) => fs::setxattr(Self::magic_path(fd), &key, value, flags),
            };
            let Err(error) = set else { continue };
            if name.starts_with(b"user.") || name.starts_with(ACL_PREFIX) {
                let reason = format!(
                    "cannot set the extended attribute {}: {}; export to a file system that keeps it, or remove it first",
                    String::from_utf8_lossy(name).escape_debug(),
                    io::Error::from(error)
                );
                return Err(refused(path, io::Error::from(error).kind(), &reason));
            }
        }
        Ok(())
    }

    pub(super) fn set_owner(&self, uid: u32, gid: u32) -> Result<(), Errno> {
        // The highest number means "unchanged" to the kernel: no file can belong to it.
        if uid == u32::MAX || gid == u32::MAX {
            return Err(Errno::INVAL);
        }
        let (uid, gid) = (fs::Uid::from_raw(uid), fs::Gid::from_raw(gid));
        fs::chownat(self.as_fd(), "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
    }

    pub(super) fn set_mode(&self, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Handle::Open(file) => fs::fchmod(file, mode),
            Handle::Held(fd) => fs::chmod(Self::magic_path(fd), mode),
        }
    }

    pub(super) fn set_times(&self, atime: Timestamp, mtime: Timestamp) -> Result<(), Errno> {
        let spec = |time: Timestamp| Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
        let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        match self {
            Handle::Open(file) => fs::futimens(file, &times),
            Handle::Held(fd) => fs::utimensat(fd, "", &times, AtFlags::EMPTY_PATH),
        }
    }

    pub(super) fn stat(&self) -> Result<HostStat, Errno> {
        stat_open(self.as_fd())
    }
}
