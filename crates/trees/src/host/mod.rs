//! Host: trees that come from, or go to, the operating system's file systems.
//!
//! # Theory
//! Two walkers go in step, one through the [`Fs`] and one through the host's directories. Each stands in one
//! directory at a time, goes down by a single name without following symbolic links, and comes back by "..",
//! where it checks that it is in the directory that it came from. So neither the depth of a tree nor the
//! length of its paths is limited by the stack, by descriptors or by `PATH_MAX`, and swapping a
//! directory for a symbolic link meanwhile leads no walker astray.
//!
//! The attributes of a directory are set when everything in it is done: its times would change otherwise,
//! and its mode might keep the walker out.

pub(crate) mod copy;
mod export;
mod handle;
mod import;

pub use export::export;
pub use import::import;

use sluice_vfs::{
    AtFlags, Cred, Errno, Fd, FileType, Fs, OpenFlags, Process, SetTime, Timestamp, XattrFlags,
};
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// The files that an import or export carried over. The directory at the top is not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Transfer {
    /// Regular files. A file with several names counts once for each.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Named pipes, sockets and device nodes.
    pub others: u64,
    /// Bytes of file contents that were copied; holes are not.
    pub bytes: u64,
}

impl Transfer {
    pub(crate) fn count(&mut self, file_type: FileType) {
        *match file_type {
            FileType::Regular => &mut self.files,
            FileType::Directory => &mut self.directories,
            FileType::Symlink => &mut self.symlinks,
            FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => {
                &mut self.others
            }
        } += 1;
    }
}

/// Names of extended attributes and their values.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The prefix of the attributes that are views of POSIX ACLs.
pub(crate) const ACL_PREFIX: &[u8] = b"system.posix_acl_";

/// Attributes for a new file, without contents and type.
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Last read and last change; `None` leaves a time as it is.
    pub(crate) times: [Option<Timestamp>; 2],
    pub(crate) xattrs: Xattrs,
}

/// An inode's identity: the number of its file system and its own.
pub(crate) type Identity = (u64, u64);

/// The superuser, walking a tree in an [`Fs`] by its working directory.
pub(crate) struct Walker {
    pub(crate) process: Process,
}

impl Walker {
    /// Stands in "/".
    pub(crate) fn new(fs: &Fs) -> Walker {
        let process = fs.process(Cred::root());
        process.umask(0);
        Walker { process }
    }

    /// Goes down to the directory `name`.
    ///
    /// # Errors
    /// `ENOTDIR` also for a symbolic link.
    pub(crate) fn enter(&self, name: &Path) -> Result<(), Errno> {
        let place = OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        let fd = self.process.open(name, place, 0)?;
        let entered = self.process.fchdir(fd);
        self.process.close(fd)?;
        entered
    }

    /// Goes up to `parent`.
    ///
    /// # Errors
    /// `EBUSY` when the directory above has been replaced.
    pub(crate) fn leave(&self, parent: Identity) -> Result<(), Errno> {
        self.process.chdir("..")?;
        if self.here()? == parent { Ok(()) } else { Err(Errno::EBUSY) }
    }

    /// The directory that it stands in.
    pub(crate) fn here(&self) -> Result<Identity, Errno> {
        self.process.lstat(".").map(|stat| (stat.dev, stat.ino))
    }

    /// The names in the directory that it stands in. Reading them leaves its access time alone.
    pub(crate) fn names(&self) -> Result<Vec<OsString>, Errno> {
        let flags = OpenFlags::DIRECTORY | OpenFlags::NOATIME;
        let fd = self.process.open(".", flags, 0)?;
        let mut names = Vec::new();
        loop {
            let some = self.process.getdents(fd, 1024)?;
            if some.is_empty() {
                self.process.close(fd)?;
                return Ok(names);
            }
            names.extend(some.named().map(|entry| entry.name.to_os_string()));
        }
    }

    /// Takes away what has the name `name`, if anything has.
    ///
    /// # Errors
    /// `EISDIR`: directories stay.
    pub(crate) fn make_room(&self, name: &Path) -> Result<(), Errno> {
        match self.process.unlink(name) {
            Err(Errno::ENOENT) => Ok(()),
            done => done,
        }
    }

    /// Makes the directory `name`, unless it is there.
    ///
    /// # Errors
    /// `ENOTDIR` when something else has the name.
    pub(crate) fn make_dir(&self, name: &Path) -> Result<(), Errno> {
        match self.process.mkdir(name, 0o755) {
            Err(Errno::EEXIST) if self.process.lstat(name)?.file_type() == FileType::Directory => Ok(()),
            Err(Errno::EEXIST) => Err(Errno::ENOTDIR),
            done => done,
        }
    }

    /// Creates the empty regular file `name`, open for writing.
    pub(crate) fn create(&self, name: &Path) -> Result<Fd, Errno> {
        self.make_room(name)?;
        self.process.open(name, OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::EXCL, 0o600)
    }

    /// The extended attributes of `name`, a symbolic link's own ones.
    pub(crate) fn xattrs(&self, name: &Path) -> Result<Xattrs, Errno> {
        let names = self.process.llistxattr(name)?;
        let valued = names.into_iter().map(|key| Ok((key.clone(), self.process.lgetxattr(name, &key)?)));
        valued.filter(|pair| pair.as_ref().err() != Some(&Errno::ENODATA)).collect()
    }

    /// Makes `name` look as `wanted`. Attributes of unknown name spaces are left out.
    ///
    /// The order matters: a change of owner clears set-ID bits, an ACL sets permission bits.
    pub(crate) fn apply(&self, name: &Path, file_type: FileType, wanted: &Attributes) -> Result<(), Errno> {
        let process = &self.process;
        process.lchown(name, Some(wanted.uid), Some(wanted.gid))?;
        for key in process.llistxattr(name)? {
            // An ACL that came with the name, from the directory's default one.
            let inherited =
                key.starts_with(ACL_PREFIX) && !wanted.xattrs.iter().any(|(given, _)| *given == key);
            if inherited {
                process.lremovexattr(name, &key)?;
            }
        }
        for (key, value) in &wanted.xattrs {
            match process.lsetxattr(name, key, value, XattrFlags::empty()) {
                Err(Errno::EOPNOTSUPP) => {}
                done => done?,
            }
        }
        if file_type != FileType::Symlink {
            process.fchmodat(Fd::CWD, name, wanted.mode, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        process.utimensat(
            Fd::CWD,
            name,
            wanted.times.map(|time| time.map(SetTime::At)),
            AtFlags::SYMLINK_NOFOLLOW,
        )
    }
}

/// `error`, with the path that met it in front.
pub(crate) fn failed(path: &Path, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{}: {error}", shown(path)))
}

/// An error of one's own about `path`.
pub(crate) fn refused(path: &Path, kind: io::ErrorKind, reason: &str) -> io::Error {
    io::Error::new(kind, format!("{}: {reason}", shown(path)))
}

/// The error for a path where a file of the wrong type stands in the way.
pub(crate) fn blocked(path: &Path, error: Errno) -> io::Error {
    match error {
        Errno::EISDIR => refused(
            path,
            io::ErrorKind::IsADirectory,
            "a directory is in the way of a file; remove it, or choose another target",
        ),
        Errno::ENOTDIR => refused(
            path,
            io::ErrorKind::NotADirectory,
            "something else is in the way of a directory; remove it, or choose another target",
        ),
        Errno::EBUSY => moved(path),
        other => failed(path, other),
    }
}

/// The error for a tree that changes while it is walked.
pub(crate) fn moved(path: &Path) -> io::Error {
    refused(
        path,
        io::ErrorKind::ResourceBusy,
        "changed while it was copied; try again when nobody changes it",
    )
}

/// A path as text on one line: an archive may hold names that would play with a terminal.
fn shown(path: &Path) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    path.to_string_lossy().chars().map(escape).collect()
}
