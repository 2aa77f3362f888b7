//! Attributes of files and of file systems.

use crate::arguments::TextIn;
use crate::process::SluiceProcess;
use crate::results::{done, there};
use sluice_vfs::{Errno, Fd, Stat, StatFs, Timestamp};
use std::ffi::c_int;

/// A time: seconds since 1970, and nanoseconds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SluiceTime {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000; for sluice_utimens() also UTIME_NOW.
    pub nsec: i64,
}

/// The attributes of a file, as struct stat has them.
#[repr(C)]
pub struct SluiceStat {
    /// The device number of the file system.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
    /// The device number of a device file.
    pub rdev: u64,
    /// The size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// The file type and the permissions.
    pub mode: u32,
    /// The number of names.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The preferred size of reads and writes.
    pub blksize: u64,
    /// The last access.
    pub atime: SluiceTime,
    /// The last change of the contents.
    pub mtime: SluiceTime,
    /// The last change of the inode.
    pub ctime: SluiceTime,
    /// When the file was made.
    pub btime: SluiceTime,
}

/// The room of a file system.
#[repr(C)]
pub struct SluiceStatfs {
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// The longest name in bytes.
    pub name_max: u64,
}

fn time(time: Timestamp) -> SluiceTime {
    SluiceTime { sec: time.sec, nsec: time.nsec.into() }
}

fn fill(to: Option<&mut SluiceStat>, get: impl FnOnce() -> Result<Stat, Errno>) -> c_int {
    done(|| {
        let (to, stat) = (there(to)?, get()?);
        *to = SluiceStat {
            dev: stat.dev,
            ino: stat.ino,
            rdev: stat.rdev,
            size: stat.size,
            blocks: stat.blocks,
            mode: stat.mode,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            blksize: stat.blksize.into(),
            atime: time(stat.atime),
            mtime: time(stat.mtime),
            ctime: time(stat.ctime),
            btime: time(stat.btime),
        };
        Ok(())
    })
}

/// Gives the attributes of `path`; those of the file behind a symbolic link.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_stat(
    process: Option<&SluiceProcess>,
    path: TextIn,
    stat: Option<&mut SluiceStat>,
) -> c_int {
    fill(stat, || there(process)?.0.stat(path.path()?))
}

/// Gives the attributes of `path`; those of a symbolic link itself.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_lstat(
    process: Option<&SluiceProcess>,
    path: TextIn,
    stat: Option<&mut SluiceStat>,
) -> c_int {
    fill(stat, || there(process)?.0.lstat(path.path()?))
}

/// Gives the attributes of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fstat(
    process: Option<&SluiceProcess>,
    fd: c_int,
    stat: Option<&mut SluiceStat>,
) -> c_int {
    fill(stat, || there(process)?.0.fstat(Fd(fd)))
}

/// Gives the room of the file system at `path`; below a quota, what the quota leaves.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_statfs(
    process: Option<&SluiceProcess>,
    path: TextIn,
    statfs: Option<&mut SluiceStatfs>,
) -> c_int {
    done(|| {
        let to = there(statfs)?;
        let StatFs { block_size, blocks, blocks_free, files, files_free, name_max, .. } =
            there(process)?.0.statfs(path.path()?)?;
        *to = SluiceStatfs {
            block_size: block_size.into(),
            blocks,
            blocks_free,
            files,
            files_free,
            name_max: name_max.into(),
        };
        Ok(())
    })
}
