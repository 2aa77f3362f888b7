//! Received: a snapshot that is made file by file, from what another file system sent, and is there when it is whole.
//!
//! # Theory
//! The tree is made in a directory of its own in the root, which no listing has and no snapshot contains: only the server changes that
//! directory, as that of the snapshots. When the caller keeps the tree, it is copied to its name as any snapshot is, sharing all
//! contents: the name is there with the whole tree or not at all. The directory goes when the caller lets go, or after a crash with the next
//! tree that is begun.

use crate::ops::create::check_name;
use crate::ops::remove::MayDelete;
use crate::{Cred, Errno, InodeFlags, InodeRef, NewInode, NewKind, Superblock};
use sluice_sync::atomic::Ordering;
use std::fmt;

/// The directory in the root in which a tree is made.
const RECEIVING: &[u8] = b".receiving";
/// The name of the tree in there.
const TREE: &[u8] = b"tree";

/// A tree that becomes a snapshot. Dropped before, it is removed.
pub struct NewSnapshot<'s> {
    superblock: &'s Superblock,
    top: InodeRef,
}

impl fmt::Debug for NewSnapshot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSnapshot").field("top", &self.top).finish_non_exhaustive()
    }
}

impl Superblock {
    /// The top of the snapshot `name`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR` (no snapshot), `EACCES` as of [`snapshots`](Self::snapshots), the store's.
    pub fn snapshot_top(&self, name: &[u8]) -> Result<InodeRef, Errno> {
        if check_name(name).is_err() {
            return Err(Errno::ENOENT);
        }
        let top = self.snapshots_dir()?.lookup(&Cred::root(), name)?;
        top.as_dir()?;
        Ok(top)
    }

    /// Begins a tree that becomes a snapshot: with the contents of the snapshot `base`, or empty. An unfinished tree of an
    /// earlier attempt is removed.
    ///
    /// # Errors
    /// `EBUSY`: another is being made; `EEXIST`: somebody else's `.receiving` is in the root; errors of [`snapshot_top`](Self::snapshot_top) and of [`InodeRef::clone_tree`].
    pub fn begin_snapshot(&self, base: Option<&[u8]>) -> Result<NewSnapshot<'_>, Errno> {
        let base = base.map(|base| self.snapshot_top(base)).transpose()?;
        if self.is_receiving.swap(true, Ordering::SeqCst) {
            return Err(Errno::EBUSY);
        }
        self.make_place(base).inspect_err(|_| self.is_receiving.store(false, Ordering::SeqCst))
    }

    fn make_place(&self, base: Option<InodeRef>) -> Result<NewSnapshot<'_>, Errno> {
        let (cred, root) = (Cred::root(), self.root());
        remove_place(root)?;
        let new = NewInode { kind: NewKind::Directory, mode: 0o700, umask: 0 };
        let place = root.create(&cred, RECEIVING, &new)?;
        let top = match base {
            None => place.create(&cred, TREE, &new)?,
            Some(base) => {
                base.clone_tree(&cred, &place, TREE)?;
                place.lookup(&cred, TREE)?
            }
        };
        place.close_to_changes(&cred)?;
        Ok(NewSnapshot { superblock: self, top })
    }
}

/// Removes the directory of a tree that did not become a snapshot, if there is one in `root`.
///
/// # Errors
/// `EEXIST`: somebody else made one of that name; the store's.
fn remove_place(root: &InodeRef) -> Result<(), Errno> {
    let place = match root.lookup(&Cred::root(), RECEIVING) {
        Err(Errno::ENOENT) => return Ok(()),
        place => place?,
    };
    // Before the snapshot was closed, at most the tree was there.
    let is_ours = place.is_dir()
        && (place.is_read_only() || place.list_names(|_| true)?.iter().all(|(name, _)| **name == *TREE));
    if is_ours { remove(root, RECEIVING) } else { Err(Errno::EEXIST) }
}

/// Removes `name` in `dir` with its whole tree, whatever keeps that from changes.
fn remove(dir: &InodeRef, name: &[u8]) -> Result<(), Errno> {
    let (cred, may): (_, MayDelete) = (Cred::root(), |_, _, _| Ok(()));
    let found = dir.lookup(&cred, name)?;
    if found.is_dir() {
        found.remove_below(&cred, may)?;
        dir.rmdir_if(&cred, name, may)
    } else {
        dir.unlink_if(&cred, name, may)
    }
}

impl NewSnapshot<'_> {
    /// The top of the tree.
    pub fn top(&self) -> &InodeRef {
        &self.top
    }

    /// Removes `name` in the directory `dir` of the tree, with all that is below it.
    ///
    /// # Errors
    /// `ENOENT`; the store's.
    pub fn remove(&self, dir: &InodeRef, name: &[u8]) -> Result<(), Errno> {
        remove(dir, name)
    }

    /// Sets these flags of a file of the tree. A link, pipe, socket or device has those alone that its directory gave; the next change of
    /// the file puts them down.
    ///
    /// # Errors
    /// `EINVAL`: other flags than these; the store's.
    pub fn set_flags(&self, inode: &InodeRef, flags: InodeFlags) -> Result<(), Errno> {
        match inode.set_flags(&Cred::root(), flags) {
            Err(Errno::ENOTTY) if InodeFlags::INHERITED.contains(flags) => {
                inode.put_flags(flags);
                Ok(())
            }
            Err(Errno::ENOTTY) => Err(Errno::EINVAL),
            set => set,
        }
    }

    /// The tree is the snapshot `name` from now on. Over a store it is durable then.
    ///
    /// # Errors
    /// Errors of [`Superblock::take_snapshot`].
    pub fn keep(self, name: &[u8]) -> Result<(), Errno> {
        self.superblock.keep_as_snapshot(&self.top, name)
    }
}

impl Drop for NewSnapshot<'_> {
    fn drop(&mut self) {
        // A tree that cannot be removed now is removed when the next one is begun.
        let _ = remove_place(self.superblock.root());
        self.superblock.is_receiving.store(false, Ordering::SeqCst);
    }
}
