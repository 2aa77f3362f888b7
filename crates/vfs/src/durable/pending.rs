//! Pending: what the next push of the store is to collect: contents and extended attributes that changed, and what is gone.
//!
//! # Theory
//! An inode of a durable file system has a [`Stored`]: which of its chunks the store has, which have changed since, and which of its
//! extended attributes have. An inode of which any has changed is *listed* (`listed.rs`).
//! The push takes the list in its cut: then nobody changes anything, and what it reads is of one moment. Bytes that are too many
//! for a record it only copies there; they are written to an extent when calls go on (`contents.rs`). Until then the copy
//! holds the inode, so that what is to be removed of an inode that goes includes each extent.
//!
//! The removal of the records of a file without a name: `removal.rs`.

use super::chunk::CHUNK;
use super::contents::{Copied, HeavySet, Marked};
use super::kept::{Kept, Lent};
use super::keys::Key;
use super::listed::ListedInodes;
use super::mutant::{Mutant, Planted};
use super::names::NameSet;
use super::owners::Owners;
use super::record::{self, InodeRecord};
use super::remains::Remains;
use super::removal::Removals;
use super::resident::ResidentSet;
use super::shares::Shares;
use super::stamp::Stamp;
use crate::data::{CHUNK_PAGES, PAGE, PageSet};
use crate::inode::{Body, flag};
use crate::lock_class::{DURABLE_PENDING, INODE_HERE, INODE_KEPT, INODE_LOADING, INODE_STORED};
use crate::quota::NO_QUOTA;
use crate::stat::Timestamp;
use crate::{Inode, InodeRef};
use sluice_store::{Added, Data, Source, Store};
use sluice_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sluice_sync::percpu::Budget;
use sluice_sync::{Arc, Gap, Mutex, RwLock, name_fields};
use std::collections::BTreeSet;
use std::mem;
use std::ops::Range;

/// So many pages have a bit of their own in [`Stored::marked`], ...
const MARKED_PAGES: u64 = 63;
/// ... and this one says that the inode is listed.
const LISTED: u64 = 1 << MARKED_PAGES;
/// Beyond the last page of any file.
const PAGES_END: u64 = u64::MAX.div_ceil(PAGE);
/// Dirty bytes are counted in multiples of this.
const GRAIN: u64 = 1024;

/// The state that a durable file system keeps for an inode. In this order: a call that puts down a record writes near
/// nothing that others look at; of two calls that change different pages neither writes near `marked`, nor does one
/// that changes the end.
#[repr(C)]
pub(crate) struct Stored {
    /// Versions of the inode's record. *Atomic: see the module's header.*
    pub(super) version: AtomicU64,
    /// The number of a directory that has a name of the inode, or 0. *Atomic (stands alone); written in sections, with a name in that
    /// directory locked, and while the inode is made.*
    holder: AtomicU64,
    /// A change was not put down, since the next push collects the record. *Atomic (behind); false after a push.*
    is_behind: AtomicBool,
    /// The access time in the last record, packed. *Atomic (stands alone).*
    pub(super) atime: AtomicU64,
    /// The contents as the store has them. Taken before `changed`, and by a push for as long as it collects the file.
    pub(super) kept: Mutex<Kept>,
    /// A bit for each of the first pages that is marked as changed, of an inode that is listed, and [`LISTED`]. *Atomic (stands
    /// alone); written under `changed`.*
    marked: AtomicU64,
    /// Held for reading while no contents may leave memory.
    pub(super) here: RwLock<()>,
    /// Held while contents are loaded.
    pub(super) loading: Mutex<()>,
    /// The cut that has the last change of the inode, or of a name in it. *Atomic (stands alone); written in sections.*
    pub(super) changed_in: AtomicU64,
    /// The list on which it is because of its access time. *Atomic (stands alone).*
    touched_at: AtomicUsize,
    _who_lists: Gap<40>,
    /// All pages from this index on are dirty. *Atomic (stands alone); written under `changed`.*
    marked_from: AtomicU64,
    pub(super) changed: Mutex<Changed>,
}

#[derive(Default)]
pub(super) struct Changed {
    /// Dirty pages, and the chunks that contain them.
    dirty: PageSet,
    pub(super) chunks: PageSet,
    /// Names of extended attributes that changed.
    xattrs: BTreeSet<Box<[u8]>>,
    /// All names of this directory must be written.
    all_names: bool,
    /// The list on which the inode is, and whether that holds it.
    pub(super) listed_at: Option<usize>,
    pub(super) is_held: bool,
    /// Bytes of `chunks` that were counted; and those that are borrowed.
    pub(super) counted: u64,
    pub(super) borrowed: u64,
}

/// The changes that the next push is to collect.
pub(super) struct Pending {
    pub(super) listed: ListedInodes,
    /// Files without a name may be spilled. *Immutable.*
    pub(super) spills: bool,
    pub(super) removals: Removals,
    pub(super) remains: Remains,
    /// The contents that the last cut copied.
    pub(super) copied: Mutex<Vec<Copied>>,
    /// Chunks that the last cut patched.
    pub(super) patched: Mutex<Vec<(InodeRef, u64)>>,
    pub(super) heavy: HeavySet,
    /// Memory for the pages of one chunk. *Protected by its mutex.*
    pub(super) scratch: Mutex<Vec<u8>>,
    /// Bytes that changed. *Per CPU.*
    pub(super) bytes: Budget,
    /// And how many may. *Immutable.*
    pub(super) changed_max: u64,
    /// Bytes that large calls are about to change. *Per CPU.*
    pub(super) ahead: Budget,
    /// From half of `changed_max` on the store's thread pushes, while calls go on writing. *Immutable.*
    pub(super) pushes_early: bool,
    /// There are too many of them. *Atomic (stands alone).*
    pub(super) is_full: AtomicBool,
    /// Pushes collect files without a name, too. *Atomic (no label: SeqCst).*
    pub(super) takes_nameless: AtomicBool,
    /// The number of the next cut. *Atomic (stands alone); written in cuts.*
    cut: AtomicU64,
    pub(super) stamp: Stamp,
    pub(super) memory: ResidentSet,
    pub(super) names: NameSet,
    pub(super) owners: Owners,
    pub(super) planted: Planted,
}

impl Changed {
    /// The values for [`Stored::marked`] and [`Stored::marked_from`].
    pub(super) fn marks(&self) -> (u64, u64) {
        let last = self.dirty.within(&(0..PAGES_END)).last().filter(|range| range.end == PAGES_END);
        let from = last.map_or(PAGES_END, |range| range.start);
        (self.dirty.mask(&(0..MARKED_PAGES.min(from))), from)
    }
}

impl Default for Stored {
    fn default() -> Self {
        Stored {
            version: AtomicU64::new(0),
            is_behind: AtomicBool::new(false),
            atime: AtomicU64::new(0),
            kept: Mutex::with_class(&INODE_KEPT, Kept::default()),
            marked: AtomicU64::new(0),
            here: RwLock::with_class(&INODE_HERE, ()),
            loading: Mutex::with_class(&INODE_LOADING, ()),
            changed_in: AtomicU64::new(0),
            holder: AtomicU64::new(0),
            touched_at: AtomicUsize::new(0),
            _who_lists: Gap::new(),
            marked_from: AtomicU64::new(PAGES_END),
            changed: Mutex::with_class(&INODE_STORED, Changed::default()),
        }
    }
}

impl Stored {
    /// Names its fields for the simulated machine.
    pub(crate) fn name_fields(&self) {
        name_fields!(
            self,
            Stored {
                version,
                is_behind,
                atime,
                kept,
                marked,
                here,
                loading,
                changed_in,
                holder,
                touched_at,
                marked_from,
                changed
            }
        );
    }

    /// Contents changed in `bytes`.
    pub(super) fn mark_contents(&self, bytes: Range<u64>) {
        let mut changed = self.changed.lock();
        changed.dirty.insert(bytes.start / PAGE..bytes.end.div_ceil(PAGE));
        changed.chunks.insert(bytes.start / CHUNK..bytes.end.div_ceil(CHUNK));
    }

    /// Whether the next push is to collect `bytes` anyway. Asked in a section.
    pub(super) fn has_marked(&self, bytes: &Range<u64>) -> bool {
        // Relaxed, both: a section that sees a mark is in the same batch as the one that set it, since a push clears them between two.
        let has = |pages: Range<u64>| {
            let below = |page: u64| 1_u64.checked_shl(page as u32).map_or(u64::MAX, |bit| bit - 1);
            let wanted = || below(pages.end) & !below(pages.start);
            pages.end <= MARKED_PAGES && self.marked.load(Ordering::Relaxed) & wanted() == wanted()
        };
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        has(pages.clone()) || {
            let from = self.marked_from.load(Ordering::Relaxed);
            pages.start >= from || has(pages.start..pages.end.min(from))
        }
    }

    /// Whether the next push is to collect the inode anyway, with its record, if it has a name until then. Asked in a section.
    pub(super) fn will_be_collected(&self) -> bool {
        // Relaxed: see has_marked().
        self.marked.load(Ordering::Relaxed) & LISTED != 0
    }

    /// A change is not put down: the next push collects the record, if the inode has a name until then.
    pub(super) fn fall_behind(&self) {
        // Release(behind): the change; pairs with Acquire(behind) in catch_up(). Acquire(behind): a caller that comes later than the last
        // call of that sees that the inode has no name; pairs with Release(behind) there.
        if !self.is_behind.load(Ordering::Acquire) {
            self.is_behind.swap(true, Ordering::AcqRel);
        }
    }

    /// The inode has no name any more: whether a change was not put down.
    pub(super) fn catch_up(&self) -> bool {
        // Acquire(behind), Release(behind): see fall_behind().
        self.is_behind.swap(false, Ordering::AcqRel)
    }

    /// Says that the inode is listed, and what is marked, for calls that only look. A line that they look at is not written in vain.
    pub(super) fn show(&self, (few, from): (u64, u64)) {
        let few = few | LISTED;
        // Relaxed, all: written under the mutex.
        let shown = self.marked.load(Ordering::Relaxed);
        if shown & few != few {
            self.marked.store(shown | few, Ordering::Relaxed);
        }
        if from < self.marked_from.load(Ordering::Relaxed) {
            self.marked_from.store(from, Ordering::Relaxed);
        }
    }

    /// Says that the inode is not listed, and that nothing is marked. Called with `changed` locked.
    pub(super) fn hide(&self) {
        // Relaxed, both: written under the mutex.
        self.marked.store(0, Ordering::Relaxed);
        self.marked_from.store(PAGES_END, Ordering::Relaxed);
    }

    /// Extended attributes of these names changed.
    pub(super) fn mark_xattrs<'n>(&self, names: impl Iterator<Item = &'n [u8]>) {
        self.changed.lock().xattrs.extend(names.map(Box::from));
    }

    /// The inode is new to the store, or was spilled: contents, if it `has_contents`, but for what it borrows and what the store has,
    /// names, and extended attributes of these names.
    pub(super) fn mark_all(&self, has_contents: bool, xattrs: Vec<Box<[u8]>>) {
        let kept = self.kept.lock();
        let mut changed = self.changed.lock();
        let pages = |chunk: u64| chunk.saturating_mul(CHUNK_PAGES);
        let mut mark = |chunks: Range<u64>| {
            if has_contents && !chunks.is_empty() {
                changed.dirty.insert(pages(chunks.start)..pages(chunks.end));
                changed.chunks.insert(chunks);
            }
        };
        if kept.borrowed.len() + kept.records.len() == 0 {
            mark(0..u64::MAX);
        } else {
            let mut fresh = PageSet::new();
            fresh.insert(0..u64::MAX);
            let others = kept.borrowed.ranges().chain(kept.records.ranges());
            others.for_each(|chunks| _ = fresh.remove(&chunks));
            fresh.ranges().for_each(mark);
        }
        changed.borrowed = kept.borrowed.len() * CHUNK;
        changed.xattrs.extend(xattrs);
        changed.all_names = true;
    }

    /// The pages of `chunks` that have changed.
    pub(super) fn dirty_among(&self, chunks: &PageSet) -> PageSet {
        let (mut dirty, changed) = (PageSet::new(), self.changed.lock());
        for chunks in chunks.ranges() {
            let pages = chunks.start * CHUNK_PAGES..chunks.end * CHUNK_PAGES;
            changed.dirty.within(&pages).for_each(|pages| dirty.insert(pages));
        }
        dirty
    }

    /// Gives a new inode the contents in `kept`, all borrowed, and its `dirty` pages.
    pub(super) fn begin_with(&self, kept: Kept, dirty: PageSet) {
        *self.kept.lock() = kept;
        self.changed.lock().dirty = dirty;
    }

    /// Replaces the inode's `chunks`, which nobody changes meanwhile, by the `lent` chunks and pages in memory. Returns
    /// how many pages there were with the store only. Called in a section.
    pub(super) fn borrow(&self, lent: Vec<Lent>, chunks: &Range<u64>, pending: &Pending) -> u64 {
        let mut kept = self.kept.lock();
        let (gone, were) = (kept.forget_absent(chunks), kept.standing_pages());
        let mut changed = self.changed.lock();
        for lent in lent {
            let (chunk, first) = (lent.chunk, lent.chunk * CHUNK_PAGES);
            changed.dirty.remove(&(first..first + CHUNK_PAGES));
            changed.chunks.remove(&(chunk..chunk + 1));
            let dirty = (0..CHUNK_PAGES).filter(|at| lent.dirty & 1 << at != 0);
            dirty.for_each(|at| changed.dirty.insert(first + at..first + at + 1));
            if lent.dirty != 0 {
                changed.chunks.insert(chunk..chunk + 1);
            }
            kept.borrow(lent, pending);
        }
        changed.borrowed = kept.borrowed.len() * CHUNK;
        let (few, from) = changed.marks();
        // Relaxed, all: written under the mutex, and read by calls that change contents, of which there is none.
        let listed = self.marked.load(Ordering::Relaxed) & LISTED;
        self.marked.store(few | listed, Ordering::Relaxed);
        self.marked_from.store(from, Ordering::Relaxed);
        drop(changed);
        pending.names.count_standing(kept.standing_pages(), were);
        gone
    }

    /// The pages of `chunk` that have changed.
    pub(super) fn dirty_in(&self, chunk: u64) -> u16 {
        self.changed.lock().dirty.mask(&(chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES)) as u16
    }

    /// The inode has a record with this access time.
    pub(super) fn put_down(&self, atime: Timestamp) {
        // Relaxed: read when no section is open.
        self.atime.store(atime.pack(), Ordering::Relaxed);
    }

    pub(super) fn touched_at(&self) -> usize {
        // Relaxed: stands alone.
        self.touched_at.load(Ordering::Relaxed)
    }

    pub(super) fn set_touched_at(&self, at: usize) {
        // Relaxed: stands alone.
        self.touched_at.store(at, Ordering::Relaxed);
    }

    /// A directory that has a name of the inode, if one is known.
    pub(super) fn holder(&self) -> Option<u64> {
        // Relaxed: stands alone.
        Some(self.holder.load(Ordering::Relaxed)).filter(|holder| *holder != 0)
    }

    /// Directory `dir` has a name of the inode.
    pub(super) fn set_holder(&self, dir: u64) {
        // Relaxed: stands alone. Most calls find what they would write.
        if self.holder.load(Ordering::Relaxed) != dir {
            self.holder.store(dir, Ordering::Relaxed);
        }
    }

    /// The inode lost a name in directory `dir`, and may have others there.
    pub(super) fn lose_holder(&self, dir: u64) {
        // Relaxed: stands alone. Another directory that got a name meanwhile stays.
        let _ = self.holder.compare_exchange(dir, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether the next push collects something of it.
    pub(super) fn is_listed(&self) -> bool {
        self.changed.lock().listed_at.is_some()
    }

    /// How many of `pages` have changed.
    pub(super) fn dirty_pages(&self, pages: Range<u64>) -> u64 {
        self.changed.lock().dirty.count(&pages)
    }

    /// Whether one of `pages` has changed.
    pub(super) fn is_dirty(&self, pages: Range<u64>) -> bool {
        self.dirty_pages(pages) > 0
    }
}

impl Pending {
    /// The pending changes of `store`, which has a log of `log_size` bytes, with `limit` bytes of memory.
    pub(super) fn new(log_size: u64, limit: u64, store: &Store) -> Pending {
        let shares = Shares::of(limit, log_size);
        let pushes_early = !store.is_logged();
        let asks_at = if pushes_early { shares.changed / 2 } else { shares.changed };
        Pending {
            listed: ListedInodes::new(),
            spills: store.has_segments(),
            copied: Mutex::with_class(&DURABLE_PENDING, Vec::new()),
            patched: Mutex::with_class(&DURABLE_PENDING, Vec::new()),
            heavy: HeavySet::new(shares.changed),
            scratch: Mutex::with_class(&DURABLE_PENDING, Vec::new()),
            changed_max: shares.changed,
            ahead: Budget::new(None, 0),
            pushes_early,
            bytes: Budget::with_grain(Some(asks_at), 0, GRAIN),
            is_full: AtomicBool::new(false),
            takes_nameless: AtomicBool::new(false),
            cut: AtomicU64::new(1),
            stamp: Stamp::new(),
            removals: Removals::new(log_size),
            remains: Remains::new(),
            memory: ResidentSet::new(limit, &shares),
            names: NameSet::new(shares.names),
            owners: Owners::new(),
            planted: Planted::default(),
        }
    }

    /// The number of the cut that will have what is changed in a section now.
    pub(super) fn cut(&self) -> u64 {
        // Relaxed: written when no section is open.
        self.cut.load(Ordering::Relaxed)
    }

    /// Bytes that changed.
    pub(super) fn changed_bytes(&self) -> u64 {
        self.bytes.used()
    }

    /// Lets go of all that is listed.
    pub(super) fn clear(&self) {
        drop(self.listed.take(|_| false));
        self.removals.clear();
        self.remains.clear();
        self.memory.clear();
        self.heavy.clear();
    }

    /// Whether nothing is left for a push.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        !self.removals.are_left()
            && !self.remains.are_left()
            && !self.owners.are_left()
            && !self.listed.hold_any()
    }

    /// Collects `inode`; in this push few pages changed, or not.
    fn collect_inode(&self, inode: &InodeRef, are_few: bool, to: &mut Added) {
        let Some(stored) = inode.stored() else { return };
        let mut kept = stored.kept.lock();
        let Changed { dirty, mut chunks, mut xattrs, counted, all_names, .. } = {
            let mut changed = stored.changed.lock();
            stored.hide();
            // Relaxed: no section is open.
            stored.is_behind.store(false, Ordering::Relaxed);
            mem::take(&mut *changed)
        };
        self.bytes.give(counted);
        if !inode.has_name() {
            if !self.may_spill(inode) {
                return;
            }
            if !inode.has(flag::RECORDED) {
                inode.raise(flag::RECORDED);
                xattrs.extend(inode.xattr_names());
                if !self.planted.has(Mutant::SpillForgotten) {
                    to.put(&Key::orphan(inode.ino()), record::orphan(false));
                }
            }
        }
        // With nothing locked: contents have locks of their own.
        if matches!(inode.body, Body::Regular) && !self.planted.has(Mutant::SizeWithoutBytes) {
            let (were, had_cut_off) = (kept.standing_pages(), !kept.cut_off.is_empty());
            kept.borrowed.ranges().for_each(|range| chunks.insert(range));
            // A file without a name is spilled so that it can leave memory: what stands in records stays.
            let are_few = are_few && inode.has_name();
            self.collect_contents(inode, &Marked { dirty, chunks, are_few }, &mut kept, to);
            kept.end_borrow(self);
            self.names.count_standing(kept.standing_pages(), were);
            if had_cut_off {
                // Relaxed: no section is open.
                stored.changed_in.store(to.cut(), Ordering::Relaxed);
            }
            if !kept.cut_off.is_empty() {
                // It stays in memory until all is removed.
                self.list(inode);
                to.ask_again();
            }
        }
        if all_names && let Ok(dir) = inode.as_dir() {
            dir.visit_names(|name, child| to.put(&Key::name(inode.ino(), name), &record::name(child)));
        }
        for name in xattrs.into_iter().filter(|_| !self.planted.has(Mutant::XattrsForgotten)) {
            let key = Key::xattr(inode.ino(), &name);
            match inode.xattr_value(&name) {
                Some(value) => to.put(&key, &value),
                None => to.remove(&key),
            }
        }
        let mut record = InodeRecord::of(inode);
        let unwritten = if inode.data.has_reserved() { self.unwritten(inode) } else { Vec::new() };
        if !unwritten.is_empty() {
            record.tail = &unwritten;
        }
        if self.planted.has(Mutant::QuotaForgotten) {
            record.quota = NO_QUOTA;
        }
        stored.put_down(record.atime);
        to.put(&Key::inode(inode.ino()), &record.encode());
    }
}

impl Pending {
    /// The tail of the record of `inode`, a regular file. Called in a cut.
    #[cold]
    fn unwritten(&self, inode: &Inode) -> Vec<u8> {
        if self.planted.has(Mutant::UnwrittenForgotten) {
            return Vec::new();
        }
        let kept = inode.data.unwritten_to_keep();
        if !inode.data.are_unwritten_kept()
            && let Some(durable) = inode.shared.durable()
        {
            durable.note_dropped();
        }
        record::tail_of(&kept)
    }
}

/// Lets the store collect what is pending.
pub(super) struct Collector(pub(super) Arc<Pending>);

impl Source for Collector {
    fn collect(&self, to: &mut Added) {
        self.0.collect(to);
    }

    fn write_ahead(&self, data: &Data<'_>) -> bool {
        self.0.write_ahead(data)
    }

    fn write(&self, data: &Data<'_>, to: &mut Added) {
        self.0.write(data, to);
    }

    fn has_work(&self) -> bool {
        let Pending { removals, owners, planted, .. } = &*self.0;
        !planted.has(Mutant::DeadFilesWait) && (removals.are_due() || owners.have_unowned())
    }
}

impl Pending {
    fn collect(&self, to: &mut Added) {
        // Relaxed: no section is open.
        self.cut.store(to.cut() + 1, Ordering::Relaxed);
        let takes_nameless = self.takes_nameless.load(Ordering::SeqCst);
        let listed = self.take_listed(takes_nameless || self.must_push());
        let are_few = to.is_logged() && self.are_few(listed.iter());
        listed.iter().for_each(|inode| self.collect_inode(inode, are_few, to));
        if to.writes_out() {
            self.write_out(to);
        }
        // Relaxed: a hint.
        self.is_full.store(false, Ordering::Relaxed);
        self.removals.collect(to, self);
        self.stamp.put(to);
        drop(listed);
    }
}
