//! Ranges: the granted byte-range locks of one file.
//!
//! # Theory
//! Each owner has its own ascending run of ranges (I1), so a change concerns one owner and is local: the
//! ranges that overlap the request, or touch it with the same kind, are replaced by at most three pieces.
//!
//! ```text
//!   held      [---- shared ----][-- excl. --]   [-- shared --]
//!   request          [====== exclusive ======]
//!   becomes   [shared][------ exclusive -----]  [-- shared --]
//! ```
//!
//! Owners stand in the order in which they got their first lock in the file. This is the order in which Linux
//! searches, thus the order that decides which of several conflicting locks F_GETLK reports.

use crate::domain::Quota;
use crate::queue::Granted;
use crate::{Kind, LockError, Owner, Range, RangeLock, RangeRequest};

/// All granted byte ranges of a file. *Protected by the file state.*
#[derive(Default)]
pub(crate) struct Ranges {
    /// Owners with at least one range, by age of their first.
    holders: Vec<Holder>,
}

struct Holder {
    owner: Owner,
    /// Ascending, disjoint, merged (I1). Never empty.
    held: Vec<Held>,
}

#[derive(Clone, Copy)]
struct Held {
    range: Range,
    kind: Kind,
    pid: i32,
}

impl Ranges {
    /// The locks of other owners that conflict with `request`, in search order.
    pub(crate) fn conflicts(&self, request: &RangeRequest) -> impl Iterator<Item = RangeLock> {
        let RangeRequest { owner, kind, range, .. } = *request;
        self.holders
            .iter()
            .filter(move |holder| holder.owner != owner)
            .flat_map(move |holder| holder.overlapping(range))
            .filter(move |lock| lock.kind.conflicts(kind))
    }

    /// The first lock of `owner` that overlaps `range`.
    pub(crate) fn first_of(&self, owner: Owner, range: Range) -> Option<RangeLock> {
        self.holders.iter().find(|holder| holder.owner == owner)?.overlapping(range).next()
    }

    /// All locks, in search order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = RangeLock> {
        self.holders.iter().flat_map(|holder| holder.overlapping(Range::WHOLE))
    }

    /// True if nobody holds a range.
    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Takes `range` away from `owner`. True if there was something to take.
    pub(crate) fn unlock(&mut self, owner: Owner, range: Range, quota: &Quota) -> Result<bool, LockError> {
        match self.holders.iter().position(|holder| holder.owner == owner) {
            Some(at) => self.replace(at, range, None, quota),
            None => Ok(false),
        }
    }

    /// Takes all ranges away from `owner`. True if there were any.
    pub(crate) fn release(&mut self, owner: Owner, quota: &Quota) -> bool {
        let Some(at) = self.holders.iter().position(|holder| holder.owner == owner) else { return false };
        quota.release(self.holders.remove(at).held.len());
        true
    }

    /// Gives `range` of the owner at `at` a new lock (kind and pid), or none. Returns whether that gave up
    /// protection that others may have waited for.
    fn replace(
        &mut self,
        at: usize,
        range: Range,
        new: Option<(Kind, i32)>,
        quota: &Quota,
    ) -> Result<bool, LockError> {
        let held = &mut self.holders[at].held;
        let mut first = held.partition_point(|lock| lock.range.end() < range.start());
        let mut last = held.partition_point(|lock| lock.range.start() <= range.end());
        let overlapping = first..last;

        // A neighbour of the same kind merges. Offsets are at most i64::MAX: adding 1 cannot overflow.
        let merges = |lock: &Held| new.is_some_and(|(kind, _)| lock.kind == kind);
        if first > 0 && merges(&held[first - 1]) && held[first - 1].range.end() + 1 == range.start() {
            first -= 1;
        }
        if last < held.len() && merges(&held[last]) && held[last].range.start() == range.end() + 1 {
            last += 1;
        }

        let (mut left, mut right) = (None, None);
        let mut middle = range;
        let mut inherited = None;
        let mut gave_up = false;
        for (index, lock) in held.iter().enumerate().take(last).skip(first) {
            if merges(lock) {
                middle = middle.hull(lock.range);
                inherited.get_or_insert(lock.pid);
                continue;
            }
            gave_up |= overlapping.contains(&index)
                && new.is_none_or(|(kind, _)| (lock.kind, kind) == (Kind::Exclusive, Kind::Shared));
            let (before, after) = (lock.range.before(range), lock.range.after(range));
            if let (None, None, Some((_, pid))) = (before, after, new) {
                // The first lock replaced whole gives its place to the new one; a later merge keeps that pid.
                inherited.get_or_insert(pid);
            }
            left = left.or(before.map(|range| Held { range, ..*lock }));
            right = after.map(|range| Held { range, ..*lock });
        }
        let middle = new.map(|(kind, pid)| Held { range: middle, kind, pid: inherited.unwrap_or(pid) });

        let pieces = [left, middle, right].into_iter().flatten();
        let (before, after) = (last - first, pieces.clone().count());
        quota.reserve(after.saturating_sub(before))?;
        held.splice(first..last, pieces);
        quota.release(before.saturating_sub(after));
        if held.is_empty() {
            self.holders.remove(at);
        }
        Ok(gave_up)
    }
}

impl Holder {
    fn overlapping(&self, range: Range) -> impl Iterator<Item = RangeLock> {
        let first = self.held.partition_point(|lock| lock.range.end() < range.start());
        self.held[first..]
            .iter()
            .take_while(move |lock| lock.range.start() <= range.end())
            .map(|&Held { range, kind, pid }| RangeLock { owner: self.owner, pid, kind, range })
    }
}

impl Granted for Ranges {
    type Request = RangeRequest;

    fn admits(&self, request: &RangeRequest) -> bool {
        self.conflicts(request).next().is_none()
    }

    fn take(&mut self, request: &RangeRequest, quota: &Quota) -> Result<bool, LockError> {
        let &RangeRequest { owner, pid, kind, range } = request;
        if let Some(at) = self.holders.iter().position(|holder| holder.owner == owner) {
            return self.replace(at, range, Some((kind, pid)), quota);
        }
        quota.reserve(1)?;
        self.holders.push(Holder { owner, held: vec![Held { range, kind, pid }] });
        Ok(false)
    }

    fn process(request: &RangeRequest) -> Option<u64> {
        match request.owner {
            Owner::Process(process) => Some(process),
            Owner::Description(_) => None,
        }
    }

    fn blockers(&self, request: &RangeRequest) -> Vec<u64> {
        let mut processes: Vec<u64> = self
            .conflicts(request)
            .filter_map(|lock| match lock.owner {
                Owner::Process(process) => Some(process),
                Owner::Description(_) => None,
            })
            .collect();
        processes.dedup();
        processes
    }

    fn clear(&mut self) -> usize {
        self.holders.drain(..).map(|holder| holder.held.len()).sum()
    }
}
