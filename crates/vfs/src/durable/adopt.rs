//! Adopt: finding inodes by their numbers, for a kernel that knew them before this process opened the file system.

use super::keys::Key;
use super::record::InodeRecord;
use super::{Durable, errno};
use crate::superblock::{ROOT_INO, SharedRef};
use crate::{Errno, InodeRef, Superblock};
use std::collections::{BTreeMap, BTreeSet};

impl Superblock {
    /// Finds the inodes with these numbers. A file that lost its last name while it was open somewhere is found, too, and stays
    /// as long as what is returned: but only until something is made durable, as it is deleted then. A directory without a name
    /// is not found.
    ///
    /// Takes as long as it takes to read the names of the tree, or of the part in which all of them are found.
    pub fn adopt(&self, wanted: &BTreeSet<u64>) -> BTreeMap<u64, InodeRef> {
        let root = self.root();
        let mut left = wanted.clone();
        let mut found = BTreeMap::new();
        if left.remove(&ROOT_INO) {
            found.insert(ROOT_INO, root.clone());
        }
        if let Some(durable) = root.shared.durable() {
            for &ino in wanted {
                if let Some(orphan) = durable.adopt_orphan(&root.shared, ino) {
                    left.remove(&ino);
                    found.insert(ino, orphan);
                }
            }
        }
        let mut directories = vec![root.clone()];
        while let Some(dir) = directories.pop()
            && !left.is_empty()
        {
            // What cannot be loaded is not there.
            for (_, inode) in dir.list_names(|_| true).unwrap_or_default() {
                if left.remove(&inode.ino()) {
                    found.insert(inode.ino(), inode.clone());
                }
                if inode.is_dir() {
                    directories.push(inode);
                }
            }
        }
        found
    }
}

impl Durable {
    /// The file `ino`, if it has no name and is to be deleted: it will be when its last user lets go.
    fn adopt_orphan(&self, shared: &SharedRef, ino: u64) -> Option<InodeRef> {
        let gone = self.pending.removals.take(ino)?;
        match self.revive_nameless(shared, ino) {
            Ok(inode) if !inode.is_dir() => {
                // It did not count, as it was to be deleted.
                shared.count_found(1, inode.bytes_charged());
                self.nameless.exceed(1);
                Some(inode)
            }
            _ => {
                self.pending.removals.remove(gone);
                None
            }
        }
    }

    fn revive_nameless(&self, shared: &SharedRef, ino: u64) -> Result<InodeRef, Errno> {
        let bytes = self.store.get(&Key::inode(ino)).map_err(|error| errno(&error))?.ok_or(Errno::ENOENT)?;
        let mut record = InodeRecord::decode(&bytes).ok_or(Errno::EIO)?;
        record.nlink = 0;
        self.revive_from(shared, ino, None, record)
    }
}
