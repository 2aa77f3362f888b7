//! Calls that add, remove and move names.

use super::{Acted, Fd, Process, path_bytes};
use crate::at_once::{AtOnce, WouldWait};
use crate::durable::Section;
use crate::inode::settle;
use crate::mount::{Location, LocationRef};
use crate::namei::{Last, Parent, check_path};
use crate::ops::create::checked_target;
use crate::ops::remove::RemovedAtOnce;
use crate::ops::rename::check_flags;
use crate::{Access, AtFlags, Caps, Errno, FileType, Inode, NewInode, NewKind, RenameFlags};
use sluice_sync::rcu::Guard;
use std::path::Path;

impl Process {
    /// Creates a directory with permissions `mode` (less the umask).
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `EACCES`, `EROFS`, `ENOSPC`, and those of the path walk.
    pub fn mkdir(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Errno> {
        self.mkdirat(Fd::CWD, path, mode)
    }

    /// Makes a directory at `path`, relative to `dir`; see [`mkdir`](Self::mkdir).
    ///
    /// # Errors
    /// Errors of [`mkdir`](Self::mkdir).
    pub fn mkdirat(&self, dir: Fd, path: impl AsRef<Path>, mode: u32) -> Result<(), Errno> {
        self.create_at(dir, path.as_ref(), NewKind::Directory, mode)
    }

    /// Creates a file of any type but a directory or symbolic link. `rdev` counts for devices only.
    ///
    /// # Errors
    /// Errors of [`mkdir`](Self::mkdir); `EPERM` for a directory, or for a device without the `MKNOD` capability;
    /// `EINVAL` for a symbolic link.
    pub fn mknod(
        &self,
        path: impl AsRef<Path>,
        file_type: FileType,
        mode: u32,
        rdev: u64,
    ) -> Result<(), Errno> {
        self.mknodat(Fd::CWD, path, file_type, mode, rdev)
    }

    /// Makes a special or regular file at `path`, relative to `dir`; see [`mknod`](Self::mknod).
    ///
    /// # Errors
    /// Errors of [`mknod`](Self::mknod).
    pub fn mknodat(
        &self,
        dir: Fd,
        path: impl AsRef<Path>,
        file_type: FileType,
        mode: u32,
        rdev: u64,
    ) -> Result<(), Errno> {
        let kind = match file_type {
            FileType::Regular => NewKind::Regular,
            FileType::Fifo => NewKind::Fifo,
            FileType::Socket => NewKind::Socket,
            FileType::CharDevice => NewKind::CharDevice(rdev),
            FileType::BlockDevice => NewKind::BlockDevice(rdev),
            FileType::Directory => return Err(Errno::EPERM),
            FileType::Symlink => return Err(Errno::EINVAL),
        };
        self.create_at(dir, path.as_ref(), kind, mode)
    }

    /// Creates the symbolic link `path`, which leads to `target`.
    ///
    /// # Errors
    /// Errors of [`mkdir`](Self::mkdir); `ENOENT` for an empty target, `ENAMETOOLONG` for a long one.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Errno> {
        self.symlinkat(target, Fd::CWD, path)
    }

    /// Makes a symbolic link at `path`, relative to `dir`; see [`symlink`](Self::symlink).
    ///
    /// # Errors
    /// Errors of [`symlink`](Self::symlink).
    pub fn symlinkat(&self, target: impl AsRef<Path>, dir: Fd, path: impl AsRef<Path>) -> Result<(), Errno> {
        let target = checked_target(path_bytes(target.as_ref()))?;
        self.create_at(dir, path.as_ref(), NewKind::Symlink(target), 0o777)
    }

    fn create_at(&self, dir: Fd, path: &Path, kind: NewKind<'_>, mode: u32) -> Result<(), Errno> {
        let is_dir = matches!(kind, NewKind::Directory);
        let parent = self.parent_of(dir, path)?;
        let name = self.new_name(&parent, is_dir)?;
        let new = NewInode { kind, mode, umask: self.current_umask() };
        parent.dir.inode.create(&self.cred, name, &new).map(drop)
    }

    /// Copies the file at `from`, or the directory there with all that is below it, to the new name `to` in the same file system.
    /// Contents are shared until one side writes. A symbolic link at the end of `from` is copied itself. Mounts below do not come
    /// along. See [`InodeRef::clone_tree`](crate::InodeRef::clone_tree).
    ///
    /// # Errors
    /// `EPERM` without `SYS_ADMIN`; `EROFS`; those of that call and of the path walk.
    pub fn clone_tree(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Errno> {
        self.permit_mounting()?;
        let original = self.resolve(Fd::CWD, from.as_ref(), false)?.inode;
        let parent = self.parent_of(Fd::CWD, to.as_ref())?;
        let name = self.new_name(&parent, original.is_dir())?;
        original.clone_tree(&self.cred, &parent.dir.inode, name)
    }

    /// The name to create, checked in the order of Linux: what exists counts before what is forbidden.
    fn new_name<'p>(&self, parent: &'p Parent<'_>, is_dir: bool) -> Result<&'p [u8], Errno> {
        let name = parent.name_or(Errno::EEXIST)?;
        match self.namei().last_of(parent) {
            Ok(_) => return Err(Errno::EEXIST),
            Err(Errno::ENOENT) if !parent.dir.inode.is_removed_dir() => {}
            Err(error) => return Err(error),
        }
        if parent.trailing_slash && !is_dir {
            return Err(Errno::ENOENT);
        }
        parent.dir.mount.check_writable()?;
        Ok(name)
    }

    /// Gives the file at `old` the further name `new`. A symbolic link itself gets the name.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` (a directory), `EXDEV` (another mount), `ENOENT`, `EMLINK`, `EACCES`, `EROFS`.
    pub fn link(&self, old: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<(), Errno> {
        self.linkat(Fd::CWD, old, Fd::CWD, new, AtFlags::empty())
    }

    /// Gives the file at `old`, relative to `old_dir`, the further name `new`, relative to `new_dir`. With `SYMLINK_FOLLOW` a
    /// link's target gets the name; with `EMPTY_PATH` the file that `old_dir` is open on, which needs `DAC_READ_SEARCH` or to
    /// have opened it.
    ///
    /// # Errors
    /// Errors of [`link`](Self::link); `EINVAL` for other flags.
    pub fn linkat(
        &self,
        old_dir: Fd,
        old: impl AsRef<Path>,
        new_dir: Fd,
        new: impl AsRef<Path>,
        flags: AtFlags,
    ) -> Result<(), Errno> {
        if !(AtFlags::SYMLINK_FOLLOW | AtFlags::EMPTY_PATH).contains(flags) {
            return Err(Errno::EINVAL);
        }
        if flags.contains(AtFlags::EMPTY_PATH) && !old.as_ref().has_root() && old_dir != Fd::CWD {
            if !old.as_ref().as_os_str().is_empty() {
                check_path(path_bytes(old.as_ref()))?;
            }
            let opened_by_us = self.borrow(old_dir, |file| Ok(file.login == self.login))?;
            if !opened_by_us && !self.cred.has(Caps::DAC_READ_SEARCH) {
                return Err(Errno::ENOENT);
            }
        }
        let mut follow = flags & AtFlags::EMPTY_PATH;
        if !flags.contains(AtFlags::SYMLINK_FOLLOW) {
            follow |= AtFlags::SYMLINK_NOFOLLOW;
        }
        let source = self.resolve_at(old_dir, old.as_ref(), follow)?;
        let parent = self.parent_of(new_dir, new.as_ref())?;
        let name = self.new_name(&parent, false)?;
        if source.mount.id != parent.dir.mount.id {
            return Err(Errno::EXDEV);
        }
        self.permit_link(&source.inode)?;
        parent.dir.inode.link(&self.cred, name, &source.inode)
    }

    /// The policy `protected_hardlinks`.
    fn permit_link(&self, source: &Inode) -> Result<(), Errno> {
        const SETGID_EXECUTABLE: u32 = 0o2010;
        if !source.shared.options.protected_hardlinks {
            return Ok(());
        }
        let attr = source.attr.read();
        let special = source.file_type() != FileType::Regular
            || attr.mode & 0o4000 != 0
            || attr.mode & SETGID_EXECUTABLE == SETGID_EXECUTABLE;
        let accessible = source.access(&self.cred, Access::READ | Access::WRITE).is_ok();
        if attr.owned_by(&self.cred) || (accessible && !special) { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Removes the name `path` of a file that is no directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EACCES`, `EPERM` (sticky directory), `EROFS`.
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<(), Errno> {
        self.unlinkat(Fd::CWD, path, AtFlags::empty())
    }

    /// Removes the empty directory `path`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY` (also for a path that ends in ".."), `EINVAL` (in "."), `EBUSY` (a
    /// mount point, or "/"), `EACCES`, `EPERM`, `EROFS`.
    pub fn rmdir(&self, path: impl AsRef<Path>) -> Result<(), Errno> {
        self.unlinkat(Fd::CWD, path, AtFlags::REMOVEDIR)
    }

    /// Removes the name `path`, relative to `dir`: [`unlink`](Self::unlink) or, with `REMOVEDIR`,
    /// [`rmdir`](Self::rmdir).
    ///
    /// # Errors
    /// Errors of [`unlink`](Self::unlink) and [`rmdir`](Self::rmdir); `EINVAL` for other flags.
    pub fn unlinkat(&self, dir: Fd, path: impl AsRef<Path>, flags: AtFlags) -> Result<(), Errno> {
        if !AtFlags::REMOVEDIR.contains(flags) {
            return Err(Errno::EINVAL);
        }
        let remove_dir = flags.contains(AtFlags::REMOVEDIR);
        let path = path_bytes(path.as_ref());
        let mut put_down = if remove_dir { Section::none() } else { self.begin_at_once(|_| false) };
        let unlink = |parent: &Parent<'_, LocationRef<'_>>, section: &Guard<'_>, put_down: &Section<'_>| {
            if remove_dir { Err(WouldWait) } else { self.unlink_at_once(parent, section, put_down) }
        };
        let parent = match self.act_or_parent(&self.namei(), (dir, path), &mut put_down, unlink)? {
            Acted::Done(removed) => {
                removed.to_forget.iter().for_each(|victim| put_down.forget(victim));
                drop(put_down);
                if removed.should_settle {
                    settle();
                }
                return Ok(());
            }
            Acted::Not(parent) => parent,
        };
        drop(put_down);
        let name = parent.name_or(match (&parent.last, remove_dir) {
            (_, false) => Errno::EISDIR,
            (Last::Dot, true) => Errno::EINVAL,
            (Last::DotDot, true) => Errno::ENOTEMPTY,
            (_, true) => Errno::EBUSY,
        })?;
        let dir = &parent.dir;
        if parent.trailing_slash && !remove_dir {
            let found = self.namei().last_of(&parent)?;
            return Err(if found.inode.is_dir() { Errno::EISDIR } else { Errno::ENOTDIR });
        }
        {
            // A missing name is reported before a read-only mount. A file that cannot be removed is found without a
            // lock.
            let victim = dir.inode.look_up(name)?;
            dir.mount.check_writable()?;
            if let Err(error) = victim.check_removable(remove_dir) {
                dir.inode.may_delete(&self.cred, &victim)?;
                return Err(error);
            }
        }
        if remove_dir { dir.inode.rmdir(&self.cred, name) } else { dir.inode.unlink(&self.cred, name) }
    }

    /// Removes the directory `path` with everything below it: see [`InodeRef::remove_tree`](crate::InodeRef::remove_tree).
    pub(crate) fn remove_tree(&self, path: &Path) -> Result<(), Errno> {
        let parent = self.parent_of(Fd::CWD, path)?;
        let name = parent.name_or(Errno::EBUSY)?;
        parent.dir.mount.check_writable()?;
        parent.dir.inode.remove_tree(&self.cred, name)
    }

    /// Removes the name to which `parent` leads, that of a file, in the section in which it was walked to, if nobody is waited for.
    #[inline]
    fn unlink_at_once(
        &self,
        parent: &Parent<'_, LocationRef<'_>>,
        section: &Guard<'_>,
        put_down: &Section<'_>,
    ) -> AtOnce<RemovedAtOnce> {
        let Parent { dir, last: Last::Name(name), trailing_slash: false } = parent else {
            return Err(WouldWait);
        };
        dir.mount.check_writable().map_err(|_| WouldWait)?;
        dir.inode.unlink_at_once(&self.cred, name, section, put_down)
    }

    /// Moves the name `old` to `new`, replacing what had that name.
    ///
    /// # Errors
    /// Errors of [`InodeRef::rename`](crate::InodeRef::rename); `EXDEV` between mounts; `EROFS`.
    pub fn rename(&self, old: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<(), Errno> {
        self.renameat2(Fd::CWD, old, Fd::CWD, new, RenameFlags::empty())
    }

    /// Renames a file, with paths relative to directories, and with flags; see [`rename`](Self::rename).
    ///
    /// # Errors
    /// Errors of [`rename`](Self::rename); `EEXIST` with `NOREPLACE`; `EINVAL` for bad flags.
    pub fn renameat2(
        &self,
        old_dir: Fd,
        old: impl AsRef<Path>,
        new_dir: Fd,
        new: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        check_flags(flags)?;
        let from = self.parent_of(old_dir, old.as_ref())?;
        let to = self.parent_of(new_dir, new.as_ref())?;
        if from.dir.mount.id != to.dir.mount.id {
            return Err(Errno::EXDEV);
        }
        let name = from.name_or(Errno::EBUSY)?;
        let unnamed = if flags.contains(RenameFlags::NOREPLACE) { Errno::EEXIST } else { Errno::EBUSY };
        let new_name = to.name_or(unnamed)?;
        from.dir.mount.check_writable()?;
        self.check_trailing_slashes(&from, &to, flags)?;
        from.dir.inode.rename(&self.cred, name, &to.dir.inode, new_name, flags)
    }

    /// A slash after a name demands a directory, in the order in which Linux finds fault.
    fn check_trailing_slashes(
        &self,
        from: &Parent<'_>,
        to: &Parent<'_>,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        if !from.trailing_slash && !to.trailing_slash {
            return Ok(());
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let lookup = |parent: &Parent<'_>| -> Result<Option<Location>, Errno> {
            let name = parent.name_or(Errno::EBUSY)?;
            match parent.dir.inode.lookup(&self.cred, name) {
                Ok(inode) => Ok(Some(Location::new(&parent.dir.mount, inode))),
                Err(Errno::ENOENT) if !parent.dir.inode.is_removed_dir() => Ok(None),
                Err(error) => Err(error),
            }
        };
        let source = lookup(from)?.ok_or(Errno::ENOENT)?;
        let target = lookup(to)?;
        match &target {
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST),
            None if exchange => return Err(Errno::ENOENT),
            Some(target) if exchange && to.trailing_slash && !target.inode.is_dir() => {
                return Err(Errno::ENOTDIR);
            }
            _ => {}
        }
        let slash_forbidden = from.trailing_slash || (to.trailing_slash && !exchange);
        if !source.inode.is_dir() && slash_forbidden { Err(Errno::ENOTDIR) } else { Ok(()) }
    }
}
