//! Snapshot: a copy of a tree, as a file system of its own or in another place of the same one, that shares the contents of
//! its files.
//!
//! # Theory
//! The tree is copied from the top, each directory before what is in it, its files before its subdirectories; of contents no byte is. Their pages are
//! *frozen* (see `data`): whichever side writes to one first puts a copy in its place, so neither sees what the other
//! does later. Like after a reflink, each side counts and pays for all of its pages.
//!
//! The whole tree is of one moment, see [`moment`](crate::moment), but for access times: a read is no change, and may move the time until
//! the inode is copied. The snapshot has each call that was answered before it began, and the bytes that a kernel had collected by then. A call
//! that began after the end of the snapshot is not in the snapshot. Bytes that a kernel collects (a mapping, writeback) meanwhile may be in the snapshot or not.
//!
//! Where a file of several names is met again, that is a hard link. Files without a name do not come along.
//!
//! # Cost
//! An inode for each inode, a slot of a radix tree for each page; for the time of the call, the names of one directory, those of
//! subdirectories above it, a map of the files of several names that were met, and what is kept because it changes. Names are not looked
//! up, attributes not checked: it is for callers that may read everything.
//!
//! A copy within a store leaves memory while it is made, when it is large: see `durable/hidden.rs`.

use crate::attributes::{Acls, Attr};
use crate::data::PAGE;
use crate::dir::LOOKED_AT_ONCE;
use crate::durable::{HiddenTree, copy_contents};
use crate::inode::{Body, InodeInit, flag, settle};
use crate::moment::{AsOfMoment, CopyKind, CopyOfFile, CopyTarget};
use crate::ops::ToldAhead;
use crate::ops::create::check_name;
use crate::quota::NO_QUOTA;
use crate::superblock::{ROOT_INO, Shared};
use crate::{Cred, Errno, Inode, InodeRef, NewInode, NewKind, SnapshotSchedule, Superblock, Timestamp};
use sluice_sync::{Arc, Ref, rcu};
use std::collections::BTreeSet;
use std::vec;

impl InodeRef {
    /// A new file system, independent of this one, whose root is this directory with everything below as it is now:
    /// names, hard links, attributes, access control lists, extended attributes, times, contents, holes. Inode numbers
    /// are new ones. Limits and policies are those of this file system; storage that was reserved and never written, file
    /// locks, leases, and files without a name do not come along. The whole tree is of one moment, but for access times.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` (the directory was removed); `ENOSPC` when changes made meanwhile lead beyond a limit.
    pub fn snapshot(&self) -> Result<Arc<Superblock>, Errno> {
        self.as_dir()?;
        let shared = Shared::in_memory(self.shared.options.clone());
        let target = CopyTarget { shared, kind: CopyKind::Clone, quota: NO_QUOTA };
        let (moment, is_there) = self.begin_copy(&target)?;
        if !is_there {
            return Err(Errno::ENOENT);
        }
        let superblock = moment.look(self, |found| {
            let (init, lists) = found.init();
            let superblock = Superblock::with_root(target.shared.clone(), init);
            superblock.root().take_after(found, lists)?;
            Ok(superblock)
        })?;
        HiddenTree::new(superblock.root()).fill_like(self, &moment)?;
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
        dir.as_dir()?;
        check_name(name)?;
        if !Ref::ptr_eq(&self.shared, &dir.shared) {
            return Err(Errno::EXDEV);
        }
        match dir.lookup(cred, name) {
            Err(Errno::ENOENT) => dir.may_change_names(cred)?,
            found => return Err(found.err().unwrap_or(Errno::EEXIST)),
        }
        self.clone_as(CopyKind::Clone, cred, dir, name)
    }

    /// Makes a copy of this `kind` for a caller who may; see [`clone_tree`](Self::clone_tree).
    pub(crate) fn clone_as(
        &self,
        kind: CopyKind,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
    ) -> Result<(), Errno> {
        let quota = if kind == CopyKind::Snapshot { NO_QUOTA } else { dir.quota_below() };
        let target = CopyTarget { shared: self.shared.clone(), kind, quota };
        let (copy, tree, filled) = match self.is_dir() {
            true => {
                let (moment, is_there) = self.begin_copy(&target)?;
                if !is_there {
                    return Err(Errno::ENOENT);
                }
                let copy = moment.copy_directory(self, dir)?;
                let mut tree = HiddenTree::new(&copy);
                let filled = tree.fill_like(self, &moment);
                (copy, tree, filled)
            }
            false => {
                self.write_back_caches(None, 0..u64::MAX);
                self.shared.make_room_to_copy(self)?;
                let copy = self.copy_in(&target, None)?;
                let filled = copy_contents(&[(self, copy.clone())]);
                (copy.clone(), HiddenTree::new(&copy), filled)
            }
        };
        let entered = filled.and_then(|()| dir.enter_new(cred, name, &copy, &tree));
        if entered.is_err() {
            tree.discard();
        }
        entered
    }

    /// Begins to copy the tree of this directory to `target`, as it is now; and whether the directory is there.
    fn begin_copy(&self, target: &CopyTarget) -> Result<(AsOfMoment<'_>, bool), Errno> {
        if self.shared.is_observed() {
            // An error shows when the directory is copied.
            let _ = self.write_back_below();
        }
        if Ref::ptr_eq(&self.shared, &target.shared) {
            self.shared.make_room_to_copy(self)?;
        }
        Ok(self.shared.begin_moment(target, || !self.is_removed_dir()))
    }

    /// Has caches above hand down what is newer with them of the files below this directory.
    pub(crate) fn write_back_below(&self) -> Result<(), Errno> {
        if self.ino() == ROOT_INO {
            self.shared.notify_but(None, |observer| observer.write_back_all());
            return Ok(());
        }
        let mut directories = vec![self.clone()];
        while let Some(dir) = directories.pop() {
            for (_, inode) in dir.list_names(|inode| inode.is_dir() || inode.is_cached())? {
                match inode.is_dir() {
                    true => directories.push(inode),
                    false => inode.write_back_caches(None, 0..u64::MAX),
                }
            }
        }
        Ok(())
    }

    /// An inode like this one in `target`, a directory to be put into `parent`. It has no names and no contents.
    pub(crate) fn copy_in(&self, target: &CopyTarget, parent: Option<&InodeRef>) -> Result<InodeRef, Errno> {
        let body = match &self.body {
            Body::Regular => Body::Regular,
            Body::Directory(_) => Body::new_directory(parent.cloned()),
            Body::Symlink(target) => Body::Symlink(target.clone()),
            Body::Special { file_type, rdev } => Body::Special { file_type: *file_type, rdev: *rdev },
        };
        let (mut init, lists) = self.init();
        let is_snapshot = target.kind == CopyKind::Snapshot;
        if is_snapshot && self.ino() == ROOT_INO {
            // The top of a snapshot says when that was taken.
            init.born = Timestamp::now();
        }
        if target.kind != CopyKind::Clone {
            init.origin = self.origin().unwrap_or(0);
        }
        let inode = Inode::make(&target.shared, target.quota, init, body)?;
        inode.take_after(self, lists)?;
        inode.raise(if is_snapshot { flag::READ_ONLY } else { 0 });
        Ok(inode)
    }

    /// Gives `inode` the name `name` in this directory, of which nobody else knows yet.
    pub(crate) fn enter(&self, name: &[u8], inode: InodeRef) -> Result<(), Errno> {
        let (mut entry, weight) = (self.lock_entry(name)?, inode.weight());
        entry.insert(inode, weight).map(drop).map_err(|_| Errno::ENOSPC)
    }

    /// Gives `top` the name `name` in this directory, where that must be new: with it comes the `tree` below.
    fn enter_new(&self, cred: &Cred, name: &[u8], top: &InodeRef, tree: &HiddenTree) -> Result<(), Errno> {
        self.shared.operate(
            cred,
            &[self],
            0,
            |section, _| {
                self.check_names_here()?;
                let mut entry = self.lock_entry(name)?;
                let room = entry.room().ok_or(Errno::EEXIST)?;
                // The server alone puts a snapshot here.
                if !top.is_read_only() {
                    self.may_change_names(cred)?;
                }
                // The directory got a quota, or lost it, while the copy was made.
                if top.quota_below() != self.quota_below() {
                    return Err(Errno::EXDEV.into());
                }
                self.name_changes(name, None);
                room.fill(top.clone(), top.weight()).map_err(|_| Errno::ENOSPC)?;
                section.gained_tree(tree);
                section.name(self, name, Some(top));
                let moved = self.touch_mtime();
                section.times(self, moved);
                Ok(())
            },
            |()| self.shared.notify(cred, |observer| observer.entry_changed(self.ino(), name, None)),
        )
    }
}

impl InodeRef {
    /// Takes the name `name` of a directory out of this directory, with all that is below it.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EBUSY` (something is mounted there); the store's.
    fn take_out(&self, name: &[u8]) -> Result<HiddenTree, Errno> {
        let (cred, told) = (Cred::root(), ToldAhead::default());
        self.load_names()?;
        let top = self.shared.operate(
            &cred,
            &[self],
            0,
            |section, _| {
                self.check_names_here()?;
                let mut entry = self.lock_entry(name)?;
                let there = entry.there().ok_or(Errno::ENOENT)?;
                if there.get().as_dir()?.has_mounts() {
                    return Err(Errno::EBUSY.into());
                }
                told.check(there.get())?;
                there.get().check_kept()?;
                self.name_changes(name, Some(there.get()));
                let top = there.remove().clone();
                section.lost_tree(&top, self);
                section.name(self, name, None);
                let moved = self.touch_mtime();
                section.times(self, moved);
                Ok(top)
            },
            |top| {
                self.shared
                    .notify(&cred, |observer| observer.entry_changed(self.ino(), name, Some(top.ino())));
                self.shared.notify_name_lost(top.ino());
            },
        )?;
        Ok(HiddenTree::without_name(&top))
    }
}

impl HiddenTree {
    /// Puts copies of all that was below the directory `original` at `moment`, without the snapshots, below the top, which is empty.
    fn fill_like(&mut self, original: &InodeRef, moment: &AsOfMoment<'_>) -> Result<(), Errno> {
        self.fill_with(original, moment, None)
    }

    /// Copies the directory `original`, or of the names in it `only` one; see [`fill_like`](Self::fill_like).
    pub(crate) fn fill_with(
        &mut self,
        original: &InodeRef,
        moment: &AsOfMoment<'_>,
        only: Option<&[u8]>,
    ) -> Result<(), Errno> {
        let top = self.top().clone();
        let mut copying = Copying { tree: self, moment, only, way: Vec::new() };
        copying.begin_directory(original, top)?;
        copying.go_on()
    }
}

/// A tree that is being copied, each directory with its files before its subdirectories.
struct Copying<'t> {
    tree: &'t mut HiddenTree,
    moment: &'t AsOfMoment<'t>,
    /// The name in the uppermost directory that is copied, if it is not all.
    only: Option<&'t [u8]>,
    /// The directories from the top to the one that is being copied.
    way: Vec<HalfCopied>,
}

/// A directory, and its subdirectories without a copy yet.
struct HalfCopied {
    copy: InodeRef,
    subdirectories: vec::IntoIter<(Box<[u8]>, InodeRef)>,
}

impl Copying<'_> {
    /// Copies the subdirectories that are left.
    fn go_on(&mut self) -> Result<(), Errno> {
        while let Some(level) = self.way.last_mut() {
            let Some((name, original)) = level.subdirectories.next() else {
                self.way.pop();
                continue;
            };
            let copy = self.moment.copy_directory(&original, &level.copy)?;
            copy.set_holder(&level.copy);
            self.tree.enter(&level.copy, &name, &copy)?;
            self.begin_directory(&original, copy)?;
        }
        if self.tree.is_begun() { self.let_leave() } else { Ok(()) }
    }

    /// Copies the files in the directory `original` to `copy`.
    fn begin_directory(&mut self, original: &InodeRef, copy: InodeRef) -> Result<(), Errno> {
        let mut entries = self.moment.names_in(original)?;
        entries.retain(|(_, inode)| !original.has_snapshots_in(inode));
        if let (Some(only), true) = (self.only, self.way.is_empty()) {
            entries.retain(|(name, _)| **name == *only);
        }
        let (subdirectories, files): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(_, inode)| inode.is_dir());
        self.way.push(HalfCopied { copy: copy.clone(), subdirectories: subdirectories.into_iter() });
        for batch in files.chunks(LOOKED_AT_ONCE) {
            look_ahead(batch);
            for ((name, original), found) in batch.iter().zip(self.moment.copy_files(batch)?) {
                let met = match found {
                    CopyOfFile::New(child) => {
                        child.set_holder(&copy);
                        self.tree.enter(&copy, name, &child)?;
                        continue;
                    }
                    CopyOfFile::Met(met) => met,
                    CopyOfFile::Left(number) => {
                        let met = self.tree.find(number)?;
                        self.moment.is_back(original, &met)?;
                        met
                    }
                };
                met.links.add()?;
                self.tree.enter(&copy, name, &met).inspect_err(|_| met.links.remove())?;
            }
            self.let_leave_if_many()?;
        }
        self.let_leave_if_many()
    }

    fn let_leave_if_many(&mut self) -> Result<(), Errno> {
        if self.tree.is_large() { self.let_leave() } else { Ok(()) }
    }

    /// Has a store take what was made, so that it can leave memory.
    fn let_leave(&mut self) -> Result<(), Errno> {
        self.moment.let_leave()?;
        self.tree.let_leave()
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

/// The directory in the root of a file system where its snapshots stand. No listing has it.
pub const SNAPSHOTS: &str = ".snapshots";

/// The bytes of the files of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TreeSize {
    /// Other files have them, too: they stay when the tree goes.
    pub shared_bytes: u64,
    /// No other file has them.
    pub private_bytes: u64,
}

/// A snapshot, as a list of snapshots shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// Its name in [`SNAPSHOTS`].
    pub name: Vec<u8>,
    /// When it was taken; unknown of a snapshot of an earlier version.
    pub created: Option<Timestamp>,
    /// The storage of its files.
    pub size: TreeSize,
}

/// Snapshots that stand in the file system itself: ordinary directories, which share their contents with the tree.
impl Superblock {
    /// Copies the tree as it is now, without [`SNAPSHOTS`], to the new directory `name` in there. That directory is made if it
    /// is missing, for the owner of the root alone: in a snapshot, files have the modes that they had when it was taken. From then on nobody
    /// changes it or the snapshot: calls fail with `EROFS`. Over a store the snapshot is durable when this returns.
    ///
    /// # Errors
    /// Errors of [`InodeRef::clone_tree`]; those of the store, and then it may be there; `EACCES` when [`SNAPSHOTS`] is not the root's owner's alone;
    /// `EINVAL` when `name` has the [form](SnapshotSchedule::is_name) of those that are deleted by the clock.
    pub fn take_snapshot(&self, name: &[u8]) -> Result<(), Errno> {
        if SnapshotSchedule::is_name(name) {
            return Err(Errno::EINVAL);
        }
        self.keep_as_snapshot(self.root(), name)
    }

    /// Takes the snapshot `name`, of `tree` instead of the root.
    ///
    /// # Errors
    /// Errors of [`take_snapshot`](Self::take_snapshot).
    pub(crate) fn keep_as_snapshot(&self, tree: &InodeRef, name: &[u8]) -> Result<(), Errno> {
        let root = self.root();
        let owner = root.stat();
        let cred = Cred { uid: owner.uid, gid: owner.gid, ..Cred::root() };
        check_name(name)?;
        let made = NewInode { kind: NewKind::Directory, mode: 0o700, umask: 0 };
        let dir = match root.create(&cred, SNAPSHOTS.as_bytes(), &made) {
            Err(Errno::EEXIST) => self.snapshots_dir()?,
            made => made?,
        };
        // Made now, by the owner, or by an earlier version.
        dir.close_to_changes(&cred)?;
        match dir.look_up(name) {
            Err(Errno::ENOENT) => {
                // Contents that the store does not have yet it would get for both.
                root.shared.sync()?;
                tree.clone_as(CopyKind::Snapshot, &cred, &dir, name)?;
            }
            found => return Err(found.err().unwrap_or(Errno::EEXIST)),
        }
        root.shared.sync()
    }

    /// The directory of the snapshots.
    ///
    /// # Errors
    /// `ENOENT`; `ENOTDIR`; `EACCES` when it belongs to another user than the root, or others may change it.
    pub(crate) fn snapshots_dir(&self) -> Result<InodeRef, Errno> {
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

    /// Its snapshots, sorted by name, with the time at which each was taken and its size. Visits every file of every snapshot, and brings
    /// a store's tree up to date first.
    ///
    /// # Errors
    /// Errors of [`snapshots`](Self::snapshots).
    pub fn list_snapshots(&self) -> Result<Vec<SnapshotInfo>, Errno> {
        // Contents that were changed or removed are no longer shared.
        settle();
        let (mut listed, names) = (Vec::new(), self.snapshots()?);
        // Behind the look at the names: the tree has these snapshots.
        if let Some(durable) = self.root().shared.durable()
            && !names.is_empty()
        {
            durable.update_tree()?;
        }
        for name in names {
            let top = match self.snapshots_dir().and_then(|dir| dir.look_up(&name)) {
                // Deleted meanwhile.
                Err(Errno::ENOENT) => continue,
                top => top?,
            };
            let size = match top.shared.durable() {
                Some(durable) => durable.size_of_tree(top.ino())?,
                None => top.size_in_memory()?,
            };
            listed.push(SnapshotInfo { name, created: top.is_read_only().then(|| top.born()), size });
        }
        Ok(listed)
    }

    /// Removes the snapshot `name`, its immutable files, too. The name goes first.
    ///
    /// # Errors
    /// `ENOENT` (no snapshot has that name), `ENOTDIR` and `EACCES` as of [`snapshots`](Self::snapshots), the store's; `EBUSY` (something is
    /// mounted in it).
    pub fn drop_snapshot(&self, name: &[u8]) -> Result<(), Errno> {
        check_name(name).or(Err(Errno::ENOENT))?;
        let taken = self.snapshots_dir()?.take_out(name);
        // Another file may have a name there.
        taken.map_err(|errno| if errno == Errno::ENOTDIR { Errno::ENOENT } else { errno })?.remove()?;
        self.root().shared.sync()
    }
}

impl InodeRef {
    /// Whether `inode`, which has a name in this directory, is that of the snapshots.
    pub(crate) fn has_snapshots_in(&self, inode: &InodeRef) -> bool {
        self.ino() == ROOT_INO && inode.is_read_only()
    }

    /// The bytes of the files below this directory, in memory.
    fn size_in_memory(&self) -> Result<TreeSize, Errno> {
        let (mut size, mut directories, mut met) = (TreeSize::default(), vec![self.clone()], BTreeSet::new());
        while let Some(dir) = directories.pop() {
            for (_, inode) in dir.list_names(|_| true)? {
                if inode.is_dir() {
                    directories.push(inode);
                } else if inode.links.count() < 2 || met.insert(inode.ino()) {
                    let (shared, private) = inode.data.shared_and_private_pages();
                    size.shared_bytes += shared * PAGE;
                    size.private_bytes += private * PAGE;
                }
            }
        }
        Ok(size)
    }

    /// From now on only the server changes this directory.
    pub(crate) fn close_to_changes(&self, cred: &Cred) -> Result<(), Errno> {
        if self.is_read_only() {
            return Ok(());
        }
        self.change_attributes(cred, |section| {
            self.raise(flag::READ_ONLY);
            section.inode(self);
            Ok(())
        })
    }
}

impl Inode {
    /// The initial attributes of a copy of this inode, and its access control lists of the same moment, if any.
    fn init(&self) -> (InodeInit, Option<Acls>) {
        let (attr, lists) = self.with_acls(|attr, acls| (*attr, attr.has_acls.then(|| acls.clone())));
        let nlink = if self.is_dir() { 2 } else { 1 };
        let Attr { mode, uid, gid, .. } = attr;
        let (file_type, born) = (self.file_type(), self.born());
        (InodeInit { file_type, mode, uid, gid, nlink, origin: 0, born }, lists)
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
