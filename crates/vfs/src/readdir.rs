//! Readdir: listing a directory from a position on.

use crate::dir::{POSITION_DOT, POSITION_DOTDOT};
use crate::{Errno, FileType, InodeRef};

/// One entry of a directory as a reader sees it.
#[derive(Clone, Copy)]
pub struct DirEntry<'a> {
    /// The name, "." and ".." included.
    pub name: &'a [u8],
    /// What the name means.
    pub inode: &'a InodeRef,
    /// Where to go on after this entry. Stays valid whatever happens to the directory.
    pub position: u64,
}

impl DirEntry<'_> {
    /// The inode number.
    pub fn ino(&self) -> u64 {
        self.inode.ino()
    }

    /// The file type.
    pub fn file_type(&self) -> FileType {
        self.inode.file_type()
    }
}

impl InodeRef {
    /// Calls `visit` for the entries past position `from` (0: from the start) until it answers false; that
    /// entry counts as not read. An entry that is there from the first call to the last is visited exactly
    /// once.
    ///
    /// `visit` runs under the directory's lock: it must not call back into the file system.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` when the directory was removed.
    pub fn read_dir(&self, from: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<(), Errno> {
        self.visit_entries(from, visit)?;
        self.touch_atime();
        Ok(())
    }

    /// As [`read_dir`](Self::read_dir), leaving the access time alone.
    pub(crate) fn visit_entries(
        &self,
        from: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let dir = self.as_dir()?;
        let parent = self.parent().ok_or(Errno::ENOTDIR)?;
        let names = dir.names.read();
        if names.is_dead() {
            return Err(Errno::ENOENT);
        }
        let dots = [(POSITION_DOT, &b"."[..], self), (POSITION_DOTDOT, &b".."[..], &parent)];
        for (position, name, inode) in dots {
            if position > from && !visit(DirEntry { name, inode, position }) {
                return Ok(());
            }
        }
        for (position, entry) in names.after(from.max(POSITION_DOTDOT)) {
            if !visit(DirEntry { name: &entry.name, inode: &entry.inode, position }) {
                break;
            }
        }
        Ok(())
    }

    /// The position of the newest entry: a reader that began when it was this needs to go no further.
    pub(crate) fn last_position(&self) -> Result<u64, Errno> {
        Ok(self.as_dir()?.names.read().last_position())
    }
}
