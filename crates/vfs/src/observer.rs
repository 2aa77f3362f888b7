//! Observer: what wants to know of changes, such as a FUSE mount whose kernel caches names and attributes.

use crate::InodeRef;
use std::ops::Range;

/// Names an observer within its file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ObserverId(pub(crate) u64);

/// Told of each change to a file system that somebody else made. Called after the change is visible, with
/// no lock of this crate held, on the thread that made the change.
pub trait Observer: Send + Sync {
    /// True when this observer must be the only one, because it writes what it has not handed down yet. Asked once.
    fn is_alone(&self) -> bool {
        false
    }

    /// The name `name` in directory `dir` (inode numbers) now means something else, or nothing.
    /// `child` is the inode that had the name before, if any: its attributes changed, too.
    fn entry_changed(&self, dir: u64, name: &[u8], child: Option<u64>);

    /// The attributes of inode `ino` changed.
    fn attributes_changed(&self, ino: u64);

    /// A name of `inode` is about to be removed, or moved; or not, if that fails. Told if somebody has said
    /// [`Superblock::expect_inodes`](crate::Superblock::expect_inodes): from then on its number may lead nowhere.
    fn name_leaves(&self, _inode: &InodeRef) {}

    /// Inode `ino` lost a name. The observer on whose behalf the name was removed is told, too.
    fn name_lost(&self, _ino: u64) {}

    /// More inodes are in memory than the limit allows, `inos` among them, to which no name in memory leads: somebody refers to
    /// them. An observer whose users remember inodes without using them, such as a kernel, makes them forget these, and says
    /// [`Superblock::forgotten`](crate::Superblock::forgotten) when they have. Children come before their directories.
    fn memory_is_short(&self, _inos: &[u64]) {}

    /// The contents of inode `ino` are about to be read or changed in `bytes`. An observer whose users may have newer bytes,
    /// such as a kernel with pages that a process changed through a mapping, hands them down before it returns. Asked
    /// before the call, of inodes that somebody [noted](crate::Inode::note_cached), and with no lock of this crate held.
    fn write_back(&self, ino: u64, bytes: Range<u64>) {
        let _ = (ino, bytes);
    }

    /// A tree is about to be copied: as [`write_back`](Self::write_back), of all inodes.
    fn write_back_all(&self) {}

    /// The contents of inode `ino` changed in `offset..offset + len`; `len` 0 means to the end.
    fn data_changed(&self, ino: u64, offset: u64, len: u64);
}
