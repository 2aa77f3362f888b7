//! Dirents: entries that were read from a directory, one after the other in one buffer, as getdents(2) gives them.
//!
//! # Cost
//! However many entries, two pieces of memory, which a list of owned names would have for each.

use crate::{FileType, ListedName};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// One entry that [`Process::getdents`](super::Process::getdents) read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dirent<'a> {
    /// The name, "." and ".." included.
    pub name: &'a OsStr,
    /// The inode number.
    pub ino: u64,
    /// The file type.
    pub file_type: FileType,
    /// The position behind this entry, for [`Process::lseek`](super::Process::lseek).
    pub position: u64,
}

/// The entries that one [`Process::getdents`](super::Process::getdents) read, in the directory's order.
#[derive(Clone, Debug, Default)]
pub struct Dirents {
    /// The names without anything between.
    names: Vec<u8>,
    entries: Vec<Packed>,
}

/// An entry without its name, which begins where the name before ends.
#[derive(Clone, Copy, Debug)]
struct Packed {
    name_end: usize,
    ino: u64,
    position: u64,
    file_type: FileType,
}

impl Dirents {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none: the directory's end was reached.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry number `at`, from 0.
    pub fn get(&self, at: usize) -> Option<Dirent<'_>> {
        let &Packed { name_end, ino, position, file_type } = self.entries.get(at)?;
        let name_start = at.checked_sub(1).map_or(0, |before| self.entries[before].name_end);
        let name = OsStr::from_bytes(&self.names[name_start..name_end]);
        Some(Dirent { name, ino, file_type, position })
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = Dirent<'_>> {
        (0..self.len()).map_while(|at| self.get(at))
    }

    /// All entries but "." and "..".
    pub fn named(&self) -> impl Iterator<Item = Dirent<'_>> {
        self.iter().filter(|entry| entry.name != "." && entry.name != "..")
    }

    pub(super) fn push(&mut self, entry: ListedName<'_>) {
        self.names.extend_from_slice(entry.name);
        self.entries.push(Packed {
            name_end: self.names.len(),
            ino: entry.ino(),
            position: entry.position,
            file_type: entry.file_type(),
        });
    }
}
