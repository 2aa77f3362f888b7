//! Snapshot: a file system that begins with the tree of another, and shares the contents of its files.
//!
//! # Theory
//! The tree is copied from the top, each directory before what is in it; of contents no byte is. Their pages are
//! *frozen* (see `data`): whichever side writes to one first puts a copy in its place, so neither sees what the other
//! does later. Like after a reflink, each side counts and pays for all of its pages.
//!
//! No change of the tree waits for a snapshot, and of a file only what needs the file's mutex, while its pages are frozen.
//! So a snapshot is of one moment as a whole only if nobody changes the tree meanwhile; else this is:
//! ```text
//!   contents and size of a file           one moment: a write is in it whole or not at all
//!   mode, owner and ACLs of a file        one moment
//!   its extended attributes               one moment
//!   its times                             a moment each
//!   a name that is there throughout       is in it, and means what it meant at one moment
//!   a name that comes, goes or is moved   may be in it, or not
//! ```
//! Where a file is met again, under another name, that is a hard link; where a directory is (it was moved), it stays where
//! it was met first.
//!
//! # Cost
//! An inode for each inode, a slot of a radix tree for each page; for the time of the call, the names of one directory
//! and a map of the files that were met. Names are not looked up, attributes not checked: it is for callers that may read everything.

use crate::inode::{Body, InodeInit};
use crate::{Errno, Inode, InodeRef, Superblock};
use sluice_sync::Arc;
use std::collections::BTreeMap;

impl InodeRef {
    /// A new file system, independent of this one, whose root is this directory with everything below as it is now:
    /// names, hard links, attributes, access control lists, extended attributes, times, contents, holes. Inode numbers
    /// are new ones. Limits and policies are those of this file system; storage that was reserved and never written, file
    /// locks, leases, and files without a name do not come along. The module's header says what is of which moment.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` (the directory was removed); `ENOSPC` when changes made meanwhile lead beyond a limit.
    pub fn snapshot(&self) -> Result<Arc<Superblock>, Errno> {
        self.as_dir()?;
        if self.is_removed_dir() {
            return Err(Errno::ENOENT);
        }
        let superblock = Superblock::with_root(self.shared.options.clone(), self.init());
        superblock.root().take_after(self)?;
        let mut met = BTreeMap::from([(self.ino(), superblock.root().clone())]);
        let mut pending = vec![(self.clone(), superblock.root().clone())];
        while let Some((original, copy)) = pending.pop() {
            for (name, inode) in original.as_dir()?.list(|_| true) {
                match met.get(&inode.ino()) {
                    Some(met) if met.is_dir() => continue,
                    Some(met) => {
                        met.links.add()?;
                        copy.enter(&name, met)?;
                    }
                    None => {
                        let child = copy.copy_of(&inode)?;
                        copy.enter(&name, &child)?;
                        met.insert(inode.ino(), child.clone());
                        if child.is_dir() {
                            pending.push((inode, child));
                        }
                    }
                }
            }
        }
        Ok(superblock)
    }

    /// An inode like `original`, of another file system, to put into this directory. If it is a directory, it is empty.
    fn copy_of(&self, original: &Inode) -> Result<InodeRef, Errno> {
        let body = match &original.body {
            Body::Regular => Body::Regular,
            Body::Directory(_) => Body::new_directory(Some(self.clone())),
            Body::Symlink(target) => Body::Symlink(target.clone()),
            Body::Special { file_type, rdev } => Body::Special { file_type: *file_type, rdev: *rdev },
        };
        let inode = Inode::make(&self.shared, original.init(), body)?;
        inode.take_after(original)?;
        if let Ok(data) = original.data() {
            original.write_back_caches(None, 0..u64::MAX);
            inode.data.copy_whole(&*self.shared, data)?;
        }
        Ok(inode)
    }

    /// Gives `inode` the name `name` in this directory, of which nobody else knows yet.
    fn enter(&self, name: &[u8], inode: &InodeRef) -> Result<(), Errno> {
        let mut entry = self.lock_entry(name)?;
        entry.insert(inode.clone(), inode.weight()).map(drop).map_err(|_| Errno::ENOSPC)
    }
}

impl Inode {
    /// What an inode like this one begins with, which is to [take after](Self::take_after) it.
    fn init(&self) -> InodeInit {
        let nlink = if self.is_dir() { 2 } else { 1 };
        InodeInit { file_type: self.file_type(), mode: 0, uid: 0, gid: 0, nlink, born: self.born() }
    }

    /// Takes over all attributes of `original` that can change.
    fn take_after(&self, original: &Inode) -> Result<(), Errno> {
        let (theirs, lists) = original.with_acls(|attr, acls| (*attr, acls.clone()));
        self.change_acls(|attr, acls| {
            (attr.mode, attr.uid, attr.gid) = (theirs.mode, theirs.uid, theirs.gid);
            *acls = lists;
            Ok(())
        })?;
        if let Some(extra) = original.extra_if_any() {
            let xattrs = extra.xattrs.lock().clone();
            self.shared.charge(xattrs.charged())?;
            *self.extra().xattrs.lock() = xattrs;
        }
        self.times.set_as(&original.times);
        Ok(())
    }
}
