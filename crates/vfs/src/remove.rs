//! Remove: taking names away.

use crate::create::check_name;
use crate::dir::Burial;
use crate::{Cred, Errno, Inode, InodeRef};
use sluice_sync::name_table::LockedEntry;
use sluice_sync::thread;

impl Inode {
    /// Removes the name `name` of a file that is no directory. Whoever holds the file keeps it.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EACCES`, `EPERM` (sticky directory), `ENOTDIR`, `ENAMETOOLONG`, `EINVAL`.
    pub fn unlink(&self, cred: &Cred, name: &[u8]) -> Result<(), Errno> {
        self.as_dir()?;
        check_name(name)?;
        let victim = {
            let mut entry = self.lock_entry(name)?;
            let victim = entry.get().ok_or(Errno::ENOENT)?;
            self.may_delete(cred, victim)?;
            if victim.is_dir() {
                return Err(Errno::EISDIR);
            }
            let victim = entry.remove().ok_or(Errno::ENOENT)?;
            self.touch_mtime();
            victim.drop_link();
            victim
        };
        self.notify_removed(cred, name, &victim);
        self.shared.release_soon(victim);
        Ok(())
    }

    /// Removes the empty directory `name`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EBUSY` (something is mounted there), `EACCES`, `EPERM` (sticky
    /// directory), `ENAMETOOLONG`, `EINVAL`.
    pub fn rmdir(&self, cred: &Cred, name: &[u8]) -> Result<(), Errno> {
        self.as_dir()?;
        check_name(name)?;
        let victim = loop {
            let mut entry = self.lock_entry(name)?;
            let victim = entry.get().ok_or(Errno::ENOENT)?;
            self.may_delete(cred, victim)?;
            if victim.as_dir()?.bury()? == Burial::Done {
                let victim = entry.remove().ok_or(Errno::ENOENT)?;
                victim.touch_ctime();
                self.touch_mtime();
                break victim;
            }
            let victim = victim.clone();
            drop(entry);
            victim.await_burial()?;
        };
        self.notify_removed(cred, name, &victim);
        Ok(())
    }

    /// Lets those proceed who kept this directory from being buried. Called with no name locked.
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

    /// As [`lock_entry`](Self::lock_entry), by who has names of other directories locked at lower levels.
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

    /// What to say of a wrong name in this directory: that the directory was removed comes before `error`.
    pub(crate) fn gone_or(&self, error: Errno) -> Errno {
        if self.is_removed_dir() { Errno::ENOENT } else { error }
    }

    /// Can this lose its name by `rmdir`, if that is so, or else by `unlink`?
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
        self.check_sticky(cred, victim)
    }

    /// A file lost one of its names. Called with that name locked.
    pub(crate) fn drop_link(&self) {
        self.links.remove();
        self.touch_ctime();
    }

    pub(crate) fn notify_removed(&self, cred: &Cred, name: &[u8], victim: &Inode) {
        let (dir, child) = (self.ino(), victim.ino());
        self.shared.notify(cred, |observer| {
            observer.entry_changed(dir, name, Some(child));
            observer.attributes_changed(child);
        });
    }
}
