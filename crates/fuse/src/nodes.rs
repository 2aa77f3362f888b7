//! Nodes: the inodes that the kernel knows by number.
//!
//! # Theory
//! Each reply that names an inode gives the kernel one *lookup* of it; FORGET gives lookups back. While the
//! count is above zero the kernel may send requests for the number, so the table keeps the inode alive. A file
//! that is unlinked while open lives exactly as long as the kernel remembers it.
//!
//! A program may keep a *handle* of a file (name_to_handle_at(2), or the client of an NFS server), which holds the number.
//! It may use the handle after the kernel has forgotten the inode, and the kernel then looks the number up. So the
//! table keeps an inode that the kernel has forgotten as long as the inode has a name. That costs 40 to 80 bytes for each, and
//! no file that the kernel never knew. The inode leaves the table when it has lost its last name: the observer is told of
//! each name that is lost.
//!
//! The kernel calls the root 1. Everything else is called by its inode number, which is never used again; should
//! the root's own number not be 1, it changes places with inode 1. The generation tells the numbers of one file
//! system from those of another that a server mounts later in the same place.
//!
//! # Invariants
//! - I1 Every entry but the root has a lookup count above zero, or its inode has a name or is about to be looked at
//!   because it lost the last one.

use crate::abi::ROOT_ID;
use crate::lock_class::NODES;
use sluice_sync::Mutex;
use sluice_vfs::InodeRef;
use std::collections::HashMap;

const SHARDS: usize = 16;

type Shard = Mutex<HashMap<u64, Node>>;

/// Below this size a shard keeps the memory of what has left it.
const SMALL: usize = 1024;

/// The table of one mount.
pub(crate) struct Nodes {
    /// *immutable*
    root: InodeRef,
    /// Of all nodes but the root, of which the kernel demands 0. *immutable*
    generation: u64,
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
    /// A table that holds `root` alone. The other nodes get this `generation`.
    pub(crate) fn new(root: InodeRef, generation: u32) -> Nodes {
        let shards = std::array::from_fn(|_| Mutex::with_class(&NODES, HashMap::new()));
        let nodes = Nodes { root, generation: generation.into(), shards };
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

    /// The generation of `nodeid`.
    pub(crate) fn generation(&self, nodeid: u64) -> u64 {
        if nodeid == ROOT_ID { 0 } else { self.generation }
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

    /// The inode called `nodeid`, which the kernel knows, or knew and may have a handle of.
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
        node.changed &= node.lookups > 0;
        let gone = remove_if_unreachable(&mut shard, nodeid);
        // The last reference to an inode may be the one here: it is dropped with the table unlocked.
        drop(shard);
        drop(gone);
    }

    /// Notes that somebody else changed inode `ino`. True if the kernel knows it.
    pub(crate) fn mark_changed(&self, ino: u64) -> bool {
        let nodeid = self.nodeid(ino);
        let mut shard = self.shard(nodeid).lock();
        let Some(node) = shard.get_mut(&nodeid) else { return false };
        node.changed = node.lookups > 0;
        node.changed
    }

    /// Notes that inode `ino` lost a name.
    pub(crate) fn let_go_if_removed(&self, ino: u64) {
        let nodeid = self.nodeid(ino);
        let mut shard = self.shard(nodeid).lock();
        let gone = remove_if_unreachable(&mut shard, nodeid);
        drop(shard);
        drop(gone);
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
        let known = |shard: &Shard| shard.lock().values().filter(|node| node.lookups > 0).count();
        self.shards.iter().map(known).sum()
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
        let root = Node { inode: self.root.clone(), lookups: 1, changed: false };
        self.shard(ROOT_ID).lock().insert(ROOT_ID, root);
    }

    fn shard(&self, nodeid: u64) -> &Shard {
        &self.shards[nodeid as usize % SHARDS]
    }
}

/// Takes `nodeid` out of `shard` if neither the kernel knows it nor a handle may lead to it, and returns it.
fn remove_if_unreachable(shard: &mut HashMap<u64, Node>, nodeid: u64) -> Option<Node> {
    let node = shard.get(&nodeid)?;
    if node.lookups > 0 || node.inode.has_name() {
        return None;
    }
    let gone = shard.remove(&nodeid);
    if shard.capacity() > SMALL.max(8 * shard.len()) {
        shard.shrink_to(2 * shard.len());
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_vfs::{Cred, NewInode, NewKind, Options, Superblock};

    #[test]
    fn a_node_stays_until_all_its_lookups_are_given_back() {
        let superblock = Superblock::new(Options::default());
        let root = superblock.root().clone();
        let nodes = Nodes::new(root.clone(), 0);
        let new = NewInode { kind: NewKind::Regular, mode: 0o644, umask: 0 };
        let file = root.create(&Cred::root(), b"file", &new).expect("the directory is empty");
        let nodeid = nodes.remember(&file);
        assert_eq!(nodes.remember(&file), nodeid);
        nodes.forget(nodeid, 1);
        assert!(nodes.get(nodeid).is_some() && nodes.mark_changed(file.ino()));
        // It has a name: a handle may lead to it.
        nodes.forget(nodeid, 1);
        assert!(nodes.get(nodeid).is_some() && !nodes.mark_changed(file.ino()));
        nodes.forget(nodeid, 1);
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes.remember(&file), nodeid);
        root.unlink(&Cred::root(), b"file").expect("it is there");
        assert!(nodes.get(nodeid).is_some() && nodes.mark_changed(file.ino()));
        nodes.forget(nodeid, 1);
        assert!(nodes.get(nodeid).is_none());
    }

    #[test]
    fn a_forgotten_node_goes_with_its_last_name() {
        let superblock = Superblock::new(Options::default());
        let (root, cred) = (superblock.root().clone(), Cred::root());
        let nodes = Nodes::new(root.clone(), 7);
        let new = NewInode { kind: NewKind::Directory, mode: 0o755, umask: 0 };
        let nodeid = nodes.remember(&root.create(&cred, b"dir", &new).expect("the directory is empty"));
        assert_eq!((nodes.generation(nodeid), nodes.generation(ROOT_ID)), (7, 0));
        nodes.forget(nodeid, 1);
        assert!(nodes.get(nodeid).is_some());
        root.rmdir(&cred, b"dir").expect("it is there");
        assert!(nodes.get(nodeid).is_some());
        nodes.let_go_if_removed(nodeid);
        assert!(nodes.get(nodeid).is_none());
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let superblock = Superblock::new(Options::default());
        let nodes = Nodes::new(superblock.root().clone(), 0);
        nodes.forget(ROOT_ID, u64::MAX);
        assert_eq!(nodes.nodeid(superblock.root().ino()), ROOT_ID);
        assert_eq!(nodes.nodeid(ROOT_ID), superblock.root().ino());
        nodes.clear();
        assert!(nodes.get(ROOT_ID).is_some());
    }

    #[test]
    fn a_change_by_somebody_else_is_remembered_until_the_kernel_is_told() {
        let superblock = Superblock::new(Options::default());
        let nodes = Nodes::new(superblock.root().clone(), 0);
        assert!(nodes.mark_changed(superblock.root().ino()));
        assert!(nodes.is_changed(ROOT_ID));
        nodes.mark_told(ROOT_ID);
        assert!(!nodes.is_changed(ROOT_ID));
        assert!(!nodes.mark_changed(u64::MAX));
    }
}
