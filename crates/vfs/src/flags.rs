//! Flags: the bit sets that callers pass, with the values of Linux on x86-64.

use bitflags::bitflags;

bitflags! {
    /// How to open a file: an access mode (`RDONLY`, `WRONLY` or `RDWR`) and options.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct OpenFlags: u32 {
        /// Open for writing only.
        const WRONLY = 0o1;
        /// Open for reading and writing.
        const RDWR = 0o2;
        /// Create the file if there is none.
        const CREAT = 0o100;
        /// With `CREAT`: fail if the file exists.
        const EXCL = 0o200;
        /// Accepted and without effect: sluicefs has no terminals.
        const NOCTTY = 0o400;
        /// Make the file empty.
        const TRUNC = 0o1000;
        /// Write at the end of the file, always.
        const APPEND = 0o2000;
        /// Do not wait.
        const NONBLOCK = 0o4000;
        /// Make data durable on each write.
        const DSYNC = 0o10_000;
        /// Bypass caches. Accepted; memory has none to bypass.
        const DIRECT = 0o40_000;
        /// Accepted and without effect: offsets are always 64 bits wide.
        const LARGEFILE = 0o100_000;
        /// Fail unless the path names a directory.
        const DIRECTORY = 0o200_000;
        /// Fail if the last component is a symbolic link.
        const NOFOLLOW = 0o400_000;
        /// Do not update the access time.
        const NOATIME = 0o1_000_000;
        /// Close the descriptor on exec. Kept, since a library has no exec.
        const CLOEXEC = 0o2_000_000;
        /// Make data and attributes durable on each write (includes `DSYNC`).
        const SYNC = 0o4_010_000;
        /// A descriptor that names a place and does not open the file.
        const PATH = 0o10_000_000;
        /// An unnamed regular file in the directory that the path names (includes `DIRECTORY`).
        const TMPFILE = 0o20_200_000;
        /// The two bits of the access mode.
        const ACCMODE = 0o3;

        const _ = !0;
    }

    /// The kinds of access that `access` asks for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct Access: u32 {
        /// Execute, or search a directory.
        const EXEC = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;

        const _ = !0;
    }

    /// Options of the calls that take a directory descriptor and a path.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct AtFlags: u32 {
        /// Do not follow a symbolic link in the last component.
        const SYMLINK_NOFOLLOW = 0x100;
        /// `unlinkat`: remove a directory.
        const REMOVEDIR = 0x200;
        /// `faccessat`: use the effective credentials.
        const EACCESS = 0x200;
        /// Follow a symbolic link in the last component (`linkat`).
        const SYMLINK_FOLLOW = 0x400;
        /// Accepted and without effect: there is no automounter.
        const NO_AUTOMOUNT = 0x800;
        /// An empty path names the descriptor itself.
        const EMPTY_PATH = 0x1000;
        /// `statx`: ask the server of a network file system. Accepted and without effect.
        const STATX_FORCE_SYNC = 0x2000;
        /// `statx`: do not ask the server. Accepted and without effect.
        const STATX_DONT_SYNC = 0x4000;

        const _ = !0;
    }

    /// Options of `renameat2`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct RenameFlags: u32 {
        /// Fail if the new name exists.
        const NOREPLACE = 1;
        /// Exchange the two names.
        const EXCHANGE = 2;
        /// Leave a whiteout under the old name, a character device with number 0, as overlay file systems mark names
        /// that are removed.
        const WHITEOUT = 4;

        const _ = !0;
    }

    /// Modes of `fallocate`; the empty set reserves space and grows the file.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct FallocateMode: u32 {
        /// Leave the file's size.
        const KEEP_SIZE = 0x01;
        /// Make the range a hole (needs `KEEP_SIZE`).
        const PUNCH_HOLE = 0x02;
        /// Remove the range; what follows moves down.
        const COLLAPSE_RANGE = 0x08;
        /// Make the range read as zeros.
        const ZERO_RANGE = 0x10;
        /// Insert a hole; what follows moves up.
        const INSERT_RANGE = 0x20;

        const _ = !0;
    }

    /// Options of `setxattr`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct XattrFlags: u32 {
        /// Fail if the attribute exists.
        const CREATE = 1;
        /// Fail if the attribute does not exist.
        const REPLACE = 2;

        const _ = !0;
    }
}

impl OpenFlags {
    /// Open for reading only: no bit at all.
    pub const RDONLY: OpenFlags = OpenFlags::empty();

    /// True when the access mode allows reading.
    pub fn readable(self) -> bool {
        matches!(self.bits() & 3, 0 | 2)
    }

    /// True when the access mode allows writing.
    pub fn writable(self) -> bool {
        matches!(self.bits() & 3, 1 | 2)
    }
}

/// From where `lseek` counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Whence {
    /// The start of the file.
    Set,
    /// The current position.
    Cur,
    /// The end of the file.
    End,
    /// The next byte at or after the offset that is stored.
    Data,
    /// The next byte at or after the offset that is a hole; the end of the file counts as one.
    Hole,
}
