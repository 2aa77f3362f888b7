//! Snapshot: a copy of a tree, as a file system of its own or in another place of the same one, that shares the contents of
//! its files.
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
//! Where a file of several names is met again, that is a hard link; where a directory is (it was moved), it stays where it
//! was met first.
//!
//! # Cost
//! An inode for each inode, a slot of a radix tree for each page; for the time of the call, the names of one directory
//! and a map of the directories, and of the files of several names, that were met. Names are not looked up, attributes not
//! checked: it is for callers that may read everything.

use crate::attributes::{Acls, Attr};
use crate::dir::LOOKED_AT_ONCE;
use crate::durable::copy_contents;
use crate::inode::{Body, InodeInit, flag};
use crate::ops::create::check_name;
use crate::{Cred, Errno, Inode, InodeFlags, InodeRef, NewInode, NewKind, Superblock};
use sluice_sync::{Arc, Ref, rcu};
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
        let (init, lists) = self.init();
        let superblock = Superblock::with_root(self.shared.options.clone(), init);
        superblock.root().take_after(self, lists)?;
        superblock.root().fill_like(self, None)?;
        Ok(superblock)
    }

    /// Gives `dir`, of the same file system, the new name `name` for a copy of this file, or of this directory with all that
    /// is below it. It comes along what comes along to a [`snapshot`](Self::snapshot), and the name appears when the copy is
    /// whole. `dir` may be below this directory: what is copied does not contain the copy. The caller may read all of it.
    ///
    /// # Errors
    /// `EEXIST`; `EXDEV` (another file system); `ENOENT` (a directory was removed); `ENOTDIR`; `EACCES` (names of `dir` may
    /// not be changed); `ENOSPC`, and then nothing is left of the copy; `ENAMETOOLONG`, `EINVAL` (not a name).
    pub fn clone_tree(&self, cred: &Cred, dir: &InodeRef, name: &[u8]) -> Result<(), Errno> {
        self.clone_without(None, cred, dir, name)
    }

    /// As [`clone_tree`](Self::clone_tree), without the directory number `left_out` and what is below it.
    fn clone_without(
        &self,
        left_out: Option<u64>,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
    ) -> Result<(), Errno> {
        dir.as_dir()?;
        check_name(name)?;
        if !Ref::ptr_eq(&self.shared, &dir.shared) {
            return Err(Errno::EXDEV);
        }
        if self.is_removed_dir() {
            return Err(Errno::ENOENT);
        }
        match dir.lookup(cred, name) {
            Err(Errno::ENOENT) => dir.may_change_names(cred)?,
            found => return Err(found.err().unwrap_or(Errno::EEXIST)),
        }
        let copy = dir.copy_of(self)?;
        let filled = match copy.is_dir() {
            true => copy.fill_like(self, left_out),
            false => copy_contents(&[(self, copy.clone())]).map(|()| Vec::new()),
        };
        filled
            .and_then(|below| dir.enter_new(cred, name, &copy, &below))
            .inspect_err(|_| copy.clone().take_apart())
    }

    /// Puts copies of all that is below the directory `original`, without directory number `left_out`, into this one,
    /// which is empty and unknown to others. Returns the copies if a store has to record them.
    fn fill_like(&self, original: &InodeRef, left_out: Option<u64>) -> Result<Vec<InodeRef>, Errno> {
        let (is_durable, mut made) = (self.shared.durable().is_some(), Vec::new());
        let mut met = BTreeMap::from([(original.ino(), self.clone())]);
        let mut pending = vec![(original.clone(), self.clone())];
        while let Some((original, copy)) = pending.pop() {
            let entries =
                original.list_names(|inode| left_out.is_none_or(|left_out| left_out != inode.ino()))?;
            for batch in entries.chunks(LOOKED_AT_ONCE) {
                look_ahead(batch);
                let mut files = Vec::with_capacity(batch.len());
                for (name, inode) in batch {
                    // A file with one name is met again only if that is moved meanwhile, and then copied twice.
                    let may_meet_again = inode.is_dir() || inode.links.count() > 1;
                    match if may_meet_again { met.get(&inode.ino()) } else { None } {
                        Some(met) if met.is_dir() => continue,
                        Some(met) => {
                            met.links.add()?;
                            copy.enter(name, met.clone())?;
                        }
                        None => {
                            let child = copy.copy_of(inode)?;
                            if may_meet_again {
                                met.insert(inode.ino(), child.clone());
                            }
                            if child.is_dir() {
                                pending.push((inode.clone(), child.clone()));
                            } else {
                                files.push((inode, child.clone()));
                            }
                            if is_durable {
                                child.set_holder(&copy);
                                made.push(child.clone());
                            }
                            copy.enter(name, child)?;
                        }
                    }
                }
                copy_contents(&files)?;
            }
        }
        Ok(made)
    }

    /// An inode like `original`, to put into this directory. It has no names and no contents.
    fn copy_of(&self, original: &InodeRef) -> Result<InodeRef, Errno> {
        let body = match &original.body {
            Body::Regular => Body::Regular,
            Body::Directory(_) => Body::new_directory(Some(self.clone())),
            Body::Symlink(target) => Body::Symlink(target.clone()),
            Body::Special { file_type, rdev } => Body::Special { file_type: *file_type, rdev: *rdev },
        };
        let (init, lists) = original.init();
        let inode = Inode::make(&self.shared, init, body)?;
        inode.take_after(original, lists)?;
        if matches!(original.body, Body::Regular) {
            original.write_back_caches(None, 0..u64::MAX);
        }
        Ok(inode)
    }

    /// Gives `inode` the name `name` in this directory, of which nobody else knows yet.
    pub(crate) fn enter(&self, name: &[u8], inode: InodeRef) -> Result<(), Errno> {
        let (mut entry, weight) = (self.lock_entry(name)?, inode.weight());
        entry.insert(inode, weight).map(drop).map_err(|_| Errno::ENOSPC)
    }

    /// Gives `inode` the name `name` in this directory, where that must be new. What is `below` it is new, too.
    fn enter_new(&self, cred: &Cred, name: &[u8], inode: &InodeRef, below: &[InodeRef]) -> Result<(), Errno> {
        self.shared.operate(
            cred,
            &[self],
            0,
            |section, _| {
                self.check_names_here()?;
                let mut entry = self.lock_entry(name)?;
                let room = entry.room().ok_or(Errno::EEXIST)?;
                self.may_change_names(cred)?;
                room.fill(inode.clone(), inode.weight()).map_err(|_| Errno::ENOSPC)?;
                section.gained_tree(inode, below);
                section.name(self, name, Some(inode));
                let moved = self.touch_mtime();
                section.times(self, moved);
                Ok(())
            },
            |()| self.shared.notify(cred, |observer| observer.entry_changed(self.ino(), name, None)),
        )
    }
}

/// Looks at what copies of the inodes in `batch` look at, each step for all: so a thread waits for the memory of many at once. Without,
/// it waits for most of the time of a copy.
fn look_ahead(batch: &[(Box<[u8]>, InodeRef)]) {
    let files = || batch.iter().map(|(_, inode)| inode).filter(|inode| !inode.is_dir());
    let of_inode = |inode: &InodeRef| inode.ino() ^ inode.size() ^ u64::from(inode.attr.read().mode);
    let inodes = files().map(of_inode).fold(0, |all, one| all ^ one);
    let section = rcu::domain().read();
    let pages = files().map(|inode| inode.data.look_ahead(&section)).fold(0, |all, one| all ^ one);
    // So that it is done.
    std::hint::black_box((inodes, pages));
}

/// The directory in the root of a file system where its snapshots stand.
pub const SNAPSHOTS: &str = ".snapshots";

/// Snapshots that stand in the file system itself: ordinary directories, which share their contents with the tree.
impl Superblock {
    /// Copies the tree as it is now, without [`SNAPSHOTS`], to the new directory `name` in there. That directory is made if it
    /// is missing, for the owner of the root alone: in a snapshot, files have the modes that they had when it was taken.
    ///
    /// # Errors
    /// Errors of [`InodeRef::clone_tree`]; `EACCES` when [`SNAPSHOTS`] is not the root's owner's alone.
    pub fn take_snapshot(&self, name: &[u8]) -> Result<(), Errno> {
        let root = self.root();
        let owner = root.stat();
        let cred = Cred { uid: owner.uid, gid: owner.gid, ..Cred::root() };
        let made = NewInode { kind: NewKind::Directory, mode: 0o700, umask: 0 };
        let dir = match root.create(&cred, SNAPSHOTS.as_bytes(), &made) {
            Err(Errno::EEXIST) => self.snapshots_dir()?,
            made => made?,
        };
        root.clone_without(Some(dir.ino()), &cred, &dir, name)
    }

    /// The directory of the snapshots.
    ///
    /// # Errors
    /// `ENOENT`; `ENOTDIR`; `EACCES` when it belongs to another user than the root, or others may change it.
    fn snapshots_dir(&self) -> Result<InodeRef, Errno> {
        let root = self.root();
        let dir = root.lookup(&Cred::root(), SNAPSHOTS.as_bytes())?;
        dir.as_dir()?;
        // The rights of an access control list are in the mode: the mask has the place of the group.
        let stat = dir.stat();
        match stat.uid == root.stat().uid && stat.permissions() & 0o022 == 0 {
            true => Ok(dir),
            false => Err(Errno::EACCES),
        }
    }

    /// The names of its snapshots, sorted.
    ///
    /// # Errors
    /// `ENOTDIR`; `EACCES` when [`SNAPSHOTS`] is not the root's owner's alone; the store's.
    pub fn snapshots(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let names = match self.snapshots_dir() {
            Err(Errno::ENOENT) => return Ok(Vec::new()),
            dir => dir?.list_names(|inode| inode.is_dir())?,
        };
        let mut names: Vec<_> = names.into_iter().map(|(name, _)| name.into_vec()).collect();
        names.sort();
        Ok(names)
    }

    /// Removes the snapshot `name`, its immutable files, too.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR` (no snapshot), `EACCES` as of [`snapshots`](Self::snapshots), the store's; what was removed by then
    /// stays so.
    pub fn drop_snapshot(&self, name: &[u8]) -> Result<(), Errno> {
        check_name(name).or(Err(Errno::ENOENT))?;
        self.snapshots_dir()?.remove_tree(&Cred::root(), name, InodeFlags::FIXED)
    }
}

impl Inode {
    /// The initial attributes of a copy of this inode, and its access control lists of the same moment, if any.
    fn init(&self) -> (InodeInit, Option<Acls>) {
        let (attr, lists) = self.with_acls(|attr, acls| (*attr, attr.has_acls.then(|| acls.clone())));
        let nlink = if self.is_dir() { 2 } else { 1 };
        let Attr { mode, uid, gid, .. } = attr;
        (InodeInit { file_type: self.file_type(), mode, uid, gid, nlink, born: self.born() }, lists)
    }

    /// Takes over all attributes of `original` that can change, those apart with which this inode began: its `lists` then.
    fn take_after(&self, original: &Inode, lists: Option<Acls>) -> Result<(), Errno> {
        if let Some(lists) = lists {
            self.change_acls(|_, acls| {
                *acls = lists;
                Ok(())
            })?;
        }
        if original.has(flag::XATTRS)
            && let Some(extra) = original.extra_if_any()
        {
            let xattrs = extra.xattrs.lock().clone();
            self.shared.charge(xattrs.charged())?;
            self.may_have_xattrs();
            *self.extra().xattrs.lock() = xattrs;
        }
        self.put_flags(original.flags());
        self.times.set_as(&original.times);
        Ok(())
    }
}
