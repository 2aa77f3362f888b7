//! `sluice-locks`: advisory file locks (POSIX byte ranges, OFD locks, flock) with the rules of Linux.
//!
//! # Theory
//! A [`FileLocks`] is the lock state of one inode. It has two independent spaces: byte ranges, in which
//! POSIX locks (owned by a process) and OFD locks (owned by an open file description) exclude each other,
//! and flock, which knows only whole files. Each space is a set of granted locks and a queue of waiters:
//!
//! ```text
//!   LockDomain ──── registry of files        (for listing)
//!      │      └──── wait-for graph           (for EDEADLK)
//!      │
//!   FileLocks ┬──── ranges: granted, by owner, ascending │ waiters, oldest first
//!   (an inode)└──── flock:  granted, oldest first        │ waiters, oldest first
//! ```
//!
//! A request looks only at granted locks. If none of another owner conflicts it is granted at once, even
//! past waiters, as on Linux; otherwise it fails, or joins the queue. Whatever changes the granted set then
//! *settles* the queue before it lets go of the file: waiters are examined oldest first, and each that no
//! granted lock blocks any more is granted on the spot. The lock is handed over; nobody is woken to try again.
//!
//! A [`LockDomain`] joins the files of one process namespace. POSIX locks can deadlock across files, so the
//! domain keeps one wait-for graph: owner P points at owner Q while a request of P waits for a lock that Q
//! holds. A wait that would close a cycle ends with [`LockError::Deadlock`], be it a new wait or an old one
//! that a grant to somebody else made worse. Owners are processes: as POSIX and Linux have it, a cycle of
//! owners is a deadlock although another thread of one of them might still unlock. OFD and flock requests
//! take no part, as on Linux.
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
//! file state (`FileState`), then wait-for graph. The registry of the domain, a [`Cancel`] token and the slot
//! of a sleeping thread are leaves: nothing is locked under them. No two files are ever locked together.
//!
//! # Invariants
//! - I1 Within one owner, ranges are ascending and disjoint, and neighbours of one kind are merged.
//! - I2 No waiter could be granted: something granted to another owner blocks each (when the file is unlocked).
//! - I3 The graph has exactly the edges that the queues of all unlocked files imply, and no cycle.
//!
//! Why I3 gives exact answers: a file's edges change only while that file is locked, and are brought up to
//! date before it is unlocked, so nobody sees a lock without its edges. Check and insertion of a wait are one
//! critical section of the graph, so of two requests that close a cycle together the second one sees the first.
//!
//! # Cost
//! A request that neither blocks nor meets waiters locks the file's own state, and nothing shared between
//! files (a limit on the number of locks adds one counter). It costs one binary search per owner with a lock
//! in the file. A release costs one such look per waiter of that file.
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

mod cancel;
mod deadlock;
mod domain;
mod error;
mod file;
mod interval_tree;
mod list;
mod proc_locks;
mod range;
mod ranges;
mod request;
mod space;
mod statistics;
#[cfg(test)]
mod tests;
mod wait;
mod wait_table;
mod waiters;

pub use cancel::Cancel;
pub use domain::{BYPASS_MAX, DomainOptions, LockDomain};
pub use error::LockError;
pub use file::FileLocks;
pub use list::{LockClass, LockEntry};
pub use proc_locks::proc_locks;
pub use range::{Range, RangeError};
pub use request::{Kind, Owner, RangeLock, RangeRequest};
pub use statistics::FileStatistics;
pub use wait::{Done, Submitted, Ticket};
