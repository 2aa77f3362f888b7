//! Listing: every lock and every waiting request, as plain data.

use crate::file::{FileState, Spaces};
use crate::request::Flock;
use crate::{Kind, Owner, Range};

/// Which call made a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockClass {
    /// `fcntl(F_SETLK)`: owned by a process.
    Posix,
    /// `fcntl(F_OFD_SETLK)`: owned by an open file description.
    Ofd,
    /// `flock`.
    Flock,
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
    /// `None` for a granted lock. For a waiting request, the `id` of the first lock that blocks it.
    pub waits_for: Option<u64>,
}

/// Appends the entries of `file`: each granted lock, then the requests that wait for it, oldest first.
pub(crate) fn append(file: &FileState, entries: &mut Vec<LockEntry>) {
    let entry = |class, kind, pid, range| LockEntry {
        id: 0,
        class,
        kind,
        pid,
        dev: file.dev,
        ino: file.ino,
        range,
        waits_for: None,
    };
    let range_entry = |owner, kind, pid, range| {
        let class = match owner {
            Owner::Process(_) => LockClass::Posix,
            Owner::Description(_) => LockClass::Ofd,
        };
        entry(class, kind, pid, range)
    };
    let flock_entry = |flock: &Flock| entry(LockClass::Flock, flock.kind, flock.pid, Range::WHOLE);

    let spaces = file.spaces.lock();
    let Spaces { ranges, flocks } = &*spaces;
    append_space(
        ranges.granted.iter().map(|lock| (lock, range_entry(lock.owner, lock.kind, lock.pid, lock.range))),
        ranges.waiting().map(|request| {
            let entry = range_entry(request.owner, request.kind, request.pid, request.range);
            (ranges.granted.conflicts(request).next(), entry)
        }),
        entries,
    );
    append_space(
        flocks.granted.iter().map(|flock| (*flock, flock_entry(flock))),
        flocks
            .waiting()
            .map(|request| (flocks.granted.conflicts(request).next().copied(), flock_entry(request))),
        entries,
    );
}

/// Appends the granted locks of one space, each followed by those of `waiting` that name it as their blocker.
fn append_space<L: PartialEq>(
    granted: impl Iterator<Item = (L, LockEntry)>,
    waiting: impl Iterator<Item = (Option<L>, LockEntry)>,
    entries: &mut Vec<LockEntry>,
) {
    let waiting: Vec<_> = waiting.collect();
    for (lock, entry) in granted {
        let id = next_id(entries);
        entries.push(LockEntry { id, ..entry });
        for (_, waiter) in waiting.iter().filter(|(blocker, _)| blocker.as_ref() == Some(&lock)) {
            let waiter = LockEntry { id: next_id(entries), waits_for: Some(id), ..*waiter };
            entries.push(waiter);
        }
    }
}

fn next_id(entries: &[LockEntry]) -> u64 {
    entries.len() as u64 + 1
}
