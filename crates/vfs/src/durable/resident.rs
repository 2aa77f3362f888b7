//! Resident: which contents of files stay in memory, and how they leave it.
//!
//! # Theory
//! A chunk that is in an extent may leave memory: its pages are taken out of the file, noted as *absent*, and read again when they
//! are wanted (`load.rs`). Which chunks leave is decided by a [`Reclaimer`], which a chunk enters when its extent was written or
//! it was read; what it lets go becomes a *victim*, and leaves at once, or when the calls on its file have ended. What changed
//! since, or stands in a record, stays: changes are bounded by `pending.rs`.
//!
//! A call that changes a file, or reads what is not there, holds [`Stored::here`] for reading: then nothing of the file
//! leaves. A read of what is there holds nothing. Leaving is a rearrangement of the file (see `data`): what was read
//! meanwhile is read again, and then is seen to be absent.
//!
//! # Cost
//! An entry of some hundred bytes for each chunk in memory.

use super::Durable;
use super::chunk::CHUNK;
use super::mutant::{Mutant, Planted};
use super::pending::Stored;
use crate::data::{CHUNK_PAGES, FileData, PAGE};
use crate::inode::flag;
use crate::lock_class::DURABLE_PENDING;
use crate::{Inode, InodeRef};
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::reclaim::{Reclaim, Reclaimer, Usage};
use sluice_sync::{Arc, Mutex, RwLockReadGuard};
use std::collections::BTreeMap;
use std::ops::Deref;

/// Part of the limit that patched pages may take.
const PATCHED_SHARE: u64 = 16;

/// A chunk that may leave memory.
struct Resident {
    ino: u64,
    chunk: u64,
    usage: Usage,
}

impl Reclaim for Resident {
    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn key(&self) -> u64 {
        self.ino.rotate_left(32) ^ self.chunk
    }

    fn charge(&self) -> u64 {
        CHUNK
    }
}

/// The chunks of all files that may leave memory.
pub(super) struct ResidentSet {
    /// Bytes. *Immutable.*
    pub(super) limit: u64,
    reclaimer: Reclaimer<Arc<Resident>>,
    /// The files with such chunks. A file leaves when it loses its last name. *Protected by its mutex.*
    /// *In an Arc: a thread that counts a reference to an inode may free dead ones, which it must not under this mutex.*
    files: Mutex<BTreeMap<u64, Arc<InodeRef>>>,
    /// File and chunk of what is to leave. *Protected by its mutex.*
    victims: Mutex<Vec<(u64, u64)>>,
    /// How many those are. *Atomic (stands alone).*
    waiting: AtomicU64,
    /// Pages that are patched: they stay in memory. *Atomic (stands alone).*
    patched: AtomicU64,
}

impl ResidentSet {
    /// For contents of `limit` bytes, of which `changed` have changed at most.
    pub(super) fn new(limit: u64, changed: u64) -> ResidentSet {
        ResidentSet {
            limit,
            reclaimer: Reclaimer::new(limit.saturating_sub(changed + limit / PATCHED_SHARE)),
            files: Mutex::with_class(&DURABLE_PENDING, BTreeMap::new()),
            victims: Mutex::with_class(&DURABLE_PENDING, Vec::new()),
            waiting: AtomicU64::new(0),
            patched: AtomicU64::new(0),
        }
    }

    /// Bytes of chunks that may leave, or are about to, and of patched pages.
    pub(super) fn used(&self) -> u64 {
        // Relaxed, both: numbers that stand alone.
        let patched = self.patched.load(Ordering::Relaxed) * PAGE;
        self.reclaimer.charged() + self.waiting.load(Ordering::Relaxed) * CHUNK + patched
    }

    /// Whether more pages may be patched.
    pub(super) fn may_patch(&self) -> bool {
        // Relaxed: a number that stands alone.
        self.patched.load(Ordering::Relaxed) * PAGE < self.limit / PATCHED_SHARE
    }

    /// Of a chunk, these pages are patched now, and no more those that `were`.
    pub(super) fn count_patched(&self, are: u16, were: u16) {
        let more = u64::from(are.count_ones()).wrapping_sub(u64::from(were.count_ones()));
        if more != 0 {
            // Relaxed: a number that stands alone.
            self.patched.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// `chunk` of `inode` is in memory and in an extent.
    pub(super) fn enter(&self, inode: &InodeRef, stored: &Stored, chunk: u64) {
        let is_known = !stored.kept.lock().entered.insert(chunk);
        if is_known || !inode.has_name() {
            return;
        }
        let own = Arc::new(inode.clone());
        let before = self.files.lock().insert(inode.ino(), own);
        drop(before);
        if !inode.has_name() {
            // It lost its last name meanwhile, and the thread that took it may have come too early.
            self.forget(inode);
        }
        let resident = Arc::new(Resident { ino: inode.ino(), chunk, usage: Usage::new() });
        self.reclaimer.enter(resident.clone(), |gone| {
            self.victims.lock().push((gone.ino, gone.chunk));
            // Relaxed: a number that stands alone.
            self.waiting.fetch_add(1, Ordering::Relaxed);
        });
        resident.usage.unpin();
    }

    /// `inode` has no name any more: nothing of it needs to be brought back.
    pub(super) fn forget(&self, inode: &Inode) {
        let forgotten = self.files.lock().remove(&inode.ino());
        // With nothing locked.
        drop(forgotten);
    }

    /// Lets go of all files.
    pub(super) fn clear(&self) {
        let files = std::mem::take(&mut *self.files.lock());
        drop(files);
    }

    /// Takes the victims out of memory whose files nobody is at work on.
    pub(super) fn evict(&self, planted: &Planted) {
        // Relaxed: a hint.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let victims = std::mem::take(&mut *self.victims.lock());
        let mut left = Vec::new();
        for (ino, chunk) in victims.iter().copied() {
            let inode = self.files.lock().get(&ino).cloned();
            if inode.is_some_and(|inode| !inode.evict(chunk, planted)) {
                left.push((ino, chunk));
            }
        }
        // Relaxed: a number that stands alone.
        self.waiting.fetch_sub((victims.len() - left.len()) as u64, Ordering::Relaxed);
        self.victims.lock().append(&mut left);
    }
}

impl Durable {
    /// Bytes of contents in memory, as far as the limit counts them.
    pub(super) fn memory_used(&self) -> u64 {
        self.pending.memory.used() + self.pending.changed_bytes()
    }
}

/// The contents of a file, of which nothing leaves memory while this is there.
pub(crate) struct HeldContents<'i> {
    inode: &'i Inode,
    here: Option<RwLockReadGuard<'i, ()>>,
}

impl Deref for HeldContents<'_> {
    type Target = FileData;
    fn deref(&self) -> &FileData {
        &self.inode.data
    }
}

impl Drop for HeldContents<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.here.take().is_some()
            && let Some(durable) = self.inode.shared.durable()
        {
            durable.pending.memory.evict(&durable.pending.planted);
        }
    }
}

impl Inode {
    /// The contents of this regular file, as they are in memory.
    pub(super) fn hold_contents<'i>(&'i self, stored: Option<&'i Stored>, level: u8) -> HeldContents<'i> {
        HeldContents { inode: self, here: stored.map(|stored| stored.here.read_nested(level)) }
    }

    /// HeldContents of a file in memory alone.
    #[inline]
    pub(crate) fn all_contents(&self) -> HeldContents<'_> {
        HeldContents { inode: self, here: None }
    }

    /// Takes what is in an extent of `chunk` out of memory. False if calls are at work on the file.
    fn evict(&self, chunk: u64, planted: &Planted) -> bool {
        let Some(stored) = self.stored() else { return true };
        let Some(_alone) = stored.here.try_write() else { return false };
        // Locked until all is done: a push collects before, or finds what is absent.
        let mut kept = stored.kept.lock();
        kept.entered.remove(&chunk);
        let has_changed = stored.is_dirty(chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES);
        if has_changed && !planted.has(Mutant::ChangedPagesLeave) {
            // It enters again when it was pushed.
            return true;
        }
        kept.is_known = true;
        let Some(held) = kept.extents.get(&chunk) else { return true };
        let may_go = held.pages & !held.patched;
        // Before a page goes: a call that sees that one is missing sees this.
        self.raise(flag::PARTIAL);
        let gone = self.data.evict(&*self.shared, chunk, may_go);
        if gone != 0 {
            *kept.absent.entry(chunk).or_default() |= gone;
        } else if kept.absent.is_empty() {
            self.all_here();
        }
        true
    }

    /// No page is absent.
    pub(super) fn all_here(&self) {
        self.data.set_absent(false);
        self.clear_partial();
    }
}
