//! Pending: what the next push of the store is to collect: contents and extended attributes that changed, and what is gone.
//!
//! # Theory
//! An inode of a durable file system has a [`Stored`]: which of its chunks the store has, which have changed since, and which of its
//! extended attributes have. An inode of which any has changed is *listed* here, with a reference, so that it stays until the push has it.
//! The push takes the list in its cut: then nobody changes anything, and what it reads is of one moment.
//!
//! A file that loses its last name is taken off the list. When its last user lets go, its records are to be removed: the
//! destructor notes that here, and the next push does it.

use super::keys::Key;
use super::mutant::{Mutant, Planted};
use super::record::{self, InodeRecord};
use crate::data::{CHUNK_PAGES, PAGE, PageSet};
use crate::inode::Body;
use crate::lock_class::{DURABLE_PENDING, INODE_STORED};
use crate::{Inode, InodeRef};
use sluice_store::{Added, Source};
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::percpu::Budget;
use sluice_sync::{Arc, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::Range;

/// Bytes in a chunk.
const CHUNK: u64 = CHUNK_PAGES * PAGE;
/// The part of the log that contents may fill which the store does not have.
const SHARE: u64 = 4;

/// What a durable file system keeps of an inode.
pub(crate) struct Stored {
    /// Versions of the inode's record. *Atomic: see the module's header.*
    pub(super) version: AtomicU64,
    changed: Mutex<Changed>,
}

#[derive(Default)]
struct Changed {
    /// Chunks that changed.
    dirty: PageSet,
    /// Chunks that the store has a record of, or a push that was not refused.
    kept: PageSet,
    /// Names of extended attributes that changed.
    xattrs: BTreeSet<Box<[u8]>>,
    /// All names of this directory are to be written.
    all_names: bool,
    is_listed: bool,
    /// Bytes of `dirty` that were counted.
    counted: u64,
}

/// What the next push is to collect.
pub(super) struct Pending {
    listed: Mutex<BTreeMap<u64, InodeRef>>,
    gone: Mutex<Vec<Gone>>,
    /// Bytes that changed. *Per CPU.*
    bytes: Budget,
    /// There are too many of them. *Atomic (stands alone).*
    is_full: AtomicBool,
    pub(super) planted: Planted,
}

/// The records of an inode that are to be removed.
pub(super) struct Gone {
    pub(super) ino: u64,
    pub(super) chunks: PageSet,
    pub(super) xattrs: Vec<Box<[u8]>>,
}

impl Default for Stored {
    fn default() -> Self {
        let changed = Mutex::with_class(&INODE_STORED, Changed::default());
        Stored { version: AtomicU64::new(0), changed }
    }
}

impl Stored {
    /// Contents changed in `bytes`.
    pub(super) fn mark_contents(&self, bytes: Range<u64>) {
        self.changed.lock().dirty.insert(bytes.start / CHUNK..bytes.end.div_ceil(CHUNK));
    }

    /// Extended attributes of these names changed.
    pub(super) fn mark_xattrs<'n>(&self, names: impl Iterator<Item = &'n [u8]>) {
        self.changed.lock().xattrs.extend(names.map(Box::from));
    }

    /// The inode is new to the store: contents, names, and extended attributes of these names.
    pub(super) fn mark_all(&self, xattrs: Vec<Box<[u8]>>) {
        let mut changed = self.changed.lock();
        changed.dirty.insert(0..u64::MAX);
        changed.xattrs.extend(xattrs);
        changed.all_names = true;
    }

    /// The store has this chunk, as the file does.
    pub(super) fn keep(&self, chunk: u64) {
        self.changed.lock().kept.insert(chunk..chunk + 1);
    }
}

impl Pending {
    /// Of a store with a log of this size.
    pub(super) fn new(log_size: u64) -> Pending {
        Pending {
            listed: Mutex::with_class(&DURABLE_PENDING, BTreeMap::new()),
            gone: Mutex::with_class(&DURABLE_PENDING, Vec::new()),
            bytes: Budget::new(Some(log_size / SHARE), 0),
            is_full: AtomicBool::new(false),
            planted: Planted::default(),
        }
    }

    /// Whether so much waits that a writer should push.
    pub(super) fn is_full(&self) -> bool {
        // Relaxed: a hint.
        self.is_full.load(Ordering::Relaxed)
    }

    /// Lists `inode`, which has marks. False if it was listed.
    pub(super) fn list(&self, inode: &InodeRef) -> bool {
        let Some(stored) = inode.stored() else { return false };
        let is_new = {
            let mut changed = stored.changed.lock();
            let bytes = changed.dirty.len().saturating_mul(CHUNK).min(inode.size());
            let more = bytes.saturating_sub(changed.counted);
            match self.bytes.take(more) {
                Ok(_) => changed.counted += more,
                // Relaxed: a hint.
                Err(_) => self.is_full.store(true, Ordering::Relaxed),
            }
            !mem::replace(&mut changed.is_listed, true)
        };
        if is_new {
            self.listed.lock().insert(inode.ino(), inode.clone());
        }
        is_new
    }

    /// What changed of `inode` need not be collected: it has no name.
    pub(super) fn forget(&self, inode: &Inode) {
        if let Some(stored) = inode.stored() {
            let mut changed = stored.changed.lock();
            changed.is_listed = false;
            self.bytes.give(mem::take(&mut changed.counted));
        }
        let forgotten = self.listed.lock().remove(&inode.ino());
        // With nothing locked.
        drop(forgotten);
    }

    /// The records of `gone` are to be removed.
    pub(super) fn remove(&self, gone: Gone) {
        self.gone.lock().push(gone);
    }

    /// Lets go of all that is listed.
    pub(super) fn clear(&self) {
        let listed = mem::take(&mut *self.listed.lock());
        drop(listed);
        self.gone.lock().clear();
    }

    fn collect_inode(&self, inode: &Inode, to: &mut Added) {
        let Some(stored) = inode.stored() else { return };
        let Changed { dirty, mut kept, xattrs, counted, all_names, .. } =
            mem::take(&mut *stored.changed.lock());
        self.bytes.give(counted);
        if !inode.has_name() {
            stored.changed.lock().kept = kept;
            return;
        }
        // With nothing locked: contents have locks of their own.
        if matches!(inode.body, Body::Regular) && !self.planted.has(Mutant::SizeWithoutBytes) {
            dirty.ranges().for_each(|chunks| collect_chunks(inode, chunks, &mut kept, to, &self.planted));
        }
        if all_names && let Ok(dir) = inode.as_dir() {
            for (name, child) in dir.list(|_| true) {
                to.put(&Key::name(inode.ino(), &name), &record::name(&child));
            }
        }
        for name in xattrs.into_iter().filter(|_| !self.planted.has(Mutant::XattrsForgotten)) {
            let key = Key::xattr(inode.ino(), &name);
            match inode.xattr_value(&name) {
                Some(value) => to.put(&key, &value),
                None => to.remove(&key),
            }
        }
        to.put(&Key::inode(inode.ino()), &InodeRecord::of(inode).encode());
        stored.changed.lock().kept = kept;
    }
}

/// Writes what `inode` has in `chunks`, of which the store has those that are `kept`.
fn collect_chunks(inode: &Inode, chunks: Range<u64>, kept: &mut PageSet, to: &mut Added, planted: &Planted) {
    let (present, mut value) = (inode.data.chunks_with_data(chunks.clone()), Vec::new());
    let mut gone = PageSet::new();
    kept.within(&chunks).for_each(|kept| gone.insert(kept));
    kept.remove(&chunks);
    for range in present.ranges() {
        gone.remove(&range);
        kept.insert(range.clone());
        for chunk in range {
            value.clear();
            inode.data.chunk(chunk, &mut value);
            to.put(&Key::chunk(inode.ino(), chunk), &value);
        }
    }
    if planted.has(Mutant::ChunksStay) {
        return;
    }
    gone.ranges().flatten().for_each(|chunk| to.remove(&Key::chunk(inode.ino(), chunk)));
}

/// Lets the store collect what is pending.
pub(super) struct Collector(pub(super) Arc<Pending>);

impl Source for Collector {
    fn collect(&self, to: &mut Added) {
        self.0.collect(to);
    }
}

impl Pending {
    fn collect(&self, to: &mut Added) {
        let listed = mem::take(&mut *self.listed.lock());
        listed.values().for_each(|inode| self.collect_inode(inode, to));
        // Relaxed: a hint.
        self.is_full.store(false, Ordering::Relaxed);
        let gone = mem::take(&mut *self.gone.lock());
        for Gone { ino, chunks, xattrs } in gone {
            chunks.ranges().flatten().for_each(|chunk| to.remove(&Key::chunk(ino, chunk)));
            xattrs.iter().for_each(|name| to.remove(&Key::xattr(ino, name)));
            to.remove(&Key::inode(ino));
            to.remove(&Key::orphan(ino));
        }
        drop(listed);
    }
}

impl Inode {
    /// The inode, which has no name, leaves memory: its records are to be removed. Called by the destructor: no I/O.
    #[cold]
    pub(crate) fn leave_store(&self) {
        let (Some(durable), Some(stored)) = (self.shared.durable(), self.stored()) else { return };
        let chunks = mem::take(&mut stored.changed.lock().kept);
        let xattrs = self.xattr_names();
        durable.pending.remove(Gone { ino: self.ino(), chunks, xattrs });
    }
}
