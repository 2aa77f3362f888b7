//! MountError: why mounting or unmounting failed, each with its cure in the same line.

use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::{error, fmt, io};

/// Whether `error` is what the files of a *dead* mount answer: its server has ended, or its connection was aborted.
pub fn is_dead(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Why a mount could not be made or undone. `Display` gives one line that says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountError {
    /// The file `/dev/fuse` is missing, or may not be opened.
    NoDevice(io::Error),
    /// An ordinary user mounts, and the helper program is not installed.
    NoHelper,
    /// An ordinary user mounts, and only root may open `/dev/fuse`.
    DeviceForRootOnly,
    /// The helper program refused, with this message.
    Helper(String),
    /// Only root, or a user whom `/etc/fuse.conf` allows, may use `allow_other`.
    AllowOther,
    /// The place to mount on does not exist or cannot be reached.
    Unreachable(PathBuf, io::Error),
    /// The place to mount on is not a directory.
    NotADirectory(PathBuf),
    /// A sluicefs is mounted there already.
    Mounted(PathBuf),
    /// The place to mount on is a mount whose server ended.
    Dead(PathBuf),
    /// No sluicefs is mounted at the place to unmount.
    NotMounted(PathBuf),
    /// The process may not mount.
    Denied(PathBuf),
    /// Files of the mount are in use.
    Busy(PathBuf),
    /// Another mount stands in it: where.
    HoldsMount(PathBuf, PathBuf),
    /// A mount of the user with this number: only that user and root unmount it.
    OfAnotherUser(PathBuf, u32),
    /// An option that only root may give.
    ForRootAlone(&'static str),
    /// The mount cannot become read-only, because files are open for writing.
    OpenForWriting(PathBuf),
    /// Another file system is mounted on top.
    Covered(PathBuf),
    /// The mount is gone here, but still exists in another mount namespace.
    Elsewhere(PathBuf),
    /// The lock file cannot be made, and why.
    LockFile(String),
    /// The transport that was asked for cannot be used, and why.
    Transport(String),
    /// The kernel may not collect writes here, and why.
    Writeback(&'static str),
    /// The server may not check permissions here, and why.
    Checks(&'static str),
    /// Another mount of this file system lets its kernel collect writes.
    Alone,
    /// The kernel's FUSE is older than this crate needs.
    KernelTooOld,
    /// Anything else, and what was being done.
    System(&'static str, io::Error),
}

impl MountError {
    /// The mount error for `error` of an access to `dir`.
    pub(crate) fn of_place(dir: &Path, error: io::Error) -> MountError {
        if is_dead(&error) {
            MountError::Dead(dir.into())
        } else {
            MountError::Unreachable(dir.into(), error)
        }
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::NoDevice(error) if error.kind() == io::ErrorKind::NotFound => f.write_str(
                "/dev/fuse is missing: load the module with `modprobe fuse`, or start the container with --device /dev/fuse",
            ),
            MountError::NoDevice(error) => write!(
                f,
                "/dev/fuse cannot be opened ({error}): start the container with --device /dev/fuse --cap-add SYS_ADMIN"
            ),
            MountError::NoHelper => f.write_str(
                "fusermount3 is missing, which mounts for ordinary users: install the package fuse3, or mount as root",
            ),
            MountError::DeviceForRootOnly => f.write_str(
                "/dev/fuse may be opened by root only: let ordinary users do so with `chmod 666 /dev/fuse`, or mount as root",
            ),
            MountError::Helper(message) => write!(f, "fusermount3 refused: {message}"),
            MountError::AllowOther => f.write_str(
                "allow_other is not permitted: add the line user_allow_other to /etc/fuse.conf, or leave the option out",
            ),
            MountError::Unreachable(dir, error) => {
                write!(f, "{}: {error}: give an existing directory", dir.display())
            }
            MountError::NotADirectory(dir) => {
                write!(f, "{} is not a directory: give an existing directory to mount on", dir.display())
            }
            MountError::Mounted(dir) => write!(
                f,
                "{}: a sluicefs is mounted there already: unmount it, or give another directory",
                dir.display()
            ),
            MountError::Dead(dir) => {
                write!(f, "{} is a mount whose server has ended: unmount it first", dir.display())
            }
            MountError::NotMounted(dir) => {
                write!(f, "{}: no sluicefs is mounted there: give the directory that was given to mount", dir.display())
            }
            MountError::Denied(dir) => write!(
                f,
                "not permitted to mount on {}: run as root or as the directory's owner (container: --cap-add SYS_ADMIN)",
                dir.display()
            ),
            MountError::Busy(dir) => {
                write!(f, "{} is in use: leave it and close its files, or unmount lazily", dir.display())
            }
            MountError::HoldsMount(dir, below) => {
                write!(f, "{}: another mount stands in it, on {}: unmount that first", dir.display(), below.display())
            }
            MountError::OfAnotherUser(dir, user) => {
                write!(f, "{} is a mount of user {user}: unmount it as that user or as root", dir.display())
            }
            MountError::ForRootAlone(option) => {
                write!(f, "mount option {option}: only root may give it: leave it out, or mount as root")
            }
            MountError::OpenForWriting(dir) => {
                write!(f, "files of {} are open for writing: close them before it becomes read-only", dir.display())
            }
            MountError::Covered(dir) => {
                write!(f, "another file system is mounted on top of {0}: unmount that first", dir.display())
            }
            MountError::Elsewhere(dir) => {
                write!(f, "{} is mounted in another mount namespace too: unmount it there, or lazily", dir.display())
            }
            MountError::LockFile(why) => write!(f, "mount option lockfile: {why}"),
            MountError::Checks(why) => write!(f, "mount option checks=sluice: {why}"),
            MountError::Transport(why) => write!(f, "mount option transport=uring: {why}"),
            MountError::Writeback(why) => write!(f, "mount option writeback: {why}"),
            MountError::Alone => f.write_str(
                "this file system has a mount with the option writeback, which must be its only one: unmount that first",
            ),
            MountError::KernelTooOld => f.write_str("the kernel's FUSE is too old: Linux 5.12 or newer is needed"),
            MountError::System(action, error) => write!(f, "cannot {action}: {error}"),
        }
    }
}

impl error::Error for MountError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            MountError::NoDevice(error)
            | MountError::Unreachable(_, error)
            | MountError::System(_, error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_a_line_that_says_what_to_do() {
        let not_found = || io::Error::from(io::ErrorKind::NotFound);
        let dir = || PathBuf::from("/m");
        for (error, told) in [
            (MountError::NoDevice(not_found()), "/dev/fuse is missing: load the module with `modprobe fuse`"),
            (
                MountError::NoDevice(io::ErrorKind::PermissionDenied.into()),
                "start the container with --device /dev/fuse",
            ),
            (MountError::NoHelper, "install the package fuse3, or mount as root"),
            (MountError::DeviceForRootOnly, "with `chmod 666 /dev/fuse`, or mount as root"),
            (MountError::Helper("it sent no device".into()), "fusermount3 refused: it sent no device"),
            (MountError::AllowOther, "add the line user_allow_other to /etc/fuse.conf"),
            (MountError::Unreachable(dir(), not_found()), ": give an existing directory"),
            (MountError::NotADirectory(dir()), " is not a directory: give an existing directory to mount on"),
            (
                MountError::Mounted(dir()),
                ": a sluicefs is mounted there already: unmount it, or give another directory",
            ),
            (MountError::Dead(dir()), " is a mount whose server has ended: unmount it first"),
            (
                MountError::NotMounted(dir()),
                ": no sluicefs is mounted there: give the directory that was given to mount",
            ),
            (
                MountError::Denied(dir()),
                ": run as root or as the directory's owner (container: --cap-add SYS_ADMIN)",
            ),
            (MountError::Busy(dir()), " is in use: leave it and close its files, or unmount lazily"),
            (
                MountError::HoldsMount(dir(), "/m/below".into()),
                "/m: another mount stands in it, on /m/below: unmount that first",
            ),
            (
                MountError::OfAnotherUser(dir(), 7),
                "/m is a mount of user 7: unmount it as that user or as root",
            ),
            (MountError::ForRootAlone("suid"), "mount option suid: only root may give it: leave it out"),
            (
                MountError::OpenForWriting(dir()),
                " are open for writing: close them before it becomes read-only",
            ),
            (MountError::Covered(dir()), "another file system is mounted on top of "),
            (
                MountError::Elsewhere(dir()),
                " is mounted in another mount namespace too: unmount it there, or lazily",
            ),
            (MountError::LockFile("x".into()), "mount option lockfile: "),
            (MountError::Checks("x"), "mount option checks=sluice: "),
            (
                MountError::Transport("the kernel did not offer it".into()),
                "mount option transport=uring: the kernel did not offer it",
            ),
            (MountError::Writeback("x"), "mount option writeback: "),
            (MountError::Alone, "with the option writeback, which must be its only one: unmount that first"),
            (MountError::KernelTooOld, "the kernel's FUSE is too old: Linux 5.12 or newer is needed"),
            (MountError::System("start a thread", not_found()), "cannot start a thread: "),
        ] {
            let line = error.to_string();
            assert!(line.contains(told) && !line.contains('\n'), "{line}");
        }
    }
}
