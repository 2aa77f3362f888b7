//! Lock classes: the names of this crate's locks, whose order ARCHITECTURE.md has.

use sluice_sync::LockClass;

pub(crate) static OPEN_FILES_PROCESSES: LockClass = LockClass::new("vfs.open_files.processes");
pub(crate) static OPEN_FILES_PASSING: LockClass = LockClass::new("vfs.open_files.passing");
pub(crate) static SUPERBLOCK_TREES: LockClass = LockClass::new("vfs.superblock.trees");
pub(crate) static PROCESS_MOVING: LockClass = LockClass::new("vfs.process.moving");
pub(crate) static OPEN_FILE_CURSOR: LockClass = LockClass::new("vfs.open_file.cursor");
pub(crate) static MOUNT_TABLE: LockClass = LockClass::new("vfs.mount_table");
pub(crate) static QUOTA_CHANGING: LockClass = LockClass::new("vfs.quota.changing");
pub(crate) static MOMENT_TURN: LockClass = LockClass::new("vfs.moment.turn");
pub(crate) static MOMENT_KEPT: LockClass = LockClass::new("vfs.moment.kept");
pub(crate) static MOMENT_CHANGING: LockClass = LockClass::new("vfs.moment.changing");
pub(crate) static MOMENT_NAMES: LockClass = LockClass::new("vfs.moment.names");
pub(crate) static DURABLE_LEAVING: LockClass = LockClass::new("vfs.durable.leaving");
pub(crate) static DURABLE_LOADING: LockClass = LockClass::new("vfs.durable.loading");
pub(crate) static DURABLE_NUMBERS: LockClass = LockClass::new("vfs.durable.numbers");
pub(crate) static DURABLE_PENDING: LockClass = LockClass::new("vfs.durable.pending");
pub(crate) static DURABLE_REQUESTS: LockClass = LockClass::new("vfs.durable.requests");
pub(crate) static SCHEDULE: LockClass = LockClass::new("vfs.schedule");
pub(crate) static SUPERBLOCK_RENAME: LockClass = LockClass::new("vfs.superblock.rename");
pub(crate) static DIRECTORY_NAMES: LockClass = LockClass::new("vfs.directory.names");
pub(crate) static DIRECTORY_MOUNTS: LockClass = LockClass::new("vfs.directory.mounts");
pub(crate) static FILE_DATA: LockClass = LockClass::new("vfs.file.data");
pub(crate) static INODE_ATTR: LockClass = LockClass::new("vfs.inode.attr");
pub(crate) static DURABLE_CALM: LockClass = LockClass::new("vfs.durable.calm");
pub(crate) static INODE_HERE: LockClass = LockClass::new("vfs.inode.here");
pub(crate) static INODE_LOADING: LockClass = LockClass::new("vfs.inode.loading");
pub(crate) static INODE_KEPT: LockClass = LockClass::new("vfs.inode.kept");
pub(crate) static INODE_STORED: LockClass = LockClass::new("vfs.inode.stored");
pub(crate) static INODE_XATTRS: LockClass = LockClass::new("vfs.inode.xattrs");
pub(crate) static WATCH: LockClass = LockClass::new("vfs.watch");
pub(crate) static SUPERBLOCK_OBSERVERS: LockClass = LockClass::new("vfs.superblock.observers");

/// The level of a name in the second of two directories, that of the higher inode number.
pub(crate) const SECOND_DIRECTORY: u8 = 1;
