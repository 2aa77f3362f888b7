//! Listed: the inodes of which a push is to collect something.
//!
//! # Theory
//! An inode with a name is listed with a reference, so that it stays until the push has it. A regular file *without a
//! name* is needed as long as somebody has it open, and a reference would keep it: it is listed with a weak one, and
//! leaves the list when it dies. The bytes of its changes count against the limit like all others. A push leaves it
//! where it is, unless there is too much that changed: then the file is *spilled*, which is to say collected as any
//! other, beside a record that says that it is to be deleted. From then on its contents leave memory like the contents
//! of other files. After a crash it is deleted.
//!
//! Each CPU has a list of its own, in parts, so that changes of different files write no line of each other.

use super::chunk::CHUNK;
use super::kept::WhereKnown;
use super::pending::{Pending, Stored};
use crate::inode::{Body, WeakInode, settle};
use crate::lock_class::DURABLE_PENDING;
use crate::{Inode, InodeRef};
use sluice_sync::atomic::Ordering;
use sluice_sync::face::name_value;
use sluice_sync::percpu::PerCpu;
use sluice_sync::{CachePadded, Mutex};
use std::collections::BTreeMap;
use std::mem;

/// Each CPU's list has so many parts, which inodes of numbers that follow each other take in turn: so threads that take two of
/// them off seldom meet.
const PARTS: usize = 8;

/// How something reaches an inode.
#[derive(Clone)]
pub(super) enum Reach<H> {
    /// It holds the inode, which has a name.
    Held(H),
    /// It holds it not.
    Weak(WeakInode),
}

/// The inodes on a part of a list, by their numbers.
pub(super) type ListedPart = BTreeMap<u64, Reach<InodeRef>>;

/// The inodes that are listed.
pub(super) struct ListedInodes {
    /// *Per CPU; each protected by its mutex.*
    parts: PerCpu<[CachePadded<Mutex<ListedPart>>; PARTS]>,
}

impl ListedInodes {
    pub(super) fn new() -> ListedInodes {
        let part = |_| CachePadded::new(Mutex::with_class(&DURABLE_PENDING, ListedPart::new()));
        let parts: PerCpu<[_; PARTS]> = PerCpu::new(|_| std::array::from_fn(part));
        parts.iter().flatten().for_each(|part| name_value(&**part, "Pending", "listed"));
        ListedInodes { parts }
    }

    /// Where inode `ino` stands on the list of the CPU numbered `at`.
    fn part(&self, at: usize, ino: u64) -> Option<&Mutex<ListedPart>> {
        Some(&*self.parts.get(at)?[ino as usize % PARTS])
    }

    /// `inode` stands on the list of the CPU numbered `at`.
    fn insert(&self, at: usize, inode: &InodeRef, is_held: bool) {
        // Counted, and dropped, with nothing locked: that may free dead inodes.
        let own = if is_held { Reach::Held(inode.clone()) } else { Reach::Weak(WeakInode::to(inode)) };
        let before = self.part(at, inode.ino()).and_then(|part| part.lock().insert(inode.ino(), own));
        drop(before);
    }

    /// Inode `ino` stands on the list of the CPU numbered `at` no more.
    fn remove(&self, at: usize, ino: u64) {
        let before = self.part(at, ino).and_then(|part| part.lock().remove(&ino));
        // With nothing locked.
        drop(before);
    }

    /// Takes all off that `stays` is false of. Called while no section is open.
    pub(super) fn take(&self, stays: impl Fn(&mut Reach<InodeRef>) -> bool) -> Vec<ListedPart> {
        let take = |part: &CachePadded<Mutex<ListedPart>>| {
            let mut all = mem::take(&mut *part.lock());
            let stays = |(ino, reach): (&u64, _)| if stays(reach) { Some(*ino) } else { None };
            let stay: Vec<u64> = all.iter_mut().filter_map(stays).collect();
            let stay: Vec<_> = stay.iter().filter_map(|ino| all.remove_entry(ino)).collect();
            if !stay.is_empty() {
                part.lock().extend(stay);
            }
            all
        };
        self.parts.iter().flatten().map(take).collect()
    }

    /// Whether there is a file without a name.
    fn have_nameless(&self) -> bool {
        let is_weak = |reach: &Reach<InodeRef>| matches!(reach, Reach::Weak(_));
        self.parts.iter().flatten().any(|part| part.lock().values().any(is_weak))
    }

    /// Whether something holds an inode here.
    #[cfg(test)]
    pub(super) fn hold_any(&self) -> bool {
        let is_held = |reach: &Reach<InodeRef>| matches!(reach, Reach::Held(_));
        self.parts.iter().flatten().any(|part| part.lock().values().any(is_held))
    }
}

impl Pending {
    /// Whether a push may collect changes of `inode` although it has no name.
    pub(super) fn may_spill(&self, inode: &Inode) -> bool {
        self.spills && matches!(inode.body, Body::Regular)
    }

    /// Has the next push collect `inode`; one without a name if it must. False if it was listed.
    pub(super) fn list(&self, inode: &InodeRef) -> bool {
        let Some(stored) = inode.stored() else { return false };
        let (at, is_new, is_held) = {
            let mut changed = stored.changed.lock();
            let is_held = changed.is_held || inode.has_name();
            // Whole chunks: until they are pushed, nothing of them leaves memory.
            let most = inode.size().saturating_sub(changed.borrowed);
            let bytes = changed.chunks.len().saturating_mul(CHUNK).min(most);
            let more = bytes.saturating_sub(changed.counted);
            if self.bytes.take_about(more).is_err() {
                self.bytes.exceed(more);
                // Relaxed: a hint.
                self.is_full.store(true, Ordering::Relaxed);
            }
            changed.counted += more;
            stored.show(changed.marks());
            let is_new = changed.listed_at.is_none() || (is_held && !changed.is_held);
            changed.is_held |= is_held;
            (*changed.listed_at.get_or_insert_with(|| self.listed.parts.here_at()), is_new, is_held)
        };
        if is_new {
            self.listed.insert(at, inode, is_held);
        }
        is_new
    }

    /// Takes `inode`, which has lost its last name, off the list: pushes need not collect it, and the list must not
    /// keep it alive.
    pub(super) fn forget(&self, inode: &InodeRef, known: WhereKnown) {
        let Some(stored) = inode.stored() else { return };
        let (at, counted) = {
            let mut changed = stored.changed.lock();
            changed.is_held = false;
            // Changes stay noted.
            if (changed.counted > 0 || changed.borrowed > 0) && self.may_spill(inode) {
                (changed.listed_at, 0)
            } else {
                stored.hide();
                (changed.listed_at.take(), mem::take(&mut changed.counted))
            }
        };
        self.bytes.give(counted);
        if known.has_residents {
            self.memory.lose(inode, stored);
        }
        if known.is_heavy {
            self.heavy.forget(inode);
        }
        match at {
            Some(at) if stored.is_listed() => self.listed.insert(at, inode, false),
            Some(at) => self.listed.remove(at, inode.ino()),
            None => {}
        }
    }

    /// Whether there may be too much that waits.
    pub(super) fn must_push(&self) -> bool {
        // Relaxed: a hint.
        self.is_full.load(Ordering::Relaxed)
    }

    /// Whether so much waits, when there [may be too much](Self::must_push), that the caller, who is about to write, should push. Files
    /// without a name that nobody uses any more are let go first: these need not be spilled.
    #[cold]
    pub(super) fn is_full(&self) -> bool {
        if self.listed.have_nameless() {
            settle();
            // Relaxed: a hint. If that made little room, it need not be tried again soon.
            self.is_full.store(self.bytes.used() > self.changed_max / 2, Ordering::Relaxed);
        }
        self.must_push() && (!self.pushes_early || self.bytes.used() > self.changed_max)
    }

    /// `inode`, which has no name, dies. Called by the destructor.
    pub(super) fn bury(&self, inode: &Inode, stored: &Stored) {
        // Nobody else has the inode.
        let Some(mut changed) = stored.changed.try_lock() else { return };
        self.bytes.give(mem::take(&mut changed.counted));
        let at = changed.listed_at.take();
        drop(changed);
        if let Some(at) = at {
            self.listed.remove(at, inode.ino());
        }
    }

    /// The inodes that a push collects now: all with a name, and the nameless if there is `too_much` or if they borrow
    /// extents: no extent is freed while a file borrows.
    pub(super) fn take_listed(&self, too_much: bool) -> Vec<InodeRef> {
        let are_borrowed = self.owners.are_borrowed();
        let borrows = |weak: &WeakInode| {
            let inode = if are_borrowed { weak.follow() } else { None };
            inode.is_some_and(|inode| inode.stored().is_some_and(|stored| stored.kept.lock().borrows))
        };
        let listed = self.listed.take(|reach| {
            if let Reach::Held(inode) = reach
                && !inode.has_name()
                && self.may_spill(inode)
            {
                inode.stored().into_iter().for_each(|stored| stored.changed.lock().is_held = false);
                *reach = Reach::Weak(WeakInode::to(inode));
            }
            matches!(reach, Reach::Weak(weak) if !too_much && !weak.has_ended() && !borrows(weak))
        });
        let follow = |reach| match reach {
            Reach::Held(inode) => Some(inode),
            Reach::Weak(weak) => weak.follow(),
        };
        listed.into_iter().flat_map(BTreeMap::into_values).filter_map(follow).collect()
    }
}
