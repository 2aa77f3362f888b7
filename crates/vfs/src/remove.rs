//! Remove: taking names away.

use crate::create::check_name;
use crate::{Cred, Errno, Inode};
use sluice_sync::atomic::Ordering;

impl Inode {
    /// Removes the name `name` of a file that is no directory. Whoever holds the file keeps it.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EACCES`, `EPERM` (sticky directory), `ENOTDIR`, `ENAMETOOLONG`, `EINVAL`.
    pub fn unlink(&self, cred: &Cred, name: &[u8]) -> Result<(), Errno> {
        let dir = self.as_dir()?;
        check_name(name)?;
        let victim = {
            let mut names = dir.names.write();
            let victim = names.get(name).cloned().ok_or(Errno::ENOENT)?;
            self.may_delete(cred, &victim)?;
            if victim.is_dir() {
                return Err(Errno::EISDIR);
            }
            names.remove(name);
            self.touch_mtime();
            victim.drop_link();
            victim
        };
        self.notify_removed(cred, name, &victim);
        Ok(())
    }

    /// Removes the empty directory `name`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EBUSY` (something is mounted there), `EACCES`, `EPERM` (sticky
    /// directory), `ENAMETOOLONG`, `EINVAL`.
    pub fn rmdir(&self, cred: &Cred, name: &[u8]) -> Result<(), Errno> {
        let dir = self.as_dir()?;
        check_name(name)?;
        let victim = {
            let mut names = dir.names.write();
            let victim = names.get(name).cloned().ok_or(Errno::ENOENT)?;
            self.may_delete(cred, &victim)?;
            victim.bury_directory()?;
            names.remove(name);
            self.attr.change(|attr| attr.nlink -= 1);
            self.touch_mtime();
            victim
        };
        self.notify_removed(cred, name, &victim);
        Ok(())
    }

    /// True for a directory that has lost its name: it takes no new ones.
    pub(crate) fn is_removed_dir(&self) -> bool {
        self.as_dir().is_ok_and(|dir| dir.names.read().is_dead())
    }

    /// What to say of a wrong name in this directory: that the directory was removed comes before `error`.
    pub(crate) fn gone_or(&self, error: Errno) -> Errno {
        if self.is_removed_dir() { Errno::ENOENT } else { error }
    }

    /// May `cred` take the name of `victim` out of this directory?
    pub(crate) fn may_delete(&self, cred: &Cred, victim: &Inode) -> Result<(), Errno> {
        self.may_change_names(cred)?;
        self.check_sticky(cred, victim)
    }

    /// A file lost one of its names. Called under the lock of the directory that held it.
    pub(crate) fn drop_link(&self) {
        self.attr.change(|attr| {
            debug_assert!(attr.nlink > 0, "a name that is removed was counted");
            attr.nlink -= 1;
            attr.touch_ctime();
        });
    }

    /// Marks this directory, whose name is about to go, as removed. Called under the lock of its parent.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOTEMPTY`, `EBUSY` (something is mounted here).
    pub(crate) fn bury_directory(&self) -> Result<(), Errno> {
        let dir = self.as_dir()?;
        let mut names = dir.names.write();
        // SeqCst: pairs with the count-up in `MountTable::attach`, which looks at `is_dead` afterwards under
        // the names lock that is held here.
        if dir.mounts_here.load(Ordering::SeqCst) != 0 {
            return Err(Errno::EBUSY);
        }
        if !names.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        names.kill();
        self.attr.change(|attr| {
            attr.nlink = 0;
            attr.touch_ctime();
        });
        Ok(())
    }

    pub(crate) fn notify_removed(&self, cred: &Cred, name: &[u8], victim: &Inode) {
        let (dir, child) = (self.ino(), victim.ino());
        self.shared.notify(cred, |observer| {
            observer.entry_changed(dir, name, Some(child));
            observer.attributes_changed(child);
        });
    }
}
