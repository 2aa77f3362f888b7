//! Resident: which contents of files stay in memory, and how they leave it.
//!
//! # Theory
//! A chunk that is in an extent may leave memory: its pages are taken out of the file, noted as *absent*, and read
//! again when they are wanted (`load.rs`). Which chunks leave is decided by a [`Reclaimer`], which a chunk enters when
//! its extent was written or it was read; what it lets go becomes a *victim*, and leaves at once, or when the calls on
//! its file have ended. Pages that changed since, or whose bytes are in a record, stay: `pending.rs` limits changes.
//!
//! A call that changes a file, or reads what is not there, holds [`Stored::here`] for reading: then nothing of the file
//! leaves. A read of what is there holds nothing. Leaving is a rearrangement of the file (see `data`): what was read
//! meanwhile is read again, and then is seen to be absent.
//!
//! *Calm.* Before there is the first victim nothing leaves, and such a call holds the big-reader lock `calm` for reading instead, which
//! writes its thread's own line alone. With the first victim the set is *pressed* for good: later calls hold `here`, and when
//! those that hold `calm` have ended, victims leave. A copy between files that shares extents (`share.rs`) presses the set, too: it holds
//! `here` of both for writing.
//!
//! # Cost
//! An entry of some hundred bytes for each chunk in memory. A call on contents: two stores to the thread's own line; once the set is
//! pressed, two read-modify-writes of a word of the file.

use super::Durable;
use super::chunk::CHUNK;
use super::kept::Kept;
use super::listed::Reach;
use super::mutant::{Mutant, Planted};
use super::pending::Stored;
use super::shares::Shares;
use crate::data::{CHUNK_PAGES, FileData, PAGE};
use crate::inode::{WeakInode, flag};
use crate::lock_class::{DURABLE_CALM, DURABLE_PENDING};
use crate::{Inode, InodeRef, MemoryUse};
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::reclaim::{Reclaim, Reclaimer, Usage};
use sluice_sync::{Arc, BrLock, BrReadGuard, Mutex, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{Deref, Range};

/// Memory of a chunk beside its bytes: page headers, their table, and bookkeeping.
const CHUNK_BESIDE: u64 = CHUNK / 16;

/// A chunk that may leave memory.
pub(super) struct Resident {
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
        CHUNK + CHUNK_BESIDE
    }
}

/// The chunks of all files that may leave memory.
pub(super) struct ResidentSet {
    /// Bytes. *Immutable.*
    pub(super) limit: u64,
    /// Bytes that patched pages may take. *Immutable.*
    patched_max: u64,
    reclaimer: Reclaimer<Arc<Resident>>,
    /// The files with such chunks; those without a name are not held. *Protected by its mutex.*
    /// *In an Arc: a thread that counts a reference to an inode may free dead ones, which it must not under this mutex.*
    files: Mutex<BTreeMap<u64, Reach<Arc<InodeRef>>>>,
    /// File and chunk of what is to leave. *Protected by its mutex.*
    victims: Mutex<Vec<(u64, u64)>>,
    /// How many those are. *Atomic (stands alone).*
    waiting: AtomicU64,
    /// Held for reading by calls on contents, as long as nothing leaves memory; for writing once.
    calm: BrLock<()>,
    /// Calls hold [`Stored::here`] from now on. *Atomic (calm); set once.*
    is_pressed: AtomicBool,
    /// And all do. *Atomic (stands alone); set once, after `calm` was held for writing.*
    may_evict: AtomicBool,
    /// Pages that are patched: they stay in memory. *Atomic (stands alone).*
    patched: AtomicU64,
}

impl ResidentSet {
    /// With the contents' share of a limit of so many bytes.
    pub(super) fn new(limit: u64, shares: &Shares) -> ResidentSet {
        ResidentSet {
            limit,
            patched_max: shares.patched,
            reclaimer: Reclaimer::new(shares.contents),
            files: Mutex::with_class(&DURABLE_PENDING, BTreeMap::new()),
            victims: Mutex::with_class(&DURABLE_PENDING, Vec::new()),
            waiting: AtomicU64::new(0),
            calm: BrLock::with_class(&DURABLE_CALM, ()),
            is_pressed: AtomicBool::new(false),
            may_evict: AtomicBool::new(false),
            patched: AtomicU64::new(0),
        }
    }

    /// Whether calls hold the files that they are at work on.
    pub(super) fn is_pressed(&self) -> bool {
        // Relaxed: see stay_calm().
        self.is_pressed.load(Ordering::Relaxed)
    }

    /// Bytes of chunks that may leave, or are about to, and of patched pages.
    pub(super) fn used(&self) -> u64 {
        // Relaxed, both: numbers that stand alone.
        let patched = self.patched.load(Ordering::Relaxed) * PAGE;
        self.reclaimer.charged() + self.waiting.load(Ordering::Relaxed) * (CHUNK + CHUNK_BESIDE) + patched
    }

    /// Whether more pages may be patched.
    pub(super) fn may_patch(&self) -> bool {
        // Relaxed: a number that stands alone.
        self.patched.load(Ordering::Relaxed) * PAGE < self.patched_max
    }

    /// Counts the patched pages of one chunk, which changed from `were` to `are`.
    pub(super) fn count_patched(&self, are: u16, were: u16) {
        let more = u64::from(are.count_ones()).wrapping_sub(u64::from(were.count_ones()));
        if more != 0 {
            // Relaxed: a number that stands alone.
            self.patched.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// `chunk` of `inode` is in memory and in an extent.
    pub(super) fn enter(&self, inode: &InodeRef, stored: &Stored, chunk: u64) {
        let own = Arc::new(inode.clone());
        let (resident, before) = {
            let mut kept = stored.kept.lock();
            kept.has_residents = true;
            match kept.entered.entry(chunk) {
                Entry::Occupied(_) => (None, Some(Reach::Held(own))),
                Entry::Vacant(room) => {
                    let resident = Arc::new(Resident { ino: inode.ino(), chunk, usage: Usage::new() });
                    room.insert(resident.clone());
                    // With `kept` locked: a chunk of it that leaves meanwhile may be the last one. A thread that takes its last name, or
                    // gives it one, comes later, or has done so.
                    (Some(resident), self.know(inode, own))
                }
            }
        };
        drop(before);
        let Some(resident) = resident else { return };
        self.reclaimer.enter(resident.clone(), |gone| {
            self.victims.lock().push((gone.ino, gone.chunk));
            // Relaxed: a number that stands alone.
            self.waiting.fetch_add(1, Ordering::Relaxed);
        });
        resident.usage.unpin();
    }

    /// `inode` has such chunks. Called with its `kept` locked; what is returned is dropped later.
    fn know(&self, inode: &InodeRef, own: Arc<InodeRef>) -> Option<Reach<Arc<InodeRef>>> {
        let (new, spare) = match inode.has_name() {
            true => (Reach::Held(own), None),
            false => (Reach::Weak(WeakInode::to(inode)), Some(Reach::Held(own))),
        };
        let before = self.files.lock().insert(inode.ino(), new);
        // Whichever of both is dropped here, with the set unlocked.
        before.or(spare)
    }

    /// `inode` has lost its last name, or got its first one.
    pub(super) fn lose(&self, inode: &InodeRef, stored: &Stored) {
        if !stored.kept.lock().has_residents {
            return;
        }
        let own = Arc::new(inode.clone());
        let kept = stored.kept.lock();
        let before = if kept.entered.is_empty() { Some(Reach::Held(own)) } else { self.know(inode, own) };
        drop(kept);
        // With nothing locked.
        drop(before);
    }

    /// Inode `ino`, of which the store has what is `kept`, has no name and dies. Called by the destructor.
    pub(super) fn bury(&self, ino: u64, kept: &mut Kept) {
        self.forget(ino);
        self.remove(std::mem::take(&mut kept.entered));
    }

    /// Stops counting `chunks` of inode `ino`, which are gone from `kept`.
    pub(super) fn uncount(&self, ino: u64, kept: &mut Kept, chunks: &Range<u64>) {
        let mut gone = kept.entered.split_off(&chunks.start);
        kept.entered.append(&mut gone.split_off(&chunks.end));
        if kept.entered.is_empty() && !gone.is_empty() {
            self.forget(ino);
        }
        self.remove(gone);
    }

    /// Inode `ino` has no chunk that may leave memory.
    fn forget(&self, ino: u64) {
        // Dropped with the mutex free: what drops a reference may free dead inodes.
        let left = self.files.lock().remove(&ino);
        drop(left);
    }

    fn remove(&self, gone: BTreeMap<u64, Arc<Resident>>) {
        // A chunk that is still entering, or is a victim, leaves like the chunks of files that stay.
        for resident in gone.values().filter(|resident| resident.usage.pin()) {
            if !self.reclaimer.remove(resident) {
                resident.usage.unpin();
            }
        }
    }

    /// Lets go of all files.
    pub(super) fn clear(&self) {
        let files = std::mem::take(&mut *self.files.lock());
        drop(files);
    }

    /// Lets a call on contents in that comes while nothing leaves memory.
    pub(super) fn stay_calm(&self) -> Option<BrReadGuard<'_, ()>> {
        // Relaxed: asked again in the lock. A word that is written once.
        if self.is_pressed.load(Ordering::Relaxed) {
            return None;
        }
        let calm = self.calm.read();
        // Relaxed: press() waits for a call that entered before it wrote the lock; a later one sees what was written before that.
        (!self.is_pressed.load(Ordering::Relaxed)).then_some(calm)
    }

    /// Makes each later call hold the file that it works on. Waits for calls that do not.
    #[cold]
    fn press(&self) {
        // Relaxed: the lock orders it, see stay_calm().
        self.is_pressed.store(true, Ordering::Relaxed);
        drop(self.calm.write());
        // Release(pressed): the calls that held the lock have ended; pairs with Acquire(pressed) in evict().
        self.may_evict.store(true, Ordering::Release);
    }

    /// Takes the victims out of memory whose files nobody is at work on.
    pub(super) fn evict(&self, planted: &Planted) {
        // Relaxed: a hint. Acquire(pressed): no call is left that does not hold its file; pairs with Release(pressed) in press().
        if self.waiting.load(Ordering::Relaxed) == 0 || !self.may_evict.load(Ordering::Acquire) {
            return;
        }
        let victims = std::mem::take(&mut *self.victims.lock());
        let mut left = Vec::new();
        for (ino, chunk) in victims.iter().copied() {
            let known = self.files.lock().get(&ino).cloned();
            let stays = match known {
                Some(Reach::Held(inode)) => !inode.evict(chunk, planted),
                Some(Reach::Weak(weak)) => weak.follow().is_some_and(|inode| !inode.evict(chunk, planted)),
                None => false,
            };
            if stays {
                left.push((ino, chunk));
            }
        }
        // Relaxed: a number that stands alone.
        self.waiting.fetch_sub((victims.len() - left.len()) as u64, Ordering::Relaxed);
        self.victims.lock().append(&mut left);
    }
}

impl Durable {
    /// Takes victims out of memory. The first time it waits for calls on contents, and so for pushes, unless this thread is in such
    /// a call, or in a section: then the next call does.
    fn evict(&self) {
        let memory = &self.pending.memory;
        // Relaxed, both: hints.
        let is_due = memory.waiting.load(Ordering::Relaxed) > 0 && !memory.is_pressed.load(Ordering::Relaxed);
        if is_due && !memory.calm.is_read_here() && !self.store.has_begun_here() {
            memory.press();
        }
        memory.evict(&self.pending.planted);
    }

    /// The memory in use.
    pub(super) fn memory_use(&self) -> MemoryUse {
        let (memory, names) = (&self.pending.memory, self.names());
        MemoryUse {
            limit: memory.limit,
            used: memory.used() + self.pending.changed_bytes() + names.used(),
            ..names.counts()
        }
    }
}

/// The contents of a file, of which nothing leaves memory while this is there.
pub(crate) struct HeldContents<'i> {
    inode: &'i Inode,
    stay: Option<HeldBy<'i>>,
}

/// Why nothing of a file leaves memory.
enum HeldBy<'i> {
    /// Nothing of any file does.
    Calm { _calm: BrReadGuard<'i, ()> },
    /// This file is held.
    Here { _here: RwLockReadGuard<'i, ()> },
    /// And by nobody else.
    Alone { _here: RwLockWriteGuard<'i, ()> },
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
        if self.stay.take().is_some()
            && let Some(durable) = self.inode.shared.durable()
        {
            durable.evict();
        }
    }
}

impl Inode {
    /// The contents of this regular file, as they are in memory, by a thread that holds `level` other files'.
    pub(super) fn hold_contents<'i>(&'i self, stored: Option<&'i Stored>, level: u8) -> HeldContents<'i> {
        let Some((durable, stored)) = self.shared.durable().zip(stored) else { return self.all_contents() };
        let stay = match durable.pending.memory.stay_calm() {
            Some(calm) => HeldBy::Calm { _calm: calm },
            None => HeldBy::Here { _here: stored.here.read_nested(level) },
        };
        HeldContents { inode: self, stay: Some(stay) }
    }

    /// The exclusive variant of [`hold_contents`](Self::hold_contents): excludes all other calls on contents, except
    /// for those that need only pages in memory. `None` if it would wait for itself: the thread is in a call on
    /// contents, or in a section.
    pub(super) fn hold_contents_alone<'i>(
        &'i self,
        durable: &Durable,
        stored: &'i Stored,
        level: u8,
    ) -> Option<HeldContents<'i>> {
        let memory = &durable.pending.memory;
        // Acquire(pressed): see ResidentSet::evict().
        if !memory.may_evict.load(Ordering::Acquire) {
            if memory.calm.is_read_here() || durable.store.has_begun_here() {
                return None;
            }
            memory.press();
        }
        Some(HeldContents {
            inode: self,
            stay: Some(HeldBy::Alone { _here: stored.here.write_nested(level) }),
        })
    }

    /// HeldContents of a file in memory alone.
    #[inline]
    pub(crate) fn all_contents(&self) -> HeldContents<'_> {
        HeldContents { inode: self, stay: None }
    }

    /// Takes what is in an extent of `chunk` out of memory. False if calls are at work on the file.
    fn evict(&self, chunk: u64, planted: &Planted) -> bool {
        let Some(stored) = self.stored() else { return true };
        let Some(_alone) = stored.here.try_write() else { return false };
        // Locked until all is done: a push collects before, or finds what is absent.
        let mut kept = stored.kept.lock();
        kept.entered.remove(&chunk);
        if kept.entered.is_empty()
            && let Some(durable) = self.shared.durable()
        {
            durable.pending.memory.forget(self.ino());
        }
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
