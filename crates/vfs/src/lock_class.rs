//! Lock classes: the names of this crate's locks, in the order in which a thread takes them (see the crate's header).

use sluice_sync::LockClass;

pub(crate) static PROCESS_CWD: LockClass = LockClass::new("vfs.process.cwd");
pub(crate) static PROCESS_DESCRIPTORS: LockClass = LockClass::new("vfs.process.descriptors");
pub(crate) static OPEN_FILE_CURSOR: LockClass = LockClass::new("vfs.open_file.cursor");
pub(crate) static MOUNT_TABLE: LockClass = LockClass::new("vfs.mount_table");
pub(crate) static MOUNT_PLACE: LockClass = LockClass::new("vfs.mount.place");
pub(crate) static SUPERBLOCK_RENAME: LockClass = LockClass::new("vfs.superblock.rename");
pub(crate) static DIRECTORY_NAMES: LockClass = LockClass::new("vfs.directory.names");
pub(crate) static FILE_DATA: LockClass = LockClass::new("vfs.file.data");
pub(crate) static INODE_ATTR: LockClass = LockClass::new("vfs.inode.attr");
pub(crate) static INODE_XATTRS: LockClass = LockClass::new("vfs.inode.xattrs");
pub(crate) static DIRECTORY_PARENT: LockClass = LockClass::new("vfs.directory.parent");
pub(crate) static BUDGET_NEAR: LockClass = LockClass::new("vfs.budget.near");
pub(crate) static SUPERBLOCK_OBSERVERS: LockClass = LockClass::new("vfs.superblock.observers");

/// The level of the second of two directories' names: below the first in the tree, or of a higher inode number.
pub(crate) const SECOND_DIRECTORY: u8 = 1;
/// The level of the names of a directory that is being removed, under those of one or two directories above it.
pub(crate) const REMOVED_DIRECTORY: u8 = 2;
