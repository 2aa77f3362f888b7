//! Removal: how the records of what was deleted, or cut off a file, leave the store.
//!
//! # Theory
//! A file that lost its last name has an orphan record. When its last user lets go, its records are to be removed: the destructor notes
//! that here, and pushes do it.
//!
//! A push removes a bounded number of chunks, and asks for another push: so no call and no cut lasts as long as a large
//! file is long. Until the last push has removed its inode, the orphan record says that the rest is to go. The chunks
//! that are *cut off* a file which stays, by a truncation or a large hole, are removed in the same manner: a record of
//! the file says from the push of the truncation on which of its chunks do not count (`kept.rs`). A write into that
//! range first removes the store's chunks up to there.

use super::chunk::Chunk;
use super::kept::Kept;
use super::keys::{Key, chunk_of};
use super::mutant::Mutant;
use super::owners::Owners;
use super::pending::Pending;
use super::remains::Remains;
use crate::Inode;
use crate::inode::flag;
use crate::lock_class::DURABLE_PENDING;
use sluice_store::{Added, Data, StoreError};
use sluice_sync::Mutex;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::percpu::PerCpu;
use std::collections::BTreeSet;
use std::mem;
use std::ops::Range;

/// Bytes of the log for each chunk that a push removes, and the most that it removes: 512 MiB of contents.
const REMOVALS_SHARE: u64 = 4096;
const REMOVALS_MAX: u64 = 8192;
/// Files of which a push looks up what the tree has, and of these the ones that it looks up side by side: all callers of a sync wait
/// for the push.
const LOOKED_UP_MAX: usize = 512;
const LOOKED_UP_AT_ONCE: usize = 128;

/// The records that are to be removed.
pub(super) struct Removals {
    /// *Per CPU; each protected by its mutex.*
    gone: PerCpu<Mutex<Vec<Removal>>>,
    /// Removals in the push that is being formed which must first look up their chunks in the tree. *Protected by its
    /// mutex.*
    unknown: Mutex<Vec<Gone>>,
    /// So many chunks one push removes at most. *Atomic (stands alone); written by tests.*
    most: AtomicU64,
}

/// The removal of one inode's records. Most removed inodes have little, and many go at a time: so that takes little
/// memory.
pub(super) enum Removal {
    /// The complete removal is known: the inode's own records, and the record of its first chunk, if any, which names
    /// no extent.
    Little {
        ino: u64,
        has_chunk: bool,
    },
    Whole(Box<Gone>),
}

/// The records of an inode that are to be removed.
pub(super) struct Gone {
    pub(super) ino: u64,
    /// Its contents as the store has them. If the contents are not known, the tree has all of them.
    kept: Kept,
    /// Chunks of which records may be left.
    chunks: Range<u64>,
    xattrs: Vec<Box<[u8]>>,
    /// No more goes than these chunks: they were cut off.
    stays: bool,
    /// The inode was an orphan when the file system was opened: a client may have it open.
    was_open: bool,
}

impl Gone {
    /// Inode `ino`, of which nothing is in memory.
    pub(super) fn unread(ino: u64) -> Gone {
        Gone {
            ino,
            kept: Kept::default(),
            chunks: 0..u64::MAX,
            xattrs: Vec::new(),
            stays: false,
            was_open: false,
        }
    }

    /// Inode `ino`, which had no name when the file system was opened.
    pub(super) fn found(ino: u64) -> Gone {
        Gone { was_open: true, ..Gone::unread(ino) }
    }

    /// The removal of `chunks` of inode `ino`, which is not in memory.
    pub(super) fn cut_off(ino: u64, chunks: Range<u64>) -> Gone {
        Gone { chunks, stays: true, ..Gone::unread(ino) }
    }

    /// The keys among which its records are looked up.
    fn looked_up(&self) -> impl Iterator<Item = Range<Vec<u8>>> {
        let xattrs = (!self.stays).then(|| Key::xattrs(self.ino));
        let keys = xattrs.into_iter().chain([Key::chunks_within(self.ino, &self.chunks)]);
        keys.map(|keys| keys.start.to_vec()..keys.end.to_vec())
    }

    /// All but the contents is removed, too.
    fn remove_rest(&self, to: &mut Added) {
        if self.stays || !self.kept.cut_off.is_empty() {
            to.remove(&Key::cut_off(self.ino));
        }
        if !self.stays {
            self.xattrs.iter().for_each(|name| to.remove(&Key::xattr(self.ino, name)));
            remove_inode(self.ino, to);
        }
    }
}

/// Removes the records that each inode without a name has.
fn remove_inode(ino: u64, to: &mut Added) {
    to.remove(&Key::inode(ino));
    to.remove(&Key::orphan(ino));
}

impl Removal {
    /// Whether it had no name when the file system was opened.
    fn was_open(&self) -> bool {
        matches!(self, Removal::Whole(gone) if gone.was_open)
    }

    fn ino(&self) -> u64 {
        match self {
            Removal::Little { ino, .. } => *ino,
            Removal::Whole(gone) => gone.ino,
        }
    }
}

impl Removals {
    /// The removals of a store with a log of `log_size` bytes.
    pub(super) fn new(log_size: u64) -> Removals {
        Removals {
            gone: PerCpu::new(|_| Mutex::with_class(&DURABLE_PENDING, Vec::new())),
            unknown: Mutex::with_class(&DURABLE_PENDING, Vec::new()),
            most: AtomicU64::new((log_size / REMOVALS_SHARE).clamp(1, REMOVALS_MAX)),
        }
    }

    /// So many chunks one push removes at most.
    pub(super) fn most(&self) -> u64 {
        // Relaxed: a number that stands alone.
        self.most.load(Ordering::Relaxed)
    }

    /// Lets a push remove so many at most.
    #[cfg(test)]
    pub(super) fn limit(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// The records of `gone` are to be removed.
    pub(super) fn remove(&self, gone: Gone) {
        self.put(Removal::Whole(Box::new(gone)));
    }

    /// Notes `removal` for the next push.
    pub(super) fn put(&self, removal: Removal) {
        self.gone.here().lock().push(removal);
    }

    /// The records of inode `ino` are to stay, if they were to be removed because it had no name when the file system
    /// was opened. A file that has lost its last user since is gone: its records are incomplete.
    pub(super) fn take(&self, ino: u64) -> Option<Removal> {
        self.gone.iter().find_map(|gone| {
            let mut gone = gone.lock();
            let at = gone.iter().position(|gone| gone.ino() == ino && gone.was_open())?;
            Some(gone.swap_remove(at))
        })
    }

    /// The inodes that [`take`](Self::take) finds.
    pub(super) fn found(&self) -> BTreeSet<u64> {
        let of = |gone: &Mutex<Vec<Removal>>| {
            gone.lock().iter().filter(|gone| gone.was_open()).map(Removal::ino).collect::<Vec<_>>()
        };
        self.gone.iter().flat_map(of).collect()
    }

    /// Forgets all: the store remembers.
    pub(super) fn clear(&self) {
        self.gone.iter().for_each(|gone| gone.lock().clear());
    }

    /// Some file whose records are to be removed.
    fn next(&self) -> Option<Removal> {
        self.gone.iter().find_map(|gone| gone.lock().pop())
    }

    /// Whether records of files are to be removed that lost their last user since the file system was opened.
    pub(super) fn are_due(&self) -> bool {
        self.gone.iter().any(|gone| gone.lock().iter().any(|gone| !gone.was_open()))
    }

    /// Whether there are records to remove.
    pub(super) fn are_left(&self) -> bool {
        self.gone.iter().any(|gone| !gone.lock().is_empty())
    }

    /// Removes records of files that are gone.
    pub(super) fn collect(&self, to: &mut Added, pending: &Pending) {
        let mut left = self.most();
        let mut unknown = Vec::new();
        while left > 0
            && let Some(removal) = self.next()
        {
            let mut gone = match removal {
                Removal::Little { ino, has_chunk } => {
                    if has_chunk && !pending.planted.has(Mutant::ChunksStay) {
                        to.remove(&Key::chunk(ino, 0));
                    }
                    left -= u64::from(has_chunk);
                    remove_inode(ino, to);
                    continue;
                }
                Removal::Whole(gone) => gone,
            };
            if !gone.kept.is_known {
                unknown.push(*gone);
                left -= 1;
                if unknown.len() == LOOKED_UP_MAX {
                    break;
                }
                continue;
            }
            let end = gone.kept.end_of_first(&gone.chunks, left);
            let part = gone.chunks.start..end;
            left -= gone.kept.records.count(&part);
            gone.kept.remove_records(gone.ino, &part, to, pending);
            if end == gone.chunks.end {
                gone.remove_rest(to);
            } else {
                gone.chunks.start = end;
                self.put(Removal::Whole(gone));
            }
        }
        *self.unknown.lock() = unknown;
    }

    /// Removes records of files of which nothing was looked at but the attributes: all are in the tree, since nothing changed.
    pub(super) fn write(&self, data: &Data<'_>, to: &mut Added, owners: &Owners, remains: &Remains) {
        let mut unknown = mem::take(&mut *self.unknown.lock());
        unknown.sort_unstable_by_key(|gone| gone.ino);
        let mut left = self.most();
        let mut unknown = unknown.into_iter().peekable();
        while unknown.peek().is_some() {
            let some: Vec<Gone> = unknown.by_ref().take(LOOKED_UP_AT_ONCE).collect();
            data.warm(&some.iter().flat_map(Gone::looked_up).collect::<Vec<_>>());
            for gone in some {
                self.write_one(gone, &mut left, data, to, owners);
            }
        }
        // Before more names are taken, what has none goes: so it takes little memory.
        if !self.are_left() {
            remains.write(self.most(), data, to, |gone| self.remove(gone));
        }
        if self.are_left() || remains.are_left() {
            to.ask_again();
        }
    }

    /// Removes the records of `gone`, up to `left` of its chunks.
    fn write_one(&self, mut gone: Gone, left: &mut u64, data: &Data<'_>, to: &mut Added, owners: &Owners) {
        // A file that cannot be read stays among those that are deleted when the store is opened, or `fsck` finds it.
        let Ok(end) = remove_chunks(&gone, left, (data, owners), to) else { return };
        if end < gone.chunks.end {
            gone.chunks.start = end;
            return self.remove(gone);
        }
        gone.remove_rest(to);
        if gone.stays {
            return;
        }
        let xattrs = Key::xattrs(gone.ino);
        // `fsck` finds an attribute that is left.
        let _ = data.scan(&xattrs.start, &xattrs.end, &mut |key, _| {
            to.remove(key);
            true
        });
    }
}

/// Removes up to `left` of the chunks of `gone` that the tree has, and counts them: the chunk at which the rest begins.
fn remove_chunks(
    gone: &Gone,
    left: &mut u64,
    (data, owners): (&Data<'_>, &Owners),
    to: &mut Added,
) -> Result<u64, StoreError> {
    let (mut end, mut is_sound, mut lost) = (gone.chunks.end, true, Vec::new());
    let keys = Key::chunks_within(gone.ino, &gone.chunks);
    let scanned = data.scan(&keys.start, &keys.end, &mut |key, value| {
        let (at, chunk) = (chunk_of(key), Chunk::decode(value));
        is_sound &= at.is_some() && chunk.is_some();
        if *left == 0 {
            end = at.unwrap_or(end);
            return false;
        }
        *left -= 1;
        to.remove(key);
        lost.extend(chunk.and_then(|chunk| chunk.held).map(|held| held.extent));
        true
    });
    lost.into_iter().for_each(|extent| owners.lost(extent));
    scanned?;
    if is_sound { Ok(end) } else { Err(StoreError::Damaged("a chunk that cannot be read".into())) }
}

impl Inode {
    /// The inode leaves memory: whether it can be read again. Called by the destructor.
    #[cold]
    pub(crate) fn leave_memory(&self) -> bool {
        let Some(durable) = self.shared.durable() else { return false };
        let is_dead = self.has(flag::RECORDED) && !self.has_name();
        let mut borrowed = false;
        // Nobody else has the inode.
        if let Some(mut kept) = self.stored().and_then(|stored| stored.kept.try_lock()) {
            borrowed = kept.borrows;
            kept.end_borrow(&durable.pending);
            durable.names().count_standing(0, kept.standing_pages());
            // A nameless inode is counted when its records go.
            if self.has_name() || !self.has(flag::RECORDED) {
                kept.extents.values().for_each(|held| durable.pending.memory.count_patched(0, held.patched));
            }
            if !self.has_name() && kept.has_residents {
                durable.pending.memory.bury(self.ino(), &mut kept);
            }
        }
        if let Some(stored) = self.stored().filter(|_| !self.has_name()) {
            durable.pending.bury(self, stored);
        }
        durable.names().uncount_inode();
        if self.has(flag::UNNAMED) || is_dead {
            durable.nameless.give(1);
        }
        if is_dead {
            self.leave_store();
        }
        if is_dead || borrowed {
            durable.store.wake_for_source();
        }
        self.has(flag::RECORDED) && self.has_name()
    }

    /// The inode, which has no name, leaves memory: its records are to be removed. Called by the destructor: no I/O.
    fn leave_store(&self) {
        let (Some(durable), Some(stored)) = (self.shared.durable(), self.stored()) else { return };
        // Nobody else has the inode. The destructor may run under any lock, so this one is not waited for.
        let kept = stored.kept.try_lock();
        let (ino, xattrs, removals) = (self.ino(), self.xattr_names(), &durable.pending.removals);
        // A new or loaded file is known.
        let is_new = !self.has(flag::PARTIAL);
        if let Some(kept) = kept.as_ref().filter(|kept| xattrs.is_empty() && (is_new || kept.is_known))
            && let Some(has_chunk) = kept.has_first_alone()
        {
            return removals.put(Removal::Little { ino, has_chunk });
        }
        let mut kept = kept.map(|mut kept| mem::take(&mut *kept)).unwrap_or_default();
        kept.is_known |= is_new;
        removals.remove(Gone { kept, xattrs, ..Gone::unread(ino) });
    }
}
