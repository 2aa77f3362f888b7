//! Create: new inodes and new names for them.

use crate::at_once::{AtOnce, NotAtOnce, WouldWait, decided};
use crate::dir::Dir;
use crate::durable::Section;
use crate::inode::{Body, InodeInit, flag};
use crate::ops::delegations::break_all;
use crate::stat::{S_IALLUGO, S_ISGID, S_ISVTX, S_IXGRP, Timestamp};
use crate::watch::fault::Calls;
use crate::{Access, Caps, Cred, Errno, FileType, Inode, InodeFlags, InodeRef, NAME_MAX, PATH_MAX};
use sluice_sync::name_table::{LockedEntry, Recorder};
use sluice_sync::rcu::{self, Guard};
use sluice_sync::refcache::Ref;

/// The inode to create.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// The type, and what belongs to it.
    pub kind: NewKind<'a>,
    /// Permission bits asked for. Symbolic links always get 0777.
    pub mode: u32,
    /// Permission bits to leave out, unless the directory has a default ACL.
    pub umask: u32,
}

/// The type of a new inode.
#[derive(Clone, Copy, Debug)]
pub enum NewKind<'a> {
    /// An empty regular file.
    Regular,
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device with this number.
    CharDevice(u64),
    /// A block device with this number.
    BlockDevice(u64),
}

impl NewKind<'_> {
    /// The device with which overlay file systems mark removed names. Any user may create a whiteout: it leads to no device.
    pub(crate) const WHITEOUT: NewKind<'static> = NewKind::CharDevice(0);

    /// Whether it is a [`WHITEOUT`](Self::WHITEOUT).
    pub(crate) fn is_whiteout(&self) -> bool {
        matches!(self, NewKind::CharDevice(0))
    }

    /// Bytes of the target of a symbolic link.
    fn target_len(&self) -> usize {
        if let NewKind::Symlink(target) = self { target.len() } else { 0 }
    }

    fn file_type(&self) -> FileType {
        match self {
            NewKind::Regular => FileType::Regular,
            NewKind::Directory => FileType::Directory,
            NewKind::Symlink(_) => FileType::Symlink,
            NewKind::Fifo => FileType::Fifo,
            NewKind::Socket => FileType::Socket,
            NewKind::CharDevice(_) => FileType::CharDevice,
            NewKind::BlockDevice(_) => FileType::BlockDevice,
        }
    }
}

/// Checks that `name` can be the name of an entry.
///
/// # Errors
/// `ENAMETOOLONG`, or `EINVAL` for an empty name, ".", ".." and names with a slash or a NUL.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|b| matches!(b, b'/' | 0)) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

impl InodeRef {
    /// Looks `name` up in this directory. "." and ".." are not names here: see [`InodeRef::parent`].
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES` (the directory may not be searched), `ENAMETOOLONG`.
    pub fn lookup(&self, cred: &Cred, name: &[u8]) -> Result<InodeRef, Errno> {
        self.as_dir()?;
        self.access(cred, Access::EXEC)?;
        self.look_up(name)
    }

    /// The variant of [`lookup`](Self::lookup) for a caller that may search this directory. Called outside of any read
    /// section.
    pub(crate) fn look_up(&self, name: &[u8]) -> Result<InodeRef, Errno> {
        loop {
            self.load_names()?;
            if let Some(found) = decided(self.lookup_in(name, &rcu::domain().read()).cloned()) {
                return found;
            }
        }
    }

    /// Looks `name` up for a caller that may search this directory. The result is valid as long as the read section.
    pub(crate) fn lookup_in<'g>(&'g self, name: &[u8], section: &'g Guard<'_>) -> AtOnce<&'g InodeRef> {
        self.look_up_by(name, |dir, hash| dir.names.get(hash, name, section))
    }

    /// Looks `name` up as a step of the path that `recorder` records; see [`lookup_in`](Self::lookup_in).
    pub(crate) fn lookup_recorded<'g>(
        &'g self,
        name: &[u8],
        recorder: &mut Recorder<'g, InodeRef>,
    ) -> AtOnce<&'g InodeRef> {
        self.look_up_by(name, |dir, hash| recorder.step(&dir.names, hash, name))
    }

    #[inline]
    fn look_up_by<'g>(
        &'g self,
        name: &[u8],
        find: impl FnOnce(&'g Dir, u64) -> Option<&'g InodeRef>,
    ) -> AtOnce<&'g InodeRef> {
        let dir = self.as_dir()?;
        if name.len() > NAME_MAX {
            return Err(self.gone_or(Errno::ENAMETOOLONG).into());
        }
        let departures = dir.departures();
        find(dir, self.shared.hasher.hash(name)).ok_or_else(|| self.missing(departures))
    }

    /// The outcome for a name that was not in memory when the count of departures was `departures`: `ENOENT` if all names
    /// were in memory.
    #[cold]
    fn missing(&self, departures: u32) -> NotAtOnce {
        if self.are_names_here(departures) { Errno::ENOENT.into() } else { WouldWait }
    }

    /// Creates `name` in this directory.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` (the directory was removed), `EACCES`, `EPERM` (device nodes but whiteouts need `MKNOD`),
    /// `ENOSPC` (inode limit), `ENOTDIR`, `ENAMETOOLONG`, `EINVAL` (not a name).
    pub fn create(&self, cred: &Cred, name: &[u8], new: &NewInode<'_>) -> Result<InodeRef, Errno> {
        self.as_dir()?;
        self.check_name(name)?;
        self.load_names()?;
        self.meet_faults_of(Calls::CREATE, &[(self, name)])?;
        self.shared.let_names_leave();
        self.shared.operate(
            cred,
            &[self],
            new.kind.target_len(),
            |section, _| {
                self.shared.may_grow()?;
                self.check_names_here()?;
                Ok(self.create_locked(cred, name, &mut self.lock_entry(name)?, new, section)?)
            },
            |_| self.shared.notify(cred, |observer| observer.entry_changed(self.ino(), name, None)),
        )
    }

    /// Creates `name` in the caller's read section, if nobody is waited for or told of it; see [`create`](Self::create).
    /// `put_down` began before that: a section is not begun inside another.
    #[inline]
    pub(crate) fn create_at_once(
        &self,
        cred: &Cred,
        name: &[u8],
        new: &NewInode<'_>,
        put_down: &Section<'_>,
    ) -> AtOnce<InodeRef> {
        if !self.may_change_at_once(put_down) || check_name(name).is_err() {
            return Err(WouldWait);
        }
        if !put_down.is_none() {
            self.shared.may_grow()?;
        }
        let (names, hash) = (&self.as_dir()?.names, self.shared.hasher.hash(name));
        let create =
            |entry: &mut LockedEntry<'_, InodeRef>| self.create_locked(cred, name, entry, new, put_down);
        match names.try_with_locked(hash, name, create) {
            // There may be room after others have let go.
            None | Some(Err(Errno::ENOSPC | Errno::EDQUOT)) => Err(WouldWait),
            Some(created) => {
                // A delegation may have been taken meanwhile: to tell is enough.
                let _ = break_all(cred, &[self], false);
                Ok(created?)
            }
        }
    }

    fn create_locked(
        &self,
        cred: &Cred,
        name: &[u8],
        entry: &mut LockedEntry<'_, InodeRef>,
        new: &NewInode<'_>,
        section: &Section<'_>,
    ) -> Result<InodeRef, Errno> {
        let room = entry.room().ok_or(Errno::EEXIST)?;
        self.may_change_names(cred)?;
        let inode = self.new_child(cred, new)?;
        self.name_changes(name, None);
        room.fill(inode.clone(), inode.weight()).map_err(|_| Errno::ENOSPC)?;
        section.gained_name(&inode, Some(self));
        section.name(self, name, Some(&inode));
        let moved = self.touch_mtime();
        section.times(self, moved);
        Ok(inode)
    }

    /// Creates a regular file without a name, as `O_TMPFILE` does. [`InodeRef::link`] may give it one. A removed
    /// directory will do, as on Linux.
    ///
    /// # Errors
    /// Errors of [`InodeRef::create`].
    pub fn create_unnamed(&self, cred: &Cred, new: &NewInode<'_>) -> Result<InodeRef, Errno> {
        self.as_dir()?;
        self.may_change_names(cred)?;
        let inode = self.new_child(cred, new)?;
        inode.links.set_unnamed(true);
        if let Some(durable) = self.shared.durable() {
            inode.raise(flag::UNNAMED);
            durable.nameless.exceed(1);
        }
        Ok(inode)
    }

    /// Gives `target` the further name `name` in this directory.
    ///
    /// # Errors
    /// `EEXIST`; `EXDEV` (another file system, another quota); `EDQUOT`; `EPERM` (a directory, or it is immutable or append-only); `ENOENT` (the file lost its last
    /// name, or the directory was removed); `EMLINK`; `EACCES`.
    pub fn link(&self, cred: &Cred, name: &[u8], target: &InodeRef) -> Result<(), Errno> {
        self.as_dir()?;
        self.check_name(name)?;
        self.load_names()?;
        if !Ref::ptr_eq(&self.shared, &target.shared) || target.is_dir() {
            return Err(self.refuse_link(cred, name, target));
        }
        self.meet_faults_of(Calls::LINK, &[(self, name)])?;
        self.shared.ask_for_name()?;
        self.shared.let_names_leave();
        self.shared.operate(
            cred,
            &[self, target],
            0,
            |section, _| {
                self.shared.may_grow()?;
                self.check_names_here()?;
                target.check_kept()?;
                let mut entry = self.lock_entry(name)?;
                let room = entry.room().ok_or(Errno::EEXIST)?;
                self.may_change_names(cred)?;
                target.check_not(InodeFlags::FIXED)?;
                target.add_link_in(self)?;
                self.name_changes(name, None);
                target.touch_ctime();
                room.fill(target.clone(), target.weight()).map_err(|_| {
                    target.drop_link();
                    Errno::ENOSPC
                })?;
                section.gained_name(target, Some(self));
                section.name(self, name, Some(target));
                let moved = self.touch_mtime();
                section.times(self, moved);
                Ok(())
            },
            |()| {
                self.shared.notify(cred, |observer| observer.entry_changed(self.ino(), name, None));
                target.notify_attributes(cred);
            },
        )
    }

    /// Why `target`, which cannot be linked here, does not get `name`. Nothing is locked for that.
    fn refuse_link(&self, cred: &Cred, name: &[u8], target: &InodeRef) -> Errno {
        match self.look_up(name) {
            Ok(_) => return Errno::EEXIST,
            Err(Errno::ENOENT) if !self.is_removed_dir() => {}
            Err(error) => return error,
        }
        match self.may_change_names(cred) {
            Err(error) => error,
            Ok(()) if target.is_dir() && Ref::ptr_eq(&self.shared, &target.shared) => Errno::EPERM,
            Ok(()) => Errno::EXDEV,
        }
    }

    /// An inode to put into this directory: owner, group, mode and ACL follow from both.
    pub(crate) fn new_child(&self, cred: &Cred, new: &NewInode<'_>) -> Result<InodeRef, Errno> {
        let file_type = new.kind.file_type();
        let body = match new.kind {
            NewKind::Regular => Body::Regular,
            NewKind::Directory => Body::new_directory(Some(self.clone())),
            NewKind::Symlink(target) => Body::Symlink(checked_target(target)?.into()),
            NewKind::Fifo | NewKind::Socket => Body::Special { file_type, rdev: 0 },
            NewKind::CharDevice(rdev) | NewKind::BlockDevice(rdev) => {
                if !cred.has(Caps::MKNOD) && !new.kind.is_whiteout() {
                    return Err(Errno::EPERM);
                }
                Body::Special { file_type, rdev }
            }
        };
        let (dir_mode, dir_gid, default_acl) =
            self.with_acls(|attr, acls| (attr.mode, attr.gid, acls.default.clone()));
        let is_dir = file_type == FileType::Directory;
        let gid = if dir_mode & S_ISGID != 0 { dir_gid } else { cred.gid };
        let mut mode = requested_mode(cred, new, dir_mode, dir_gid);
        let mut acls = None;
        match (&new.kind, default_acl) {
            (NewKind::Symlink(_), _) => {}
            (_, None) => mode &= !(new.umask & 0o777),
            (_, Some(default)) => {
                let (access, masked) = default.inherit(mode);
                mode = masked;
                let default = is_dir.then_some(default);
                if access.is_some() || default.is_some() {
                    acls = Some((access, default));
                }
            }
        }
        if is_dir && dir_mode & S_ISGID != 0 {
            mode |= S_ISGID;
        }
        let nlink = if is_dir { 2 } else { 1 };
        let init =
            InodeInit { file_type, mode, uid: cred.uid, gid, nlink, origin: 0, born: Timestamp::now() };
        let inode = Inode::make(&self.shared, self.quota_below(), init, body)?;
        inode.put_flags(self.flags() & InodeFlags::INHERITED);
        if let Some(inherited) = acls {
            inode.change_acls(|_, acls| {
                (acls.access, acls.default) = inherited;
                Ok(())
            })?;
        }
        Ok(inode)
    }
}

/// The mode asked for, without the bits that its type or the caller may not have.
fn requested_mode(cred: &Cred, new: &NewInode<'_>, dir_mode: u32, dir_gid: u32) -> u32 {
    match new.kind {
        NewKind::Symlink(_) => 0o777,
        NewKind::Directory => new.mode & (0o777 | S_ISVTX),
        _ => {
            let mode = new.mode & S_IALLUGO;
            let executable_setgid = mode & (S_ISGID | S_IXGRP) == (S_ISGID | S_IXGRP);
            let foreign = !cred.in_group(dir_gid) && !cred.has(Caps::FSETID);
            if executable_setgid && dir_mode & S_ISGID != 0 && foreign { mode & !S_ISGID } else { mode }
        }
    }
}

/// Checks that `target` can be the target of a symbolic link.
pub(crate) fn checked_target(target: &[u8]) -> Result<&[u8], Errno> {
    match target {
        [] => Err(Errno::ENOENT),
        _ if target.len() >= PATH_MAX => Err(Errno::ENAMETOOLONG),
        _ if target.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(target),
    }
}
