//! Reading directories, and the working directory.

use super::{Dirents, Fd, Process};
use crate::mount::LocationRef;
use crate::{Access, Errno, Inode, InodeRef, ListedName};
use sluice_sync::rcu;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

impl Process {
    /// Reads up to `most` further entries of the open directory; none mean its end.
    ///
    /// An entry that is there from the first such call (after opening, or after seeking to 0) to the last is read
    /// exactly once. An entry that is added or removed meanwhile may be read or not.
    ///
    /// # Errors
    /// `EBADF`; `ENOTDIR`; `ENOENT` when the directory was removed.
    pub fn getdents(&self, fd: Fd, most: usize) -> Result<Dirents, Errno> {
        let mut read = Dirents::default();
        self.visit_entries(fd, &mut |entry| {
            let room = read.len() < most;
            if room {
                read.push(entry);
            }
            room
        })?;
        Ok(read)
    }

    /// Calls `visit` for each further entry of the open directory, without a copy, until it answers false; that entry is the next
    /// to be read. See [`getdents`](Self::getdents).
    ///
    /// `visit` runs in a read section, in which no inode and no name is freed: it must be quick, and make no calls.
    ///
    /// # Errors
    /// Errors of [`getdents`](Self::getdents).
    pub fn visit_entries(&self, fd: Fd, visit: &mut dyn FnMut(ListedName<'_>) -> bool) -> Result<(), Errno> {
        let file = self.file(fd)?;
        file.check_opened()?;
        let dir = file.inode();
        dir.as_dir()?;
        let cursor = file.cursor.hold();
        let last = dir.visit_entries(cursor.position(), visit)?;
        if cursor.position() != last {
            cursor.move_to(last);
        }
        if file.updates_atime() && file.location.mount.updates_dir_atime() {
            dir.touch_atime();
        }
        Ok(())
    }

    /// Makes the directory at `path` the working directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES` (it may not be searched), and those of the path walk.
    pub fn chdir(&self, path: impl AsRef<Path>) -> Result<(), Errno> {
        let location = self.resolve(Fd::CWD, path.as_ref(), true)?;
        self.enter_directory(location)
    }

    /// Makes the open directory the working directory.
    ///
    /// # Errors
    /// `EBADF`, `ENOTDIR`, `EACCES`.
    pub fn fchdir(&self, fd: Fd) -> Result<(), Errno> {
        let location = self.borrow(fd, |file| Ok(file.location.clone()))?;
        self.enter_directory(location)
    }

    fn enter_directory(&self, location: crate::mount::Location) -> Result<(), Errno> {
        if !location.inode.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        location.inode.access(&self.cred, Access::EXEC)?;
        self.fs.mounts().enter_service(&location.mount)?;
        let _moving = self.moving.lock();
        let left = self.working_directory();
        self.cwd.replace(location);
        left.mount.leave();
        Ok(())
    }

    /// The absolute path of the working directory.
    ///
    /// # Errors
    /// `ENOENT` when it was removed.
    pub fn getcwd(&self) -> Result<PathBuf, Errno> {
        loop {
            let parent = match self.getcwd_here()? {
                Ok(path) => return Ok(path),
                Err(parent) => parent,
            };
            parent.load_names()?;
        }
    }

    /// The path, or the directory whose names must be in memory first.
    fn getcwd_here(&self) -> Result<Result<PathBuf, InodeRef>, Errno> {
        let section = rcu::domain().read();
        let root = self.fs.mounts().root(&section);
        let mut at = self.cwd.load(&section).place();
        let mut components: Vec<&[u8]> = Vec::new();
        while !at.is_same(root) {
            let named = at.below_mounts();
            let parent = Inode::parent_in(named.inode, &section).ok_or(Errno::ENOTDIR)?;
            if parent.is_same(named.inode) {
                // The top of a detached mount: no path leads here.
                return Err(Errno::ENOENT);
            }
            let dir = parent.as_dir()?;
            let departures = dir.departures();
            let found = dir.names.after(0, &section).find(|(_, _, inode)| inode.is_same(named.inode));
            let Some((_, name, _)) = found else {
                if !parent.are_names_here(departures) {
                    return Ok(Err(parent.clone()));
                }
                return Err(Errno::ENOENT);
            };
            components.push(name);
            at = LocationRef { mount: named.mount, inode: parent };
            if at.is_mount_root() {
                at = at.enter(&section);
            }
        }
        let mut path = Vec::new();
        for name in components.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(Ok(PathBuf::from(OsString::from_vec(path))))
    }
}
