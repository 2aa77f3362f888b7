//! Remains: what a crash left of trees that were being made (`hidden.rs`), and how it leaves the store.
//!
//! # Theory
//! The top of such a tree has an orphan record that says that there are names. Pushes take these names, some at a time: the inode
//! of each becomes an orphan in the same push, and of those that have no names below the records are removed as of any file. A
//! file that has other names in the tree has one less. Each push leaves a store in which nothing is lost: what has no name is an
//! orphan.
//!
//! # Cost
//! Memory for the names that one push takes, for the directories beside the way to where it is, and for files of several names
//! that have lost some.

use super::Durable;
use super::keys::{Key, ino_of};
use super::record::{self, InodeRecord};
use super::removal::Gone;
use crate::data::PageSet;
use crate::lock_class::DURABLE_PENDING;
use crate::{Errno, FileType};
use sluice_store::{Added, Data, StoreError};
use sluice_sync::Mutex;
use std::collections::BTreeMap;

/// So many names a push takes at most.
const NAMES_MAX: u64 = 512;

/// Trees of which nobody knows.
pub(super) struct Remains(Mutex<RemainsLeft>);

#[derive(Default)]
struct RemainsLeft {
    /// Directories with names, the one that is emptied last.
    directories: Vec<Emptied>,
    /// Files that lost a name and have so many others.
    links: BTreeMap<u64, u32>,
}

/// A directory whose names before a key are gone.
struct Emptied {
    ino: u64,
    from: Vec<u8>,
}

impl Emptied {
    fn new(ino: u64) -> Emptied {
        Emptied { ino, from: Key::names(ino).start.to_vec() }
    }
}

impl Remains {
    pub(super) fn new() -> Remains {
        Remains(Mutex::with_class(&DURABLE_PENDING, RemainsLeft::default()))
    }

    /// Directory `ino` is to go, with all below it.
    fn remove(&self, ino: u64) {
        self.0.lock().directories.push(Emptied::new(ino));
    }

    /// Whether there are any.
    pub(super) fn are_left(&self) -> bool {
        !self.0.lock().directories.is_empty()
    }

    fn directories(&self) -> Vec<u64> {
        self.0.lock().directories.iter().map(|dir| dir.ino).collect()
    }

    /// Forgets all: the store remembers.
    pub(super) fn clear(&self) {
        *self.0.lock() = RemainsLeft::default();
    }

    /// Takes up to `most` names of one directory, and gives `gone` what has no name then.
    pub(super) fn write(&self, most: u64, data: &Data<'_>, to: &mut Added, mut gone: impl FnMut(Gone)) {
        let Some(dir) = self.0.lock().directories.pop() else { return };
        // A directory that cannot be read stays an orphan, until the store is opened or `fsck` finds it.
        let Ok((names, is_all)) = names_in(&dir, most.min(NAMES_MAX), data) else { return };
        if is_all {
            gone(Gone::unread(dir.ino));
        } else if let Some((last, ..)) = names.last() {
            let from = [last, &[0][..]].concat();
            self.0.lock().directories.push(Emptied { ino: dir.ino, from });
        }
        let mut changed = BTreeMap::new();
        for (key, ino, is_dir) in names {
            to.remove(&key);
            if is_dir {
                to.put(&Key::orphan(ino), record::orphan(true));
                self.remove(ino);
                continue;
            }
            // A file whose record cannot be read is an orphan as well.
            let record = data.get(&Key::inode(ino)).map_or(Some(Vec::new()), |record| record);
            if let Some(record) = record {
                changed.insert(ino, (self.lose_name(ino, &record), record));
            }
        }
        for (ino, (others, record)) in changed {
            match InodeRecord::decode(&record).filter(|_| others > 0) {
                Some(record) => {
                    let record = InodeRecord { nlink: others, holder: None, ..record };
                    to.put(&Key::inode(ino), &record.encode());
                }
                None => {
                    to.put(&Key::orphan(ino), record::orphan(false));
                    gone(Gone::unread(ino));
                }
            }
        }
    }

    /// The file `ino` with this `record` in the tree, which may have lost names since, loses one: how many others it has.
    fn lose_name(&self, ino: u64, record: &[u8]) -> u32 {
        let mut left = self.0.lock();
        let links = left.links.remove(&ino).or_else(|| Some(InodeRecord::decode(record)?.nlink));
        let others = links.unwrap_or(1).saturating_sub(1);
        if others > 0 {
            left.links.insert(ino, others);
        }
        others
    }
}

/// The key of a name, the inode to which it leads, and whether that is a directory.
type FoundName = (Vec<u8>, u64, bool);

/// Up to `most` names in directory `dir`, and whether the directory has no more.
fn names_in(dir: &Emptied, most: u64, data: &Data<'_>) -> Result<(Vec<FoundName>, bool), StoreError> {
    let (mut names, mut is_all) = (Vec::new(), true);
    data.scan(&dir.from, &Key::names(dir.ino).end, &mut |key, value| {
        is_all = (names.len() as u64) < most;
        // A name that cannot be read leads nowhere.
        let (ino, bits) = record::named_type(value).unwrap_or((0, 0));
        if is_all {
            names.push((key.to_vec(), ino, bits == FileType::Directory.mode_bits()));
        }
        is_all
    })?;
    Ok((names, is_all))
}

impl Durable {
    /// Finds the inodes that had no name at the crash, for pushes to remove, with what is below them.
    pub(super) fn find_gone(&self) -> Result<PageSet, Errno> {
        let mut gone = PageSet::new();
        self.scan(Key::orphans(), &mut |key, value| {
            let Some(ino) = ino_of(key) else { return true };
            gone.insert(ino..ino + 1);
            match value == record::orphan(true) {
                true => self.pending.remains.remove(ino),
                false => self.pending.removals.remove(Gone::found(ino)),
            }
            true
        })?;
        Ok(gone)
    }

    /// Adds to `gone` what is below it. The numbers of a clone are next to each other.
    pub(super) fn find_remains(&self, gone: &mut PageSet) -> Result<(), Errno> {
        let mut directories = self.pending.remains.directories();
        while let Some(dir) = directories.pop() {
            self.scan(Key::names(dir), &mut |_, value| {
                if let Some((ino, bits)) = record::named_type(value) {
                    gone.insert(ino..ino + 1);
                    directories.extend((bits == FileType::Directory.mode_bits()).then_some(ino));
                }
                true
            })?;
        }
        Ok(())
    }
}
