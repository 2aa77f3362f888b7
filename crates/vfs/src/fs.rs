//! Fs: a tree of mounted file systems, and calls in the manner of `std::fs` for people who do not want
//! descriptors.
//!
//! The calls here act as the superuser and take paths from the root. For anything finer make a [`Process`].

use crate::memory::memory_of;
use crate::mount::MountTable;
use crate::{
    CheckReport, Cred, DirEntry, Errno, Fd, Memory, MountFlags, OpenFlags, Options, Process, QuotaUse,
    ReadDir, Stat, Superblock, UmountFlags,
};
use sluice_sync::Arc;
use std::fmt;
use std::path::{Path, PathBuf};

/// A tree of mounted file systems. Clones are the same tree.
#[derive(Clone)]
pub struct Fs {
    mounts: Arc<MountTable>,
}

/// The piece in which [`Fs::read`] and [`Fs::copy`] go through a file.
const COPY_CHUNK: usize = 1 << 30;

impl fmt::Debug for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fs").field("superblock", self.superblock()).finish_non_exhaustive()
    }
}

impl Default for Fs {
    fn default() -> Self {
        Fs::new()
    }
}

impl Fs {
    /// A fresh file system in memory, without limits.
    pub fn new() -> Fs {
        Fs::builder().build()
    }

    /// The options of a file system: limits, the root's owner, how its store works.
    ///
    /// ```
    /// # use sluice_vfs::{Errno, Fs};
    /// let fs = Fs::builder().size_limit(1 << 20).root_mode(0o700).build();
    /// assert_eq!(fs.metadata("/")?.permissions(), 0o700);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn builder() -> Options {
        Options::default()
    }

    /// A tree whose root is the root of `superblock`.
    pub fn with_superblock(superblock: Arc<Superblock>) -> Fs {
        Fs { mounts: Arc::new(MountTable::new(superblock)) }
    }

    /// The file system at the bottom of the tree, where "/" began.
    pub fn superblock(&self) -> &Arc<Superblock> {
        self.mounts.root_superblock()
    }

    /// A new user of this tree: working directory "/", umask 022, no descriptors.
    pub fn process(&self, cred: Cred) -> Process {
        Process::new(self.clone(), cred)
    }

    /// Checks the invariants of every file system in the tree, one report for all.
    pub fn check(&self) -> CheckReport {
        let mut whole = CheckReport::default();
        for superblock in self.mounts.superblocks() {
            let one = superblock.check();
            whole.findings.extend(one.findings);
            whole.inodes += one.inodes;
            whole.directories += one.directories;
            whole.names += one.names;
        }
        whole
    }

    /// The memory that the file systems of this tree, and the process, use. Stops all counting of references for a
    /// moment: meant for a report, not for every call.
    ///
    /// ```
    /// # use sluice_vfs::Fs;
    /// let fs = Fs::new();
    /// fs.write("/large", vec![7; 1 << 20])?;
    /// assert_eq!(fs.memory().file_bytes, 1 << 20);
    /// fs.remove_file("/large")?;
    /// let memory = fs.memory();
    /// // Its pages may be kept for the next file for some seconds, and then go back to the system.
    /// println!("{} bytes are kept, {} are resident", memory.held.spare_page_bytes, memory.resident_bytes);
    /// assert_eq!(memory.file_bytes, 0);
    /// # Ok::<(), sluice_vfs::Errno>(())
    /// ```
    pub fn memory(&self) -> Memory {
        let superblocks = self.mounts.superblocks();
        memory_of(superblocks.iter().map(|superblock| &**superblock))
    }

    /// Releases what has lost its last user by now, as [`Superblock::settle`]: `statfs` is exact then.
    ///
    /// ```
    /// # use sluice_vfs::Fs;
    /// let fs = Fs::new();
    /// fs.write("/large", vec![7; 1 << 20])?;
    /// fs.remove_file("/large")?;
    /// fs.settle();
    /// assert_eq!(fs.superblock().inodes_used(), 1, "the root");
    /// # Ok::<(), sluice_vfs::Errno>(())
    /// ```
    pub fn settle(&self) {
        self.superblock().settle();
    }

    pub(crate) fn mounts(&self) -> &MountTable {
        &self.mounts
    }

    fn root(&self) -> Process {
        self.process(Cred::root())
    }

    /// Mounts the root of `superblock` on the directory at `path`.
    ///
    /// # Errors
    /// Errors of [`Process::mount`].
    pub fn mount(
        &self,
        superblock: Arc<Superblock>,
        path: impl AsRef<Path>,
        flags: MountFlags,
    ) -> Result<(), Errno> {
        self.root().mount(superblock, path, flags)
    }

    /// Makes the directory at `from` appear at `to` too.
    ///
    /// # Errors
    /// Errors of [`Process::bind`].
    pub fn bind(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, flags: MountFlags) -> Result<(), Errno> {
        self.root().bind(from, to, flags)
    }

    /// Takes the mount at `path` out of the tree.
    ///
    /// # Errors
    /// Errors of [`Process::umount`].
    pub fn umount(&self, path: impl AsRef<Path>, flags: UmountFlags) -> Result<(), Errno> {
        self.root().umount(path, flags)
    }

    /// A new, independent tree with the directory at `path` for its root, as it is now. Contents are shared: a page
    /// takes memory once until one side writes it, though each file system counts it as used.
    ///
    /// ```
    /// # use sluice_vfs::Fs;
    /// let fs = Fs::new();
    /// fs.write("/plan", "first")?;
    /// let before = fs.snapshot("/")?;
    /// fs.write("/plan", "second")?;
    /// assert_eq!(before.read_to_string("/plan")?, "first");
    /// # Ok::<(), sluice_vfs::Errno>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`Process::snapshot`].
    pub fn snapshot(&self, path: impl AsRef<Path>) -> Result<Fs, Errno> {
        self.root().snapshot(path).map(Fs::with_superblock)
    }

    /// Copies a file, or a directory with all that is below it, to a new name in the same file system. Contents are shared
    /// as by [`snapshot`](Self::snapshot); the name appears when the copy is whole.
    ///
    /// ```
    /// # use sluice_vfs::Fs;
    /// let fs = Fs::new();
    /// fs.create_dir_all("/project/src")?;
    /// fs.write("/project/src/main.c", "int main() {}")?;
    /// fs.clone_tree("/project", "/experiment")?;
    /// fs.write("/experiment/src/main.c", "?")?;
    /// assert_eq!(fs.read_to_string("/project/src/main.c")?, "int main() {}");
    /// # Ok::<(), sluice_vfs::Errno>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`Process::clone_tree`].
    pub fn clone_tree(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Errno> {
        self.root().clone_tree(from, to)
    }

    /// Lets the contents of a directory, with all that is below it, be `limit` bytes at most, or takes that limit away: then writes beyond
    /// fail with `EDQUOT`.
    ///
    /// ```
    /// # use sluice_vfs::{Errno, Fs};
    /// let fs = Fs::new();
    /// fs.create_dir("/home")?;
    /// fs.set_quota("/home", Some(1 << 20))?;
    /// fs.write("/home/kept", vec![7; 1 << 20])?;
    /// assert_eq!(fs.write("/home/more", "x"), Err(Errno::EDQUOT));
    /// assert_eq!(fs.quota("/home")?.map(|quota| quota.used), Some(1 << 20));
    /// # Ok::<(), Errno>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`Process::set_quota`].
    pub fn set_quota(&self, path: impl AsRef<Path>, limit: Option<u64>) -> Result<(), Errno> {
        self.root().set_quota(path, limit)
    }

    /// The quota of a file, if any, with the bytes in use.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn quota(&self, path: impl AsRef<Path>) -> Result<Option<QuotaUse>, Errno> {
        self.root().quota(path)
    }

    /// The whole contents of a file.
    ///
    /// # Errors
    /// Errors of `open` and `read`; `ENOMEM` if the contents do not fit in memory.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Errno> {
        let process = self.root();
        let fd = process.open(path, OpenFlags::RDONLY, 0)?;
        let size = usize::try_from(process.fstat(fd)?.size).map_err(|_| Errno::ENOMEM)?;
        // A byte more, so that the end is seen without room being made for what may follow.
        let (mut contents, mut room, mut filled) = (Vec::new(), size + 1, 0);
        loop {
            if filled == contents.len() {
                contents.try_reserve(room).map_err(|_| Errno::ENOMEM)?;
                contents.resize(filled + room, 0);
                // If that is filled too, it grew since.
                room = 4096;
            }
            match process.read(fd, &mut contents[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        contents.truncate(filled);
        Ok(contents)
    }

    /// The whole contents of a file, as text.
    ///
    /// # Errors
    /// Errors of [`read`](Self::read); `EINVAL` when the contents are not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String, Errno> {
        String::from_utf8(self.read(path)?).map_err(|_| Errno::EINVAL)
    }

    /// Makes `contents` the contents of the file at `path`, creating it if needed.
    ///
    /// # Errors
    /// Errors of `open` and `write`.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<(), Errno> {
        self.write_with(path, contents.as_ref(), OpenFlags::TRUNC)
    }

    /// Adds `contents` at the end of the file at `path`, creating it if needed.
    ///
    /// # Errors
    /// Errors of `open` and `write`.
    pub fn append(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<(), Errno> {
        self.write_with(path, contents.as_ref(), OpenFlags::APPEND)
    }

    fn write_with(&self, path: impl AsRef<Path>, contents: &[u8], how: OpenFlags) -> Result<(), Errno> {
        let process = self.root();
        let fd = process.open(path, OpenFlags::WRONLY | OpenFlags::CREAT | how, 0o666)?;
        write_all(&process, fd, contents)
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// Errors of [`Process::mkdir`].
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Errno> {
        self.root().mkdir(path, 0o777)
    }

    /// Creates a directory and those above it that are missing.
    ///
    /// # Errors
    /// Errors of [`Process::mkdir`]; `ENOTDIR` when something on the way is no directory.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Errno> {
        let process = self.root();
        let mut partial = PathBuf::new();
        for component in path.as_ref().components() {
            partial.push(component);
            match process.mkdir(&partial, 0o777) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error),
            }
        }
        if process.stat(path)?.is_dir() { Ok(()) } else { Err(Errno::ENOTDIR) }
    }

    /// Removes a file's name.
    ///
    /// # Errors
    /// Errors of [`Process::unlink`].
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Errno> {
        self.root().unlink(path)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Errors of [`Process::rmdir`].
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Errno> {
        self.root().rmdir(path)
    }

    /// Removes a directory and everything in it. Symbolic links are removed, not followed, also those that take the place of a
    /// directory meanwhile.
    ///
    /// # Errors
    /// The first that removing something met; what was removed by then stays so. `EBUSY` at a mount point, and nothing of what
    /// is mounted there is removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Errno> {
        self.root().remove_tree(path.as_ref())
    }

    /// Moves a name.
    ///
    /// # Errors
    /// Errors of [`Process::rename`].
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Errno> {
        self.root().rename(from, to)
    }

    /// Copies contents and permission bits of a file; within one file system the copy shares pages with the
    /// original until one of them is written. Returns the bytes copied.
    ///
    /// # Errors
    /// Errors of `open`, `read` and `write`.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64, Errno> {
        let process = self.root();
        let source = process.open(from, OpenFlags::RDONLY, 0)?;
        let mode = process.fstat(source)?.permissions();
        let flags = OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::TRUNC;
        let target = process.open(to, flags, mode & 0o777)?;
        process.fchmod(target, mode)?;
        let mut copied = 0;
        loop {
            match process.copy_file_range(source, None, target, None, COPY_CHUNK) {
                Ok(0) => return Ok(copied),
                Ok(more) => copied += more as u64,
                Err(Errno::EXDEV) => break,
                Err(error) => return Err(error),
            }
        }
        let mut buf = vec![0; 1 << 16];
        loop {
            match process.read(source, &mut buf)? {
                0 => return Ok(copied),
                read => write_all(&process, target, &buf[..read])?,
            }
            copied = process.fstat(target)?.size;
        }
    }

    /// Gives a file a further name.
    ///
    /// # Errors
    /// Errors of [`Process::link`].
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Errno> {
        self.root().link(original, link)
    }

    /// Creates the symbolic link `link`, which leads to `target`.
    ///
    /// # Errors
    /// Errors of [`Process::symlink`].
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Errno> {
        self.root().symlink(target, link)
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// Errors of [`Process::readlink`].
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Errno> {
        self.root().readlink(path)
    }

    /// The attributes of a file, at the end of symbolic links.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Stat, Errno> {
        self.root().stat(path)
    }

    /// The attributes of a file, of a symbolic link itself.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Stat, Errno> {
        self.root().lstat(path)
    }

    /// Sets a file's permission bits.
    ///
    /// # Errors
    /// Errors of the path walk.
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Errno> {
        self.root().chmod(path, mode)
    }

    /// True when `path` leads to a file.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.metadata(path).is_ok()
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// Errors of `open`; `ENOTDIR`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir, Errno> {
        let path = path.as_ref();
        ReadDir::open(&Arc::new(self.root()), Fd::CWD, path, path)
    }

    /// All files at and below `path`, each directory before its entries. Symbolic links are returned, not followed. The
    /// walk goes on after an error.
    pub fn walk(&self, path: impl AsRef<Path>) -> Walk {
        Walk { fs: self.clone(), pending: vec![path.as_ref().to_path_buf()] }
    }
}

/// Writes all of `data` at the descriptor's position.
pub(crate) fn write_all(process: &Process, fd: Fd, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        let written = process.write(fd, data)?;
        data = &data[written..];
    }
    Ok(())
}

/// One file that [`Fs::walk`] met.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WalkEntry {
    /// Its path, beginning with the path that the walk began at.
    pub path: PathBuf,
    /// Its attributes; of a symbolic link itself.
    pub stat: Stat,
}

/// Goes through a tree; see [`Fs::walk`].
#[derive(Debug)]
pub struct Walk {
    fs: Fs,
    /// Paths still to visit, the next one last.
    pending: Vec<PathBuf>,
}

impl Iterator for Walk {
    type Item = Result<WalkEntry, Errno>;

    fn next(&mut self) -> Option<Self::Item> {
        let path = self.pending.pop()?;
        let stat = match self.fs.symlink_metadata(&path) {
            Ok(stat) => stat,
            Err(error) => return Some(Err(error)),
        };
        if stat.is_dir() {
            let entries = self.fs.read_dir(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            match entries {
                Ok(entries) => self.pending.extend(entries.iter().rev().map(DirEntry::path)),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(WalkEntry { path, stat }))
    }
}
