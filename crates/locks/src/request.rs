//! Requests: which owner asks for which lock, and what a granted lock looks like.

use crate::Range;

/// How a lock excludes others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A read lock (`F_RDLCK`, `LOCK_SH`): conflicts with exclusive locks.
    Shared,
    /// A write lock (`F_WRLCK`, `LOCK_EX`): conflicts with every lock.
    Exclusive,
}

impl Kind {
    /// True if two owners may not hold locks of these kinds on the same byte.
    pub const fn conflicts(self, other: Kind) -> bool {
        matches!(self, Kind::Exclusive) || matches!(other, Kind::Exclusive)
    }
}

/// The holder of a byte-range lock. An owner never conflicts with itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A process, for POSIX locks (`F_SETLK`). Takes part in deadlock detection.
    Process(u64),
    /// An open file description, for OFD locks (`F_OFD_SETLK`) and flock.
    Description(u64),
}

impl Owner {
    /// None comes after it.
    pub(crate) const LAST: Owner = Owner::Description(u64::MAX);

    /// The number that distinguishes the owner from others of its kind.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Owner::Process(number) | Owner::Description(number) => number,
        }
    }

    /// The process, if it is one.
    pub(crate) const fn process(self) -> Option<u64> {
        match self {
            Owner::Process(process) => Some(process),
            Owner::Description(_) => None,
        }
    }
}

/// A byte-range lock that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RangeRequest {
    /// The owner that asks.
    pub owner: Owner,
    /// The process number in F_GETLK (`l_pid`) and in listings; -1 for OFD locks.
    pub pid: i32,
    /// Shared or exclusive.
    pub kind: Kind,
    /// Which bytes.
    pub range: Range,
}

impl RangeRequest {
    /// True if it and a lock of `kind` that `owner` has on `range` exclude each other.
    pub(crate) fn conflicts_with(&self, owner: Owner, kind: Kind, range: Range) -> bool {
        self.owner != owner && self.kind.conflicts(kind) && self.range.overlaps(range)
    }
}

/// A byte-range lock that somebody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RangeLock {
    /// The owner that holds it.
    pub owner: Owner,
    /// The `pid` of the request. A merged lock keeps that of its lowest part, as on Linux.
    pub pid: i32,
    /// Shared or exclusive.
    pub kind: Kind,
    /// Which bytes.
    pub range: Range,
}
