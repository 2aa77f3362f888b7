//! Durable: how a file system in memory gets into a store, and back.
//!
//! # Theory
//! The tree lives in memory, as in a file system without a store; the store holds what it needs to come back:
//! ```text
//!   key                        value
//!   b inode                    chunks that are cut off, and to be removed              removal.rs
//!   c                          format, and a number above those of all inodes          keys.rs
//!   i inode                    attributes, the target of a symbolic link               record.rs
//!   n directory name           inode
//!   x inode name               an extended attribute, or an access control list
//!   d inode chunk              64 KiB of contents, or where they are                   chunk.rs
//!   e place                    how many chunks name the extent there, if they are several      owners.rs
//!   f place                    the extent there, which none names
//!   o inode                    it has no name: to be deleted, when the store is opened at the latest, with all below it hidden.rs
//!   q number                   the quota with that number: its directory, its limit          record.rs
//!   r mount slot               a request of another machine's kernel that was executed  requests.rs
//!   s                          how far the scrub has got                                scrub.rs
//! ```
//! *Changes.* A call that changes something begins a [`Section`], a transaction of the store, before it takes locks. In
//! it, after each change, it puts down the new value of what it changed. Large values, such as contents and extended
//! attributes, are only marked, and the inode is listed; the push collects them, together with the inode's record, in
//! its cut, when no section is open (`pending.rs`). Calls do not put down such a record themselves. So each push holds
//! the tree as it was at one moment, contents included, and a file that is gone by then was never written.
//!
//! *Versions.* If a push has two records of one object, the newer counts. An inode has a counter: it is moved first, then the
//! values are read, so the newest record has them all, whichever call wrote it. A name is put down while it is locked, with the
//! time of a clock that does not go back.
//!
//! *Loading.* Opening a store loads the root's attributes. The names of a directory, with the attributes of what they lead to, are
//! loaded when it is first looked into; where contents are when they are first read or changed, and they themselves chunk by chunk
//! (`load.rs`). When a limit is reached, contents that are in segments leave memory again (`resident.rs`), and so do names and inodes of
//! which the tree has everything (`names.rs`).
//!
//! # Clients must
//! - begin a section outside of any read section, with no lock held but cursors and the superblock's rename lock; end it before observers are told;
//! - look in the section of a change of names whether these are here ([`Inode::check_names_here`](crate::Inode)), and have a file's contents (`InodeRef::contents`) before they begin to
//!   change them;
//! - take a name that they do not find for missing only if [`Inode::are_names_here`](crate::Inode) says so.
//!
//! # Lock order
//! ```text
//! rename lock, cursors
//!   calm, here                  of one file, or of the two of a copy: that of the lower number first
//!     leaving                   names leave memory
//!     loading                   held while names or contents are loaded
//!     a section (store.cil)
//!       names, kept, file data  as in the crate's header
//!         pending, stored, requests   leaves, one at a time
//! ```
//!
//! # Cost
//! A file system in memory: a load of a word that does not change, and a branch, for each change; nothing for a read of bytes
//! that are there. A durable one: no line that other CPUs write, for changes of different names and files; for contents of one
//! file only the first change of a page after a push, and a read-write lock once contents leave memory.

mod adopt;
mod chunk;
mod compare;
mod contents;
mod fsck;
mod growth;
mod hidden;
mod kept;
mod keys;
mod large;
mod listed;
mod load;
mod lost;
mod mutant;
mod names;
mod open;
mod owners;
mod pending;
mod quota;
mod record;
mod remains;
mod removal;
mod requests;
mod resident;
mod scrub;
mod section;
mod share;
mod shares;
mod stamp;
mod told;
mod touched;
mod tree_size;
mod unwritten;

#[cfg(test)]
mod adopt_tests;
#[cfg(test)]
mod audit;
#[cfg(test)]
mod compare_tests;
#[cfg(test)]
mod contents_tests;
#[cfg(test)]
mod copy_tests;
#[cfg(test)]
mod crash_calls_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod fsck_tests;
#[cfg(test)]
mod hidden_tests;
#[cfg(test)]
mod nameless_tests;
#[cfg(test)]
mod names_tests;
#[cfg(test)]
mod read_ahead_tests;
#[cfg(test)]
mod removal_tests;
#[cfg(test)]
mod scrub_tests;
#[cfg(test)]
mod share_tests;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod touched_tests;
#[cfg(test)]
mod unwritten_tests;
#[cfg(test)]
mod volatile_tests;

pub(crate) use chunk::CHUNK;
pub(crate) use hidden::HiddenTree;
pub(crate) use mutant::Mutant;
pub(crate) use open::close_apart;
pub(crate) use pending::Stored;
pub use requests::{RequestId, RequestServed};
pub use scrub::{ScrubFinding, ScrubState};
pub(crate) use section::{Changing, Section};
pub(crate) use share::copy_contents;
pub use stamp::PushClock;

use crate::inode::{WeakInode, settle};
use crate::lock_class::{DURABLE_LOADING, DURABLE_NUMBERS, DURABLE_PENDING};
use crate::quota::Quotas;
use crate::superblock::Shared;
use crate::watch::fault::Calls;
use crate::watch::{Watch, hook};
use crate::{Errno, InodeRef};
use keys::{FIXED, Key};
use pending::{Collector, Pending};
use record::Totals;
use requests::Requests;
use scrub::ScrubProgress;
use sluice_store::{Store, StoreError, Transaction};
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::percpu::Budget;
use sluice_sync::time::{Instant, nanoseconds};
use sluice_sync::{Arc, Mutex, OnceLock, refcache};
use std::collections::BTreeMap;
use touched::TouchedSet;

/// Room for the record that says what all files add up to: a clean close writes it, and the first change takes it back.
const SUMS: u64 = 128;
/// Room for the record of a quota, key and value.
const QUOTA_ROOM: u64 = 64;
/// By so much the recorded bound of inode numbers is raised.
const NUMBERS: u64 = 1 << 20;

/// The store of one file system, and the changes on their way to it.
pub(crate) struct Durable {
    store: Store,
    pending: Arc<Pending>,
    requests: Requests,
    /// Set by the first look at the record of the scrub. *Protected by its mutex, a leaf.*
    scrub: OnceLock<Mutex<ScrubProgress>>,
    touched: TouchedSet,
    /// Held while something is loaded.
    loading: Mutex<()>,
    /// Inodes that were made since it was opened have this number, or a greater one. *Immutable.*
    first: u64,
    /// Files without a name that were adopted. *Protected by its mutex, a leaf.*
    adopted: Mutex<BTreeMap<u64, WeakInode>>,
    /// All numbers of inodes are below, says the store. *Raised under `raising`; atomic (stands alone).*
    numbers: AtomicU64,
    raising: Mutex<()>,
    /// Inodes that lost their last name, or never had one. *Per CPU.*
    pub(crate) nameless: Budget,
    /// A record did not keep all unwritten pages of its file: they count until the next opening. *Atomic (stands alone); set once.*
    has_dropped: AtomicBool,
    /// The store says what its files add up to, and nothing changed since. *Atomic (stands alone); cleared once.*
    has_sums: AtomicBool,
    /// Since when versions of names are counted. *Immutable.*
    born: Instant,
    /// The file system was closed. *Atomic (stands alone); set once.*
    closed: AtomicBool,
}

impl Durable {
    /// The state of a `store` that says whether it `has_sums`.
    fn new(store: Store, numbers: u64, has_sums: bool, memory_limit: Option<u64>) -> Durable {
        let log_size = store.stats().log_size;
        let pending = Arc::new(Pending::new(log_size, open::limit_of(memory_limit), &store));
        store.set_source(Box::new(Collector(pending.clone())));
        Durable {
            has_sums: AtomicBool::new(has_sums),
            nameless: Budget::new(None, 0),
            has_dropped: AtomicBool::new(false),
            store,
            pending,
            requests: Requests::default(),
            scrub: OnceLock::new(),
            touched: TouchedSet::new(),
            loading: Mutex::with_class(&DURABLE_LOADING, ()),
            first: numbers,
            adopted: Mutex::with_class(&DURABLE_PENDING, BTreeMap::new()),
            numbers: AtomicU64::new(numbers),
            raising: Mutex::with_class(&DURABLE_NUMBERS, ()),
            born: Instant::now(),
            closed: AtomicBool::new(false),
        }
    }

    /// Calls `act` when no section is open, and lets none begin before it returns.
    pub(crate) fn alone<R>(&self, act: impl FnOnce() -> R) -> R {
        self.store.alone(act)
    }

    fn begin(&self, bytes: u64) -> Result<Transaction<'_>, Errno> {
        // Relaxed: a caller that comes while the file system is closed may come before.
        if self.closed.load(Ordering::Relaxed) {
            return Err(Errno::EROFS);
        }
        // After an error of the store nothing can be changed any more.
        let mut transaction = self.store.begin(bytes + SUMS).map_err(|error| match error {
            StoreError::Failed(_) => Errno::EROFS,
            error => errno(&error),
        })?;
        // Relaxed: a caller that sees it cleared begins after the call that cleared it, and is in the same push or a later one.
        if self.has_sums.load(Ordering::Relaxed) {
            self.drop_sums(&mut transaction);
        }
        Ok(transaction)
    }

    /// Marks the sums in the store as stale.
    #[cold]
    fn drop_sums(&self, transaction: &mut Transaction<'_>) {
        let _raising = self.raising.lock();
        // Relaxed, both: written under the mutex.
        if self.has_sums.swap(false, Ordering::Relaxed) {
            let numbers = self.numbers.load(Ordering::Relaxed);
            transaction.put(&Key::common(), numbers + 2, &record::common(numbers, None));
        }
    }

    /// Puts down what all files add up to, as `add_up` says when nothing is under way. The file system is closed.
    fn put_sums(&self, quotas: &Quotas, add_up: impl FnOnce() -> (u64, u64)) {
        // Relaxed, both: a change that has passed the look at `closed` sees this, and takes it back; or it has ended when it is added up.
        self.has_sums.store(true, Ordering::Relaxed);
        let ((inodes, bytes), unwritten) = self.store.alone(|| (add_up(), self.store.held_back()));
        // Files that are gone when the store is opened again are counted: then it is to be added up anew.
        let is_exact = self.nameless.used() == 0 && !self.has_dropped.load(Ordering::Relaxed);
        let room = SUMS + quotas.all().count() as u64 * QUOTA_ROOM;
        if is_exact && let Ok(mut transaction) = self.store.begin(room) {
            self.put_quota_uses(quotas.all(), &mut transaction);
            let numbers = self.numbers.load(Ordering::Relaxed);
            transaction.put(
                &Key::common(),
                numbers + 1,
                &record::common(numbers, Some(Totals { inodes, bytes, unwritten })),
            );
        }
    }

    /// Unwritten pages of a file are counted and in no record.
    fn note_dropped(&self) {
        // Relaxed: read when no section is open.
        self.has_dropped.store(true, Ordering::Relaxed);
    }

    /// Plants a fault.
    #[cfg(test)]
    pub(crate) fn plant(&self, mutant: Option<Mutant>) {
        self.pending.planted.plant(mutant);
    }

    /// How many inodes are in memory.
    pub(crate) fn inodes_in_memory(&self) -> u64 {
        self.names().counts().inodes
    }

    /// A new inode is in memory.
    pub(crate) fn count_inode(&self) {
        self.pending.names.count_inode();
    }

    /// Makes everything durable that calls did which have returned, for a caller that asks for that: in a volatile store nothing is.
    fn make_durable(&self) -> Result<(), Errno> {
        if self.store.is_volatile() && self.store.failure().is_none() { Ok(()) } else { self.sync() }
    }

    /// Pushes what calls did which have returned.
    fn sync(&self) -> Result<(), Errno> {
        if self.pending.planted.has(Mutant::SyncDoesNotWait) {
            return Ok(());
        }
        self.store.sync().map_err(|error| errno(&error))
    }

    /// The version of what is changed now.
    fn now(&self) -> u64 {
        nanoseconds(self.born.elapsed())
    }

    /// A record will have the number `ino`: makes sure that it is below the recorded bound, and far below, so that a bound is durable
    /// before a number has reached the one before it.
    fn cover(&self, ino: u64, transaction: &mut Transaction<'_>) {
        // Relaxed: a caller that sees a raised bound ends after the call that raised it began, so its push has the bound too.
        if ino + NUMBERS / 2 < self.numbers.load(Ordering::Relaxed) {
            return;
        }
        let _raising = self.raising.lock();
        // Relaxed: written under the mutex.
        if ino + NUMBERS / 2 >= self.numbers.load(Ordering::Relaxed) {
            let bound = ino + NUMBERS;
            transaction.put(&Key::common(), bound, &record::common(bound, None));
            self.numbers.store(bound, Ordering::Relaxed);
        }
    }

    /// Records the bound of numbers once more.
    fn renew_bound(&self, transaction: &mut Transaction<'_>) {
        let _raising = self.raising.lock();
        // Relaxed: written under the mutex.
        let bound = self.numbers.load(Ordering::Relaxed);
        transaction.put(&Key::common(), bound, &record::common(bound, None));
    }

    /// Holds room of the disk back for `pages` of files, and says whether it has that.
    pub(crate) fn hold_back(&self, pages: u64) -> bool {
        self.store.hold_back(pages)
    }

    /// So many pages for which room was held back are written, or unwritten no more.
    pub(crate) fn give_up(&self, pages: u64) {
        self.store.give_up(pages);
    }

    /// Bytes that the disk of the store still has room for, if it tells.
    pub(crate) fn room_bytes(&self) -> Option<u64> {
        self.store.room_bytes()
    }

    /// Waits until the amount of changes that no push has collected is below its limit.
    fn await_room_for_changes(&self) -> Result<(), Errno> {
        if self.pending.must_push() {
            if self.pending.is_full() {
                self.sync()?;
            } else {
                self.store.push_soon();
            }
        }
        Ok(())
    }

    /// Makes everything durable, lets go of the inodes that are listed, and lets others have the store.
    /// `add_up` says how many inodes there are, and what they count for, in bytes.
    fn close(&self, quotas: &Quotas, add_up: impl FnOnce() -> (u64, u64)) -> Result<(), Errno> {
        // SeqCst: the first closes. A change that is under way comes in, or fails.
        if self.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        // With files that have no name the sums are not put down, and these files stay: on another machine somebody may have one open.
        if !refcache::in_destructor() && self.nameless.used() == 0 {
            // Dead files then count no more.
            settle();
            self.put_sums(quotas, add_up);
        }
        let closed = self.store.close().map_err(|error| errno(&error));
        self.pending.clear();
        drop(self.touched.take());
        closed
    }
}

/// The error number of an error of the store.
fn errno(error: &StoreError) -> Errno {
    Errno::from_raw(error.errno())
}

impl Shared {
    /// Lets names and inodes leave memory if these are too many. Callers create inodes or names, and could begin a
    /// section here.
    #[inline]
    pub(crate) fn let_names_leave(&self) {
        if let Some(durable) = self.durable() {
            durable.make_room(self);
        }
    }

    /// Whether [`let_names_leave`](Self::let_names_leave) is to be called before an inode is made.
    #[inline]
    pub(crate) fn should_let_names_leave(&self) -> bool {
        self.durable().is_some_and(|durable| durable.names().is_over())
    }

    /// Begins a change of names or attributes, which writes up to `bytes` of values.
    ///
    /// # Errors
    /// `EROFS` after the store failed, and the store's.
    #[inline]
    pub(crate) fn begin(&self, bytes: usize) -> Result<Section<'_>, Errno> {
        match self.begin_in_memory() {
            Some(changing) => Ok(Section::in_memory(changing)),
            None => self.begin_put_down(FIXED + bytes),
        }
    }

    /// Begins a change where nothing is put down. None if something is. See [`begin`](Self::begin).
    #[inline]
    pub(crate) fn begin_in_memory(&self) -> Option<Changing<'_>> {
        if !self.has_no_hooks() {
            return None;
        }
        let changing = self.moments.hold();
        // Under the lock: the hook of a moment that began before is set.
        self.has_no_hooks().then_some(changing)
    }

    /// Begins a change that is to be put down; see [`begin`](Self::begin).
    #[inline(never)]
    fn begin_put_down(&self, bytes: usize) -> Result<Section<'_>, Errno> {
        let watch = self.watch().filter(|_| self.has_hook(hook::CHANGES));
        // First: a section of the store is not held while others are waited for.
        let recording = watch.map(Watch::record);
        let (stored, changing) = match self.durable() {
            Some(durable) => (Some((durable, durable.begin(bytes as u64)?)), None),
            None => (None, Some(self.moments.hold())),
        };
        // Behind the begin: a change that begins after the moment of a snapshot sees the hook.
        if self.has_hook(hook::UNCHANGED) {
            self.note_change();
        }
        Ok(Section::new(stored, recording, changing))
    }

    /// Begins a change of contents. Waits until the amount of unsaved changes is below its limit.
    ///
    /// # Errors
    /// Errors of [`begin`](Self::begin).
    ///
    /// `section` is [none](Section::none) before the call; the caller provides it because it is large and mostly empty.
    #[inline]
    pub(crate) fn begin_contents<'s>(&'s self, section: &mut Section<'s>) -> Result<(), Errno> {
        *section = match self.begin_in_memory() {
            Some(changing) => Section::in_memory(changing),
            None => self.begin_put_down_contents()?,
        };
        Ok(())
    }

    #[inline(never)]
    fn begin_put_down_contents(&self) -> Result<Section<'_>, Errno> {
        if let Some(durable) = self.durable() {
            durable.await_room_for_changes()?;
        }
        self.begin_put_down(FIXED)
    }

    /// Makes everything durable that calls did which have returned. In memory that is nothing.
    ///
    /// # Errors
    /// Errors of the store: the caller cannot know then which changes are durable.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        self.durable().into_iter().for_each(Durable::sweep);
        self.sync_noting(None)
    }

    /// Makes everything durable, for the sake of file `ino`, if one is given: then only this file's tracked changes count as
    /// durable. See [`sync`](Self::sync).
    ///
    /// # Errors
    /// Errors of [`sync`](Self::sync).
    fn sync_noting(&self, ino: Option<u64>) -> Result<(), Errno> {
        let watch = self.watch().filter(|_| self.has_hook(hook::CRASHES));
        let done_by_now = watch.map(Watch::now);
        self.durable().map_or(Ok(()), Durable::make_durable)?;
        if let (Some(watch), Some(end)) = (watch, done_by_now) {
            watch.synced(ino, end);
        }
        Ok(())
    }

    /// Makes everything durable, for the sake of `inode`; see [`sync`](Self::sync).
    ///
    /// # Errors
    /// Errors of [`sync`](Self::sync).
    pub(crate) fn sync_inode(&self, inode: &InodeRef) -> Result<(), Errno> {
        inode.meet_faults(Calls::FSYNC)?;
        // After an error of the store its own answer counts.
        if inode.is_touched()
            && !inode.is_symlink()
            && let Ok(section) = self.begin(0)
        {
            section.times_of(inode, true);
        }
        self.sync_noting(Some(inode.ino()))
    }

    /// The file system is closed: see [`Superblock::close`](crate::Superblock::close).
    ///
    /// # Errors
    /// Errors of [`Superblock::close`](crate::Superblock::close).
    pub(crate) fn close(&self) -> Result<(), Errno> {
        let Some(durable) = self.durable() else { return Ok(()) };
        durable.sweep();
        durable.close(&self.quotas, || self.counted())
    }
}
