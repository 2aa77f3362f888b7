//! `sluice-vfs`: a POSIX file system in process. The cookbook is below; `examples/` has whole programs.
//!
//! # Entry points
//! - [`Fs`]: a tree of mounted file systems, and calls in the manner of `std::fs` on it.
//! - [`Fs::builder`]: limits, the root's owner, a store. [`Fs::create_store`], [`Fs::open_store`]: a file system that survives.
//! - [`File`], [`OpenOptions`], [`Dir`], [`DirEntry`], [`Stat`]: the names of `std::fs`, on a file system that is given first.
//! - [`Process`]: credentials, umask, working directory and descriptors; the POSIX calls as methods.
//! - [`Superblock`] and [`Inode`]: one file system without names for its users, for servers such as a FUSE
//!   mount that keep their own handles.
//!
#![doc = include_str!("cookbook.md")]
//!
//! # Lock order
//! ARCHITECTURE.md has it: *The one lock order*; `tests/lock_order.rs` compares it with what programs did.
//! Observers (see [`Observer`]) are called with no lock of this crate held.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(not(target_os = "linux"))]
compile_error!("sluice-vfs is for Linux: it uses futexes and system calls that other systems do not have");

mod acl;
mod at_once;
mod attributes;
mod check;
mod cred;
mod cursor;
mod data;
mod dir;
mod durable;
mod errno;
mod flags;
mod fs;
mod handle;
mod inode;
mod inode_flags;
mod links;
mod lock_class;
mod memory;
mod moment;
mod mount;
mod namei;
mod observer;
mod open_counts;
mod open_file;
mod open_files;
mod ops;
mod options;
mod paths;
mod permission;
mod process;
mod quota;
mod readdir;
mod recall;
mod received;
mod restore;
mod schedule;
mod scheduled;
mod snapshot;
mod stat;
mod superblock;
mod times;
mod utc;
mod watch;

pub use check::{CheckReport, Finding};
pub use cred::{Caps, Cred};
pub use durable::{PushClock, RequestId, RequestServed, ScrubFinding, ScrubState};
pub use errno::Errno;
pub use flags::{Access, AtFlags, FallocateMode, OpenFlags, RenameFlags, Whence, XattrFlags};
pub use fs::{Fs, Walk, WalkEntry};
pub use handle::{Dir, DirEntry, File, OpenOptions, ReadDir};
pub use inode::{Inode, InodeRef};
pub use inode_flags::InodeFlags;
pub use memory::{Held, Memory, MemoryUse, StoreUse};
pub use mount::{MountFlags, UmountFlags};
pub use observer::{Observer, ObserverId};
pub use open_files::{FileInUse, Holder};
pub use ops::attr::{SetAttr, SetTime};
pub use ops::create::{NewInode, NewKind};
pub use options::Options;
pub use process::{Dirent, Dirents, Fd, FileLock, FlockOperation, LockType, Process};
pub use quota::QuotaUse;
pub use readdir::ListedName;
pub use received::NewSnapshot;
pub use schedule::{SnapshotPeriod, SnapshotSchedule};
pub use sluice_store::{Content as StoreContent, Options as StoreOptions, StoreError, StoreKey};
pub use snapshot::{SNAPSHOTS, SnapshotInfo, TreeSize};
pub use stat::{FileType, Stat, StatFs, Statx, Timestamp};
pub use superblock::Superblock;
pub use utc::UtcTime;
pub use watch::caller::CalledBy;
pub use watch::crash::Unsynced;
pub use watch::fault::{Calls, Effect, Fault, FaultId};
pub use watch::history::{ChangeHistory, CrashPoint, PastChange};
pub use watch::losses::Losses;

/// The longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// The longest path, in bytes, its terminating NUL (which callers of this library do not write) included.
pub const PATH_MAX: usize = 4096;
/// The most symbolic links that one path walk follows.
pub const SYMLOOP_MAX: usize = 40;
/// The most links to one inode.
pub const LINK_MAX: u32 = u32::MAX;
/// The largest offset and file size, in bytes.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// The longest value of an extended attribute, in bytes.
pub const XATTR_SIZE_MAX: usize = 65536;

pub use sluice_locks::{Cancel, LeaseBreak, Notice};

/// The program in the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
