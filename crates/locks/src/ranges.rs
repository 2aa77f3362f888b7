//! Ranges: the granted locks of one lock space of a file.
//!
//! # Theory
//! The locks of each owner stand together, ascending (I1), in a tree of its own, so a change is local to it, and costs an
//! owner of few locks no more where others have many. The ranges that overlap the request, or touch it with the same kind,
//! are replaced by at most three pieces:
//!
//! ```text
//!   held      [---- shared ----][-- excl. --]   [-- shared --]
//!   request          [====== exclusive ======]
//!   becomes   [shared][------ exclusive -----]  [-- shared --]
//! ```
//!
//! Few locks are searched one by one for conflicts with a request; more than [`FEW`] are searched in two interval
//! trees, one for each kind: a shared request never meets the shared locks.
//!
//! Every lock has the age of its owner: when the owner got its first lock in the file. (Age, first byte) is the
//! order in which Linux searches, thus what decides which of several conflicting locks F_GETLK reports.

use crate::interval_tree::{Item, Tree};
use crate::quota::Quota;
use crate::{Kind, LockError, Owner, Range, RangeLock, RangeRequest};
use std::mem;
use std::ops::ControlFlow::{self, Break, Continue};

/// The most locks of a space that are searched one by one.
const FEW: usize = 8;

/// All granted locks of a space. *Protected by the file state.*
#[derive(Default)]
pub(crate) struct Ranges {
    /// How many locks there are.
    len: usize,
    /// The first that came, until another joins it: most files never have two.
    sole: Option<HeldRange>,
    /// All others, and it.
    owners: Tree<OwnRanges>,
    /// The same locks by first byte, a tree for each [`Kind`], while there are more than a few.
    by_start: Option<Box<[Tree<Placed>; 2]>>,
    /// The age of the next owner that comes.
    next_age: u64,
    /// Empty, both: for the next rewriting, and for the next owner that comes. They keep their memory.
    spare: Vec<HeldRange>,
    spare_locks: Tree<HeldRange>,
}

/// A granted lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldRange {
    pub(crate) lock: RangeLock,
    /// When the owner got its first lock here: less for an earlier one.
    pub(crate) age: u64,
}

/// The locks of one owner: one at least.
struct OwnRanges {
    owner: Owner,
    locks: Tree<HeldRange>,
}

/// A granted lock in the order of first bytes.
struct Placed(HeldRange);

/// The owners whose locks are in the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InTheWay {
    /// Nobody: it can be granted.
    Nobody,
    /// This owner alone.
    One(Owner),
    /// Several owners.
    Several,
}

impl Item for OwnRanges {
    type Key = Owner;

    fn key(&self) -> Owner {
        self.owner
    }

    /// Owners are not looked for by bytes.
    fn range(&self) -> Range {
        Range::WHOLE
    }
}

impl Item for HeldRange {
    type Key = u64;

    fn key(&self) -> u64 {
        self.lock.range.start()
    }

    fn range(&self) -> Range {
        self.lock.range
    }
}

impl Item for Placed {
    type Key = (u64, Owner);

    fn key(&self) -> (u64, Owner) {
        (self.0.lock.range.start(), self.0.lock.owner)
    }

    fn range(&self) -> Range {
        self.0.lock.range
    }
}

impl Ranges {
    /// True if nobody holds a lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many locks there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All locks, in search order.
    pub(crate) fn all(&self) -> Vec<RangeLock> {
        let mut all = Vec::with_capacity(self.len());
        let _ = self.visit_all(|held| {
            all.push(*held);
            Continue::<()>(())
        });
        all.sort_unstable_by_key(Self::search_order);
        all.into_iter().map(|held| held.lock).collect()
    }

    /// Shows `visit` all locks, owner by owner, until it breaks.
    fn visit_all<B>(&self, mut visit: impl FnMut(&HeldRange) -> ControlFlow<B>) -> ControlFlow<B> {
        match &self.sole {
            Some(sole) => visit(sole),
            None => self.owners.visit_all(|own| own.locks.visit_all(&mut visit)),
        }
    }

    fn search_order(held: &HeldRange) -> (u64, u64) {
        (held.age, held.lock.range.start())
    }

    /// Shows `visit` the locks of other owners that conflict with `request`, in no order, until it breaks.
    fn conflicts<B>(
        &self,
        request: &RangeRequest,
        mut visit: impl FnMut(&HeldRange) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let mut consider = |held: &HeldRange| {
            let RangeLock { owner, kind, range, .. } = held.lock;
            if request.conflicts_with(owner, kind, range) { visit(held) } else { Continue(()) }
        };
        let Some([shared, exclusive]) = self.by_start.as_deref() else {
            return self.visit_all(consider);
        };
        // Exclusive locks have no bytes in common: those in the way stand together, the first where the request begins.
        let (start, end) = (request.range.start(), request.range.end());
        let begins = |placed: &Placed| placed.0.lock.range.start() <= end;
        exclusive.visit_near((start, Owner::LAST), begins, |placed| consider(&placed.0))?;
        match request.kind {
            Kind::Shared => Continue(()),
            Kind::Exclusive => shared.visit_overlapping(request.range, |placed| consider(&placed.0)),
        }
    }

    /// The owners whose locks keep `request` from being granted.
    #[inline]
    pub(crate) fn in_the_way(&self, request: &RangeRequest) -> InTheWay {
        if self.is_empty() { InTheWay::Nobody } else { self.among_in_the_way(request) }
    }

    /// [`in_the_way`](Self::in_the_way), when there are locks.
    #[inline(never)]
    fn among_in_the_way(&self, request: &RangeRequest) -> InTheWay {
        let mut first = None;
        let second = self.conflicts(request, |held| {
            let owner = held.lock.owner;
            if *first.get_or_insert(owner) == owner { Continue(()) } else { Break(()) }
        });
        match (first, second) {
            (None, _) => InTheWay::Nobody,
            (Some(owner), Continue(())) => InTheWay::One(owner),
            (Some(_), Break(())) => InTheWay::Several,
        }
    }

    /// The lock in the way of `request` that comes first in search order.
    pub(crate) fn first_conflict(&self, request: &RangeRequest) -> Option<RangeLock> {
        let mut first: Option<HeldRange> = None;
        let _ = self.conflicts(request, |held| {
            if first.as_ref().is_none_or(|first| Self::search_order(held) < Self::search_order(first)) {
                first = Some(*held);
            }
            Continue::<()>(())
        });
        first.map(|held| held.lock)
    }

    /// The processes that hold locks in the way of `request`, each once.
    pub(crate) fn processes_in_the_way(&self, request: &RangeRequest) -> Vec<u64> {
        let mut processes = Vec::new();
        let _ = self.conflicts(request, |held| {
            // Many locks of one process often stand together.
            if let Some(process) = held.lock.owner.process()
                && processes.last() != Some(&process)
            {
                processes.push(process);
            }
            Continue::<()>(())
        });
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// True if `owner` holds a lock in the way of `request`.
    pub(crate) fn is_in_the_way(&self, owner: Owner, request: &RangeRequest) -> bool {
        let found = self.visit_own(owner, request.range, |held| {
            let RangeLock { kind, range, .. } = held.lock;
            if request.conflicts_with(owner, kind, range) { Break(()) } else { Continue(()) }
        });
        found.is_break()
    }

    /// The first lock of `owner` that overlaps `range`.
    #[inline]
    pub(crate) fn first_of(&self, owner: Owner, range: Range) -> Option<RangeLock> {
        if self.is_empty() { None } else { self.first_among(owner, range) }
    }

    /// [`first_of`](Self::first_of), when there are locks.
    #[inline(never)]
    fn first_among(&self, owner: Owner, range: Range) -> Option<RangeLock> {
        self.visit_own(owner, range, |held| {
            if held.lock.range.overlaps(range) { Break(held.lock) } else { Continue(()) }
        })
        .break_value()
    }

    /// Shows `visit` the locks of `owner` in ascending order until it breaks: at most two that end before `range`
    /// (one touches it, if any does), those that overlap it, and all after.
    fn visit_own<B>(
        &self,
        owner: Owner,
        range: Range,
        mut visit: impl FnMut(&HeldRange) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        if let Some(sole) = &self.sole {
            return if sole.lock.owner == owner { visit(sole) } else { Continue(()) };
        }
        match self.owners.get(owner) {
            Some(own) => own.locks.visit_from(range.start().saturating_sub(1), visit),
            None => Continue(()),
        }
    }

    /// Grants `request`, which nobody is in the way of. Returns whether the owner thereby gave up some protection (a
    /// downgrade), so that others may proceed.
    ///
    /// # Errors
    /// [`LockError::NoLocks`]; then nothing is changed.
    pub(crate) fn take(&mut self, request: &RangeRequest, quota: &Quota) -> Result<bool, LockError> {
        let &RangeRequest { owner, pid, kind, range } = request;
        self.replace(owner, range, Some((kind, pid)), quota)
    }

    /// Takes `range` away from `owner`. True if there was something to take.
    ///
    /// # Errors
    /// [`LockError::NoLocks`] if that would split a lock; then nothing is changed.
    pub(crate) fn unlock(&mut self, owner: Owner, range: Range, quota: &Quota) -> Result<bool, LockError> {
        self.replace(owner, range, None, quota)
    }

    /// Takes everything away from `owner`: the smallest range that holds it all, if there was something.
    #[inline]
    pub(crate) fn release(&mut self, owner: Owner, quota: &Quota) -> Option<Range> {
        match &self.sole {
            Some(sole) if sole.lock.owner == owner => {
                let range = sole.lock.range;
                self.remove_sole(owner, quota);
                Some(range)
            }
            Some(_) => None,
            None if self.is_empty() => None,
            None => self.release_among(owner, quota),
        }
    }

    /// True if the only lock there is stands alone, outside the trees.
    pub(crate) fn has_sole(&self) -> bool {
        self.sole.is_some()
    }

    /// Adds the only lock, which is counted already.
    pub(crate) fn put_sole(&mut self, lock: RangeLock) {
        let age = self.age_of_owner(None);
        (self.len, self.sole) = (1, Some(HeldRange { lock, age }));
    }

    /// Takes the lock out that stands alone, which goes on being counted.
    pub(crate) fn take_sole(&mut self) -> Option<RangeLock> {
        let sole = self.sole.take()?;
        self.len = 0;
        Some(sole.lock)
    }

    /// Takes the only lock away, which is of `owner`.
    #[inline]
    fn remove_sole(&mut self, owner: Owner, quota: &Quota) {
        (self.len, self.sole) = (0, None);
        quota.release(owner, 1);
    }

    /// [`release`](Self::release), when there are or were several locks.
    #[inline(never)]
    fn release_among(&mut self, owner: Owner, quota: &Quota) -> Option<Range> {
        let mut own = self.owners.remove(owner)?;
        let records = own.locks.len();
        let mut hull: Option<Range> = None;
        let _ = own.locks.visit_all(|held| {
            let range = held.lock.range;
            hull = Some(hull.map_or(range, |hull| hull.hull(range)));
            remove_placed(&mut self.by_start, held);
            Continue::<()>(())
        });
        own.locks.clear();
        self.spare_locks = own.locks;
        self.removed(records);
        quota.release(owner, records);
        hull
    }

    /// Drops all locks.
    pub(crate) fn clear(&mut self, quota: &Quota) {
        let _ = self.visit_all(|held| {
            quota.release(held.lock.owner, 1);
            Continue::<()>(())
        });
        self.owners.clear();
        (self.len, self.sole, self.by_start) = (0, None, None);
    }

    /// Gives `range` of `owner` a new lock (kind and pid), or none. Returns whether that gave up protection that
    /// others may have waited for.
    #[inline]
    fn replace(
        &mut self,
        owner: Owner,
        range: Range,
        new: Option<(Kind, i32)>,
        quota: &Quota,
    ) -> Result<bool, LockError> {
        // The common case: the only lock of the file comes or goes.
        match (&self.sole, new) {
            (None, Some((kind, pid))) if self.is_empty() => {
                quota.reserve(owner, 1)?;
                self.put_sole(RangeLock { owner, pid, kind, range });
                Ok(false)
            }
            (Some(sole), None) if sole.lock.owner == owner && range.contains(sole.lock.range) => {
                self.remove_sole(owner, quota);
                Ok(true)
            }
            _ => self.replace_among(owner, range, new, quota),
        }
    }

    /// The variant of [`replace`](Self::replace) for a file with other locks, or with parts of locks that stay.
    #[inline(never)]
    fn replace_among(
        &mut self,
        owner: Owner,
        range: Range,
        new: Option<(Kind, i32)>,
        quota: &Quota,
    ) -> Result<bool, LockError> {
        let (mut first, mut is_alone, mut age) = (None, true, None);
        let _ = self.visit_concerned(owner, range, new, &mut age, |held| match first {
            None => {
                first = Some(*held);
                Continue(())
            }
            Some(_) => {
                is_alone = false;
                Break(())
            }
        });
        // The common cases: a first lock, a lock that exists already, and the end of a lock.
        match (first, new) {
            (None, None) => Ok(false),
            (None, Some((kind, pid))) => {
                quota.reserve(owner, 1)?;
                let age = self.age_of_owner(age);
                self.insert(HeldRange { lock: RangeLock { owner, pid, kind, range }, age });
                Ok(false)
            }
            (Some(held), Some((kind, _))) if held.lock.kind == kind && held.lock.range.contains(range) => {
                Ok(false)
            }
            (Some(held), None) if is_alone && range.contains(held.lock.range) => {
                self.remove(&held);
                quota.release(owner, 1);
                Ok(true)
            }
            _ => self.rewrite(owner, range, new, quota),
        }
    }

    /// Shows `visit` the locks of `owner` that a new one on `range`, or none, replaces or merges with, until it breaks.
    /// Tells the age of the owner, if it has locks.
    fn visit_concerned(
        &self,
        owner: Owner,
        range: Range,
        new: Option<(Kind, i32)>,
        age: &mut Option<u64>,
        mut visit: impl FnMut(&HeldRange) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.visit_own(owner, range, |held| {
            *age = Some(held.age);
            // A neighbour of the same kind merges. Offsets are at most i64::MAX: adding 1 cannot overflow.
            let margin = u64::from(new.is_some_and(|(kind, _)| held.lock.kind == kind));
            if held.lock.range.start() > range.end() + margin {
                return Break(());
            }
            if held.lock.range.end() + margin >= range.start() { visit(held) } else { Continue(()) }
        })
    }

    /// The age of an owner that has locks of this age, or none yet.
    fn age_of_owner(&mut self, known: Option<u64>) -> u64 {
        known.unwrap_or_else(|| {
            self.next_age += 1;
            self.next_age
        })
    }

    /// [`replace`](Self::replace), when locks are split, merged or converted.
    fn rewrite(
        &mut self,
        owner: Owner,
        range: Range,
        new: Option<(Kind, i32)>,
        quota: &Quota,
    ) -> Result<bool, LockError> {
        let mut old = mem::take(&mut self.spare);
        let mut age = None;
        let _ = self.visit_concerned(owner, range, new, &mut age, |held| {
            old.push(*held);
            Continue(())
        });

        let (mut left, mut right) = (None, None);
        let mut middle = range;
        let mut inherited = None;
        let mut gave_up = false;
        for HeldRange { lock, .. } in &old {
            if new.is_some_and(|(kind, _)| lock.kind == kind) {
                middle = middle.hull(lock.range);
                inherited.get_or_insert(lock.pid);
                continue;
            }
            gave_up |= new.is_none_or(|(kind, _)| (lock.kind, kind) == (Kind::Exclusive, Kind::Shared));
            let (before, after) = (lock.range.before(range), lock.range.after(range));
            if let (None, None, Some((_, pid))) = (before, after, new) {
                // The first lock replaced whole gives its place to the new one; a later merge keeps that pid.
                inherited.get_or_insert(pid);
            }
            left = left.or(before.map(|range| RangeLock { range, ..*lock }));
            right = after.map(|range| RangeLock { range, ..*lock });
        }
        let middle =
            new.map(|(kind, pid)| RangeLock { owner, pid: inherited.unwrap_or(pid), kind, range: middle });

        let pieces = [left, middle, right].into_iter().flatten();
        let (before, after) = (old.len(), pieces.clone().count());
        let reserved = quota.reserve(owner, after.saturating_sub(before));
        if reserved.is_ok() {
            let age = self.age_of_owner(age);
            old.iter().for_each(|held| self.remove(held));
            pieces.for_each(|lock| self.insert(HeldRange { lock, age }));
            quota.release(owner, before.saturating_sub(after));
        }
        self.keep_spare(old);
        reserved.map(|()| gave_up)
    }

    fn keep_spare(&mut self, mut spare: Vec<HeldRange>) {
        spare.clear();
        spare.shrink_to(FEW);
        self.spare = spare;
    }

    fn insert(&mut self, held: HeldRange) {
        self.len += 1;
        if self.len == 1 {
            self.sole = Some(held);
            return;
        }
        if let Some(sole) = self.sole.take() {
            self.insert_among(sole);
        }
        self.insert_among(held);
    }

    fn insert_among(&mut self, held: HeldRange) {
        let owner = held.lock.owner;
        match self.owners.get_mut(owner) {
            Some(own) => own.locks.insert(held),
            None => {
                let mut locks = mem::take(&mut self.spare_locks);
                locks.insert(held);
                self.owners.insert(OwnRanges { owner, locks });
            }
        }
        if let Some(trees) = &mut self.by_start {
            trees[held.lock.kind as usize].insert(Placed(held));
        } else if self.len > FEW {
            let mut trees = Box::<[Tree<Placed>; 2]>::default();
            let _ = self.visit_all(|held| {
                trees[held.lock.kind as usize].insert(Placed(*held));
                Continue::<()>(())
            });
            self.by_start = Some(trees);
        }
    }

    fn remove(&mut self, held: &HeldRange) {
        if self.sole.take().is_some() {
            self.len = 0;
            return;
        }
        let owner = held.lock.owner;
        let Some(own) = self.owners.get_mut(owner) else { return };
        own.locks.remove(held.key());
        if own.locks.is_empty()
            && let Some(own) = self.owners.remove(owner)
        {
            self.spare_locks = own.locks;
        }
        remove_placed(&mut self.by_start, held);
        self.removed(1);
    }

    /// Counts `records` locks less.
    fn removed(&mut self, records: usize) {
        self.len -= records;
        if self.len <= FEW / 2 {
            self.by_start = None;
        }
    }
}

/// Takes `held` out of the tree of its kind.
fn remove_placed(by_start: &mut Option<Box<[Tree<Placed>; 2]>>, held: &HeldRange) {
    if let Some(trees) = by_start {
        trees[held.lock.kind as usize].remove(Placed(*held).key());
    }
}
