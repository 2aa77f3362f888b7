//! Expected: inodes that a kernel knew before this server did.
//!
//! # Theory
//! A kernel that is taken over from another server knows many inodes and uses few. So of most of them the table has only the number, the
//! generation and the lookups, and looks for an inode when the kernel names it: see the vfs's `adopt.rs` for what is found. It must be
//! found for as long as the kernel knows it, also when others remove it meanwhile: before an inode loses a name, the vfs tells, and
//! the table [takes](Nodes::meet) it then.
//!
//! A number that the kernel knows, and that was lost with the last server, leads to nothing, or to another inode of another generation.
//! Both are as if there were none.

use super::{Node, Nodes};
use crate::abi::ROOT_ID;
use sluice_sync::Arc;
use sluice_vfs::{Errno, InodeRef, Superblock};

/// The table's knowledge of a node.
pub(super) enum KnownNode {
    Inode(InodeRef),
    /// Only its generation.
    Expected(u64),
    /// The inode no longer exists.
    Lost,
}

impl Nodes {
    /// The kernel has `lookups` of `nodeid`, which has this `generation`. The inode is looked up in `superblock` at its
    /// first use. To be called before requests are served.
    pub fn expect(&self, (nodeid, generation, lookups): (u64, u64, u64), superblock: &Arc<Superblock>) {
        if nodeid != ROOT_ID {
            self.superblock.get_or_init(|| superblock.clone());
            let mut shard = self.shard(nodeid).lock();
            let node = shard.entry(nodeid).or_insert_with(|| Node::of(KnownNode::Expected(generation)));
            node.lookups = node.lookups.saturating_add(lookups);
        }
    }

    /// Resolves `inode`, which is about to lose a name, if it is expected.
    pub(crate) fn meet(&self, inode: &InodeRef) {
        let nodeid = self.nodeid(inode.ino());
        self.met(nodeid, || self.generation(inode), || KnownNode::Inode(inode.clone()));
    }

    /// Resolves `nodeid`, if expected, to `known` if the generation matches, or else to lost.
    fn met(&self, nodeid: u64, generation: impl FnOnce() -> u64, known: impl FnOnce() -> KnownNode) {
        if let Some(node) = self.shard(nodeid).lock().get_mut(&nodeid)
            && let KnownNode::Expected(expected) = node.known
        {
            node.known = if expected == generation() { known() } else { KnownNode::Lost };
        }
    }

    /// The inode called `nodeid`; reads an expected inode from the store.
    ///
    /// # Errors
    /// The store's, for an inode that is expected.
    pub(crate) fn find(&self, nodeid: u64) -> Result<Option<InodeRef>, Errno> {
        match self.shard(nodeid).lock().get(&nodeid).map(|node| &node.known) {
            Some(KnownNode::Inode(inode)) => return Ok(Some(inode.clone())),
            Some(KnownNode::Lost) | None => return Ok(None),
            Some(KnownNode::Expected(_)) => {}
        }
        self.find_expected(nodeid)
    }

    /// With nothing locked: it reads the store.
    #[cold]
    fn find_expected(&self, nodeid: u64) -> Result<Option<InodeRef>, Errno> {
        let Some(superblock) = self.superblock.get() else { return Ok(None) };
        match superblock.find_inode(self.nodeid(nodeid)) {
            Ok(inode) => self.meet(&inode),
            Err(Errno::ESTALE) => self.met(nodeid, || 0, || KnownNode::Lost),
            Err(errno) => return Err(errno),
        }
        Ok(self.get_known(nodeid))
    }

    /// The inode called `nodeid`, if the table knows it already.
    pub fn get_known(&self, nodeid: u64) -> Option<InodeRef> {
        self.shard(nodeid).lock().get(&nodeid)?.inode().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_vfs::{Cred, NewInode, NewKind, Options};

    #[test]
    fn an_expected_inode_is_met_once_and_another_of_its_number_is_not_it() {
        let superblock = Superblock::new(Options::default());
        let nodes = Nodes::new(superblock.root().clone());
        let new = NewInode { kind: NewKind::Regular, mode: 0o644, umask: 0 };
        let made = ["same", "other"].map(|name| {
            superblock.root().create(&Cred::root(), name.as_bytes(), &new).expect("there is room")
        });
        let [same, other] = &made;
        nodes.expect((same.ino(), nodes.generation(same), 2), &superblock);
        nodes.expect((other.ino(), nodes.generation(other) + 2, 1), &superblock);
        assert!(nodes.knows(same.ino()) && nodes.mark_changed(same.ino()), "it is told of changes");
        assert!(nodes.get_known(same.ino()).is_none());
        made.iter().for_each(|inode| nodes.meet(inode));
        assert!(nodes.get(same.ino()).is_some_and(|met| met.is_same(same)));
        assert!(nodes.get(other.ino()).is_none(), "it is another");
        // The kernel knows both that had the number, and gives back the lookups of both.
        nodes.remember(other);
        assert!(nodes.get(other.ino()).is_some());
        nodes.forget(other.ino(), 1);
        assert!(nodes.knows(other.ino()));
        nodes.forget(other.ino(), 1);
        nodes.forget(same.ino(), 2);
        assert!(!nodes.knows(other.ino()) && !nodes.knows(same.ino()));
        // Where nothing can be found by its number, what was never met is lost.
        nodes.expect((1 << 40, 1, 1), &superblock);
        assert!(nodes.get(1 << 40).is_none() && nodes.knows(1 << 40));
        nodes.forget(1 << 40, 1);
        assert!(!nodes.knows(1 << 40));
    }
}
