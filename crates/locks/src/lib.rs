//! `sluice-locks`: advisory file locks (POSIX byte ranges, OFD locks, flock) and leases with the rules of Linux.
//!
//! # Theory
//! A [`FileLocks`] is the lock state of one inode. It has two independent spaces: byte ranges, in which
//! POSIX locks (owned by a process) and OFD locks (owned by an open file description) exclude each other,
//! and flock, which is the same with whole files only. Each space has granted locks and waiting requests:
//!
//! ```text
//!   LockDomain ──── list of files, per CPU    (for listing)
//!      │      └──── wait table, by process    (for EDEADLK)
//!      │
//!   FileLocks ┬──── ranges ┬── granted: by owner; beyond a few, interval trees by kind
//!   (an inode)│            └── waiters: interval tree of ranges, a queue for each kind
//!             └──── flock ─┴── likewise
//! ```
//!
//! A request is granted at once if no lock of another owner conflicts with it, even past waiters, as on Linux.
//! Otherwise it fails, or waits. A call that frees bytes *settles* the space before it unlocks the file. It looks at
//! the requests that wait for these bytes, oldest first, and lets those go on that have no conflict left. A request
//! with a completion is granted on the spot. A thread or task is woken, alone, to take the lock itself (`space`).
//!
//! No request starves: a waiting request is bypassed, by owners that were not in its way already, at most
//! [`BYPASS_MAX`] times while it is the oldest of those in conflict; then later requests wait behind it (`waiters`).
//!
//! A [`LockDomain`] joins the files of one process namespace. POSIX locks can deadlock across files: while a
//! request of process P waits for a lock that Q holds, P waits for Q, and a request that closes a cycle ends with
//! [`LockError::Deadlock`], be it a new one or an old one that a grant to somebody else made worse. Owners are
//! processes: as POSIX and Linux have it, a cycle of owners is a deadlock although another thread of one of them
//! might still unlock. OFD and flock requests take no part, as on Linux (`deadlock`); a client to which all owners are
//! numbers says with [`Detection`] which requests are such.
//!
//! A request waits in one of three ways: a thread sleeps until it is decided, a [`Cancel`] token is used or time is
//! over ([`FileLocks::set_range_wait`]); a completion is called ([`FileLocks::submit_range`]); a future is polled
//! ([`FileLocks::lock_range`]).
//!
//! Leases stand apart: they make no lock request wait. A call that opens or changes the file tells the holder of the
//! lease, and waits until the holder gave it up (`lease`).
//!
//! # Clients must
//! - call [`FileLocks::release_owner`] for the process at *every* close of the file by that process (POSIX),
//!   and for the description, with [`FileLocks::release_flock`], at its last close;
//! - cancel the waits of an owner that dies, then release what it holds;
//! - keep owner numbers unique within a domain for as long as the owner holds or awaits a lock;
//! - not panic in a completion. A completion may call this crate; it runs nested in the call that released.
//!
//! # Then
//! - two conflicting locks of different owners are never granted together;
//! - a completion runs exactly once, with no lock of this crate held, unless its ticket was cancelled;
//! - an unsuccessful call changes nothing, with flock's one exception: a conversion gives up the old lock first.
//!
//! # Lock order
//! `WaitTable::searching`, then a space of a file, then a shard of the wait table. Only a search for a deadlock
//! takes the first, and only it locks several spaces together. The list of files, the counts of owners, a [`Cancel`]
//! token and the slot of a sleeping thread are leaves: nothing is locked under them.
//!
//! # Invariants
//! - I1 Within one owner, ranges are ascending and disjoint, and neighbours of one kind are merged.
//! - I2 No waiter could be granted (when the file is unlocked): in the way of each is a lock, a starving request, or one
//!   that was called; those that were called themselves are about to come.
//! - I3 When all calls have returned, no cycle of processes wait for each other's locks.
//!
//! # Cost
//! A file's only lock comes by one exchange and goes by one (`sole`). Any other request that neither blocks nor meets
//! waiters locks the file's space of its kind. Neither touches anything shared between
//! files: no line of another file or of the other space is written; a limit on their number is counted per CPU (one on each
//! owner's in a shard of owners). With n locks in the file it takes
//! O(log n) steps, and with few no allocation. A release looks at the first waiter of each queue that wants what was
//! set free, and at one more for each that it grants.
//!
//! # Example
//! ```
//! use sluice_locks::{Cancel, DomainOptions, FileLocks, Kind, LockDomain, LockError, Owner, Range, RangeRequest};
//!
//! let domain = LockDomain::new(DomainOptions::default());
//! let file = FileLocks::new(&domain, 0x802, 5678);
//! let mine = RangeRequest {
//!     owner: Owner::Process(1),
//!     pid: 1234,
//!     kind: Kind::Exclusive,
//!     range: Range::from_flock(0, 100, 50)?,
//! };
//! file.set_range_wait(&mine, &Cancel::never())?;
//!
//! let yours = RangeRequest { owner: Owner::Process(2), pid: 4321, ..mine };
//! assert_eq!(file.set_range(&yours), Err(LockError::WouldBlock));
//! assert_eq!(file.test_range(&yours).map(|lock| lock.pid), Some(1234));
//!
//! // Process 1 closes the file.
//! file.release_owner(Owner::Process(1));
//! file.set_range(&yours)?;
//! assert_eq!(
//!     sluice_locks::proc_locks(&domain.list()),
//!     "1: POSIX  ADVISORY  WRITE 4321 08:02:5678 100 149\n"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Sources
//! POSIX.1-2024 `fcntl`; Linux `fcntl(2)`, `flock(2)`, `proc_locks(5)`, and the behaviour of `fs/locks.c`.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod cancel;
mod deadlock;
mod domain;
mod error;
mod file;
mod file_state;
mod future;
mod interval_tree;
mod lease;
mod list;
mod lock_class;
mod outcomes;
mod proc_locks;
mod quota;
mod range;
mod ranges;
mod request;
mod shards;
mod sole;
mod space;
mod statistics;
#[cfg(test)]
mod tests;
mod wait;
mod wait_table;
mod waiters;

pub use cancel::Cancel;
pub use domain::{BYPASS_MAX, DomainOptions, LEASE_BREAK, LockDomain};
pub use error::LockError;
pub use file::FileLocks;
pub use future::LockFuture;
pub use lease::{Breaker, Breaking, LeaseBreak, LeaseRequest, LeaseState, Notice, Promise};
pub use list::{LockClass, LockEntry};
pub use proc_locks::proc_locks;
pub use range::{Range, RangeError};
pub use request::{Kind, Owner, RangeLock, RangeRequest};
pub use statistics::FileStatistics;
pub use wait::{Detection, Done, Submitted, Ticket};
