//! Stat: what a file system tells about an inode and about itself.

use crate::Errno;
use sluice_sync::time::{Duration, SystemTime, UNIX_EPOCH};
use std::fmt;

/// The type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum FileType {
    /// A regular file: a sequence of bytes.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe. sluicefs keeps the inode; the operating system of a mount gives it its behaviour.
    Fifo,
    /// A Unix-domain socket's name.
    Socket,
    /// A character device's name.
    CharDevice,
    /// A block device's name.
    BlockDevice,
}

impl FileType {
    /// Whether it is a regular file.
    pub const fn is_file(self) -> bool {
        matches!(self, FileType::Regular)
    }

    /// Whether it is a directory.
    pub const fn is_dir(self) -> bool {
        matches!(self, FileType::Directory)
    }

    /// Whether it is a symbolic link.
    pub const fn is_symlink(self) -> bool {
        matches!(self, FileType::Symlink)
    }

    /// The type's bits in `st_mode` (`S_IFREG`, `S_IFDIR`, ...).
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileType::Fifo => 0o010_000,
            FileType::CharDevice => 0o020_000,
            FileType::Directory => 0o040_000,
            FileType::BlockDevice => 0o060_000,
            FileType::Regular => 0o100_000,
            FileType::Symlink => 0o120_000,
            FileType::Socket => 0o140_000,
        }
    }

    /// The type that the `S_IFMT` part of `mode` names, if it names one.
    pub const fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode & S_IFMT {
            0o010_000 => FileType::Fifo,
            0o020_000 => FileType::CharDevice,
            0o040_000 => FileType::Directory,
            0o060_000 => FileType::BlockDevice,
            0o100_000 => FileType::Regular,
            0o120_000 => FileType::Symlink,
            0o140_000 => FileType::Socket,
            _ => return None,
        })
    }
}

/// The bits of `st_mode` that hold the file type.
pub(crate) const S_IFMT: u32 = 0o170_000;
/// Set-user-ID, set-group-ID and sticky bits of `st_mode`.
pub(crate) const S_ISUID: u32 = 0o4000;
pub(crate) const S_ISGID: u32 = 0o2000;
pub(crate) const S_ISVTX: u32 = 0o1000;
/// Group's execute bit.
pub(crate) const S_IXGRP: u32 = 0o010;
/// All the bits that `chmod` may change.
pub(crate) const S_IALLUGO: u32 = 0o7777;

/// A point in time: seconds since 1970 and nanoseconds below one second.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01 00:00:00 UTC, negative before.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: u32,
}

impl Timestamp {
    /// The earliest time that a file can have, in 1901: the range is that of Linux's ext4.
    pub const MIN: Timestamp = Timestamp { sec: -(1 << 31), nsec: 0 };
    /// The latest time that a file can have, in 2446.
    pub const MAX: Timestamp = Timestamp { sec: (1 << 34) - (1 << 31) - 1, nsec: 999_999_999 };

    /// The wall clock, as of its last tick a few milliseconds ago.
    pub fn now() -> Timestamp {
        let (sec, nsec) = sluice_sync::time::realtime_coarse();
        Timestamp { sec, nsec }
    }

    /// One word for this time, or for the nearest that a file can have: seconds since [`MIN`](Self::MIN) above 30 bits
    /// of nanoseconds. A later time has a larger word.
    #[inline]
    pub(crate) fn pack(self) -> u64 {
        let since = self.sec.wrapping_sub(Timestamp::MIN.sec).cast_unsigned();
        // One comparison for both ends: what is before the first wraps around.
        if since < 1 << 34 { since << 30 | u64::from(self.nsec) } else { self.pack_nearest() }
    }

    #[cold]
    fn pack_nearest(self) -> u64 {
        self.clamp(Timestamp::MIN, Timestamp::MAX).pack()
    }

    /// The time that `word` stands for.
    pub(crate) fn unpack(word: u64) -> Timestamp {
        let sec = (word >> 30).cast_signed() + Timestamp::MIN.sec;
        Timestamp { sec, nsec: word as u32 & ((1 << 30) - 1) }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> SystemTime {
        let seconds = Duration::from_secs(time.sec.unsigned_abs());
        let whole = if time.sec < 0 { UNIX_EPOCH - seconds } else { UNIX_EPOCH + seconds };
        whole + Duration::from_nanos(time.nsec.into())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.sec, self.nsec)
    }
}

/// The attributes of an inode, as `stat(2)` gives them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Number of the file system that holds the inode.
    pub dev: u64,
    /// Inode number, unique in its file system and never used again.
    pub ino: u64,
    /// File type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number that a device inode names.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Preferred size of I/O in bytes.
    pub blksize: u32,
    /// Storage in use, in units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of contents or attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

impl Stat {
    /// The file's type.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).unwrap_or(FileType::Regular)
    }

    /// The size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "as std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.size
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// When the contents changed last.
    ///
    /// # Errors
    /// None: a `Result`, as in std. Likewise of [`accessed`](Self::accessed) and [`created`](Self::created).
    pub fn modified(&self) -> Result<SystemTime, Errno> {
        Ok(self.mtime.into())
    }

    /// When the file was read last.
    ///
    /// # Errors
    /// None.
    pub fn accessed(&self) -> Result<SystemTime, Errno> {
        Ok(self.atime.into())
    }

    /// When the file was made.
    ///
    /// # Errors
    /// None.
    pub fn created(&self) -> Result<SystemTime, Errno> {
        Ok(self.btime.into())
    }

    /// The permission bits, set-ID and sticky bits included.
    pub fn permissions(&self) -> u32 {
        self.mode & S_IALLUGO
    }
}

/// The attributes of an inode, as `statx(2)` gives them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Statx {
    /// The attributes that `stat` gives, and the creation time.
    pub stat: Stat,
    /// Number of the mount that the file was reached through.
    pub mount_id: u64,
    /// True when the file is the root of a mount.
    pub mount_root: bool,
}

/// The state of a whole file system, as `statvfs(3)` gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StatFs {
    /// Size of a block in bytes.
    pub block_size: u32,
    /// Blocks in all; 0 when there is no limit.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Inodes in all; 0 when there is no limit.
    pub files: u64,
    /// Inodes free.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_survives_its_mode_bits() {
        use FileType::{BlockDevice, CharDevice, Directory, Fifo, Regular, Socket, Symlink};
        for kind in [Regular, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice] {
            assert_eq!(FileType::from_mode(kind.mode_bits() | 0o777), Some(kind));
        }
        assert_eq!(FileType::from_mode(0o777), None);
    }

    #[test]
    fn a_time_is_the_same_for_std() {
        for (sec, nsec) in [(-2, 500_000_000), (-1, 0), (0, 0), (0, 1), (1 << 33, 999_999_999)] {
            let time = SystemTime::from(Timestamp { sec, nsec });
            let since = match time.duration_since(UNIX_EPOCH) {
                Ok(after) => after.as_nanos().cast_signed(),
                Err(before) => -before.duration().as_nanos().cast_signed(),
            };
            assert_eq!(since, i128::from(sec) * 1_000_000_000 + i128::from(nsec));
        }
    }

    #[test]
    fn a_time_survives_being_packed_and_what_is_out_of_range_becomes_the_nearest() {
        let (first, last) = (Timestamp::MIN, Timestamp::MAX);
        let before = Timestamp { sec: first.sec - 1, nsec: 5 };
        let after = Timestamp { sec: last.sec + 1, nsec: 5 };
        let between = [Timestamp { sec: -1, nsec: 999_999_999 }, Timestamp::default(), Timestamp::now()];
        for time in between.into_iter().chain([first, last]) {
            assert_eq!(Timestamp::unpack(time.pack()), time);
        }
        for time in [before, Timestamp { sec: i64::MIN, nsec: 0 }] {
            assert_eq!(Timestamp::unpack(time.pack()), first);
        }
        for time in [after, Timestamp { sec: i64::MAX, nsec: 0 }] {
            assert_eq!(Timestamp::unpack(time.pack()), last);
        }
        assert!(between.map(Timestamp::pack).is_sorted(), "the later has the larger word");
    }
}
