//! Outgoing: the layouts of replies and notifications.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Starts every reply and notification.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct OutHeader {
    pub len: u32,
    pub error: i32,
    pub unique: u64,
}

/// IOCTL; data follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct IoctlOut {
    pub result: i32,
    pub flags: u32,
    pub in_iovs: u32,
    pub out_iovs: u32,
}

/// INIT: what the server accepts.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    pub time_gran: u32,
    pub max_pages: u16,
    pub map_alignment: u16,
    pub flags2: u32,
    pub max_stack_depth: u32,
    pub request_timeout: u16,
    pub unused: [u16; 11],
}

/// The attributes of a node.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
    pub flags: u32,
}

/// A name's node, its attributes, and how long both stay valid.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct EntryOut {
    pub nodeid: u64,
    pub generation: u64,
    pub entry_valid: u64,
    pub attr_valid: u64,
    pub entry_valid_nsec: u32,
    pub attr_valid_nsec: u32,
    pub attr: Attr,
}

/// GETATTR and SETATTR.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct AttrOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub dummy: u32,
    pub attr: Attr,
}

/// A point in time in a [`Statx`].
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct SxTime {
    pub tv_sec: i64,
    pub tv_nsec: u32,
    pub reserved: i32,
}

/// The attributes of a node, creation time included.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct Statx {
    pub mask: u32,
    pub blksize: u32,
    pub attributes: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub spare0: u16,
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub attributes_mask: u64,
    pub atime: SxTime,
    pub btime: SxTime,
    pub ctime: SxTime,
    pub mtime: SxTime,
    pub rdev_major: u32,
    pub rdev_minor: u32,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub spare2: [u64; 14],
}

/// STATX.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct StatxOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub flags: u32,
    pub spare: [u64; 2],
    pub stat: Statx,
}

/// OPEN and OPENDIR.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct OpenOut {
    pub fh: u64,
    pub open_flags: u32,
    pub padding: u32,
}

/// WRITE and COPY_FILE_RANGE: how many bytes were taken.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct WriteOut {
    pub size: u32,
    pub padding: u32,
}

/// COPY_FILE_RANGE_64.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct CopyFileRangeOut {
    pub bytes_copied: u64,
}

/// STATFS.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct Kstatfs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
    pub padding: u32,
    pub spare: [u32; 6],
}

/// GETXATTR and LISTXATTR asked for the size only.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct GetxattrOut {
    pub size: u32,
    pub padding: u32,
}

/// GETLK.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct LkOut {
    pub lk: super::FileLock,
}

/// LSEEK.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct LseekOut {
    pub offset: u64,
}

/// A directory entry; its name follows, padded to 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Dirent {
    pub ino: u64,
    pub off: u64,
    pub namelen: u32,
    pub kind: u32,
}

/// Forget cached attributes, and pages from `off` on (none if negative).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct NotifyInvalInodeOut {
    pub ino: u64,
    pub off: i64,
    pub len: i64,
}

/// Keep `size` bytes of a file from `offset` on; they follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct NotifyStoreOut {
    pub nodeid: u64,
    pub offset: u64,
    pub size: u32,
    pub padding: u32,
}

/// Forget inodes that are not in use; their `count` numbers follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct NotifyPruneOut {
    pub count: u32,
    pub padding: u32,
    pub spare: u64,
}

/// Forget a cached name; the name follows with a NUL.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, KnownLayout, Immutable)]
pub struct NotifyInvalEntryOut {
    pub parent: u64,
    pub namelen: u32,
    pub flags: u32,
}
