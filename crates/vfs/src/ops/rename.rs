//! Rename: moving names.
//!
//! # Theory
//! A rename locks the two names, and nothing else of their directories: renames of different names do not meet.
//! Only a rename that gives a directory another parent, or puts one in another's place there, first takes the
//! superblock's rename lock: under it no directory gets another parent, so "is one an ancestor of the other?" has
//! an answer that stays true. That question must be asked, or a directory could become its own descendant. Whether
//! it must be, is known only when the names are locked; then the rename begins anew with the lock.
//!
//! Lookups, which take no lock, find the file under the old name up to one instant, and under the new one from then on:
//! see [`LockedPair`].
//!
//! # Lock order
//! Rename lock; the names, of two directories by inode number. A directory that is replaced is buried without
//! waiting: if it is in use, all names are unlocked and the rename begins anew.

use crate::at_once::{AtOnce, WouldWait, decided};
use crate::dir::Burial;
use crate::durable::Section;
use crate::inode::flag;
use crate::lock_class::SECOND_DIRECTORY;
use crate::ops::create::check_name;
use crate::ops::{Obstacle, ToldAhead, TreeLock};
use crate::watch::fault::Calls;
use crate::{Access, Cred, Errno, Inode, InodeRef, NewInode, NewKind, RenameFlags};
use sluice_sync::name_table::LockedPair;
use sluice_sync::rcu;
use sluice_sync::refcache::Ref;
use std::ptr;

/// The effects of a finished rename, for observers.
struct Moved {
    source: InodeRef,
    /// The file that had the new name: it lost that name, or took the old one.
    target: Option<InodeRef>,
    /// The whiteout that has the old name now.
    whiteout: Option<InodeRef>,
    /// Whether the times of the old directory moved, and those of the new one.
    times: [bool; 2],
}

impl Moved {
    /// Puts down what the rename did, with both names locked.
    fn put_down(
        &self,
        section: &Section<'_>,
        (old_dir, old): (&InodeRef, &[u8]),
        (new_dir, new): (&InodeRef, &[u8]),
        flags: RenameFlags,
    ) {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if let Some(whiteout) = &self.whiteout {
            section.gained_name(whiteout, Some(old_dir));
        }
        let left = if exchange { self.target.as_ref() } else { self.whiteout.as_ref() };
        section.name(old_dir, old, left);
        section.name(new_dir, new, Some(&self.source));
        section.times(old_dir, self.times[0]);
        section.times(new_dir, self.times[1]);
        section.inode(&self.source);
        match &self.target {
            Some(target) if exchange => section.inode(target),
            Some(target) => section.lost_name(target, new_dir),
            None => {}
        }
    }

    /// Tells the observers.
    fn tell(&self, cred: &Cred, (old_dir, old): (&InodeRef, &[u8]), (new_dir, new): (&InodeRef, &[u8])) {
        let other = self.target.as_ref().map(|target| target.ino());
        let shared = &old_dir.shared;
        shared.notify(cred, |observer| {
            observer.entry_changed(old_dir.ino(), old, Some(self.source.ino()));
            observer.entry_changed(new_dir.ino(), new, other);
        });
        if let Some(other) = other {
            shared.notify_name_lost(other);
        }
    }
}

impl InodeRef {
    /// Moves the name `name` of this directory to `new_name` in `new_dir`. A file that had the new name
    /// loses it in the same instant; with `EXCHANGE` it gets the old name; with `NOREPLACE` it is an error. With
    /// `WHITEOUT` the old name means a whiteout from that instant on. When both names already mean the same file, nothing
    /// happens.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST` (`NOREPLACE`), `EXDEV` (another file system; a directory or a file of several names, and another quota), `EDQUOT`, `EINVAL` (bad flags; a directory
    /// into itself), `ENOTEMPTY`, `EISDIR`, `ENOTDIR`, `EBUSY` (a mount point), `EACCES`, `EPERM` (sticky),
    /// `ENOSPC` (no inode for a whiteout).
    pub fn rename(
        &self,
        cred: &Cred,
        name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        check_flags(flags)?;
        if !Ref::ptr_eq(&self.shared, &new_dir.shared) {
            return Err(Errno::EXDEV);
        }
        self.check_name(name)?;
        if let Err(error) = check_name(new_name) {
            // A missing source, or a removed directory, is reported first.
            self.lookup(cred, name)?;
            return Err(new_dir.gone_or(error));
        }
        self.load_names()?;
        loop {
            self.load_names_beside()?;
            new_dir.load_names_beside()?;
            match decided(self.is_nothing_to_rename(name, (new_dir, new_name), flags)).transpose()? {
                Some(true) => return Ok(()),
                Some(false) => break,
                None => {}
            }
        }
        self.meet_faults_of(Calls::RENAME, &[(self, name), (new_dir, new_name)])?;
        let (source, target) = (self.maybe_delegated(name), new_dir.maybe_delegated(new_name));
        let told = ToldAhead::default();
        let moved = self.shared.operate(
            cred,
            &[self, new_dir, source.as_deref().unwrap_or(self), target.as_deref().unwrap_or(new_dir)],
            0,
            |section, tree| {
                self.check_names_here()?;
                new_dir.check_names_here()?;
                with_names((self, name), (new_dir, new_name), |names| {
                    let check = |inode: Option<&InodeRef>| match inode {
                        Some(inode) => told.check(inode).and_then(|()| inode.check_kept()),
                        None => Ok(()),
                    };
                    check(names.first().get())?;
                    check(names.second().get())?;
                    self.name_changes(name, names.first().get());
                    new_dir.name_changes(new_name, names.second().get());
                    let moved = self.rename_locked(names, cred, new_dir, flags, tree)?;
                    if let Some(moved) = &moved {
                        moved.put_down(section, (self, name), (new_dir, new_name), flags);
                    }
                    Ok(moved)
                })?
            },
            |moved| {
                if let Some(moved) = moved {
                    moved.tell(cred, (self, name), (new_dir, new_name));
                }
            },
        )?;
        let target = moved.and_then(|moved| moved.target);
        self.shared.release_soon(target.map_or(0, |target| target.pages_without_name()));
        Ok(())
    }

    /// Whether both names mean one file already, seen with nothing locked.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`; `EEXIST` (`NOREPLACE`); `WouldWait` if names are not in memory.
    fn is_nothing_to_rename(
        &self,
        name: &[u8],
        (new_dir, new_name): (&InodeRef, &[u8]),
        flags: RenameFlags,
    ) -> AtOnce<bool> {
        let section = rcu::domain().read();
        let (dir, new) = (self.as_dir()?, new_dir.as_dir()?);
        let (departures, departures_there) = (dir.departures(), new.departures());
        let found = (self.entry(dir, name, &section), new_dir.entry(new, new_name, &section));
        if matches!(found, (None, _) | (_, None))
            && !(self.are_names_here(departures) && new_dir.are_names_here(departures_there))
        {
            return Err(WouldWait);
        }
        let (source, target) = (found.0.ok_or(Errno::ENOENT)?, found.1);
        let outcome = check_target_exists(target.is_some(), flags);
        if outcome.is_ok() && !target.is_some_and(|target| source.is_same(target)) {
            return Ok(false);
        }
        // Compares entries, not only files: so the entry existed when the other name was looked up.
        let was_there = self.entry(dir, name, &section).is_some_and(|again| ptr::eq(source, again));
        if was_there { Ok(outcome.map(|()| true)?) } else { Ok(false) }
    }

    /// One attempt with the `names` locked; returns the change, if any was necessary. Between directories a rename that
    /// a directory takes part in needs the `tree` lock.
    fn rename_locked(
        &self,
        names: &mut LockedPair<'_, InodeRef>,
        cred: &Cred,
        new_dir: &InodeRef,
        flags: RenameFlags,
        tree: Option<&TreeLock<'_>>,
    ) -> Result<Option<Moved>, Obstacle> {
        let (source, target) = (names.first().get().cloned(), names.second().get().cloned());
        let source = source.ok_or(Errno::ENOENT)?;
        check_target_exists(target.is_some(), flags)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let reshapes = !self.is_same(new_dir)
            && (source.is_dir() || target.as_ref().is_some_and(|target| target.is_dir()));
        if reshapes {
            if tree.is_none() {
                return Err(Obstacle::NeedsTree);
            }
            if is_ancestor_or_same(&source, new_dir) {
                return Err(Errno::EINVAL.into());
            }
            if target.as_ref().is_some_and(|target| is_ancestor_or_same(target, self)) {
                return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
            }
        }
        let ends = Ends { old_dir: self, new_dir, source: &source, target: target.as_ref() };
        if !ends.permit(cred, flags)? {
            return Ok(None);
        }
        let whiteout =
            if flags.contains(RenameFlags::WHITEOUT) { Some(self.new_whiteout(cred)?) } else { None };
        let had = match self.quota_below() == new_dir.quota_below() {
            true => None,
            false if exchange => return Err(Errno::EXDEV.into()),
            false => source.follow_name(new_dir)?,
        };
        let rename = |names: &mut LockedPair<'_, InodeRef>| match &whiteout {
            Some(whiteout) => names.rename_leaving(whiteout.clone(), 0),
            None => names.rename(),
        };
        match &target {
            Some(target) if exchange => {
                names.exchange();
                if reshapes {
                    target.set_parent(self);
                }
            }
            Some(target) => {
                let dir = target.as_dir();
                if let Ok(dir) = dir
                    && (target.has(flag::PARTIAL) || dir.bury()? == Burial::Busy)
                {
                    return Err(Obstacle::Busy(target.clone()));
                }
                rename(names);
                // Only now: a file has links as long as a walk can find it.
                match dir {
                    Ok(_) => target.touch_ctime(),
                    Err(_) => target.drop_link(),
                }
            }
            None if rename(names) => {}
            None => {
                had.into_iter().for_each(|had| source.bring_to_quota(had));
                return Err(Errno::ENOSPC.into());
            }
        }
        if reshapes {
            source.set_parent(new_dir);
        }
        let times = ends.touch(flags);
        Ok(Some(Moved { source, target, whiteout, times }))
    }

    /// The inode that a rename with `WHITEOUT` leaves in this directory.
    fn new_whiteout(&self, cred: &Cred) -> Result<InodeRef, Errno> {
        self.new_child(cred, &NewInode { kind: NewKind::WHITEOUT, mode: 0, umask: 0 })
    }

    /// Sets the parent of this inode to `parent`, if it is a directory. Called under the rename lock.
    fn set_parent(&self, parent: &InodeRef) {
        if let Ok(dir) = self.as_dir() {
            dir.set_parent(Some(parent.clone()));
        }
    }
}

/// Calls `act` with both names of a rename locked.
///
/// # Errors
/// `ENOTDIR`; `ENOENT` when a directory was removed.
pub(crate) fn with_names<'n, R>(
    (old_dir, old): (&'n InodeRef, &'n [u8]),
    (new_dir, new): (&'n InodeRef, &'n [u8]),
    act: impl FnOnce(&mut LockedPair<'n, InodeRef>) -> R,
) -> Result<R, Errno> {
    if old_dir.is_same(new_dir) {
        let hash = |name: &[u8]| old_dir.shared.hasher.hash(name);
        let (old, new) = ((hash(old), old), (hash(new), new));
        return old_dir.as_dir()?.names.with_two_locked(old, new, act).ok_or(Errno::ENOENT);
    }
    // Lock order: names of two directories by inode number.
    let mut both = if old_dir.ino() < new_dir.ino() {
        let old = old_dir.lock_entry(old)?;
        LockedPair::between(old, new_dir.lock_entry_nested(new, SECOND_DIRECTORY)?)
    } else {
        let new = new_dir.lock_entry(new)?;
        LockedPair::between(old_dir.lock_entry_nested(old, SECOND_DIRECTORY)?, new)
    };
    Ok(act(&mut both))
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
                && dir.has_mounts()
            {
                return Err(Errno::EBUSY);
            }
        }
        Ok(true)
    }

    /// Moves the times; of the old directory and of the new one it says whether they moved.
    fn touch(&self, flags: RenameFlags) -> [bool; 2] {
        let old = self.old_dir.touch_mtime();
        let new = !self.old_dir.is_same(self.new_dir) && self.new_dir.touch_mtime();
        self.source.touch_ctime();
        if let Some(target) = self.target.filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
            target.touch_ctime();
        }
        [old, new]
    }
}

pub(crate) fn check_flags(flags: RenameFlags) -> Result<(), Errno> {
    // Flags that an exchange excludes.
    let moving = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
    let is_known = flags == RenameFlags::EXCHANGE || moving.contains(flags);
    if is_known { Ok(()) } else { Err(Errno::EINVAL) }
}

fn check_target_exists(exists: bool, flags: RenameFlags) -> Result<(), Errno> {
    match exists {
        true if flags.contains(RenameFlags::NOREPLACE) => Err(Errno::EEXIST),
        false if flags.contains(RenameFlags::EXCHANGE) => Err(Errno::ENOENT),
        _ => Ok(()),
    }
}

/// True when `above` is `inode` or a directory on its way to the root. Needs the rename lock to stay true.
fn is_ancestor_or_same(above: &Inode, inode: &InodeRef) -> bool {
    let section = rcu::domain().read();
    let mut at = inode;
    loop {
        if above.is_same(at) {
            return true;
        }
        let Some(parent) = at.as_dir().ok().and_then(|dir| dir.parent(&section)) else { return false };
        at = parent;
    }
}
