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
//!
//! *Inherited.* The server of a mount that outlived the one before ([`held`](crate::held)) does not know what the kernel knows. Such a
//! server looks up each inode number that the kernel sends and that an earlier server may have given out, and holds each such inode that loses a name.
//! How many lookups of it the kernel has is not known: it gives them all back at once. Where that may have happened, and when an inode
//! has no name any more, the kernel is asked whether it knows it.

use super::{Node, Nodes, remove_if_unreachable};
use crate::abi::ROOT_ID;
use sluice_sync::Arc;
use sluice_vfs::{Errno, FileType, InodeRef, Superblock};

/// The table's knowledge of a node.
pub(super) enum KnownNode {
    Inode(InodeRef),
    /// Only its generation.
    Expected(u64),
    /// The inode no longer exists.
    Lost,
}

/// Whether the kernel knows a node.
type AskKernel = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// The means to find what a kernel knew before this server.
pub(super) struct Inherited {
    superblock: Arc<Superblock>,
    is_known: AskKernel,
}

impl Nodes {
    /// The kernel knew inodes of `superblock` before this server, and `is_known` asks it. To be called before requests are served.
    pub(crate) fn inherit(&self, superblock: &Arc<Superblock>, is_known: AskKernel) {
        superblock.expect_inodes();
        // Nobody else sets it.
        let _ = self.inherited.set(Inherited { superblock: superblock.clone(), is_known });
    }

    /// Whether the kernel may know inode `ino`, and the table does not say so.
    pub(crate) fn may_inherit(&self, ino: u64) -> bool {
        let may_be_older = |inherited: &Inherited| inherited.superblock.may_be_older(ino);
        self.inherited.get().is_some_and(may_be_older) && !self.knows(ino)
    }

    /// The kernel knows, or may know, `inode` from before this server. It may have all its pages.
    pub(crate) fn hold(&self, inode: &InodeRef) {
        let nodeid = self.nodeid(inode.ino());
        let is_regular = inode.stat().file_type() == FileType::Regular;
        let mut shard = self.shard(nodeid).lock();
        let node = shard.entry(nodeid).or_insert_with(|| Node::new(inode.clone()));
        if !std::mem::replace(&mut node.inherited, nodeid != ROOT_ID) && is_regular {
            let pages = node.pages.get_or_insert_default();
            pages.cached.add(&(0..u64::MAX));
            pages.holes.add(&(0..u64::MAX));
            drop(shard);
            inode.note_cached();
        }
    }

    /// Asks the kernel whether it knows `nodeid`, and lets that go if not. Called with nothing locked.
    #[cold]
    pub(super) fn ask_for(&self, nodeid: u64) {
        if self.inherited.get().is_none_or(|inherited| (inherited.is_known)(nodeid)) {
            return;
        }
        let mut shard = self.shard(nodeid).lock();
        if let Some(node) = shard.get_mut(&nodeid).filter(|node| node.lookups == 0) {
            node.inherited = false;
        }
        let gone = remove_if_unreachable(&mut shard, nodeid);
        drop(shard);
        drop(gone);
    }

    /// With nothing locked: it reads the store.
    #[cold]
    fn find_inherited(&self, nodeid: u64, inherited: &Inherited) -> Result<Option<InodeRef>, Errno> {
        let ino = self.nodeid(nodeid);
        if !inherited.superblock.may_be_older(ino) {
            return Ok(None);
        }
        match inherited.superblock.find_inode(ino) {
            Ok(inode) => self.hold(&inode),
            Err(Errno::ESTALE) => {}
            Err(errno) => return Err(errno),
        }
        Ok(self.get_known(nodeid))
    }

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
        if self.inherited.get().is_some_and(|inherited| inherited.superblock.may_be_older(inode.ino())) {
            self.hold(inode);
        }
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
        let is_expected = match self.shard(nodeid).lock().get(&nodeid).map(|node| &node.known) {
            Some(KnownNode::Inode(inode)) => return Ok(Some(inode.clone())),
            Some(KnownNode::Lost) => return Ok(None),
            Some(KnownNode::Expected(_)) => true,
            None => false,
        };
        match self.inherited.get() {
            _ if is_expected => self.find_expected(nodeid),
            Some(inherited) => self.find_inherited(nodeid, inherited),
            None => Ok(None),
        }
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

    #[test]
    fn what_a_kernel_knew_before_this_server_is_found_held_and_let_go() {
        let dir = std::env::temp_dir().join(format!("sluice-inherited-{}", std::process::id()));
        let superblock = Superblock::create(&dir, Options::default()).expect("made");
        let new = NewInode { kind: NewKind::Regular, mode: 0o644, umask: 0 };
        let make = |superblock: &Superblock, name: &[u8]| {
            superblock.root().create(&Cred::root(), name, &new).expect("there is room")
        };
        let numbers = ["a", "b", "c"].map(|name| make(&superblock, name.as_bytes()).ino());
        superblock.close().expect("durable");
        drop(superblock);

        let superblock = Superblock::open(&dir, Options::default()).expect("opened");
        let nodes = Nodes::new(superblock.root().clone());
        assert!(nodes.get(numbers[0]).is_none(), "nothing is inherited");
        let known = Arc::new(sluice_sync::Mutex::new(vec![numbers[0], numbers[1]]));
        let kernel = known.clone();
        nodes.inherit(&superblock, Box::new(move |nodeid| kernel.lock().contains(&nodeid)));
        let [a, b, c] = numbers.map(|ino| superblock.find_inode(ino).expect("named"));
        assert!(nodes.may_inherit(a.ino()) && !nodes.knows(a.ino()));
        assert!(nodes.get(a.ino()).is_some_and(|found| found.is_same(&a)) && nodes.knows(a.ino()));
        assert!(nodes.has_hole(a.ino(), &(5..6)), "it may have all pages");
        // The kernel does a further lookup, and gives back a lookup that it could not use.
        nodes.remember(&a);
        nodes.forget(a.ino(), 1);
        assert!(nodes.knows(a.ino()), "it has others");
        nodes.forget(a.ino(), 3);
        assert!(!nodes.knows(a.ino()), "all that it had");
        assert!(nodes.get(a.ino()).is_some(), "it has a name");
        // Without a name it stays as long as the kernel knows it.
        for inode in [&b, &c] {
            nodes.meet(inode);
        }
        for (name, inode) in [("b", &b), ("c", &c)] {
            superblock.root().unlink(&Cred::root(), name.as_bytes()).expect("there");
            nodes.let_go_if_removed(inode.ino());
        }
        assert!(nodes.knows(b.ino()) && !nodes.knows(c.ino()), "it never knew that");
        nodes.remember(&b);
        known.lock().clear();
        nodes.forget(b.ino(), 1);
        assert!(!nodes.knows(b.ino()), "it was asked");
        // A new inode is known only by its lookups, and a number that nobody has leads to none.
        let made = make(&superblock, b"new");
        nodes.meet(&made);
        assert!(
            !nodes.knows(made.ino()) && nodes.get(made.ino()).is_none() && !nodes.may_inherit(made.ino())
        );
        assert!(nodes.get(u64::MAX).is_none());
        drop((a, b, c, made, nodes));
        superblock.close().expect("closed");
        drop(superblock);
        std::fs::remove_dir_all(dir).expect("removed");
    }
}
