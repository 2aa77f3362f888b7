//! Names and attributes: the calls that take paths.

use crate::arguments::{RoomOut, TextIn};
use crate::process::SluiceProcess;
use crate::results::{count, done, there};
use crate::stat::SluiceTime;
use sluice_vfs::{Access, AtFlags, Errno, Fd, FileType, RenameFlags, SetTime, Timestamp};
use std::ffi::c_int;
use std::os::unix::ffi::OsStrExt;

/// A user or group to set; -1 leaves the old one.
pub(crate) fn id(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

/// Makes a directory.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_mkdir(process: Option<&SluiceProcess>, path: TextIn, mode: u32) -> c_int {
    done(|| there(process)?.0.mkdir(path.path()?, mode))
}

/// Makes a fifo, a socket's name, a device file or an empty file: the type stands in `mode`.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_mknod(process: Option<&SluiceProcess>, path: TextIn, mode: u32, rdev: u64) -> c_int {
    done(|| {
        let kind = match mode & 0o170_000 {
            0 => FileType::Regular,
            _ => FileType::from_mode(mode).ok_or(Errno::EINVAL)?,
        };
        there(process)?.0.mknod(path.path()?, kind, mode & 0o7777, rdev)
    })
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_rmdir(process: Option<&SluiceProcess>, path: TextIn) -> c_int {
    done(|| there(process)?.0.rmdir(path.path()?))
}

/// Removes a name.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_unlink(process: Option<&SluiceProcess>, path: TextIn) -> c_int {
    done(|| there(process)?.0.unlink(path.path()?))
}

/// Renames a file or directory. `flags` is 0, RENAME_NOREPLACE, RENAME_EXCHANGE or RENAME_WHITEOUT.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_rename(
    process: Option<&SluiceProcess>,
    from: TextIn,
    to: TextIn,
    flags: u32,
) -> c_int {
    done(|| {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        there(process)?.0.renameat2(Fd::CWD, from.path()?, Fd::CWD, to.path()?, flags)
    })
}

/// Gives the file `from` a second name.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_link(process: Option<&SluiceProcess>, from: TextIn, to: TextIn) -> c_int {
    done(|| there(process)?.0.link(from.path()?, to.path()?))
}

/// Makes a symbolic link at `path`.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_symlink(process: Option<&SluiceProcess>, target: TextIn, path: TextIn) -> c_int {
    done(|| there(process)?.0.symlink(target.path()?, path.path()?))
}

/// Writes the target of a symbolic link to `buffer`, without a NUL, cut off after `size` bytes. Gives how many bytes it wrote.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_readlink(
    process: Option<&SluiceProcess>,
    path: TextIn,
    mut buffer: RoomOut,
    size: usize,
) -> isize {
    count(|| {
        if size == 0 {
            return Err(Errno::EINVAL);
        }
        let target = there(process)?.0.readlink(path.path()?)?;
        let (target, room) = (target.as_os_str().as_bytes(), buffer.bytes(size)?);
        let fits = target.len().min(room.len());
        room[..fits].copy_from_slice(&target[..fits]);
        Ok(fits)
    })
}

/// Sets the size of a file.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_truncate(process: Option<&SluiceProcess>, path: TextIn, size: i64) -> c_int {
    done(|| there(process)?.0.truncate(path.path()?, size))
}

/// Whether the process may do with `path` what `want` says: R_OK, W_OK, X_OK, or F_OK.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_access(process: Option<&SluiceProcess>, path: TextIn, want: c_int) -> c_int {
    done(|| {
        let want = Access::from_bits(want as u32).ok_or(Errno::EINVAL)?;
        there(process)?.0.access(path.path()?, want)
    })
}

/// Changes the mode of a file.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_chmod(process: Option<&SluiceProcess>, path: TextIn, mode: u32) -> c_int {
    done(|| there(process)?.0.chmod(path.path()?, mode))
}

/// Changes the owner and the group of a file; -1 leaves one.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_chown(process: Option<&SluiceProcess>, path: TextIn, uid: u32, gid: u32) -> c_int {
    done(|| there(process)?.0.chown(path.path()?, id(uid), id(gid)))
}

/// Changes the owner and the group of a symbolic link itself.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_lchown(process: Option<&SluiceProcess>, path: TextIn, uid: u32, gid: u32) -> c_int {
    done(|| there(process)?.0.lchown(path.path()?, id(uid), id(gid)))
}

/// Sets the times of a file. NULL leaves one. `flags` is 0, or AT_SYMLINK_NOFOLLOW for a symbolic link itself.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_utimens(
    process: Option<&SluiceProcess>,
    path: TextIn,
    atime: Option<&SluiceTime>,
    mtime: Option<&SluiceTime>,
    flags: c_int,
) -> c_int {
    done(|| {
        let flags = AtFlags::from_bits(flags as u32).ok_or(Errno::EINVAL)?;
        let times = [atime.map(set_time).transpose()?, mtime.map(set_time).transpose()?];
        there(process)?.0.utimensat(Fd::CWD, path.path()?, times, flags)
    })
}

fn set_time(time: &SluiceTime) -> Result<SetTime, Errno> {
    /// The value in `<sys/stat.h>`.
    const UTIME_NOW: i64 = 0x3fff_ffff;
    match time.nsec {
        UTIME_NOW => Ok(SetTime::Now),
        nsec @ 0..1_000_000_000 => Ok(SetTime::At(Timestamp { sec: time.sec, nsec: nsec as u32 })),
        _ => Err(Errno::EINVAL),
    }
}

/// Makes a copy of the tree `from` at `to`. Both share contents until one side writes.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_clone_tree(process: Option<&SluiceProcess>, from: TextIn, to: TextIn) -> c_int {
    done(|| there(process)?.0.clone_tree(from.path()?, to.path()?))
}

/// Limits what the directory `path` holds with all below it to `size` bytes; 0 removes the limit.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_set_quota(process: Option<&SluiceProcess>, path: TextIn, size: u64) -> c_int {
    done(|| there(process)?.0.set_quota(path.path()?, (size != 0).then_some(size)))
}
