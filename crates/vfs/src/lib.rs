//! `sluice-vfs`: a POSIX file system in process.
//!
//! # Entry points
//! - [`Fs`]: a tree of mounted file systems, and calls in the manner of `std::fs` on it.
//! - [`File`], [`OpenOptions`], [`Dir`]: open files and directories that close themselves.
//! - [`Process`]: credentials, umask, working directory and descriptors; the POSIX calls as methods.
//! - [`Superblock`] and [`Inode`]: one file system without names for its users, for servers such as a FUSE
//!   mount that keep their own handles.
//!
//! # Lock order
//! By class of lock, downwards only; `tests/lock_order.rs` compares it with what programs did.
//! ```text
//! vfs.process.moving              a working directory; never held across a call into an inode
//!   vfs.open_file.cursor          its position; held across that read or write
//!     vfs.mount_table             changes of the tree of mounts; never held across a call into an inode
//!       vfs.directory.mounts      the mounts that stand on one directory
//!       vfs.superblock.rename     renames that give a directory another parent
//!       vfs.watch                 each change of a file system that is watched for a test
//!         vfs.directory.names     each bucket of a directory; of two directories: by inode number
//!           vfs.file.data         one file at a time; then its pages by number
//!             vfs.inode.attr, vfs.inode.xattrs, vfs.superblock.observers: leaves
//! vfs.open_files.processes, vfs.open_files.passing, vfs.superblock.trees: leaves, under none of those above
//! ```
//! A durable file system takes the locks of its store between the rename lock and names; ARCHITECTURE has the whole order.
//! Observers (see [`Observer`]) are called with none of these held.

#![doc = include_str!("cookbook.md")]
#![forbid(unsafe_code)]

mod acl;
mod archive;
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
mod host;
mod inode;
mod inode_flags;
mod links;
mod lock_class;
mod memory;
mod mount;
mod namei;
mod observer;
mod open_counts;
mod open_file;
mod open_files;
mod ops;
mod paths;
mod permission;
mod process;
mod readdir;
mod recall;
mod snapshot;
mod stat;
mod superblock;
mod times;
mod watch;

pub use check::{CheckReport, Finding};
pub use cred::{Caps, Cred};
pub use durable::{RequestId, RequestServed};
pub use errno::Errno;
pub use flags::{Access, AtFlags, FallocateMode, OpenFlags, RenameFlags, Whence, XattrFlags};
pub use fs::{Fs, Walk, WalkEntry};
pub use handle::{Dir, File, OpenOptions};
pub use host::Transfer;
pub use inode::{Inode, InodeRef};
pub use inode_flags::InodeFlags;
pub use memory::{Held, Memory, MemoryUse};
pub use mount::{MountFlags, UmountFlags};
pub use observer::{Observer, ObserverId};
pub use open_files::{FileInUse, Holder};
pub use ops::attr::{SetAttr, SetTime};
pub use ops::create::{NewInode, NewKind};
pub use process::{Dirent, Dirents, Fd, FileLock, FlockOperation, LockType, Process};
pub use readdir::DirEntry;
pub use sluice_store::{Content as StoreContent, Options as StoreOptions, StoreError};
pub use snapshot::SNAPSHOTS;
pub use stat::{FileType, Stat, StatFs, Statx, Timestamp};
pub use superblock::{Options, Superblock};
pub use watch::crash::Unsynced;
pub use watch::fault::{Calls, Effect, Fault, FaultId};

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
