//! Outgoing: the layouts of replies and notifications.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Starts every reply and notification.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct OutHeader {
    pub(crate) len: u32,
    pub(crate) error: i32,
    pub(crate) unique: u64,
}

/// IOCTL; data follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct IoctlOut {
    pub(crate) result: i32,
    pub(crate) flags: u32,
    pub(crate) in_iovs: u32,
    pub(crate) out_iovs: u32,
}

/// INIT: what the server accepts.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct InitOut {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    pub(crate) max_background: u16,
    pub(crate) congestion_threshold: u16,
    pub(crate) max_write: u32,
    pub(crate) time_gran: u32,
    pub(crate) max_pages: u16,
    pub(crate) map_alignment: u16,
    pub(crate) flags2: u32,
    pub(crate) max_stack_depth: u32,
    pub(crate) request_timeout: u16,
    pub(crate) unused: [u16; 11],
}

/// The attributes of a node.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct Attr {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) atime: u64,
    pub(crate) mtime: u64,
    pub(crate) ctime: u64,
    pub(crate) atimensec: u32,
    pub(crate) mtimensec: u32,
    pub(crate) ctimensec: u32,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) blksize: u32,
    pub(crate) flags: u32,
}

/// A name's node, its attributes, and how long both stay valid.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct EntryOut {
    pub(crate) nodeid: u64,
    pub(crate) generation: u64,
    pub(crate) entry_valid: u64,
    pub(crate) attr_valid: u64,
    pub(crate) entry_valid_nsec: u32,
    pub(crate) attr_valid_nsec: u32,
    pub(crate) attr: Attr,
}

/// GETATTR and SETATTR.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct AttrOut {
    pub(crate) attr_valid: u64,
    pub(crate) attr_valid_nsec: u32,
    pub(crate) dummy: u32,
    pub(crate) attr: Attr,
}

/// A point in time in a [`Statx`].
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct SxTime {
    pub(crate) tv_sec: i64,
    pub(crate) tv_nsec: u32,
    pub(crate) reserved: i32,
}

/// The attributes of a node, creation time included.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct Statx {
    pub(crate) mask: u32,
    pub(crate) blksize: u32,
    pub(crate) attributes: u64,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
    pub(crate) spare0: u16,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) attributes_mask: u64,
    pub(crate) atime: SxTime,
    pub(crate) btime: SxTime,
    pub(crate) ctime: SxTime,
    pub(crate) mtime: SxTime,
    pub(crate) rdev_major: u32,
    pub(crate) rdev_minor: u32,
    pub(crate) dev_major: u32,
    pub(crate) dev_minor: u32,
    pub(crate) spare2: [u64; 14],
}

/// STATX.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct StatxOut {
    pub(crate) attr_valid: u64,
    pub(crate) attr_valid_nsec: u32,
    pub(crate) flags: u32,
    pub(crate) spare: [u64; 2],
    pub(crate) stat: Statx,
}

/// OPEN and OPENDIR.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct OpenOut {
    pub(crate) fh: u64,
    pub(crate) open_flags: u32,
    pub(crate) padding: u32,
}

/// WRITE and COPY_FILE_RANGE: how many bytes were taken.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct WriteOut {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

/// COPY_FILE_RANGE_64.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct CopyFileRangeOut {
    pub(crate) bytes_copied: u64,
}

/// STATFS.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct Kstatfs {
    pub(crate) blocks: u64,
    pub(crate) bfree: u64,
    pub(crate) bavail: u64,
    pub(crate) files: u64,
    pub(crate) ffree: u64,
    pub(crate) bsize: u32,
    pub(crate) namelen: u32,
    pub(crate) frsize: u32,
    pub(crate) padding: u32,
    pub(crate) spare: [u32; 6],
}

/// GETXATTR and LISTXATTR asked for the size only.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct GetxattrOut {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

/// GETLK.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct LkOut {
    pub(crate) lk: super::FileLock,
}

/// LSEEK.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct LseekOut {
    pub(crate) offset: u64,
}

/// A directory entry; its name follows, padded to 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct Dirent {
    pub(crate) ino: u64,
    pub(crate) off: u64,
    pub(crate) namelen: u32,
    pub(crate) kind: u32,
}

/// Forget cached attributes, and pages from `off` on (none if negative).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct NotifyInvalInodeOut {
    pub(crate) ino: u64,
    pub(crate) off: i64,
    pub(crate) len: i64,
}

/// Keep `size` bytes of a file from `offset` on; they follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct NotifyStoreOut {
    pub(crate) nodeid: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

/// Forget inodes that are not in use; their `count` numbers follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct NotifyPruneOut {
    pub(crate) count: u32,
    pub(crate) padding: u32,
    pub(crate) spare: u64,
}

/// Forget a cached name; the name follows with a NUL.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct NotifyInvalEntryOut {
    pub(crate) parent: u64,
    pub(crate) namelen: u32,
    pub(crate) flags: u32,
}
