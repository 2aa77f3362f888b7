//! Listing: every lock and every waiting request, as plain data.

use crate::file_state::FileState;
use crate::lease::{LeaseRequest, LeaseState, Promise};
use crate::space::LockSpace;
use crate::wait::WaiterPlace;
use crate::waiters::Waiters;
use crate::{Kind, LockDomain, Owner, Range, RangeLock, RangeRequest};
use std::collections::BTreeMap;

/// Which call made a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockClass {
    /// `fcntl(F_SETLK)`: owned by a process.
    Posix,
    /// `fcntl(F_OFD_SETLK)`: owned by an open file description.
    Ofd,
    /// `flock`.
    Flock,
    /// `fcntl(F_SETLEASE)`, or a call that breaks it.
    Lease(LeaseState),
    /// `fcntl(F_SETDELEG)`, likewise.
    Delegation(LeaseState),
}

/// A granted lock, or a request that waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockEntry {
    /// Unique within one listing.
    pub id: u64,
    /// Which call made it.
    pub class: LockClass,
    /// Shared or exclusive.
    pub kind: Kind,
    /// The process that made it; -1 for OFD locks.
    pub pid: i32,
    /// The device of the file, a Linux `dev_t`.
    pub dev: u64,
    /// The inode number of the file.
    pub ino: u64,
    /// Which bytes; [`Range::WHOLE`] for flock.
    pub range: Range,
    /// `None` for a granted lock. For a waiting request, the `id` of the first lock that blocks it; 0 if none does any
    /// more, and it is about to go on.
    pub waits_for: Option<u64>,
}

impl LockDomain {
    /// All granted locks, each followed by the requests that wait for it, file by file in the order of inode numbers.
    /// The ranges of one file, or its flocks, are listed as of one moment; the two kinds, and different files, are read
    /// one after the other.
    pub fn list(&self) -> Vec<LockEntry> {
        let mut entries = Vec::new();
        for file in self.live_files() {
            append(&file, &mut entries);
        }
        entries
    }
}

/// Appends the entries of `file`: each granted lock, then the requests that wait for it, oldest first.
fn append(file: &FileState, entries: &mut Vec<LockEntry>) {
    for space in file.spaces() {
        append_space(file, &space.lock(), entries);
    }
    append_leases(file, entries);
}

/// Appends the leases, then the calls that wait for them: shown below the first.
fn append_leases(file: &FileState, entries: &mut Vec<LockEntry>) {
    let first = entries.len() as u64 + 1;
    for (request, state) in file.leases.list() {
        let LeaseRequest { pid, kind, promise, .. } = request;
        let class = match promise {
            Promise::Lease => LockClass::Lease(state),
            Promise::Delegation => LockClass::Delegation(state),
        };
        let waits_for = (state == LeaseState::Breaker).then_some(first);
        let (id, dev, ino) = (entries.len() as u64 + 1, file.dev, file.ino);
        entries.push(LockEntry { id, class, kind, pid, dev, ino, range: Range::WHOLE, waits_for });
    }
}

/// Appends the granted locks of one space, each followed by the requests that wait for it: where several locks are in the
/// way, the first in search order counts; where none is, the starving request that is.
fn append_space(file: &FileState, space: &LockSpace, entries: &mut Vec<LockEntry>) {
    let entry = |id: usize, owner, kind, pid, range, waits_for| {
        let class = match owner {
            Owner::Description(_) if space.is_flock => LockClass::Flock,
            Owner::Description(_) => LockClass::Ofd,
            Owner::Process(_) => LockClass::Posix,
        };
        LockEntry { id: id as u64 + 1, class, kind, pid, dev: file.dev, ino: file.ino, range, waits_for }
    };
    let mut waiters: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for place in space.waiters().map(Waiters::all).unwrap_or_default() {
        let Some(request) = space.waiting(place) else { continue };
        let blocker = match space.granted.first_conflict(&request) {
            Some(lock) => Blocker::Lock(lock.owner, lock.range.start()),
            None => Blocker::Starving(space.starving_before(place)),
        };
        waiters.entry(blocker).or_default().push((place, request));
    }
    for (_, request) in waiters.remove(&Blocker::Starving(None)).into_iter().flatten() {
        let RangeRequest { owner, kind, pid, range } = request;
        entries.push(entry(entries.len(), owner, kind, pid, range, Some(0)));
    }
    for lock in space.granted.all() {
        let RangeLock { owner, kind, pid, range } = lock;
        // Depth first: what waits for a waiter stands below it.
        let mut open: Vec<_> =
            waiters.remove(&Blocker::Lock(owner, range.start())).into_iter().flatten().rev().collect();
        let id = entries.len();
        entries.push(entry(id, owner, kind, pid, range, None));
        let mut parents = vec![id as u64 + 1; open.len()];
        while let (Some((place, request)), Some(parent)) = (open.pop(), parents.pop()) {
            let RangeRequest { owner, kind, pid, range } = request;
            let id = entries.len();
            entries.push(entry(id, owner, kind, pid, range, Some(parent)));
            let below = waiters.remove(&Blocker::Starving(Some(place))).into_iter().flatten().rev();
            open.extend(below);
            parents.resize(open.len(), id as u64 + 1);
        }
    }
}

/// The lock or request that a waiting request waits for.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Blocker {
    /// The lock of this owner that begins there.
    Lock(Owner, u64),
    /// A starving request.
    Starving(Option<WaiterPlace>),
}
