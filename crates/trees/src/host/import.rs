//! Import: a directory of the host, copied into an `Fs`.

use super::copy::{CHUNK, copy_in};
use super::handle::{self, Handle, HostStat};
use super::{Attributes, Identity, Transfer, Walker, Xattrs, blocked, failed, moved, refused};
use sluice_vfs::{AtFlags, Fd, FileType, Fs, OpenFlags};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Copies the directory `host_dir` of the host, and all in it, to the directory `to` of `fs`, which is
/// created if it is missing: what `cp -a HOST_DIR/. TO` does.
///
/// Kept are: types (pipes, sockets and device nodes too), contents with their holes, hard links, symbolic
/// links (not followed), modes, owners, access and modification times, extended attributes and ACLs (as
/// far as the host shows them to the caller). `to` itself gets the attributes of `host_dir`. Directories
/// that exist are merged; a file that exists under a name is replaced.
///
/// # Errors
/// One line with the path that met it, on the first problem; what was copied by then stays.
pub fn import(fs: &Fs, host_dir: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<Transfer> {
    let (host_dir, to) = (host_dir.as_ref(), to.as_ref());
    let dir = handle::open_top(host_dir).map_err(|e| failed(host_dir, e))?;
    let walker = Walker::new(fs);
    fs.create_dir_all(to).and_then(|()| walker.process.chdir(to)).map_err(|e| failed(to, e))?;
    let top = walker.process.open(".", OpenFlags::DIRECTORY, 0).map_err(|e| failed(to, e))?;
    let mut import = Import {
        walker,
        top,
        dir,
        path: host_dir.to_path_buf(),
        below: PathBuf::new(),
        levels: Vec::new(),
        links: HashMap::new(),
        buf: vec![0; CHUNK],
        done: Transfer::default(),
    };
    import.descend()?;
    import.run()?;
    Ok(import.done)
}

/// An import under way.
struct Import {
    walker: Walker,
    /// The target's top directory.
    top: Fd,
    /// The host's directory that is being read; the walker stands in its copy.
    dir: File,
    /// The host's path of what is being copied, for messages.
    path: PathBuf,
    /// The same path from the top.
    below: PathBuf,
    /// From the top to `dir`.
    levels: Vec<Level>,
    /// Where files with several names have their first copy, from the top.
    links: HashMap<Identity, PathBuf>,
    buf: Vec<u8>,
    done: Transfer,
}

/// A directory whose contents are being copied.
struct Level {
    names: std::vec::IntoIter<OsString>,
    host: Identity,
    copy: Identity,
    attributes: Attributes,
}

impl Import {
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

    /// Begins with `self.dir`, in whose copy the walker stands.
    fn descend(&mut self) -> io::Result<()> {
        let stat = handle::stat_open(&self.dir).map_err(|e| self.host_error(e))?;
        let copy = self.walker.here().map_err(|e| failed(&self.path, e))?;
        let names = handle::names(&self.dir).map_err(|e| self.host_error(e))?;
        let held = self.dir.try_clone().map_err(|e| failed(&self.path, e))?;
        let xattrs = Handle::Open(held).xattrs().map_err(|e| self.host_error(e))?;
        let attributes = attributes(&stat, xattrs);
        self.levels.push(Level { names: names.into_iter(), host: stat.identity, copy, attributes });
        Ok(())
    }

    /// Ends with the innermost directory.
    fn ascend(&mut self) -> io::Result<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let name = match self.levels.last() {
            None => OsString::from("."),
            Some(above) => {
                let parent = handle::open_dir(&self.dir, OsStr::new("..")).map_err(|e| self.host_error(e))?;
                if handle::stat_open(&parent).map_err(|e| self.host_error(e))?.identity != above.host {
                    return Err(moved(&self.path));
                }
                self.dir = parent;
                self.walker.leave(above.copy).map_err(|e| blocked(&self.path, e))?;
                self.below.file_name().unwrap_or(OsStr::new(".")).to_os_string()
            }
        };
        self.apply(&name, FileType::Directory, &level.attributes)?;
        self.step_out();
        Ok(())
    }

    /// Copies `name`, the end of `self.path`; of a directory only the beginning.
    fn copy(&mut self, name: &OsStr) -> io::Result<()> {
        let stat = handle::stat(&self.dir, name).map_err(|e| self.host_error(e))?;
        let Some(file_type) = stat.file_type() else {
            let reason = "a file of an unknown type; leave it out";
            return Err(refused(&self.path, io::ErrorKind::Unsupported, reason));
        };
        self.done.count(file_type);
        if file_type == FileType::Directory {
            return self.enter(name, &stat);
        }
        if !self.link(name, &stat)? {
            let (stat, xattrs) = match file_type {
                FileType::Regular => self.copy_regular(name, &stat)?,
                FileType::Symlink => self.copy_symlink(name, &stat)?,
                _ => self.copy_special(name, file_type, &stat)?,
            };
            self.apply(name, file_type, &attributes(&stat, xattrs))?;
        }
        self.step_out();
        Ok(())
    }

    fn enter(&mut self, name: &OsStr, stat: &HostStat) -> io::Result<()> {
        let dir = handle::open_dir(&self.dir, name).map_err(|e| self.host_error(e))?;
        self.same(handle::stat_open(&dir), stat)?;
        let name = Path::new(name);
        let walker = &self.walker;
        walker.make_dir(name).and_then(|()| walker.enter(name)).map_err(|e| blocked(&self.path, e))?;
        self.dir = dir;
        self.descend()
    }

    /// Gives the copy of a file that came under another name already this name too; false for other files.
    fn link(&mut self, name: &OsStr, stat: &HostStat) -> io::Result<bool> {
        if stat.nlink < 2 {
            return Ok(false);
        }
        let Some(first) = self.links.get(&stat.identity) else {
            self.links.insert(stat.identity, self.below.clone());
            return Ok(false);
        };
        self.walker.make_room(Path::new(name)).map_err(|e| blocked(&self.path, e))?;
        let linked = self.walker.process.linkat(self.top, first, Fd::CWD, name, AtFlags::empty());
        linked.map_err(|e| failed(&self.path, e))?;
        Ok(true)
    }

    fn copy_regular(&mut self, name: &OsStr, seen: &HostStat) -> io::Result<(HostStat, Xattrs)> {
        let file = handle::open_file(&self.dir, name).map_err(|e| self.host_error(e))?;
        let stat = self.same(handle::stat_open(&file), seen)?;
        let to = self.walker.create(Path::new(name)).map_err(|e| blocked(&self.path, e))?;
        self.done.bytes += copy_in(&self.walker, &file, stat.size, to, &self.path, &mut self.buf)?;
        self.walker.process.close(to).map_err(|e| failed(&self.path, e))?;
        let xattrs = Handle::Open(file).xattrs().map_err(|e| self.host_error(e))?;
        Ok((stat, xattrs))
    }

    fn copy_symlink(&mut self, name: &OsStr, seen: &HostStat) -> io::Result<(HostStat, Xattrs)> {
        let (stat, xattrs) = self.held(name, seen)?;
        let target = rustix::fs::readlinkat(&self.dir, name, Vec::new()).map_err(|e| self.host_error(e))?;
        let target = OsString::from_vec(target.into_bytes());
        let walker = &self.walker;
        walker.make_room(Path::new(name)).map_err(|e| blocked(&self.path, e))?;
        walker.process.symlink(target, name).map_err(|e| failed(&self.path, e))?;
        Ok((stat, xattrs))
    }

    fn copy_special(
        &mut self,
        name: &OsStr,
        file_type: FileType,
        seen: &HostStat,
    ) -> io::Result<(HostStat, Xattrs)> {
        let (stat, xattrs) = self.held(name, seen)?;
        let walker = &self.walker;
        walker.make_room(Path::new(name)).map_err(|e| blocked(&self.path, e))?;
        walker.process.mknod(name, file_type, 0o600, stat.rdev).map_err(|e| failed(&self.path, e))?;
        Ok((stat, xattrs))
    }

    fn held(&self, name: &OsStr, seen: &HostStat) -> io::Result<(HostStat, Xattrs)> {
        let held = Handle::Held(handle::hold(&self.dir, name).map_err(|e| self.host_error(e))?);
        let stat = self.same(held.stat(), seen)?;
        Ok((stat, held.xattrs().map_err(|e| self.host_error(e))?))
    }

    /// The attributes of the opened file, if it still is the file that was `seen` under its name.
    fn same(&self, opened: Result<HostStat, rustix::io::Errno>, seen: &HostStat) -> io::Result<HostStat> {
        let opened = opened.map_err(|e| self.host_error(e))?;
        let unchanged = opened.identity == seen.identity && opened.file_type() == seen.file_type();
        if unchanged { Ok(opened) } else { Err(moved(&self.path)) }
    }

    fn apply(&self, name: &OsStr, file_type: FileType, wanted: &Attributes) -> io::Result<()> {
        self.walker.apply(Path::new(name), file_type, wanted).map_err(|e| failed(&self.path, e))
    }

    fn step_out(&mut self) {
        self.path.pop();
        self.below.pop();
    }

    fn host_error(&self, error: rustix::io::Errno) -> io::Error {
        failed(&self.path, error)
    }
}

fn attributes(stat: &HostStat, xattrs: Xattrs) -> Attributes {
    let times = [Some(stat.atime), Some(stat.mtime)];
    Attributes { mode: stat.mode & 0o7777, uid: stat.uid, gid: stat.gid, times, xattrs }
}
