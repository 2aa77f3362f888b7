//! Dir: the names in one directory.
//!
//! # Theory
//! Each name gets a position when it enters the directory, larger than all before. Entries are kept in order
//! of position, so a reader that stopped after position `p` goes on at the first entry past `p`, whatever
//! came and went in between: an entry present throughout is returned exactly once. A second table finds the
//! position of a name by its hash.
//!
//! A rename within a directory keeps a position (that of the name it replaces, otherwise its own), so that
//! a program which renames each file it reads comes to an end.
//!
//! # Cost
//! Lookup O(1) plus the ordered map's O(log n); reading the next entry O(log n).

use crate::InodeRef;
use hashbrown::{DefaultHashBuilder, HashTable};
use sluice_sync::atomic::AtomicU32;
use sluice_sync::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::hash::BuildHasher;

/// Positions of "." and "..".
pub(crate) const POSITION_DOT: u64 = 1;
pub(crate) const POSITION_DOTDOT: u64 = 2;

/// What only directories have.
pub(crate) struct Dir {
    /// The names. *Protected by itself.*
    pub(crate) names: RwLock<Names>,
    /// The directory that holds this one's name; none for the root. *Protected by itself; changed only under
    /// the superblock's rename lock.*
    pub(crate) parent: Mutex<Option<InodeRef>>,
    /// How many mounts stand on this directory, in any namespace. *Atomic (counter).*
    pub(crate) mounts_here: AtomicU32,
}

impl Dir {
    pub(crate) fn new(parent: Option<InodeRef>) -> Dir {
        Dir { names: RwLock::new(Names::new()), parent: Mutex::new(parent), mounts_here: AtomicU32::new(0) }
    }
}

/// A set of names, each with its inode and position.
pub(crate) struct Names {
    entries: BTreeMap<u64, Entry>,
    /// Hash of a name and its position.
    index: HashTable<Slot>,
    hasher: DefaultHashBuilder,
    /// The position that the next name gets.
    next: u64,
    /// The directory was removed: no name may be added.
    dead: bool,
}

/// One name.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: Box<[u8]>,
    pub(crate) inode: InodeRef,
}

#[derive(Clone, Copy)]
struct Slot {
    hash: u64,
    position: u64,
}

impl Names {
    fn new() -> Names {
        Names {
            entries: BTreeMap::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            next: POSITION_DOTDOT + 1,
            dead: false,
        }
    }

    fn position(&self, name: &[u8]) -> Option<u64> {
        let hash = self.hasher.hash_one(name);
        let is_it = |slot: &Slot| slot.hash == hash && *self.entries[&slot.position].name == *name;
        self.index.find(hash, is_it).map(|slot| slot.position)
    }

    /// The inode of `name`.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&InodeRef> {
        self.position(name).map(|position| &self.entries[&position].inode)
    }

    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        self.position(name).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True once the directory was removed.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    /// The size that `stat` shows: 20 bytes a name, as tmpfs counts, "." and ".." included.
    pub(crate) fn stat_size(&self) -> u64 {
        const BYTES_A_NAME: u64 = 20;
        if self.dead { 0 } else { (self.entries.len() as u64 + 2) * BYTES_A_NAME }
    }

    /// Adds `name`, which must not be there, at the end.
    pub(crate) fn insert(&mut self, name: &[u8], inode: InodeRef) {
        let position = self.next;
        self.next += 1;
        self.insert_at(position, name, inode);
    }

    fn insert_at(&mut self, position: u64, name: &[u8], inode: InodeRef) {
        debug_assert!(!self.dead && !self.contains(name));
        let hash = self.hasher.hash_one(name);
        self.index.insert_unique(hash, Slot { hash, position }, |slot| slot.hash);
        self.entries.insert(position, Entry { name: name.into(), inode });
    }

    /// Removes `name` and returns its inode and position.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<(InodeRef, u64)> {
        let position = self.position(name)?;
        let hash = self.hasher.hash_one(name);
        if let Ok(slot) = self.index.find_entry(hash, |slot| slot.position == position) {
            slot.remove();
        }
        self.entries.remove(&position).map(|entry| (entry.inode, position))
    }

    /// Lets `name`, which is there, mean `inode` from now on. Returns what it meant.
    pub(crate) fn replace(&mut self, name: &[u8], inode: InodeRef) -> Option<InodeRef> {
        let position = self.position(name)?;
        let entry = self.entries.get_mut(&position)?;
        Some(std::mem::replace(&mut entry.inode, inode))
    }

    /// Renames within the directory. Returns the inode that `new` meant before, if any.
    pub(crate) fn rename(&mut self, old: &[u8], new: &[u8]) -> Option<InodeRef> {
        let (inode, position) = self.remove(old)?;
        if self.contains(new) {
            return self.replace(new, inode);
        }
        self.insert_at(position, new, inode);
        None
    }

    /// The entries past `position`, in order.
    pub(crate) fn after(&self, position: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let from = position.saturating_add(1);
        self.entries.range(from..).map(|(position, entry)| (*position, entry))
    }

    /// The position of the last name that ever entered.
    pub(crate) fn last_position(&self) -> u64 {
        self.next - 1
    }

    /// Forbids further names and returns the inodes of those that are left.
    pub(crate) fn kill(&mut self) -> Vec<InodeRef> {
        self.dead = true;
        self.index = HashTable::new();
        std::mem::take(&mut self.entries).into_values().map(|entry| entry.inode).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Superblock};

    fn listing(names: &Names, from: u64) -> Vec<String> {
        names.after(from).map(|(_, entry)| String::from_utf8_lossy(&entry.name).into_owned()).collect()
    }

    #[test]
    fn a_reader_goes_on_where_it_stopped_whatever_was_removed() {
        let file = Superblock::new(Options::default()).root().clone();
        let mut names = Names::new();
        for name in ["a", "b", "c", "d"] {
            names.insert(name.as_bytes(), file.clone());
        }
        let (second, _) = names.after(0).nth(1).expect("four entries");
        names.remove(b"b");
        names.remove(b"a");
        names.insert(b"e", file.clone());
        assert_eq!(listing(&names, second), ["c", "d", "e"]);
    }

    #[test]
    fn renaming_each_entry_that_is_read_comes_to_an_end() {
        let file = Superblock::new(Options::default()).root().clone();
        let mut names = Names::new();
        for name in ["a", "b", "c"] {
            names.insert(name.as_bytes(), file.clone());
        }
        let (mut at, mut steps) = (0, 0);
        loop {
            let Some((position, entry)) = names.after(at).next() else { break };
            let (old, new) = (entry.name.clone(), [&entry.name[..], b".new"].concat());
            names.rename(&old, &new);
            at = position;
            steps += 1;
        }
        assert_eq!(steps, 3);
        assert_eq!(listing(&names, 0), ["a.new", "b.new", "c.new"]);
    }

    #[test]
    fn replacing_a_name_keeps_its_position_and_drops_the_old_one() {
        let superblock = Superblock::new(Options::default());
        let file = superblock.root().clone();
        let mut names = Names::new();
        for name in ["a", "b", "c"] {
            names.insert(name.as_bytes(), file.clone());
        }
        assert!(names.rename(b"c", b"a").is_some());
        assert_eq!(listing(&names, 0), ["a", "b"]);
        assert!(names.get(b"c").is_none());
    }
}
