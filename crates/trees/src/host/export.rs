//! Export: a directory of an `Fs`, copied to the host.

use super::copy::{CHUNK, copy_out};
use super::handle::{self, Handle};
use super::{Identity, Transfer, Walker, Xattrs, blocked, failed, moved, refused};
use rustix::fs::{self as host, AtFlags, Mode, OFlags};
use sluice_vfs::{Errno, FileType, Fs, OpenFlags, Stat};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Copies the directory `from` of `fs`, and all in it, to the directory `host_dir` of the host, which is created
/// if it is missing: what `cp -a FROM/. HOST_DIR` does. The counterpart of [`import`](crate::import).
///
/// Directories that exist are merged; a file or symbolic link that exists under a name is replaced, not
/// written through. `host_dir` itself gets the attributes of `from`.
///
/// Owners are kept when the caller is root. Otherwise files belong to the caller, and a set-user-ID or
/// set-group-ID bit is kept only where owner or group are right without that. `user.` attributes and ACLs
/// are kept or an error; those of other name spaces are kept as far as the host allows it.
///
/// # Errors
/// One line with the path that met it, on the first problem (a device node without the privilege for it
/// is one); what was copied by then stays.
pub fn export(fs: &Fs, from: impl AsRef<Path>, host_dir: impl AsRef<Path>) -> io::Result<Transfer> {
    let (from, host_dir) = (from.as_ref(), host_dir.as_ref());
    let walker = Walker::new(fs);
    walker.process.chdir(from).map_err(|e| failed(from, e))?;
    std::fs::create_dir_all(host_dir).map_err(|e| failed(host_dir, e))?;
    let open = || handle::open_top(host_dir).map_err(|e| failed(host_dir, e));
    let mut export = Export {
        walker,
        top: open()?,
        dir: open()?,
        path: host_dir.to_path_buf(),
        below: PathBuf::new(),
        levels: Vec::new(),
        links: HashMap::new(),
        is_root: handle::caller_is_root(),
        buf: vec![0; CHUNK],
        done: Transfer::default(),
    };
    export.descend()?;
    export.run()?;
    Ok(export.done)
}

/// The mode bits by which a program runs as its owner, and as its group.
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;

/// An export under way.
struct Export {
    /// Stands in the directory that is being read.
    walker: Walker,
    /// The host's top directory.
    top: File,
    /// The host's directory that is being filled.
    dir: File,
    /// The host's path of what is being made, for messages.
    path: PathBuf,
    /// The same path from the top.
    below: PathBuf,
    /// From the top to `dir`.
    levels: Vec<Level>,
    /// Where files with several names have their first copy, from the top.
    links: HashMap<Identity, PathBuf>,
    is_root: bool,
    buf: Vec<u8>,
    done: Transfer,
}

/// A directory whose contents are being copied.
struct Level {
    names: std::vec::IntoIter<OsString>,
    original: Identity,
    host: Identity,
    stat: Stat,
    xattrs: Xattrs,
}

impl Export {
    fn run(&mut self) -> io::Result<()> {
        while let Some(level) = self.levels.last_mut() {
            match level.names.next() {
                Some(name) => {
                    self.path.push(&name);
                    self.below.push(&name);
                    self.copy(&name)?;
                }
                None => self.ascend()?,
            }
        }
        Ok(())
    }

    /// Begins with the directory that the walker stands in, whose copy is `self.dir`.
    fn descend(&mut self) -> io::Result<()> {
        let host = handle::stat_open(&self.dir).map_err(|e| self.host_error(e))?.identity;
        let here = Path::new(".");
        let stat = self.walker.process.lstat(here).map_err(|e| self.error(e))?;
        let xattrs = self.walker.xattrs(here).map_err(|e| self.error(e))?;
        let names = self.walker.names().map_err(|e| self.error(e))?.into_iter();
        self.levels.push(Level { names, original: (stat.dev, stat.ino), host, stat, xattrs });
        Ok(())
    }

    /// Ends with the innermost directory.
    fn ascend(&mut self) -> io::Result<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let mut next = None;
        if let Some(above) = self.levels.last() {
            // Before the mode is set, which may forbid it.
            let parent = handle::open_dir(&self.dir, OsStr::new("..")).map_err(|e| self.host_error(e))?;
            if handle::stat_open(&parent).map_err(|e| self.host_error(e))?.identity != above.host {
                return Err(moved(&self.path));
            }
            self.walker.leave(above.original).map_err(|e| blocked(&self.path, e))?;
            next = Some(parent);
        }
        let done = match next {
            Some(parent) => std::mem::replace(&mut self.dir, parent),
            None => self.dir.try_clone().map_err(|e| failed(&self.path, e))?,
        };
        self.finish(&Handle::Open(done), &level.stat, &level.xattrs)?;
        self.step_out();
        Ok(())
    }

    /// Copies `name`, the end of `self.path`; of a directory only the beginning.
    fn copy(&mut self, name: &OsStr) -> io::Result<()> {
        let stat = self.walker.process.lstat(name).map_err(|e| self.error(e))?;
        let file_type = stat.file_type();
        self.done.count(file_type);
        if file_type == FileType::Directory {
            return self.enter(name);
        }
        self.make_room(name)?;
        if !self.link(name, &stat)? {
            let xattrs = self.walker.xattrs(Path::new(name)).map_err(|e| self.error(e))?;
            let copy = match file_type {
                FileType::Regular => self.copy_regular(name, &stat)?,
                FileType::Symlink => self.copy_symlink(name)?,
                _ => self.copy_special(name, file_type, &stat)?,
            };
            self.finish(&copy, &stat, &xattrs)?;
        }
        self.step_out();
        Ok(())
    }

    fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        match host::mkdirat(&self.dir, name, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(self.host_error(error)),
        }
        let dir = handle::open_dir(&self.dir, name).map_err(|error| match error {
            rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP => blocked(&self.path, Errno::ENOTDIR),
            other => self.host_error(other),
        })?;
        self.walker.enter(Path::new(name)).map_err(|e| self.error(e))?;
        self.dir = dir;
        self.descend()
    }

    fn make_room(&self, name: &OsStr) -> io::Result<()> {
        match host::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(rustix::io::Errno::ISDIR) => Err(blocked(&self.path, Errno::EISDIR)),
            Err(error) => Err(self.host_error(error)),
        }
    }

    /// Gives the copy of a file that came under another name already this name too; false for other files.
    fn link(&mut self, name: &OsStr, stat: &Stat) -> io::Result<bool> {
        if stat.nlink < 2 {
            return Ok(false);
        }
        let identity = (stat.dev, stat.ino);
        let Some(first) = self.links.get(&identity) else {
            self.links.insert(identity, self.below.clone());
            return Ok(false);
        };
        let linked = host::linkat(&self.top, first, &self.dir, name, AtFlags::empty());
        linked.map_err(|e| self.host_error(e))?;
        Ok(true)
    }

    fn copy_regular(&mut self, name: &OsStr, stat: &Stat) -> io::Result<Handle> {
        let flags = OpenFlags::NOFOLLOW | OpenFlags::NOATIME;
        let from = self.walker.process.open(name, flags, 0).map_err(|e| self.error(e))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let to: File = host::openat(&self.dir, name, flags, mode).map_err(|e| self.host_error(e))?.into();
        let process = &self.walker.process;
        self.done.bytes += copy_out(process, from, stat.size, &to, &self.path, &mut self.buf)?;
        process.close(from).map_err(|e| self.error(e))?;
        Ok(Handle::Open(to))
    }

    fn copy_symlink(&self, name: &OsStr) -> io::Result<Handle> {
        let target = self.walker.process.readlink(name).map_err(|e| self.error(e))?;
        host::symlinkat(target, &self.dir, name).map_err(|e| self.host_error(e))?;
        self.hold(name)
    }

    fn copy_special(&self, name: &OsStr, file_type: FileType, stat: &Stat) -> io::Result<Handle> {
        let host_type = host::FileType::from_raw_mode(file_type.mode_bits());
        let mode = Mode::RUSR | Mode::WUSR;
        match host::mknodat(&self.dir, name, host_type, mode, stat.rdev) {
            Ok(()) => self.hold(name),
            Err(rustix::io::Errno::PERM) => Err(refused(
                &self.path,
                io::ErrorKind::PermissionDenied,
                "the host does not let this user make such a node; export as root, or remove it first",
            )),
            Err(error) => Err(self.host_error(error)),
        }
    }

    fn hold(&self, name: &OsStr) -> io::Result<Handle> {
        handle::hold(&self.dir, name).map(Handle::Held).map_err(|e| self.host_error(e))
    }

    /// Makes a copy look as its original. A change of owner clears set-ID bits and `security.capability`, an
    /// ACL sets permission bits, and every change touches the times but one: hence this order.
    fn finish(&self, copy: &Handle, stat: &Stat, xattrs: &Xattrs) -> io::Result<()> {
        let mut mode = stat.permissions();
        if self.is_root {
            copy.set_owner(stat.uid, stat.gid).map_err(|e| self.host_error(e))?;
        } else {
            let owned = copy.stat().map_err(|e| self.host_error(e))?;
            if owned.uid != stat.uid {
                mode &= !S_ISUID;
            }
            if owned.gid != stat.gid {
                mode &= !S_ISGID;
            }
        }
        copy.set_xattrs(&self.path, xattrs)?;
        if stat.file_type() != FileType::Symlink {
            copy.set_mode(mode).map_err(|e| self.host_error(e))?;
        }
        copy.set_times(stat.atime, stat.mtime).map_err(|e| self.host_error(e))
    }

    fn step_out(&mut self) {
        self.path.pop();
        self.below.pop();
    }

    fn error(&self, error: Errno) -> io::Error {
        failed(&self.path, error)
    }

    fn host_error(&self, error: rustix::io::Errno) -> io::Error {
        failed(&self.path, error)
    }
}
