//! Moment: a tree is copied as it was at one moment, while calls go on to change it.
//!
//! # Theory
//! The moment comes first, and then the copy. A *moment* is an instant at which no change is under way: each change comes before it
//! or after it, whole. The first change of an inode after the moment *keeps* the inode: it makes the inode's copy before it changes
//! anything. A change of a name keeps the old target. So the copier finds the tree of the moment, however much changes meanwhile:
//! ```text
//!   copier   hook, grace period | moment: nothing is under way |  copies directory after directory ...            end
//!   changes  ... before ------->|   wait, as for a cut         |  keep, change        change (kept, or copied)
//! ```
//! *Nothing is under way.* A change of a file system in memory holds the lock `changing` for reading; a change of a store has a section
//! ([`Store::alone`](sluice_store::Store::alone)). A change [at once](crate::at_once) in memory has a read section alone, and looks at
//! the hook in there: after a grace period all such changes have ended, or take the long way.
//!
//! *An inode* has the number of the moment for which it was kept or copied. A call compares that in the section of its
//! change. If the inode must be kept, the call ends the section, keeps the inode, and begins anew: so no lock of a change is held while
//! an inode is copied. Where two calls meet, or a call and the copier, the first one copies, under the mutex of the kept inodes.
//!
//! *A name* is locked when it is about to change. The call puts down the old target, unless an earlier change did, or the copier has
//! listed the directory. The copier lists the present names, and then puts the old targets in their place: all other names in the list
//! are unchanged since the moment.
//!
//! # Clients must
//! - look whether an inode [is kept](crate::InodeRef::is_kept) in the section of its change, and [keep](crate::InodeRef::keep) it in
//!   none, holding no contents;
//! - say what a name leads to [before they change it](crate::Inode::name_changes).
//!
//! # Lock order
//! `vfs.moment.turn`, which the copier holds from begin to end; `vfs.moment.kept`, held while inodes are copied, and so before all that
//! contents need. `vfs.moment.changing` stands where a store has its section, `vfs.moment.names` is a leaf.
//!
//! # Invariants
//! - M1: while a tree is copied, an inode that is neither kept nor passed is as it was at the moment; what is not in the tree of the
//!   moment may be kept in vain;
//! - M2: link counts change as inodes do, so one that is kept had that many names at the moment.
//!
//! # Cost
//! A change in memory: two stores to the thread's own line. While a tree is copied, the first change of each inode costs the copy of one
//! inode, and calls on all CPUs share a mutex. A kept inode stays in memory until the copier takes it, an old target until the end.

use crate::dir::NamedInodes;
use crate::durable::copy_contents;
use crate::lock_class::{MOMENT_CHANGING, MOMENT_KEPT, MOMENT_NAMES, MOMENT_TURN, SCHEDULE};
use crate::ops::Obstacle;
use crate::schedule::Unchanged;
use crate::superblock::{Shared, SharedRef};
use crate::watch::hook;
use crate::{Errno, Inode, InodeRef};
use sluice_sync::atomic::{AtomicU32, Ordering};
use sluice_sync::{BrLock, BrReadGuard, Mutex, MutexGuard, rcu};
use std::collections::BTreeMap;
use std::mem;

#[cfg(test)]
#[path = "moment_tests.rs"]
mod tests;

/// The copier has all of the inode: a bit of the word in which an inode says for which moment it is kept.
const PASSED: u32 = 1;
/// No tree is being copied.
const NEVER: u32 = 0;

/// The moments of one file system.
pub(crate) struct Moments {
    /// Held while a tree is copied.
    turn: Mutex<u32>,
    /// Held for reading by each change of a file system in memory.
    changing: BrLock<()>,
    /// The even number of the moment as of which a tree is being copied. *Atomic (moment); begins while nothing is under way.*
    now: AtomicU32,
    /// *Protected by its mutex; there while a tree is copied.*
    kept: Mutex<Option<KeptInodes>>,
    /// Which snapshots of the clock are as the tree is. *Protected by its mutex.*
    pub(crate) unchanged: Mutex<Unchanged>,
    /// The old targets of names that have changed. *Protected by its mutex; there while a tree is copied.*
    names: Mutex<Option<ChangedNames>>,
    /// Faults that tests plant, and calls that they make.
    #[cfg(test)]
    tested: tests::Tested,
}

/// A step that tests leave out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Omission {
    /// Changes in read sections are not waited for.
    NoGracePeriod,
    /// Other changes are not waited for.
    NoBarrier,
    InodeNotKept,
    NameNotPutDown,
    /// A file with other names is kept as one without.
    LinksForgotten,
}

/// By directory and name.
type ChangedNames = BTreeMap<(u64, Box<[u8]>), Option<InodeRef>>;

/// Copies of inodes, by the number of the original.
struct KeptInodes {
    target: CopyTarget,
    /// Inodes that have changed since the moment, and that the copier does not have yet; or why there is no copy.
    copies: BTreeMap<u64, Result<KeptInode, Errno>>,
    /// Files of several names that the copier has met.
    met: BTreeMap<u64, InodeRef>,
    /// As `met`, the numbers of copies that may have left memory.
    left: BTreeMap<u64, u64>,
}

/// Where a copy goes.
#[derive(Clone)]
pub(crate) struct CopyTarget {
    /// The file system.
    pub(crate) shared: SharedRef,
    /// As which it is made there.
    pub(crate) kind: CopyKind,
    /// The number of the quota there.
    pub(crate) quota: u32,
}

/// As which a tree is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyKind {
    /// As new files.
    Clone,
    /// As the same files of a moment, which do not change.
    Snapshot,
    /// As the same files once more: a snapshot's, which go on from it.
    Return,
}

struct KeptInode {
    copy: InodeRef,
    has_other_names: bool,
}

/// The copy of a file in the new tree.
pub(crate) enum CopyOfFile {
    /// It has no name yet.
    New(InodeRef),
    /// It was copied under another name.
    Met(InodeRef),
    /// It was copied under another name; this number may have left memory.
    Left(u64),
}

impl Moments {
    pub(crate) fn new() -> Moments {
        Moments {
            turn: Mutex::with_class(&MOMENT_TURN, NEVER),
            changing: BrLock::with_class(&MOMENT_CHANGING, ()),
            now: AtomicU32::new(NEVER),
            kept: Mutex::with_class(&MOMENT_KEPT, None),
            unchanged: Mutex::with_class(&SCHEDULE, Unchanged::default()),
            names: Mutex::with_class(&MOMENT_NAMES, None),
            #[cfg(test)]
            tested: tests::Tested::default(),
        }
    }

    /// Whether this fault is planted.
    #[cfg(test)]
    fn has(&self, fault: Omission) -> bool {
        self.tested.fault.lock().is_some_and(|planted| planted == fault)
    }

    #[cfg(not(test))]
    fn has(&self, _: Omission) -> bool {
        false
    }

    /// Between two steps of the copier, with nothing locked.
    fn step(&self) {
        #[cfg(test)]
        self.tested.step();
    }

    /// To be held by a change of a file system in memory.
    #[inline]
    pub(crate) fn hold(&self) -> BrReadGuard<'_, ()> {
        self.changing.read()
    }

    /// The word of an inode that is made now: it is not in the tree that is being copied.
    pub(crate) fn word_of_new(&self) -> u32 {
        // Relaxed: an inode gets its name in a section, and so in a copy as of a later moment it is older than that.
        match self.now.load(Ordering::Relaxed) {
            NEVER => NEVER,
            now => now | PASSED,
        }
    }
}

/// A tree that is being copied as of a moment.
pub(crate) struct AsOfMoment<'s> {
    shared: &'s Shared,
    now: u32,
    _turn: MutexGuard<'s, u32>,
}

impl Shared {
    /// A moment is now: copies of its tree are made in `target`. `look` is called at that moment.
    pub(crate) fn begin_moment<R>(
        &self,
        target: &CopyTarget,
        look: impl FnOnce() -> R,
    ) -> (AsOfMoment<'_>, R) {
        let moments = &self.moments;
        let mut turn = moments.turn.lock();
        // A number comes again after 2^31 moments, and an inode that was not changed since then would be taken for kept. Even, not 0.
        *turn = turn.wrapping_add(2).max(2);
        let now = *turn;
        let kept = KeptInodes {
            target: target.clone(),
            copies: BTreeMap::new(),
            met: BTreeMap::new(),
            left: BTreeMap::new(),
        };
        *moments.kept.lock() = Some(kept);
        self.set_hook(hook::MOMENT, true);
        // Changes in read sections that have not seen the hook.
        if !moments.has(Omission::NoGracePeriod) {
            rcu::domain().synchronize();
        }
        let begin = || {
            *moments.names.lock() = Some(BTreeMap::new());
            // Release(moment): changes before; pairs with Acquire(moment) in keep().
            moments.now.store(now, Ordering::Release);
            if target.kind == CopyKind::Snapshot {
                self.note_snapshot();
            }
            look()
        };
        let looked = self.while_nothing_changes(begin);
        (AsOfMoment { shared: self, now, _turn: turn }, looked)
    }

    /// Calls `act` when no change is under way, and lets none begin before it returns.
    pub(crate) fn while_nothing_changes<R>(&self, act: impl FnOnce() -> R) -> R {
        match self.durable() {
            _ if self.moments.has(Omission::NoBarrier) => act(),
            Some(durable) => durable.alone(act),
            None => {
                let _alone = self.moments.changing.write();
                act()
            }
        }
    }

    /// The moment as of which a tree is being copied. It stays in a section.
    #[inline]
    fn moment(&self) -> u32 {
        // Relaxed: it changes while no section is open.
        if self.has_hook(hook::MOMENT) { self.moments.now.load(Ordering::Relaxed) } else { NEVER }
    }
}

impl Drop for AsOfMoment<'_> {
    fn drop(&mut self) {
        let moments = &self.shared.moments;
        // Relaxed: a call that still sees the moment keeps an inode in vain, or puts down a name below, where none is wanted.
        moments.now.store(NEVER, Ordering::Relaxed);
        self.shared.set_hook(hook::MOMENT, false);
        // Dropped with neither locked.
        let _kept = moments.kept.lock().take();
        let _names = moments.names.lock().take();
    }
}

impl Inode {
    /// Whether the copy of the tree as of moment `now` has this inode, kept or passed.
    #[inline]
    fn is_kept_for(&self, now: u32) -> bool {
        self.kept_for() & !PASSED == now
    }

    /// Called before the locked `name` in this directory changes: its target is `inode`.
    #[inline]
    pub(crate) fn name_changes(&self, name: &[u8], inode: Option<&InodeRef>) {
        let now = self.shared.moment();
        if now != NEVER
            && self.kept_for() != now | PASSED
            && !self.shared.moments.has(Omission::NameNotPutDown)
        {
            self.put_down_name(name, inode);
        }
    }

    #[cold]
    fn put_down_name(&self, name: &[u8], inode: Option<&InodeRef>) {
        // Counted and let go with the names unlocked: see the lock order.
        let mut led_to = inode.cloned();
        if let Some(names) = &mut *self.shared.moments.names.lock() {
            names.entry((self.ino(), name.into())).or_insert_with(|| led_to.take());
        }
    }
}

impl InodeRef {
    /// In the section of a change of this inode: whether that may go on.
    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        let now = self.shared.moment();
        now == NEVER || self.is_kept_for(now) || self.shared.moments.has(Omission::InodeNotKept)
    }

    /// Ends an attempt to change this inode unless it [is kept](Self::is_kept).
    ///
    /// # Errors
    /// Unkept.
    #[inline]
    pub(crate) fn check_kept(&self) -> Result<(), Obstacle> {
        if self.is_kept() { Ok(()) } else { Err(Obstacle::Unkept(self.clone())) }
    }

    /// Copies this inode, if a tree is being copied as of a moment and the copier does not have it yet. Called in no section, and
    /// with no lock held but cursors.
    #[cold]
    pub(crate) fn keep(&self) {
        let moments = &self.shared.moments;
        let mut kept = moments.kept.lock();
        // Acquire(moment): this inode, as of the moment; pairs with Release(moment) in begin_moment().
        let now = moments.now.load(Ordering::Acquire);
        if let (Some(kept), true) = (&mut *kept, now != NEVER)
            && !self.is_kept_for(now)
        {
            // An inode without a name had none at the moment: it would have been kept before the last name went.
            if self.has_name() {
                kept.keep(self);
            }
            self.set_kept_for(now);
        }
    }
}

impl KeptInodes {
    /// Copies `original`, unless there is a copy. It may have left memory since that was made, and come back.
    fn keep(&mut self, original: &InodeRef) {
        let ino = original.ino();
        if self.copies.contains_key(&ino) || self.met.contains_key(&ino) || self.left.contains_key(&ino) {
            return;
        }
        let has_other_names = has_other_names(original);
        let copied = original.copy_in(&self.target, None).and_then(|copy| {
            copy_contents(&[(original, copy.clone())])?;
            Ok(KeptInode { copy, has_other_names })
        });
        self.copies.insert(ino, copied);
    }

    /// The copy of `original`, if there is one.
    ///
    /// # Errors
    /// Why it could not be kept.
    fn find(&mut self, original: &InodeRef) -> Result<Option<CopyOfFile>, Errno> {
        let ino = original.ino();
        if let Some(kept) = self.copies.remove(&ino) {
            let KeptInode { copy, has_other_names } = kept?;
            if has_other_names {
                self.met.insert(ino, copy.clone());
            }
            return Ok(Some(CopyOfFile::New(copy)));
        }
        if let Some(met) = self.met.get(&ino) {
            return Ok(Some(CopyOfFile::Met(met.clone())));
        }
        Ok(self.left.get(&ino).map(|number| CopyOfFile::Left(*number)))
    }
}

fn has_other_names(inode: &InodeRef) -> bool {
    !inode.is_dir() && !inode.shared.moments.has(Omission::LinksForgotten) && inode.links.count() > 1
}

/// Questions of the copier.
impl AsOfMoment<'_> {
    /// Calls `act` with what is kept.
    fn with_kept<R>(&self, act: impl FnOnce(&mut KeptInodes) -> Result<R, Errno>) -> Result<R, Errno> {
        // It is there as long as we are.
        act(self.shared.moments.kept.lock().as_mut().ok_or(Errno::EIO)?)
    }

    /// Calls `look` with an inode that is as the directory `original` was, contents aside.
    ///
    /// # Errors
    /// Errors of `look`; why the directory could not be kept.
    pub(crate) fn look<R>(
        &self,
        original: &InodeRef,
        look: impl FnOnce(&InodeRef) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.with_kept(|kept| match kept.copies.remove(&original.ino()) {
            Some(copy) => look(&copy?.copy),
            None => {
                let looked = look(original)?;
                original.set_kept_for(self.now);
                Ok(looked)
            }
        })
    }

    /// A copy of the directory `original`, without names, to be put into `parent`.
    ///
    /// # Errors
    /// `ENOSPC`; the store's.
    pub(crate) fn copy_directory(&self, original: &InodeRef, parent: &InodeRef) -> Result<InodeRef, Errno> {
        let target = self.with_kept(|kept| Ok(kept.target.clone()))?;
        self.look(original, |found| match found.is_same(original) {
            true => original.copy_in(&target, Some(parent)),
            false => {
                found.as_dir()?.set_parent(Some(parent.clone()));
                Ok(found.clone())
            }
        })
    }

    /// Copies of these files, with their contents.
    ///
    /// # Errors
    /// `ENOSPC`; the store's.
    pub(crate) fn copy_files(&self, originals: &[(Box<[u8]>, InodeRef)]) -> Result<Vec<CopyOfFile>, Errno> {
        self.shared.moments.step();
        let (mut copies, mut new) = (Vec::with_capacity(originals.len()), Vec::new());
        // In a store an inode that was kept may have left memory, and come back.
        let may_have_left = self.shared.has_hook(hook::DURABLE);
        self.with_kept(|kept| {
            for (_, original) in originals {
                let may_be_there =
                    may_have_left || original.is_kept_for(self.now) || has_other_names(original);
                if may_be_there && let Some(found) = kept.find(original)? {
                    copies.push(found);
                    continue;
                }
                let copy = original.copy_in(&kept.target, None)?;
                if has_other_names(original) {
                    kept.met.insert(original.ino(), copy.clone());
                }
                new.push((original, copy.clone()));
                copies.push(CopyOfFile::New(copy));
            }
            copy_contents(&new)?;
            new.iter().for_each(|(original, _)| original.set_kept_for(self.now));
            Ok(())
        })?;
        Ok(copies)
    }

    /// The names in the directory `dir`, and their targets, as of the moment.
    ///
    /// # Errors
    /// `ENOTDIR`; the store's.
    pub(crate) fn names_in(&self, dir: &InodeRef) -> Result<NamedInodes, Errno> {
        self.shared.moments.step();
        let listed = dir.list_names(|_| true)?;
        self.shared.moments.step();
        dir.set_kept_for(self.now | PASSED);
        let changed = {
            let mut names = self.shared.moments.names.lock();
            let names = names.as_mut().ok_or(Errno::EIO)?;
            let mut changed = names.split_off(&(dir.ino(), Box::default()));
            names.append(&mut changed.split_off(&(dir.ino() + 1, Box::default())));
            changed
        };
        if changed.is_empty() {
            return Ok(listed);
        }
        let mut found: BTreeMap<_, _> = listed.into_iter().collect();
        for ((_, name), inode) in changed {
            match inode {
                Some(inode) => drop(found.insert(name, inode)),
                None => drop(found.remove(&name)),
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Copies that were made may leave memory.
    pub(crate) fn let_leave(&self) -> Result<(), Errno> {
        self.with_kept(|kept| {
            let met = mem::take(&mut kept.met);
            kept.left.extend(met.into_iter().map(|(original, copy)| (original, copy.ino())));
            Ok(())
        })
    }

    /// `copy`, which may have left, was found.
    pub(crate) fn is_back(&self, original: &InodeRef, copy: &InodeRef) -> Result<(), Errno> {
        self.with_kept(|kept| {
            kept.met.insert(original.ino(), copy.clone());
            Ok(())
        })
    }
}
