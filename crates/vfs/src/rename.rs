//! Rename: moving names.
//!
//! # Theory
//! A rename within one directory changes only that directory's names, under its lock. A rename between
//! directories first takes the superblock's rename lock: under it no directory gets another parent, so
//! "is one an ancestor of the other?" has an answer that stays true. That question must be asked, or a
//! directory could become its own descendant.
//!
//! # Lock order
//! Rename lock; the two directories, the ancestor first or else by inode number; then the directories whose
//! names move or go, which are children of those two and of neither's descendants, by inode number.

use crate::create::check_name;
use crate::dir::Names;
use crate::{Access, Cred, Errno, Inode, InodeRef, RenameFlags};
use sluice_sync::atomic::Ordering;
use sluice_sync::{Arc, MutexGuard, RwLockWriteGuard};

/// What a finished rename did, for observers.
struct Moved {
    source: InodeRef,
    /// The file that had the new name: it lost that name, or took the old one.
    target: Option<InodeRef>,
}

impl InodeRef {
    /// Moves the name `name` of this directory to `new_name` in `new_dir`. A file that had the new name
    /// loses it in the same instant; with `EXCHANGE` it gets the old name; with `NOREPLACE` it is an error.
    /// When both names already mean the same file, nothing happens.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST` (`NOREPLACE`), `EXDEV` (another file system), `EINVAL` (bad flags; a directory
    /// into itself), `ENOTEMPTY`, `EISDIR`, `ENOTDIR`, `EBUSY` (a mount point), `EACCES`, `EPERM` (sticky).
    pub fn rename(
        &self,
        cred: &Cred,
        name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        check_flags(flags)?;
        if !Arc::ptr_eq(&self.shared, &new_dir.shared) {
            return Err(Errno::EXDEV);
        }
        check_name(name).map_err(|error| self.gone_or(error))?;
        if let Err(error) = check_name(new_name) {
            // A missing source, or a removed directory, is reported first.
            self.lookup(cred, name)?;
            return Err(new_dir.gone_or(error));
        }
        let moved = if self.is_same(new_dir) {
            self.rename_within(cred, name, new_name, flags)?
        } else {
            self.rename_across(cred, name, new_dir, new_name, flags)?
        };
        if let Some(Moved { source, target }) = moved {
            let other = target.as_ref().map(|target| target.ino());
            self.shared.notify(cred, |observer| {
                observer.entry_changed(self.ino(), name, Some(source.ino()));
                observer.entry_changed(new_dir.ino(), new_name, other);
                observer.attributes_changed(source.ino());
                if let Some(other) = other {
                    observer.attributes_changed(other);
                }
            });
        }
        Ok(())
    }

    fn rename_within(
        &self,
        cred: &Cred,
        name: &[u8],
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<Option<Moved>, Errno> {
        let mut names = self.as_dir()?.names.write();
        let (source, target) = (names.get(name).cloned(), names.get(new_name).cloned());
        let source = source.ok_or(Errno::ENOENT)?;
        check_target_exists(target.is_some(), flags)?;
        let ends = Ends { old_dir: self, new_dir: self, source: &source, target: target.as_ref() };
        if !ends.permit(cred, flags)? {
            return Ok(None);
        }
        match &target {
            Some(target) if flags.contains(RenameFlags::EXCHANGE) => {
                names.replace(name, target.clone());
                names.replace(new_name, source.clone());
            }
            _ => {
                if let Some(target) = &target {
                    target.lose_name_to_rename(self)?;
                }
                names.rename(name, new_name);
            }
        }
        ends.touch(flags);
        Ok(Some(Moved { source, target }))
    }

    fn rename_across(
        &self,
        cred: &Cred,
        name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<Option<Moved>, Errno> {
        let tree = self.shared.rename_lock.lock();
        let (mut old_names, mut new_names) = lock_both(&tree, self, new_dir)?;
        let (source, target) = (old_names.get(name).cloned(), new_names.get(new_name).cloned());
        let source = source.ok_or(Errno::ENOENT)?;
        check_target_exists(target.is_some(), flags)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if is_ancestor_or_same(&source, new_dir) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = &target
            && is_ancestor_or_same(target, self)
        {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        let ends = Ends { old_dir: self, new_dir, source: &source, target: target.as_ref() };
        if new_names.is_dead() {
            return Err(Errno::ENOENT);
        }
        if !ends.permit(cred, flags)? {
            return Ok(None);
        }
        match &target {
            Some(target) if exchange => {
                old_names.replace(name, target.clone());
                new_names.replace(new_name, source.clone());
                target.move_to_parent(new_dir, self);
            }
            Some(target) => {
                target.lose_name_to_rename(new_dir)?;
                old_names.remove(name);
                new_names.replace(new_name, source.clone());
            }
            None => {
                old_names.remove(name);
                new_names.insert(new_name, source.clone());
            }
        }
        source.move_to_parent(self, new_dir);
        ends.touch(flags);
        Ok(Some(Moved { source, target }))
    }
}

impl Inode {
    /// The name of this inode in `dir` is about to mean another file.
    fn lose_name_to_rename(&self, dir: &InodeRef) -> Result<(), Errno> {
        if self.is_dir() {
            self.bury_directory()?;
            dir.attr.change(|attr| attr.nlink -= 1);
        } else {
            self.drop_link();
        }
        Ok(())
    }

    /// If this is a directory: its parent is now `to`. Called under the rename lock.
    fn move_to_parent(&self, from: &InodeRef, to: &InodeRef) {
        if let Ok(dir) = self.as_dir() {
            *dir.parent.lock() = Some(to.clone());
            from.attr.change(|attr| attr.nlink -= 1);
            to.attr.change(|attr| attr.nlink += 1);
        }
    }
}

/// The four inodes that a rename touches.
struct Ends<'a> {
    old_dir: &'a InodeRef,
    new_dir: &'a InodeRef,
    source: &'a InodeRef,
    target: Option<&'a InodeRef>,
}

impl Ends<'_> {
    /// Everything that may forbid the rename, in Linux's order, once the names are known. False when there is nothing to do.
    fn permit(&self, cred: &Cred, flags: RenameFlags) -> Result<bool, Errno> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if self.target.is_some_and(|target| self.source.is_same(target)) {
            return Ok(false);
        }
        self.old_dir.may_delete(cred, self.source)?;
        match self.target {
            None => self.new_dir.may_change_names(cred)?,
            Some(target) => {
                self.new_dir.may_delete(cred, target)?;
                match (self.source.is_dir(), target.is_dir()) {
                    (true, false) if !exchange => return Err(Errno::ENOTDIR),
                    (false, true) if !exchange => return Err(Errno::EISDIR),
                    _ => {}
                }
            }
        }
        if !self.old_dir.is_same(self.new_dir) {
            // "..", which lies in the directory itself, will change.
            let moving = [Some(self.source), self.target.filter(|_| exchange)];
            for inode in moving.into_iter().flatten().filter(|inode| inode.is_dir()) {
                inode.access(cred, Access::WRITE)?;
            }
        }
        for inode in [Some(self.source), self.target].into_iter().flatten() {
            if let Ok(dir) = inode.as_dir()
                && dir.mounts_here.load(Ordering::SeqCst) != 0
            {
                return Err(Errno::EBUSY);
            }
        }
        Ok(true)
    }

    fn touch(&self, flags: RenameFlags) {
        self.old_dir.touch_mtime();
        if !self.old_dir.is_same(self.new_dir) {
            self.new_dir.touch_mtime();
        }
        self.source.touch_ctime();
        if let Some(target) = self.target.filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
            target.touch_ctime();
        }
    }
}

pub(crate) fn check_flags(flags: RenameFlags) -> Result<(), Errno> {
    let known = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    if !known.contains(flags) || flags == known { Err(Errno::EINVAL) } else { Ok(()) }
}

fn check_target_exists(exists: bool, flags: RenameFlags) -> Result<(), Errno> {
    match exists {
        true if flags.contains(RenameFlags::NOREPLACE) => Err(Errno::EEXIST),
        false if flags.contains(RenameFlags::EXCHANGE) => Err(Errno::ENOENT),
        _ => Ok(()),
    }
}

/// True when `above` is `inode` or a directory on its way to the root. Needs the rename lock to stay true.
pub(crate) fn is_ancestor_or_same(above: &InodeRef, inode: &InodeRef) -> bool {
    let mut at = inode.clone();
    loop {
        if above.is_same(&at) {
            return true;
        }
        let Ok(dir) = at.as_dir() else { return false };
        let Some(parent) = dir.parent.lock().clone() else { return false };
        at = parent;
    }
}

type BothNames<'a> = (RwLockWriteGuard<'a, Names>, RwLockWriteGuard<'a, Names>);

/// Locks the names of two different directories of one file system in the one right order.
fn lock_both<'a>(
    _tree: &MutexGuard<'_, ()>,
    a: &'a InodeRef,
    b: &'a InodeRef,
) -> Result<BothNames<'a>, Errno> {
    let (dir_a, dir_b) = (a.as_dir()?, b.as_dir()?);
    let a_first = is_ancestor_or_same(a, b) || (!is_ancestor_or_same(b, a) && a.ino() < b.ino());
    Ok(if a_first {
        let names_a = dir_a.names.write();
        (names_a, dir_b.names.write())
    } else {
        let names_b = dir_b.names.write();
        (dir_a.names.write(), names_b)
    })
}
