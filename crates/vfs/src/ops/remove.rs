//! Remove: taking names away.

use crate::at_once::{AtOnce, WouldWait};
use crate::dir::Burial;
use crate::durable::Section;
use crate::inode::flag;
use crate::ops::create::check_name;
use crate::ops::delegations::break_all;
use crate::ops::{Obstacle, ToldAhead};
use crate::watch::fault::Calls;
use crate::{Cred, Errno, Inode, InodeFlags, InodeRef};
use sluice_sync::name_table::LockedEntry;
use sluice_sync::rcu::Guard;
use sluice_sync::thread;

/// A file that lost a name.
struct Removed {
    ino: u64,
    /// See [`Inode::pages_without_name`].
    pages: u64,
    /// It is to be [forgotten](Section::forget) yet.
    to_forget: Option<InodeRef>,
}

/// The remaining work after a file lost a name in a read section.
pub(crate) struct RemovedAtOnce {
    /// The caller should [`settle`](crate::inode::settle), outside of any section.
    pub(crate) should_settle: bool,
    /// To be [forgotten](Section::forget) after the read section, in the section that puts down the change.
    pub(crate) to_forget: Option<InodeRef>,
}

/// Whether a caller may take a name out of a directory: that of this inode.
pub(crate) type MayDelete = fn(&Inode, &Cred, &Inode) -> Result<(), Errno>;

impl InodeRef {
    /// Removes the name `name` of a file that is no directory. Holders of the file keep it.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EACCES`, `EPERM` (sticky directory), `EROFS` (in a snapshot), `ENOTDIR`, `ENAMETOOLONG`, `EINVAL`.
    pub fn unlink(&self, cred: &Cred, name: &[u8]) -> Result<(), Errno> {
        self.unlink_if(cred, name, Inode::may_delete)
    }

    pub(crate) fn unlink_if(&self, cred: &Cred, name: &[u8], may: MayDelete) -> Result<(), Errno> {
        self.as_dir()?;
        self.check_name(name)?;
        self.load_names()?;
        self.meet_faults_of(Calls::REMOVE, &[(self, name)])?;
        let victim = self.maybe_delegated(name);
        let told = ToldAhead::default();
        let removed = self.shared.operate(
            cred,
            &[self, victim.as_deref().unwrap_or(self)],
            0,
            |section, _| {
                self.check_names_here()?;
                let mut entry = self.lock_entry(name)?;
                if let Some(there) = entry.there() {
                    told.check(there.get())?;
                    there.get().check_kept()?;
                }
                Ok(self.unlink_locked(|victim| may(self, cred, victim), name, &mut entry, section, true)?)
            },
            |removed| self.notify_removed(cred, name, removed.ino),
        )?;
        self.shared.release_soon(removed.pages);
        Ok(())
    }

    /// Removes the empty directory `name`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EBUSY` (something is mounted there), `EACCES`, `EPERM` (sticky
    /// directory), `EROFS` (in a snapshot), `ENAMETOOLONG`, `EINVAL`.
    pub fn rmdir(&self, cred: &Cred, name: &[u8]) -> Result<(), Errno> {
        self.rmdir_if(cred, name, Inode::may_delete)
    }

    pub(crate) fn rmdir_if(&self, cred: &Cred, name: &[u8], may: MayDelete) -> Result<(), Errno> {
        self.as_dir()?;
        self.check_name(name)?;
        self.load_names()?;
        self.meet_faults_of(Calls::REMOVE, &[(self, name)])?;
        let victim = self.maybe_delegated(name);
        let told = ToldAhead::default();
        let remove = |section: &Section<'_>| {
            self.check_names_here()?;
            let mut entry = self.lock_entry(name)?;
            let there = entry.there().ok_or(Errno::ENOENT)?;
            let victim = there.get();
            may(self, cred, victim)?;
            let dir = victim.as_dir()?;
            told.check(victim)?;
            victim.check_kept()?;
            if victim.has(flag::PARTIAL) || dir.bury()? == Burial::Busy {
                return Err(Obstacle::Busy(victim.clone()));
            }
            self.name_changes(name, Some(victim));
            let victim = there.remove();
            section.name(self, name, None);
            victim.touch_ctime();
            section.lost_name(victim, self);
            let moved = self.touch_mtime();
            section.times(self, moved);
            Ok(victim.ino())
        };
        let changed = [self, victim.as_deref().unwrap_or(self)];
        let tell = |victim: &u64| self.notify_removed(cred, name, *victim);
        self.shared.operate(cred, &changed, 0, |section, _| remove(section), tell).map(drop)
    }

    /// Removes the directory `name` with everything below it. The walk goes from inode to inode: a name that another
    /// thread puts in its way leads it nowhere else, and no path is too long for it.
    ///
    /// # Errors
    /// `EBUSY` at a mount point, as for [`unlink`](Self::unlink) and [`rmdir`](Self::rmdir); files removed so far stay
    /// removed.
    pub(crate) fn remove_tree(&self, cred: &Cred, name: &[u8]) -> Result<(), Errno> {
        self.lookup(cred, name)?.remove_below(cred, Inode::may_delete)?;
        self.rmdir(cred, name)
    }

    /// Removes all that is below this directory, which stays, as [`remove_tree`](Self::remove_tree) does; `may` is asked for each name.
    pub(crate) fn remove_below(&self, cred: &Cred, may: MayDelete) -> Result<(), Errno> {
        let mut pending = vec![(None, self.clone(), false)];
        while let Some((place, dir, is_emptied)) = pending.pop() {
            if is_emptied {
                let remove = |(parent, name): (InodeRef, Box<[u8]>)| parent.rmdir_if(cred, &name, may);
                place.map_or(Ok(()), remove)?;
                continue;
            }
            if dir.as_dir()?.has_mounts() {
                return Err(Errno::EBUSY);
            }
            let children = dir.list_names(|_| true)?;
            pending.push((place, dir.clone(), true));
            for (name, child) in children {
                if child.is_dir() {
                    pending.push((Some((dir.clone(), name)), child, false));
                } else {
                    dir.unlink_if(cred, &name, may)?;
                }
            }
        }
        Ok(())
    }
}

impl Inode {
    /// Removes the name of a file in the caller's read `section`, if nobody is waited for or told of it; see
    /// [`unlink`](InodeRef::unlink). `put_down` began before that: a section is not begun inside another.
    #[inline]
    pub(crate) fn unlink_at_once(
        &self,
        cred: &Cred,
        name: &[u8],
        section: &Guard<'_>,
        put_down: &Section<'_>,
    ) -> AtOnce<RemovedAtOnce> {
        let dir = self.as_dir()?;
        if !self.may_change_at_once(put_down) || check_name(name).is_err() {
            return Err(WouldWait);
        }
        let hash = self.shared.hasher.hash(name);
        // A missing name or a wrong type is found without a lock.
        if dir.names.get(hash, name, section).is_none_or(|victim| victim.is_dir()) {
            return Err(WouldWait);
        }
        let may = |victim: &Inode| self.may_delete(cred, victim);
        let unlink =
            |entry: &mut LockedEntry<'_, InodeRef>| self.unlink_locked(may, name, entry, put_down, false);
        let removed = dir.names.try_with_locked(hash, name, unlink).ok_or(WouldWait)??;
        // A delegation may have been taken meanwhile: to tell is enough.
        let _ = break_all(cred, &[self], false);
        let Removed { pages, to_forget, .. } = removed;
        Ok(RemovedAtOnce { should_settle: self.shared.should_release(pages), to_forget })
    }

    /// Whether names of this directory may be changed in a read section, with what is put down in `put_down`.
    #[inline]
    pub(crate) fn may_change_at_once(&self, put_down: &Section<'_>) -> bool {
        match put_down.is_none() {
            true => self.shared.is_quiet(),
            false => {
                put_down.is_of(&self.shared) && self.shared.is_quiet_over_store() && !self.has(flag::PARTIAL)
            }
        }
    }

    /// Removes the name of `entry`, that of a file that is no directory, if it `may` go. Unless this `may_wait`, the file may have to be
    /// forgotten.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`; those of `may`.
    fn unlink_locked(
        &self,
        may: impl FnOnce(&Inode) -> Result<(), Errno>,
        name: &[u8],
        entry: &mut LockedEntry<'_, InodeRef>,
        section: &Section<'_>,
        may_wait: bool,
    ) -> Result<Removed, Errno> {
        let there = entry.there().ok_or(Errno::ENOENT)?;
        let victim = there.get();
        may(victim)?;
        if victim.is_dir() {
            return Err(Errno::EISDIR);
        }
        self.name_changes(name, Some(victim));
        let victim = there.remove();
        section.name(self, name, None);
        let moved = self.touch_mtime();
        section.times(self, moved);
        victim.drop_link();
        let is_forgotten = if may_wait {
            section.lost_name(victim, self);
            true
        } else {
            section.lost_name_at_once(victim, self)
        };
        let to_forget = (!is_forgotten).then(|| victim.clone());
        Ok(Removed { ino: victim.ino(), pages: victim.pages_without_name(), to_forget })
    }

    /// Lets the threads proceed that kept this directory from being buried. Called with no name locked.
    pub(crate) fn await_burial(&self) -> Result<(), Errno> {
        self.as_dir()?.names.help();
        thread::yield_now();
        Ok(())
    }

    /// Locks `name` of this directory.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` when the directory was removed.
    #[track_caller]
    pub(crate) fn lock_entry<'n>(&'n self, name: &'n [u8]) -> Result<LockedEntry<'n, InodeRef>, Errno> {
        self.lock_entry_nested(name, 0)
    }

    /// Locks `name` for a caller that has names of other directories locked at lower levels; see [`lock_entry`](Self::lock_entry).
    #[track_caller]
    pub(crate) fn lock_entry_nested<'n>(
        &'n self,
        name: &'n [u8],
        level: u8,
    ) -> Result<LockedEntry<'n, InodeRef>, Errno> {
        let hash = self.shared.hasher.hash(name);
        self.as_dir()?.names.lock_nested(hash, name, level).ok_or(Errno::ENOENT)
    }

    /// True for a directory that has lost its name: it takes no new ones.
    pub(crate) fn is_removed_dir(&self) -> bool {
        self.as_dir().is_ok_and(|dir| dir.names.is_dead())
    }

    /// Checks that `name` can be the name of an entry of this directory.
    ///
    /// # Errors
    /// Errors of [`check_name`]; `ENOENT` first, if the directory was removed.
    pub(crate) fn check_name(&self, name: &[u8]) -> Result<(), Errno> {
        check_name(name).map_err(|error| self.gone_or(error))
    }

    /// The error for a wrong name in this directory: removal of the directory takes precedence over `error`.
    pub(crate) fn gone_or(&self, error: Errno) -> Errno {
        if self.is_removed_dir() { Errno::ENOENT } else { error }
    }

    /// Checks that this inode can lose its name: by `rmdir` if `remove_dir`, else by `unlink`.
    ///
    /// # Errors
    /// `EISDIR`, `ENOTDIR`, `EBUSY` (something is mounted here), `ENOTEMPTY`.
    pub(crate) fn check_removable(&self, remove_dir: bool) -> Result<(), Errno> {
        match (self.as_dir(), remove_dir) {
            (Ok(dir), true) => dir.check_buriable(),
            (Err(error), true) => Err(error),
            (Ok(_), false) => Err(Errno::EISDIR),
            (Err(_), false) => Ok(()),
        }
    }

    /// May `cred` take the name of `victim` out of this directory?
    pub(crate) fn may_delete(&self, cred: &Cred, victim: &Inode) -> Result<(), Errno> {
        self.may_change_names(cred)?;
        self.check_not(InodeFlags::APPEND)?;
        self.check_sticky(cred, victim)?;
        victim.check_not(InodeFlags::FIXED)
    }

    /// A file lost one of its names. Called with that name locked.
    pub(crate) fn drop_link(&self) {
        self.links.remove();
        self.touch_ctime();
    }

    /// How many pages it holds only for processes that have it open: none while it has a name.
    pub(crate) fn pages_without_name(&self) -> u64 {
        match self.pages() {
            pages if pages > 0 && self.nlink() == 0 => pages,
            _ => 0,
        }
    }

    fn notify_removed(&self, cred: &Cred, name: &[u8], victim: u64) {
        self.shared.notify(cred, |observer| observer.entry_changed(self.ino(), name, Some(victim)));
        self.shared.notify_name_lost(victim);
    }
}
