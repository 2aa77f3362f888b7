//! Flags: the bits of the protocol's flag words, by the kernel's names.

use bitflags::bitflags;

bitflags! {
    /// The features that kernel and server agree on in INIT. The upper half travels in `flags2`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const POSIX_LOCKS = 1 << 1;
        const ATOMIC_O_TRUNC = 1 << 3;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const FLOCK_LOCKS = 1 << 10;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const POSIX_ACL = 1 << 20;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;

        const _ = !0;
    }

    /// Which fields of a SETATTR request count.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Fattr: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const LOCKOWNER = 1 << 9;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;

        const _ = !0;
    }
}

/// OPEN reply: each read is a message, whatever size the file has.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// OPEN reply: keep the cached pages of the file.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// OPENDIR reply: the kernel may cache the directory's entries.
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// GETLK, SETLK, SETLKW: a flock and not a byte range.
pub const LK_FLOCK: u32 = 1 << 0;
/// WRITE: written back from the page cache; whose write it was is a guess.
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE: clear set-ID bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// SETXATTR of an access ACL: clear the set-group-ID bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// IOCTL: read the flags of a file.
pub const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
/// IOCTL: set them.
pub const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// IOCTL: read them and more as a `struct fsxattr`.
pub const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
/// IOCTL: set these.
pub const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// `fl_type` of a lock: shared.
pub const F_RDLCK: u32 = 0;
/// `fl_type` of a lock: exclusive.
pub const F_WRLCK: u32 = 1;
/// `fl_type` of a lock: none.
pub const F_UNLCK: u32 = 2;

/// `st_mask` bits of a statx reply: all the attributes of `stat`, and the creation time.
pub const STATX_BASIC_STATS_AND_BTIME: u32 = 0xfff;

/// io_uring command: take an entry, and complete with the first request in it.
pub const RING_REGISTER: u32 = 1;
/// io_uring command: take the answer out of an entry, and complete with the next request in it.
pub const RING_COMMIT_AND_FETCH: u32 = 2;

/// Notification codes, sent in place of an error with `unique` 0.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// The meaning of a name changed.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// Keep bytes of a file, which follow.
pub const NOTIFY_STORE: i32 = 4;
/// INVAL_ENTRY: the name stays, and is looked up again before it is believed (Linux 6.2, protocol 7.38).
pub const EXPIRE_ONLY: u32 = 1 << 0;
/// Make requests again that were read and not answered (Linux 6.9).
pub const NOTIFY_RESEND: i32 = 7;
/// Forget inodes that are not in use (Linux 6.18).
pub const NOTIFY_PRUNE: i32 = 9;
/// Look every name up again (Linux 6.16).
pub const NOTIFY_INC_EPOCH: i32 = 8;
