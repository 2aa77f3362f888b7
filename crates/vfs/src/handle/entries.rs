//! Entries: a directory's names one after the other, in the manner of `std::fs::read_dir`.

use super::ProcessFd;
use crate::{AtFlags, Errno, Fd, FileType, OpenFlags, Process, Stat};
use sluice_sync::Arc;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::vec;

/// So many entries are read at once.
const BATCH: usize = 1024;

/// The entries of a directory without "." and "..", in no order. An entry that exists from the first step to the last comes exactly
/// once; an entry that is added or removed meanwhile may come.
#[derive(Debug)]
pub struct ReadDir {
    dir: Arc<Listed>,
    batch: vec::IntoIter<(OsString, FileType, u64)>,
    has_ended: bool,
}

/// The directory that is being read.
#[derive(Debug)]
struct Listed {
    handle: ProcessFd,
    path: PathBuf,
}

impl ReadDir {
    /// The entries of the directory at `path`, seen from the directory `dir` of `process`. Paths of the entries begin with `shown`.
    pub(crate) fn open(process: &Arc<Process>, dir: Fd, path: &Path, shown: &Path) -> Result<ReadDir, Errno> {
        let handle = ProcessFd::open(process, dir, path, OpenFlags::RDONLY | OpenFlags::DIRECTORY, 0)?;
        let dir = Arc::new(Listed { handle, path: shown.to_path_buf() });
        let mut entries = ReadDir { dir, batch: Vec::new().into_iter(), has_ended: false };
        // A directory that was removed is an error of this call, as in std.
        entries.read_batch()?;
        Ok(entries)
    }

    fn read_batch(&mut self) -> Result<(), Errno> {
        let ProcessFd { process, fd } = &self.dir.handle;
        let some = process.getdents(*fd, BATCH)?;
        self.has_ended = some.is_empty();
        let owned: Vec<_> =
            some.named().map(|entry| (entry.name.into(), entry.file_type, entry.ino)).collect();
        self.batch = owned.into_iter();
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Errno>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((name, file_type, ino)) = self.batch.next() {
                return Some(Ok(DirEntry { dir: self.dir.clone(), name, file_type, ino }));
            }
            if self.has_ended {
                return None;
            }
            if let Err(error) = self.read_batch() {
                self.has_ended = true;
                return Some(Err(error));
            }
        }
    }
}

/// An entry of a directory; the names and rules of [`std::fs::DirEntry`].
///
/// ```
/// use sluice_vfs::{Errno, Fs};
///
/// let fs = Fs::new();
/// fs.create_dir("/etc")?;
/// fs.write("/etc/hosts", "127.0.0.1 localhost\n")?;
/// for entry in fs.read_dir("/etc")? {
///     let entry = entry?;
///     assert_eq!(entry.file_name(), "hosts");
///     assert_eq!(entry.path(), std::path::Path::new("/etc/hosts"));
///     assert!(entry.file_type()?.is_file());
///     assert_eq!(entry.metadata()?.len(), 20);
/// }
/// # Ok::<(), Errno>(())
/// ```
pub struct DirEntry {
    dir: Arc<Listed>,
    name: OsString,
    file_type: FileType,
    ino: u64,
}

impl DirEntry {
    /// The name alone.
    pub fn file_name(&self) -> OsString {
        self.name.clone()
    }

    /// The name, borrowed.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The path that was given for the directory, and the name.
    pub fn path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }

    /// The file's type; of a symbolic link, that it is one.
    ///
    /// # Errors
    /// None: a `Result`, as in std.
    pub fn file_type(&self) -> Result<FileType, Errno> {
        Ok(self.file_type)
    }

    /// The file's attributes; of a symbolic link its own.
    ///
    /// # Errors
    /// `ENOENT` when the name was removed.
    pub fn metadata(&self) -> Result<Stat, Errno> {
        self.dir.handle.stat(Path::new(&self.name), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The inode number.
    pub fn ino(&self) -> u64 {
        self.ino
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path()).finish()
    }
}
