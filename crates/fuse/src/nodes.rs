//! Nodes: the inodes that the kernel knows by number.
//!
//! # Theory
//! Each reply that names an inode gives the kernel one *lookup* of it; FORGET gives lookups back. While the
//! count is above zero the kernel may send requests for the number, so the table keeps the inode alive. A file
//! that is unlinked while open lives exactly as long as the kernel remembers it.
//!
//! A program may keep a *handle* of a file (name_to_handle_at(2), or the client of an NFS server), which holds the
//! number. It may use the handle after the kernel has forgotten the inode, and the kernel then looks the number up. An
//! inode of a store is found there by its number. For a file system in memory the table keeps an inode that the kernel
//! has forgotten as long as the inode has a name. That costs 40 to 80 bytes for each, and no file that the kernel never
//! knew. The inode leaves the table when it has lost its last name: the observer is told of each name that is lost.
//!
//! The kernel calls the root 1. Everything else is called by its inode number, which is never used again, unless a crash lost the
//! inode; should the root's own number not be 1, it changes places with inode 1. A generation ([`Inode::generation`]) tells inodes
//! that had one number after another, and those of a file system from those of another that is mounted later in the same place.
//!
//! # Expected inodes
//! For inodes that a kernel knew before this server the table has only the numbers at first: see `expected.rs`.
//!
//! # What the kernel may have newer
//! A process that maps a file stores into the kernel's pages, and no message says so. The kernel has a page only after
//! it read it or wrote it here, so the table notes for each node what it *cached*, and what of it was a *hole*: a store
//! into such a page makes data of what is a hole here. Ranges that were handed down again ([`take`](Nodes::take)) are
//! no longer noted, as the kernel drops the pages then.
//!
//! # What the kernel has dropped
//! One of several kernels needs no second notice of an entry that it was told to drop and has not asked for since
//! ([`Dropped`]). That makes the removal of a whole tree cheap: see
//! `cluster/src/guest/ahead.rs`.
//!
//! # Invariants
//! - I1 Every entry but the root has a lookup count above zero, or its inode has a name or is about to be looked at
//!   because it lost the last one.

mod expected;
mod pages;

pub(crate) use pages::Noted;

use crate::abi::ROOT_ID;
use crate::lock_class::NODES;
use expected::{Inherited, KnownNode};
use pages::Pages;
use sluice_sync::{Arc, Mutex, OnceLock};
use sluice_vfs::{Inode, InodeRef, Superblock};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

const SHARDS: usize = 16;

type Shard = Mutex<HashMap<u64, Node>>;

/// Below this size a shard keeps the memory of what has left it.
const SMALL: usize = 1024;

/// The table of one mount.
pub struct Nodes {
    /// *immutable*
    root: InodeRef,
    /// By node number. *each protected by its own mutex*, a leaf
    shards: [Shard; SHARDS],
    /// Numbers names. *immutable*
    names: RandomState,
    /// Where inodes that are expected are looked for. *set once*
    superblock: OnceLock<Arc<Superblock>>,
    /// How inodes are found that the kernel knew before this server, if it did not say which. *set once*
    inherited: OnceLock<Inherited>,
}

struct Node {
    known: KnownNode,
    lookups: u64,
    /// The kernel may have further lookups of the inode from the time of an earlier server.
    inherited: bool,
    /// Somebody else changed the inode since the kernel was last told its attributes.
    changed: bool,
    /// Caches that the kernel was told to drop and has not filled again.
    dropped: Dropped,
    /// How often in a row thread `looker` has asked whether the file has a capability.
    looks: u8,
    looker: u32,
    /// Pages that the kernel may have, if it ever had any since it looked the node up.
    pages: Option<Box<Pages>>,
}

/// The caches of a node that a kernel has dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dropped {
    /// It may believe everything.
    Nothing,
    /// Its attributes, and the listing of a directory.
    Attributes,
    /// Its attributes and the name of this [number](Nodes::name). The kernel may know the node by another name, if that
    /// name was lost, and its loss is about to be announced.
    All(u64),
}

impl Node {
    fn new(inode: InodeRef) -> Node {
        Node::of(KnownNode::Inode(inode))
    }

    fn of(known: KnownNode) -> Node {
        Node {
            known,
            lookups: 0,
            inherited: false,
            changed: false,
            dropped: Dropped::Nothing,
            looks: 0,
            looker: 0,
            pages: None,
        }
    }

    fn inode(&self) -> Option<&InodeRef> {
        match &self.known {
            KnownNode::Inode(inode) => Some(inode),
            KnownNode::Expected(_) | KnownNode::Lost => None,
        }
    }

    /// Whether the kernel knows it, or may.
    fn is_known(&self) -> bool {
        self.lookups > 0 || self.inherited
    }

    /// The inode, if it owes that its times move. It no longer does: the caller moves them.
    fn take_owing(&mut self) -> Option<InodeRef> {
        let pages = self.pages.as_mut()?;
        std::mem::take(&mut pages.owes_times).then(|| self.inode().cloned()).flatten()
    }
}

/// The beliefs of a kernel about an inode that loses a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Believed {
    /// That it has the name.
    Name,
    /// That, and its old attributes.
    NameAndAttributes,
    /// The caches are right.
    Nothing,
}

impl Nodes {
    /// A table that holds `root` alone.
    pub(crate) fn new(root: InodeRef) -> Nodes {
        let shards = std::array::from_fn(|_| Mutex::with_class(&NODES, HashMap::new()));
        let nodes = Nodes {
            root,
            shards,
            names: RandomState::new(),
            superblock: OnceLock::new(),
            inherited: OnceLock::new(),
        };
        nodes.keep_root();
        nodes
    }

    /// The number by which the kernel calls inode `ino`.
    pub fn nodeid(&self, ino: u64) -> u64 {
        match ino {
            _ if ino == self.root.ino() => ROOT_ID,
            ROOT_ID => self.root.ino(),
            other => other,
        }
    }

    /// The generation of the node `inode`. For the root the kernel demands 0.
    pub fn generation(&self, inode: &Inode) -> u64 {
        if inode.ino() == self.root.ino() { 0 } else { inode.generation().into() }
    }

    /// The kernel has `lookups` of `inode`. To be called before requests are served.
    pub fn restore(&self, inode: &InodeRef, lookups: u64) {
        let nodeid = self.nodeid(inode.ino());
        if nodeid != ROOT_ID {
            let mut shard = self.shard(nodeid).lock();
            let node = shard.entry(nodeid).or_insert_with(|| Node::new(inode.clone()));
            node.lookups = node.lookups.saturating_add(lookups);
        }
    }

    /// Counts one lookup of `inode`, and returns its node number.
    pub(crate) fn remember(&self, inode: &InodeRef) -> u64 {
        let nodeid = self.nodeid(inode.ino());
        let mut shard = self.shard(nodeid).lock();
        let node = shard.entry(nodeid).or_insert_with(|| Node::new(inode.clone()));
        if node.inode().is_none() {
            node.known = KnownNode::Inode(inode.clone());
        }
        node.lookups = node.lookups.saturating_add(1);
        nodeid
    }

    /// The inode called `nodeid`, which the kernel knows, or knew and may have a handle of.
    pub fn get(&self, nodeid: u64) -> Option<InodeRef> {
        self.find(nodeid).ok().flatten()
    }

    /// The inode called `nodeid`, of which the kernel is about to have the pages of `bytes`.
    pub(crate) fn get_caching(&self, nodeid: u64, bytes: &Range<u64>) -> Option<InodeRef> {
        let inode = self.get(nodeid)?;
        self.shard(nodeid).lock().get_mut(&nodeid)?.pages.get_or_insert_default().cached.add(bytes);
        inode.note_cached();
        Some(inode)
    }

    /// Notes that there are holes in `bytes`, which the kernel is about to have. True if `nodeid` had no noted hole
    /// before.
    pub(crate) fn note_hole(&self, nodeid: u64, bytes: &Range<u64>) -> bool {
        let mut shard = self.shard(nodeid).lock();
        let Some(node) = shard.get_mut(&nodeid) else { return false };
        let holes = &mut node.pages.get_or_insert_default().holes;
        let is_first = holes.is_empty();
        holes.add(bytes);
        is_first
    }

    /// Whether the kernel may have a page of `bytes` that was a hole here.
    pub(crate) fn has_hole(&self, nodeid: u64, bytes: &Range<u64>) -> bool {
        self.look_at_pages(nodeid, |pages| pages.holes.meets(bytes)).unwrap_or(false)
    }

    /// Sets whether writing back to `nodeid` leaves its times from now on. True if it owes that they move.
    pub(crate) fn set_quiet(&self, nodeid: u64, is_quiet: bool) -> bool {
        self.look_at_pages(nodeid, |pages| {
            pages.is_quiet = is_quiet;
            pages.owes_times
        })
        .unwrap_or(false)
    }

    /// Handles a write-back to `nodeid`: returns whether its times stay for now; then the node owes their change.
    pub(crate) fn owe_times(&self, nodeid: u64) -> bool {
        self.look_at_pages(nodeid, |pages| {
            pages.owes_times |= pages.is_quiet;
            pages.is_quiet
        })
        .unwrap_or(false)
    }

    /// Moves the times of `nodeid` if it owes that, and returns its inode then.
    pub(crate) fn pay_times(&self, nodeid: u64) -> Option<InodeRef> {
        let owing = self.shard(nodeid).lock().get_mut(&nodeid)?.take_owing();
        owing.inspect(pay)
    }

    /// The range that the kernel must hand down because `bytes` of inode `ino` are asked for, if any. To be called
    /// before the kernel is told: a page that it gets meanwhile is noted again.
    pub(crate) fn take(&self, ino: u64, noted: Noted, bytes: &Range<u64>) -> Option<Range<u64>> {
        self.look_at_pages(self.nodeid(ino), |pages| match noted {
            Noted::Cached => pages.cached.take(bytes),
            Noted::Holes => pages.holes.take(bytes),
        })?
    }

    /// Calls `look` with the pages of `nodeid` that the kernel may have, if any.
    fn look_at_pages<R>(&self, nodeid: u64, look: impl FnOnce(&mut Pages) -> R) -> Option<R> {
        self.shard(nodeid).lock().get_mut(&nodeid)?.pages.as_deref_mut().map(look)
    }

    /// Thread `looker` asks whether the file `nodeid` has a capability, and it has one.
    pub(crate) fn note_look(&self, nodeid: u64, looker: u32) {
        if let Some(node) = self.shard(nodeid).lock().get_mut(&nodeid) {
            node.looks = if node.looker == looker { node.looks.saturating_add(1) } else { 1 };
            node.looker = looker;
        }
    }

    /// How often in a row thread `looker` asked that, until now.
    pub(crate) fn take_looks(&self, nodeid: u64, looker: u32) -> u8 {
        let mut shard = self.shard(nodeid).lock();
        let looked = shard.get_mut(&nodeid).filter(|node| node.looker == looker);
        looked.map_or(0, |node| std::mem::take(&mut node.looks))
    }

    /// Gives back `lookups` lookups of `nodeid`.
    pub(crate) fn forget(&self, nodeid: u64, lookups: u64) {
        if nodeid == ROOT_ID {
            return;
        }
        let mut shard = self.shard(nodeid).lock();
        let Some(node) = shard.get_mut(&nodeid) else { return };
        // A FORGET gives back all lookups of the kernel, or a single lookup that the kernel could not use.
        node.inherited &= lookups <= node.lookups;
        node.lookups = node.lookups.saturating_sub(lookups);
        node.changed &= node.lookups > 0;
        let is_doubtful = node.inherited && node.lookups == 0;
        let owing = if node.lookups == 0 { node.take_owing() } else { None };
        if node.lookups == 0 {
            // The kernel has no page any more.
            node.pages = None;
        }
        let gone = remove_if_unreachable(&mut shard, nodeid);
        // The last reference to an inode may be the one here: it is dropped with the table unlocked.
        drop(shard);
        drop(gone);
        if let Some(inode) = owing {
            pay(&inode);
        }
        if is_doubtful {
            self.ask_for(nodeid);
        }
    }

    /// Notes that somebody else changed inode `ino`. True if the kernel knows it.
    pub fn mark_changed(&self, ino: u64) -> bool {
        let nodeid = self.nodeid(ino);
        let mut shard = self.shard(nodeid).lock();
        let Some(node) = shard.get_mut(&nodeid) else { return false };
        node.changed = node.is_known();
        node.changed
    }

    /// Notes that inode `ino` lost a name.
    pub(crate) fn let_go_if_removed(&self, ino: u64) {
        let nodeid = self.nodeid(ino);
        let mut shard = self.shard(nodeid).lock();
        let gone = remove_if_unreachable(&mut shard, nodeid);
        let is_doubtful = shard.get(&nodeid).is_some_and(|node| node.inherited && node.lookups == 0);
        drop(shard);
        drop(gone);
        if is_doubtful {
            self.ask_for(nodeid);
        }
    }

    /// True if the kernel knows inode `ino`.
    pub fn knows(&self, ino: u64) -> bool {
        let nodeid = self.nodeid(ino);
        self.shard(nodeid).lock().get(&nodeid).is_some_and(Node::is_known)
    }

    /// Notes that somebody else changed directory `ino`. True if the kernel must be told: it knows the directory, and may have
    /// got something of it since it was told last. `is_quiet`: no request of the kernel is served, and it has taken in all notices.
    pub fn mark_listing_changed(&self, ino: u64, is_quiet: impl Fn() -> bool) -> bool {
        let nodeid = self.nodeid(ino);
        let mut shard = self.shard(nodeid).lock();
        let Some(node) = shard.get_mut(&nodeid).filter(|node| node.lookups > 0) else { return false };
        // With the shard locked: a request that is served later clears it after this.
        let is_quiet = is_quiet();
        let is_told = is_quiet && node.dropped != Dropped::Nothing;
        node.changed = true;
        node.dropped = if is_quiet { Dropped::Attributes } else { Dropped::Nothing };
        !is_told
    }

    /// The number of `name` in directory `dir`, which another name has only by the rarest chance.
    pub fn name(&self, dir: u64, name: &[u8]) -> u64 {
        self.names.hash_one((dir, name))
    }

    /// The kernel's possible beliefs about inode `ino`, which loses the name of this [number](Self::name): whether it
    /// needs a notice of the loss, and whether the notice came before the loss. `is_quiet` as for
    /// [`mark_listing_changed`](Self::mark_listing_changed).
    pub fn mark_name_changed(&self, ino: u64, name: u64, is_quiet: impl Fn() -> bool) -> Believed {
        let nodeid = self.nodeid(ino);
        let mut shard = self.shard(nodeid).lock();
        let is_quiet = is_quiet();
        let Some(node) = shard.get_mut(&nodeid).filter(|node| node.lookups > 0) else {
            return if is_quiet { Believed::Nothing } else { Believed::Name };
        };
        node.changed = true;
        if is_quiet && node.dropped == Dropped::All(name) {
            Believed::Nothing
        } else {
            Believed::NameAndAttributes
        }
    }

    /// Notes that the kernel is told to drop the name of this [number](Self::name) of inode `ino`, which has no other,
    /// and its attributes. False, and the kernel must not be told, if it does not know the inode by exactly one name.
    /// `is_quiet` as for [`mark_listing_changed`](Self::mark_listing_changed).
    ///
    /// A kernel has got as many lookups as it has names, at least. An inode that it has looked up again may be about to
    /// get an old answer; a first lookup is complete when a notice gets the lock of the directory.
    pub fn drop_ahead(&self, ino: u64, name: u64, is_quiet: impl Fn() -> bool) -> bool {
        let nodeid = self.nodeid(ino);
        let mut shard = self.shard(nodeid).lock();
        let Some(node) = shard.get_mut(&nodeid) else { return false };
        let drops = node.lookups == 1 && !matches!(node.dropped, Dropped::All(_)) && is_quiet();
        if drops {
            node.dropped = Dropped::All(name);
        }
        drops
    }

    /// Notes that the kernel is about to be told the attributes of `nodeid`, or what a directory lists. To be called before they
    /// are read. True if it had dropped them with their name.
    pub(crate) fn mark_told(&self, nodeid: u64) -> bool {
        let mut shard = self.shard(nodeid).lock();
        let Some(node) = shard.get_mut(&nodeid) else { return false };
        node.changed = false;
        matches!(std::mem::replace(&mut node.dropped, Dropped::Nothing), Dropped::All(_))
    }

    /// True if the kernel may believe in a wrong size of `nodeid`.
    pub(crate) fn is_changed(&self, nodeid: u64) -> bool {
        self.shard(nodeid).lock().get(&nodeid).is_some_and(|node| node.changed)
    }

    /// The numbers of the inodes that the kernel knows.
    #[cfg(test)]
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.shards.iter().flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>()).collect()
    }

    /// The inodes of which the kernel may have pages.
    pub(crate) fn with_pages(&self) -> Vec<u64> {
        let of = |shard: &Shard| {
            let shard = shard.lock();
            let nodes = shard.iter().filter(|(_, node)| node.pages.is_some());
            nodes.map(|(nodeid, _)| self.nodeid(*nodeid)).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// How many inodes the kernel knows.
    pub(crate) fn len(&self) -> usize {
        let known = |shard: &Shard| shard.lock().values().filter(|node| node.is_known()).count();
        self.shards.iter().map(known).sum()
    }

    /// Forgets everything but the root: the kernel is gone.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let mut nodes = std::mem::take(&mut *shard.lock());
            nodes.values_mut().filter_map(Node::take_owing).for_each(|inode| pay(&inode));
        }
        self.keep_root();
    }

    fn keep_root(&self) {
        let root = Node { lookups: 1, ..Node::new(self.root.clone()) };
        self.shard(ROOT_ID).lock().insert(ROOT_ID, root);
    }

    fn shard(&self, nodeid: u64) -> &Shard {
        &self.shards[nodeid as usize % SHARDS]
    }
}

/// Takes `nodeid` out of `shard` if neither the kernel knows it nor a handle may lead to it, and returns it.
fn remove_if_unreachable(shard: &mut HashMap<u64, Node>, nodeid: u64) -> Option<Node> {
    let node = shard.get(&nodeid)?;
    let stays = |inode: &InodeRef| inode.has_name() && !inode.is_stored();
    if node.is_known() || node.inode().is_some_and(stays) {
        return None;
    }
    let gone = shard.remove(&nodeid);
    if shard.capacity() > SMALL.max(8 * shard.len()) {
        shard.shrink_to(2 * shard.len());
    }
    gone
}

/// Moves the times of `inode`, which owed that. Nobody waits for an answer: an error of a store shows at the next call.
fn pay(inode: &InodeRef) {
    let _ = inode.note_written();
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_vfs::{Cred, NewInode, NewKind, Options, SetAttr, SetTime, Superblock, Timestamp};

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
        let nodes = Nodes::new(root.clone());
        let new = NewInode { kind: NewKind::Directory, mode: 0o755, umask: 0 };
        let dir = root.create(&cred, b"dir", &new).expect("the directory is empty");
        let nodeid = nodes.remember(&dir);
        assert_eq!((nodes.generation(&dir), nodes.generation(&root)), (dir.generation().into(), 0));
        drop(dir);
        nodes.forget(nodeid, 1);
        assert!(nodes.get(nodeid).is_some());
        root.rmdir(&cred, b"dir").expect("it is there");
        assert!(nodes.get(nodeid).is_some());
        nodes.let_go_if_removed(nodeid);
        assert!(nodes.get(nodeid).is_none());
    }

    #[test]
    fn times_that_are_owed_move_at_the_latest_when_the_kernel_forgets_the_node() {
        let superblock = Superblock::new(Options::default());
        let nodes = Nodes::new(superblock.root().clone());
        let new = NewInode { kind: NewKind::Regular, mode: 0o644, umask: 0 };
        type Pay = fn(&Nodes, u64);
        let ways: [Pay; 3] = [
            |nodes, nodeid| nodes.forget(nodeid, 1),
            |nodes, _| nodes.clear(),
            |nodes, nodeid| {
                assert!(nodes.pay_times(nodeid).is_some() && nodes.pay_times(nodeid).is_none());
            },
        ];
        for pay in ways {
            let file = superblock.root().create_unnamed(&Cred::root(), &new).expect("there is room");
            let past = SetTime::At(Timestamp { sec: 1, nsec: 0 });
            let change = SetAttr { mtime: Some(past), ..SetAttr::default() };
            file.set_attr(&Cred::root(), &change).expect("root may");
            let nodeid = nodes.remember(&file);
            assert!(!nodes.owe_times(nodeid));
            nodes.get_caching(nodeid, &(0..1)).expect("it was just remembered");
            assert!(!nodes.owe_times(nodeid) && !nodes.set_quiet(nodeid, true));
            assert!(nodes.owe_times(nodeid) && nodes.set_quiet(nodeid, false));
            assert_eq!(file.stat().mtime.sec, 1);
            pay(&nodes, nodeid);
            assert!(file.stat().mtime.sec > 1);
        }
    }

    #[test]
    fn a_kernel_is_told_again_what_it_may_have_got_since_it_dropped_it() {
        let superblock = Superblock::new(Options::default());
        let (root, cred) = (superblock.root().clone(), Cred::root());
        let nodes = Nodes::new(root.clone());
        let new = NewInode { kind: NewKind::Regular, mode: 0o644, umask: 0 };
        let file = root.create(&cred, b"file", &new).expect("the directory is empty");
        let (ino, dir) = (file.ino(), root.ino());
        let (name, other) = (nodes.name(dir, b"file"), nodes.name(dir, b"other"));
        assert_eq!(nodes.mark_name_changed(ino, name, || true), Believed::Nothing, "it never knew the name");
        assert_eq!(nodes.mark_name_changed(ino, name, || false), Believed::Name, "it is about to");
        let nodeid = nodes.remember(&file);
        assert!(!nodes.drop_ahead(ino, name, || false) && nodes.drop_ahead(ino, name, || true));
        assert!(!nodes.drop_ahead(ino, name, || true), "once");
        assert_eq!(nodes.mark_name_changed(ino, name, || true), Believed::Nothing);
        // It had two, and the kernel knew it by the one that was lost first.
        assert_eq!(nodes.mark_name_changed(ino, other, || true), Believed::NameAndAttributes);
        assert_eq!(nodes.mark_name_changed(ino, name, || false), Believed::NameAndAttributes);
        assert!(nodes.mark_told(nodeid) && !nodes.mark_told(nodeid));
        assert_eq!(nodes.mark_name_changed(ino, name, || true), Believed::NameAndAttributes);
        nodes.remember(&file);
        assert!(!nodes.drop_ahead(ino, name, || true), "it has looked the name up again, or knows two");
        for is_quiet in [false, true] {
            assert!(nodes.mark_listing_changed(dir, || is_quiet), "not told yet, or not for sure");
        }
        assert!(!nodes.mark_listing_changed(dir, || true) && nodes.mark_listing_changed(dir, || false));
        assert!(nodes.mark_listing_changed(dir, || true) && !nodes.mark_listing_changed(dir, || true));
        nodes.mark_told(ROOT_ID);
        assert!(nodes.mark_listing_changed(dir, || true));
        assert!(!nodes.mark_listing_changed(u64::MAX, || false), "it does not know that directory");
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
