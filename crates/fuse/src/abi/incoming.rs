//! Incoming: the layouts of requests.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Starts every request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct InHeader {
    pub(crate) len: u32,
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) nodeid: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    pub(crate) total_extlen: u16,
    pub(crate) padding: u16,
}

/// INIT: what the kernel offers.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct InitIn {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    pub(crate) flags2: u32,
    pub(crate) unused: [u32; 11],
}

/// FORGET: give back lookups of one node.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct ForgetIn {
    pub(crate) nlookup: u64,
}

/// BATCH_FORGET: how many [`ForgetOne`] follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct BatchForgetIn {
    pub(crate) count: u32,
    pub(crate) dummy: u32,
}

/// One node of a BATCH_FORGET.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct ForgetOne {
    pub(crate) nodeid: u64,
    pub(crate) nlookup: u64,
}

/// SETATTR: `valid` says which fields count.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct SetattrIn {
    pub(crate) valid: u32,
    pub(crate) padding: u32,
    pub(crate) fh: u64,
    pub(crate) size: u64,
    pub(crate) lock_owner: u64,
    pub(crate) atime: u64,
    pub(crate) mtime: u64,
    pub(crate) ctime: u64,
    pub(crate) atimensec: u32,
    pub(crate) mtimensec: u32,
    pub(crate) ctimensec: u32,
    pub(crate) mode: u32,
    pub(crate) unused4: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) unused5: u32,
}

/// MKNOD; the name follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct MknodIn {
    pub(crate) mode: u32,
    pub(crate) rdev: u32,
    pub(crate) umask: u32,
    pub(crate) padding: u32,
}

/// MKDIR; the name follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct MkdirIn {
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

/// RENAME; old and new name follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct RenameIn {
    pub(crate) newdir: u64,
}

/// RENAME2; old and new name follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct Rename2In {
    pub(crate) newdir: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// LINK; the new name follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct LinkIn {
    pub(crate) oldnodeid: u64,
}

/// CREATE and TMPFILE; the name follows.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct CreateIn {
    pub(crate) flags: u32,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
    pub(crate) open_flags: u32,
}

/// RELEASE and RELEASEDIR.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct ReleaseIn {
    pub(crate) fh: u64,
    pub(crate) flags: u32,
    pub(crate) release_flags: u32,
    pub(crate) lock_owner: u64,
}

/// FLUSH: a descriptor was closed.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct FlushIn {
    pub(crate) fh: u64,
    pub(crate) unused: u32,
    pub(crate) padding: u32,
    pub(crate) lock_owner: u64,
}

/// READ, READDIR and READDIRPLUS.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct ReadIn {
    pub(crate) fh: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) read_flags: u32,
    pub(crate) lock_owner: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// WRITE; the data follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct WriteIn {
    pub(crate) fh: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) write_flags: u32,
    pub(crate) lock_owner: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// SETXATTR in its extended form; name and value follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct SetxattrIn {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) setxattr_flags: u32,
    pub(crate) padding: u32,
}

/// ACCESS: the bits of `access`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct AccessIn {
    pub(crate) mask: u32,
    pub(crate) padding: u32,
}

/// GETXATTR (the name follows) and LISTXATTR.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct GetxattrIn {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

/// A byte range and who locks it; `end` is inclusive.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct FileLock {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) lock_type: u32,
    pub(crate) pid: u32,
}

/// GETLK, SETLK and SETLKW.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct LkIn {
    pub(crate) fh: u64,
    pub(crate) owner: u64,
    pub(crate) lk: FileLock,
    pub(crate) lk_flags: u32,
    pub(crate) padding: u32,
}

/// INTERRUPT: a signal came for the client of request `unique`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct InterruptIn {
    pub(crate) unique: u64,
}

/// FALLOCATE.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct FallocateIn {
    pub(crate) fh: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) mode: u32,
    pub(crate) padding: u32,
}

/// OPEN and OPENDIR.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct OpenIn {
    pub(crate) flags: u32,
    pub(crate) open_flags: u32,
}

/// IOCTL; `in_size` bytes of data follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct IoctlIn {
    pub(crate) fh: u64,
    pub(crate) flags: u32,
    pub(crate) cmd: u32,
    pub(crate) arg: u64,
    pub(crate) in_size: u32,
    pub(crate) out_size: u32,
}

/// The argument of FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR: `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct FsXattr {
    pub(crate) xflags: u32,
    pub(crate) extsize: u32,
    pub(crate) nextents: u32,
    pub(crate) projid: u32,
    pub(crate) cowextsize: u32,
    pub(crate) padding: [u8; 8],
}

/// LSEEK: SEEK_DATA and SEEK_HOLE.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct LseekIn {
    pub(crate) fh: u64,
    pub(crate) offset: u64,
    pub(crate) whence: u32,
    pub(crate) padding: u32,
}

/// COPY_FILE_RANGE.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct CopyFileRangeIn {
    pub(crate) fh_in: u64,
    pub(crate) off_in: u64,
    pub(crate) nodeid_out: u64,
    pub(crate) fh_out: u64,
    pub(crate) off_out: u64,
    pub(crate) len: u64,
    pub(crate) flags: u64,
}
