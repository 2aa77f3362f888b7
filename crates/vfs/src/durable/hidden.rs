//! Hidden: a new tree below a directory without a name, which gets its name at the end.
//!
//! # Theory
//! Observers see a clone whole, or see no part of it. The store knows nothing of a small one before the end: the section that gives the
//! top its name lists all inodes, so one cut has them. A large clone leaves memory before, by *batches*. The top of such a tree
//! stands in the store as an orphan with names: an inode without a name, and with a tree below it.
//! ```text
//!   orphan record of the top, with names; the inodes of a batch, their names      one cut
//!   write_out(): the tree of the store has them; their names leave memory         again and again
//!   the top's name, no orphan record                                              one cut
//! ```
//! A crash before the last cut leaves an orphan, and opening the store removes what is below it, too (`remains.rs`). After an
//! error the tree is removed as anybody's tree is.
//!
//! The directories on the way from the top to the one that is being filled get more names after theirs left: no call looks one up
//! before the end, so these are not loaded. The next batch puts down the names that are in memory.
//!
//! # Cost
//! A checkpoint for each batch, and there is one batch for a quarter of the names that may be in memory.

use super::names::{Hand, NameSet};
use super::{Durable, errno};
use crate::dir::Burial;
use crate::inode::flag;
use crate::superblock::INODE_BYTES;
use crate::{Cred, Errno, Inode, InodeRef};

/// A batch has this part of the inodes that may be in memory.
const BATCH_SHARE: u64 = 4;

/// A new tree that has no name.
pub(crate) struct HiddenTree {
    top: InodeRef,
    /// New inodes, and those with new names and their directories, of which the store knows nothing yet; of a tree in memory none.
    made: Vec<InodeRef>,
    /// The directory that got the last name, and is among them for that.
    grows: u64,
    /// The store has batches of it.
    is_begun: bool,
}

impl HiddenTree {
    /// The tree of the directory `top`, or the file `top`, which nobody knows.
    pub(crate) fn new(top: &InodeRef) -> HiddenTree {
        HiddenTree { top: top.clone(), made: Vec::new(), grows: 0, is_begun: false }
    }

    /// The tree of the directory `top`, which has lost its name, and is to be removed.
    pub(crate) fn without_name(top: &InodeRef) -> HiddenTree {
        HiddenTree { is_begun: true, ..HiddenTree::new(top) }
    }

    pub(crate) fn top(&self) -> &InodeRef {
        &self.top
    }

    /// Inodes that were made since names left memory; some are there twice.
    pub(super) fn made(&self) -> &[InodeRef] {
        &self.made
    }

    /// Whether the store has a part of it.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Gives `inode` the name `name` in `dir`: the one is new or was [found](Self::find), the other below the top.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn enter(&mut self, dir: &InodeRef, name: &[u8], inode: &InodeRef) -> Result<(), Errno> {
        dir.enter(name, inode.clone())?;
        if self.durable().is_some() {
            if self.grows != dir.ino() {
                self.grows = dir.ino();
                self.made.push(dir.clone());
            }
            self.made.push(inode.clone());
        }
        Ok(())
    }

    fn durable(&self) -> Option<&Durable> {
        self.top.shared.durable()
    }

    /// Whether so much was made that it should leave memory.
    pub(crate) fn is_large(&self) -> bool {
        // For what watches all must be in memory.
        let durable = self.durable().filter(|_| self.top.shared.watch().is_none());
        durable.is_some_and(|durable| {
            self.made.len() as u64 > durable.names().limit() / INODE_BYTES / BATCH_SHARE
        })
    }

    /// The inode number `ino`, a file of an earlier batch.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn find(&self, ino: u64) -> Result<InodeRef, Errno> {
        let durable = self.durable().ok_or(Errno::EIO)?;
        // So that it is not found twice.
        let _loading = durable.loading.lock();
        if let Some(found) = durable.names().find(ino) {
            return Ok(found);
        }
        let revived = durable.revive(&self.top.shared, ino, None)?;
        // Names of earlier batches lead to this inode, too: their load must find it, and make no second one.
        durable.names().set_apart([revived.clone()]);
        Ok(revived)
    }

    /// Has the store take what was made, and takes its names out of memory. Called where a section could be begun.
    ///
    /// # Errors
    /// `ENOSPC` and others of the store.
    pub(crate) fn let_leave(&mut self) -> Result<(), Errno> {
        let shared = self.top.shared.clone();
        let Some(durable) = shared.durable() else { return Ok(()) };
        shared.make_room_to_grow()?;
        self.put_down()?;
        durable.store.write_out().map_err(|error| errno(&error))?;
        {
            // The mutex keeps names that are being loaded until the load is complete.
            let _loading = durable.loading.lock();
            let applied = durable.applied_cut();
            let leave = |dir: &InodeRef| durable.names().leave_hidden(dir, applied);
            durable.store.alone(|| self.made.iter().for_each(leave));
        }
        let new = self.made.iter().filter(|inode| !inode.is_dir()).map(|inode| inode.ino()).min();
        self.made.clear();
        self.grows = 0;
        durable.forget_unused(&mut Hand::apart_from(new.unwrap_or(0)));
        shared.let_names_leave();
        Ok(())
    }

    /// Puts down what was made.
    fn put_down(&mut self) -> Result<(), Errno> {
        self.top.shared.begin(0)?.hid_tree(self);
        self.is_begun = true;
        Ok(())
    }

    /// Has the store take all of it, as a tree without a name, whose names can leave memory.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn hide(&mut self) -> Result<(), Errno> {
        self.put_down()?;
        let directories = self.made.drain(..).filter(|inode| inode.is_dir() && !inode.is_same(&self.top));
        if let Some(durable) = self.top.shared.durable() {
            directories.for_each(|dir| durable.names().enter(&dir));
        }
        Ok(())
    }

    /// The tree gets no name: what was made of it goes.
    pub(crate) fn discard(mut self) {
        if self.is_begun && self.remove().is_ok() {
            return;
        }
        // After an error of the store opening it removes the rest.
        self.top.take_apart();
    }

    /// Removes the tree, with its read-only and immutable files.
    ///
    /// # Errors
    /// `EBUSY` (something is mounted in it), the store's; opening the store removes the rest.
    pub(crate) fn remove(&mut self) -> Result<(), Errno> {
        // The store may have some names of a file of several names: so it gets all, and a removal is like any other.
        let shared = self.top.shared.clone();
        self.put_down()?;
        self.made.clear();
        // A program that is in one of the directories may make files there, until the first name is taken out.
        let close = |dir: &Inode, _: &Cred, _: &Inode| {
            dir.raise(flag::READ_ONLY);
            Ok(())
        };
        loop {
            match self.top.remove_below(&Cred::root(), close) {
                Err(Errno::ENOTEMPTY) => continue,
                removed => removed?,
            }
            let section = shared.begin(0)?;
            match self.top.as_dir()?.bury() {
                Ok(Burial::Done) => {
                    section.forget(&self.top);
                    return Ok(());
                }
                Ok(Burial::Busy) => {
                    drop(section);
                    self.top.await_burial()?;
                }
                Err(Errno::ENOTEMPTY) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl NameSet {
    /// Takes the names of the directory `dir` out of memory, if the tree of the store has all of it up to this cut. No user knows the
    /// directory; other names of it may have left before. Called while no section is open, and nothing is loaded.
    pub(super) fn leave_hidden(&self, dir: &InodeRef, applied: u64) {
        let Ok(inner) = dir.as_dir() else { return };
        let entries = inner.list(|_| true);
        if dir.can_be_read(applied) && entries.iter().all(|(_, inode)| inode.can_be_read(applied)) {
            self.take_out(dir, inner, &entries);
        } else if !dir.has(flag::PARTIAL) {
            self.enter(dir);
        }
    }
}
