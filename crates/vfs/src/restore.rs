//! Restore: a tree, or one name of it, goes back to what a snapshot has.
//!
//! # Theory
//! The tree that comes back is copied as a clone is, without contents, to a hidden directory without a name ([`HiddenTree`]). Then one section
//! moves the copied names from there to the directory that they had: each is a rename, so no lookup finds a name missing. A tree that had
//! such a name before loses it in the same section, as a [deleted snapshot](crate::snapshot) does: a crash leaves all of the old state or all of
//! the new one, and opening the store removes the rest.
//!
//! Programs keep the files that they have open, which are without a name then. A name that another call changes while the section is at
//! work stays as that call left it.

use crate::durable::{HiddenTree, Section};
use crate::inode::flag;
use crate::moment::{CopyKind, CopyTarget};
use crate::ops::rename::with_names;
use crate::ops::{Obstacle, ToldAhead};
use crate::quota::DirectoryQuota;
use crate::{Cred, Errno, InodeRef, Superblock};
use sluice_sync::rcu;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Bytes of the section for each name: its record, that in the hidden directory, and an orphan's.
const BYTES_A_NAME: usize = 3 * (crate::NAME_MAX + 64);

/// The targets of the old names, by name.
type OldTargets = Vec<(Box<[u8]>, Option<InodeRef>)>;

impl Superblock {
    /// Brings the file or directory at `path`, with all that is below it, back to what the snapshot `name` has there; the whole tree if
    /// the path is empty. No contents are copied. Over a store the new state is durable when this returns.
    ///
    /// # Errors
    /// `ENOENT` (no such snapshot; the path leads nowhere in it, or its directory is missing), `ENOTDIR`, `EINVAL` (the path has `..` or
    /// a NUL), `EBUSY` (something is mounted on a name that goes, or a directory there has a quota), `ENOSPC`, `EFBIG` (too many names at once), `EACCES` as of
    /// [`snapshots`](Self::snapshots); the store's.
    pub fn restore_snapshot(&self, name: &[u8], path: &[u8]) -> Result<(), Errno> {
        let top = self.snapshots_dir()?.look_up(name)?;
        top.as_dir()?;
        let mut names: Vec<&[u8]> =
            path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        names.retain(|name| *name != b".");
        if names.contains(&&b".."[..]) || path.contains(&0) {
            return Err(Errno::EINVAL);
        }
        let shared = &self.root().shared;
        let _quotas = shared.quotas.still();
        let tops = self.paths(shared.quotas.all().map(DirectoryQuota::dir));
        let restored: PathBuf = names.iter().map(|name| OsStr::from_bytes(name)).collect();
        if tops.values().any(|top| top.strip_prefix("/").unwrap_or(top).starts_with(&restored)) {
            return Err(Errno::EBUSY);
        }
        let last = names.pop();
        let (mut from, mut to) = (top.clone(), self.root().clone());
        for name in names {
            (from, to) = (from.look_up(name)?, to.look_up(name)?);
        }
        if let Some(last) = last {
            from.look_up(last)?;
        }
        to.as_dir()?;
        to.restore(&top, &from, last)?;
        self.root().shared.sync()
    }
}

impl InodeRef {
    /// Has this directory, or the name `only` in it, be as in `from`, a directory of the snapshot `top`.
    fn restore(&self, top: &InodeRef, from: &InodeRef, only: Option<&[u8]>) -> Result<(), Errno> {
        let cred = Cred::root();
        let quota = self.quota_below();
        let target = CopyTarget { shared: self.shared.clone(), kind: CopyKind::Return, quota };
        let (moment, is_there) = self.shared.begin_moment(&target, || !top.has(flag::LOST));
        if !is_there {
            return Err(Errno::ENOENT);
        }
        let mut tree = HiddenTree::new(&moment.copy_directory(from, self)?);
        let filled = tree.fill_with(from, &moment, only).and_then(|()| tree.hide());
        drop(moment);
        let replaced = filled.and_then(|()| self.take_over(&cred, tree.top(), only.is_none()));
        let removed = tree.remove();
        let old_directories: Vec<InodeRef> =
            replaced?.into_iter().filter_map(|(_, old)| old.filter(|old| old.is_dir())).collect();
        if !old_directories.is_empty() {
            // A lookup that found a replaced directory before is still on its way to the names in it.
            rcu::domain().synchronize();
        }
        for old in old_directories {
            HiddenTree::without_name(&old).remove()?;
        }
        removed
    }

    /// Moves the names of the hidden directory `hidden` here. If `is_whole`, other names go, and this directory gets the attributes of
    /// the hidden one.
    fn take_over(&self, cred: &Cred, hidden: &InodeRef, is_whole: bool) -> Result<OldTargets, Errno> {
        let (new, told) = (hidden.list_names(|_| true)?, ToldAhead::default());
        let mut names: BTreeMap<Box<[u8]>, Option<InodeRef>> =
            new.into_iter().map(|(name, inode)| (name, Some(inode))).collect();
        if is_whole {
            for (name, inode) in self.list_names(|_| true)? {
                if !self.has_snapshots_in(&inode) {
                    names.entry(name).or_insert(None);
                }
            }
        }
        self.shared.operate(
            cred,
            &[self],
            names.len() * BYTES_A_NAME,
            |section, _| {
                self.check_names_here()?;
                hidden.check_names_here()?;
                // This directory got a quota, or lost it, while the copy was made.
                if hidden.quota_below() != self.quota_below() {
                    return Err(Errno::EXDEV.into());
                }
                let mut old: OldTargets = Vec::with_capacity(names.len());
                for name in names.keys() {
                    let there = self.lock_entry(name)?.there().map(|there| there.get().clone());
                    if let Some(there) = &there {
                        if there.as_dir().is_ok_and(|dir| dir.has_mounts()) {
                            return Err(Errno::EBUSY.into());
                        }
                        told.check(there)?;
                        there.check_kept()?;
                    }
                    old.push((name.clone(), there));
                }
                let own = self.xattr_names();
                if is_whole {
                    self.become_like(hidden)?;
                }
                let theirs = self.xattr_names();
                let xattrs: Vec<&[u8]> = own.iter().chain(&theirs).map(|name| &**name).collect();
                for ((name, new), (_, old)) in names.iter().zip(&mut old) {
                    self.take_over_name(section, hidden, name, new.as_ref(), old)?;
                }
                if is_whole {
                    self.times.set_as(&hidden.times);
                    section.inode(self);
                    section.xattrs(self, &xattrs);
                } else {
                    let moved = self.touch_mtime();
                    section.times(self, moved);
                }
                Ok(old)
            },
            |replaced| {
                for (name, old) in replaced {
                    let ino = old.as_ref().map(|old| old.ino());
                    self.shared.notify(cred, |observer| observer.entry_changed(self.ino(), name, ino));
                    ino.into_iter().for_each(|ino| self.shared.notify_name_lost(ino));
                }
                self.notify_attributes(cred);
            },
        )
    }
}

impl InodeRef {
    /// In `section`: if `name` leads to `old` yet, it leads to `new` from now on, which had the name in the directory `hidden`; without a
    /// `new` it is gone. `old` is then what lost the name here.
    fn take_over_name(
        &self,
        section: &Section<'_>,
        hidden: &InodeRef,
        name: &[u8],
        new: Option<&InodeRef>,
        old: &mut Option<InodeRef>,
    ) -> Result<(), Obstacle> {
        let is_same = |there: Option<&InodeRef>, old: &Option<InodeRef>| match (there, old) {
            (Some(there), Some(old)) => there.is_same(old),
            (None, None) => true,
            _ => false,
        };
        let has_taken_over = match new {
            Some(new) => with_names((hidden, name), (self, name), |names| {
                if !is_same(names.second().get(), old) {
                    return Ok(false);
                }
                if let Ok(dir) = new.as_dir() {
                    dir.set_parent(Some(self.clone()));
                }
                self.name_changes(name, old.as_ref());
                if !names.rename() {
                    return Err(Errno::ENOSPC);
                }
                section.name(hidden, name, None);
                section.name(self, name, Some(new));
                section.took_over(new);
                Ok(true)
            })??,
            None => {
                let mut entry = self.lock_entry(name)?;
                let is_there = is_same(entry.there().as_ref().map(|there| there.get()), old);
                if is_there && old.is_some() {
                    self.name_changes(name, old.as_ref());
                    entry.remove();
                    section.name(self, name, None);
                }
                is_there
            }
        };
        match old.as_ref().filter(|_| has_taken_over) {
            Some(old) if old.is_dir() => section.lost_tree(old, self),
            Some(old) => {
                old.drop_link();
                section.lost_name(old, self);
            }
            None => *old = None,
        }
        Ok(())
    }

    /// Gets the attributes of `other`, a copy that nobody knows.
    ///
    /// # Errors
    /// `ENOSPC`, and nothing has changed.
    fn become_like(&self, other: &InodeRef) -> Result<(), Errno> {
        let xattrs = other.extra().xattrs.lock().clone();
        self.shared.charge(xattrs.charged())?;
        let (theirs, lists) = other.with_acls(|attr, acls| (*attr, acls.clone()));
        let changed = self.change_acls(|attr, acls| {
            (attr.mode, attr.uid, attr.gid) = (theirs.mode, theirs.uid, theirs.gid);
            *acls = lists;
            Ok(())
        });
        if let Err(error) = changed {
            self.shared.discharge(xattrs.charged());
            return Err(error);
        }
        self.may_have_xattrs();
        let replaced = std::mem::replace(&mut *self.extra().xattrs.lock(), xattrs);
        self.shared.discharge(replaced.charged());
        self.put_flags(other.flags());
        Ok(())
    }
}
