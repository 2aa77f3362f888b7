//! Names: which names lead to which inode, both ways, as a map apart from the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::superblock::ROOT_INO;

/// A name: the directory that it stands in, and what it says.
pub(super) type Slot = (u64, Box<[u8]>);

/// The names of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    leads: BTreeMap<Slot, u64>,
    of: BTreeMap<u64, BTreeSet<Slot>>,
}

impl Names {
    /// Points `slot` to `ino` from now on, or to no inode; returns the previous inode.
    pub(super) fn set(&mut self, slot: &Slot, ino: Option<u64>) -> Option<u64> {
        let before = match ino {
            Some(ino) => self.leads.insert(slot.clone(), ino),
            None => self.leads.remove(slot),
        };
        if let Some(before) = before
            && let Some(slots) = self.of.get_mut(&before)
        {
            slots.remove(slot);
            if slots.is_empty() {
                self.of.remove(&before);
            }
        }
        if let Some(ino) = ino {
            self.of.entry(ino).or_default().insert(slot.clone());
        }
        before
    }

    /// Whether any name leads to `ino`; to the root none need.
    pub(super) fn has(&self, ino: u64) -> bool {
        ino == ROOT_INO || self.of.contains_key(&ino)
    }

    /// The names in directory `dir`, in their order, and where they lead.
    pub(super) fn within(&self, dir: u64) -> impl Iterator<Item = (&[u8], u64)> {
        self.leads
            .range((dir, Box::from(&[][..]))..(dir + 1, Box::from(&[][..])))
            .map(|((_, name), ino)| (&**name, *ino))
    }

    /// All paths that lead to `ino`.
    pub(super) fn paths(&self, ino: u64) -> Vec<PathBuf> {
        if ino == ROOT_INO {
            return vec![PathBuf::from("/")];
        }
        self.of.get(&ino).into_iter().flatten().filter_map(|slot| self.path(slot)).collect()
    }

    /// The path of the name `slot`, if its directory has one.
    pub(super) fn path(&self, slot: &Slot) -> Option<PathBuf> {
        let (mut dir, mut parts) = (slot.0, vec![&slot.1]);
        while dir != ROOT_INO {
            // A directory has one name.
            let (parent, name) = self.of.get(&dir)?.first()?;
            (dir, parts) = (*parent, {
                parts.push(name);
                parts
            });
        }
        let mut path = PathBuf::from("/");
        parts.iter().rev().for_each(|name| path.push(OsStr::from_bytes(name)));
        Some(path)
    }
}
