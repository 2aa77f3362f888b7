//! Nodes: the inodes that the kernel knows by number.
//!
//! # Theory
//! Each reply that names an inode gives the kernel one *lookup* of it; FORGET gives lookups back. While the
//! count is above zero the kernel may send requests for the number, so the table keeps the inode alive. A file
//! that is unlinked while open lives exactly as long as the kernel remembers it.
//!
//! The kernel calls the root 1. Everything else is called by its inode number, which is never used again, so
//! that generations are not needed; should the root's own number not be 1, it changes places with inode 1.
//!
//! # Invariants
//! - I1 Every entry but the root has a lookup count above zero.

use crate::abi::ROOT_ID;
use sluice_sync::Mutex;
use sluice_vfs::InodeRef;
use std::collections::HashMap;

const SHARDS: usize = 16;

type Shard = Mutex<HashMap<u64, Node>>;

/// The table of one mount.
pub(crate) struct Nodes {
    /// *immutable*
    root: InodeRef,
    /// By node number. *each protected by its own mutex*, a leaf
    shards: [Shard; SHARDS],
}

struct Node {
    inode: InodeRef,
    lookups: u64,
    /// Somebody else changed the inode since the kernel was last told its attributes.
    changed: bool,
}

impl Nodes {
    /// A table that holds `root` alone.
    pub(crate) fn new(root: InodeRef) -> Nodes {
        let nodes = Nodes { root, shards: std::array::from_fn(|_| Mutex::default()) };
        nodes.keep_root();
        nodes
    }

    /// The number by which the kernel calls inode `ino`.
    pub(crate) fn nodeid(&self, ino: u64) -> u64 {
        match ino {
            _ if ino == self.root.ino() => ROOT_ID,
            ROOT_ID => self.root.ino(),
            other => other,
        }
    }

    /// Counts one lookup of `inode`, and returns its node number.
    pub(crate) fn remember(&self, inode: &InodeRef) -> u64 {
        let nodeid = self.nodeid(inode.ino());
        let mut shard = self.shard(nodeid).lock();
        let node =
            shard.entry(nodeid).or_insert_with(|| Node { inode: inode.clone(), lookups: 0, changed: false });
        node.lookups += 1;
        nodeid
    }

    /// The inode called `nodeid`.
    pub(crate) fn get(&self, nodeid: u64) -> Option<InodeRef> {
        self.shard(nodeid).lock().get(&nodeid).map(|node| node.inode.clone())
    }

    /// Gives back `lookups` lookups of `nodeid`.
    pub(crate) fn forget(&self, nodeid: u64, lookups: u64) {
        if nodeid == ROOT_ID {
            return;
        }
        let mut shard = self.shard(nodeid).lock();
        let Some(node) = shard.get_mut(&nodeid) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 {
            let gone = shard.remove(&nodeid);
            // The last reference to an inode may be the one here: it is dropped with the table unlocked.
            drop(shard);
            drop(gone);
        }
    }

    /// Notes that somebody else changed inode `ino`. True if the kernel knows it.
    pub(crate) fn mark_changed(&self, ino: u64) -> bool {
        let nodeid = self.nodeid(ino);
        self.shard(nodeid).lock().get_mut(&nodeid).map(|node| node.changed = true).is_some()
    }

    /// Notes that the kernel is about to be told the attributes of `nodeid`. To be called before they are read.
    pub(crate) fn mark_told(&self, nodeid: u64) {
        if let Some(node) = self.shard(nodeid).lock().get_mut(&nodeid) {
            node.changed = false;
        }
    }

    /// True if the kernel may believe in a wrong size of `nodeid`.
    pub(crate) fn is_changed(&self, nodeid: u64) -> bool {
        self.shard(nodeid).lock().get(&nodeid).is_some_and(|node| node.changed)
    }

    /// How many inodes the kernel knows.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Forgets everything but the root: the kernel is gone.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            drop(nodes);
        }
        self.keep_root();
    }

    fn keep_root(&self) {
        let root = Node { inode: self.root.clone(), lookups: 0, changed: false };
        self.shard(ROOT_ID).lock().insert(ROOT_ID, root);
    }

    fn shard(&self, nodeid: u64) -> &Shard {
        &self.shards[nodeid as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_vfs::{Cred, NewInode, NewKind, Options, Superblock};

    #[test]
    fn a_node_stays_until_all_its_lookups_are_given_back() {
        let superblock = Superblock::new(Options::default());
        let root = superblock.root().clone();
        let nodes = Nodes::new(root.clone());
        let new = NewInode { kind: NewKind::Regular, mode: 0o644, umask: 0 };
        let file = root.create(&Cred::root(), b"file", &new).expect("the directory is empty");
        let nodeid = nodes.remember(&file);
        assert_eq!(nodes.remember(&file), nodeid);
        nodes.forget(nodeid, 1);
        assert!(nodes.get(nodeid).is_some() && nodes.mark_changed(file.ino()));
        nodes.forget(nodeid, 1);
        assert!(nodes.get(nodeid).is_none() && !nodes.mark_changed(file.ino()));
        nodes.forget(nodeid, 1);
        assert_eq!(nodes.len(), 1);
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let superblock = Superblock::new(Options::default());
        let nodes = Nodes::new(superblock.root().clone());
        nodes.forget(ROOT_ID, u64::MAX);
        assert_eq!(nodes.nodeid(superblock.root().ino()), ROOT_ID);
        assert_eq!(nodes.nodeid(ROOT_ID), superblock.root().ino());
        nodes.clear();
        assert!(nodes.get(ROOT_ID).is_some());
    }

    #[test]
    fn a_change_by_somebody_else_is_remembered_until_the_kernel_is_told() {
        let superblock = Superblock::new(Options::default());
        let nodes = Nodes::new(superblock.root().clone());
        assert!(nodes.mark_changed(superblock.root().ino()));
        assert!(nodes.is_changed(ROOT_ID));
        nodes.mark_told(ROOT_ID);
        assert!(!nodes.is_changed(ROOT_ID));
        assert!(!nodes.mark_changed(u64::MAX));
    }
}
