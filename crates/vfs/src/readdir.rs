//! Readdir: listing a directory from a position on.

use crate::dir::{Dir, POSITION_DOT, POSITION_DOTDOT};
use crate::{Errno, FileType, InodeRef};

/// One entry of a directory as a reader sees it.
#[derive(Clone, Copy, Debug)]
pub struct ListedName<'a> {
    /// The name, "." and ".." included.
    pub name: &'a [u8],
    /// The inode to which the name leads.
    pub inode: &'a InodeRef,
    /// Where to go on after this entry. Stays valid whatever happens to the directory.
    pub position: u64,
}

impl ListedName<'_> {
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
    /// entry counts as not read. `update_atime`: the directory's access time moves. An entry that is there from the first
    /// call to the last is visited exactly once. The directory of the [snapshots](crate::SNAPSHOTS) is not listed.
    ///
    /// `visit` runs in a read section, in which no inode and no name is freed: it must be quick.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` when the directory was removed.
    pub fn read_dir(
        &self,
        from: u64,
        update_atime: bool,
        visit: &mut dyn FnMut(ListedName<'_>) -> bool,
    ) -> Result<(), Errno> {
        self.visit_entries(from, visit)?;
        if update_atime {
            self.touch_atime();
        }
        Ok(())
    }

    /// Visits the entries after `from` and leaves the access time alone. Returns the position of the last entry read, or `from`.
    pub(crate) fn visit_entries(
        &self,
        from: u64,
        visit: &mut dyn FnMut(ListedName<'_>) -> bool,
    ) -> Result<u64, Errno> {
        let (dir, mut last) = (self.as_dir()?, from);
        while !self.visit_here(dir, &mut last, visit)? {}
        Ok(last)
    }

    /// Visits entries past `last`, which it moves. False if names left memory, or came, meanwhile: then others follow.
    fn visit_here(
        &self,
        dir: &Dir,
        last: &mut u64,
        visit: &mut dyn FnMut(ListedName<'_>) -> bool,
    ) -> Result<bool, Errno> {
        self.load_names()?;
        let (section, departures, from) = (dir.names.read(), dir.departures(), *last);
        if dir.names.is_dead() {
            return Err(Errno::ENOENT);
        }
        let parent = dir.parent(&section).unwrap_or(self);
        let dots = [(POSITION_DOT, &b"."[..], self), (POSITION_DOTDOT, &b".."[..], parent)];
        for (position, name, inode) in dots {
            if position > from {
                if !visit(ListedName { name, inode, position }) {
                    return Ok(true);
                }
                *last = position;
            }
        }
        for (position, name, inode) in dir.names.after(from.max(POSITION_DOTDOT), &section) {
            // None that comes before this one has left.
            if dir.departures() != departures {
                return Ok(false);
            }
            if !self.has_snapshots_in(inode) && !visit(ListedName { name, inode, position }) {
                return Ok(true);
            }
            *last = position;
        }
        drop(section);
        dir.names.shrink();
        Ok(self.are_names_here(departures))
    }
}
