//! Lock debugging: classes of locks by name, the order in which they are taken, and what waiting for them costs.
//!
//! # Theory
//! Every lock belongs to a *class*: the locks that play one part, as all the locks of directories' names do. A
//! class has the name that [`LockClass`] gives it, else the place where its locks are made. Two services watch
//! classes, not locks, so what one run saw of some locks holds for all of their class:
//!
//! - **Order.** Each thread keeps a stack of what it holds. Taking `B` while holding `A` is an edge `A -> B` of one
//!   graph. The first edge that closes a cycle is reported, with both stacks, though no thread may have
//!   waited yet: the threads of this run need not meet for the deadlock to be found.
//! - **Statistics.** How often locks of a class were taken and waited for, for how long, and from where.
//!
//! Locks that the order check covers:
//!
//! | taken | edge to it | why |
//! |---|---|---|
//! | exclusively, or for reading | yes | a reader waits behind a waiting writer here, so readers deadlock as writers do |
//! | for reading, by a thread that reads through the same big-reader lock | no | that never waits |
//! | by `try_...` | no | that never waits; what is taken while it is held gets its edges |
//! | a second lock of the same class | must have another level | `lock_nested(1)` says: by a rule, after level 0 |
//! | any number of one class, by `lock_under` | no | a common outer lock lets only one thread do so |
//! | any number of one class, by `lock_in_order` | no | they have an order, such as pages of a file |
//!
//! A sleeping lock taken under a spin lock is reported too. Reading under RCU is no lock: it never waits, and a reader
//! may sleep here. The bit locks of the hash table are leaves within one file and are not watched (those of the name
//! table, under which its clients take others, are), nor are combining locks, whose owner runs other threads' tasks.
//!
//! # Clients must
//! Give levels by a rule that orders the locks of a class among themselves (parent before child, lower inode number
//! first): the checker believes it.
//!
//! # Cost
//! Compiled out, locks and guards have the size that they have without, and no instruction is left. That is a release
//! build without the feature `lock-debug`. (An index of classes beside locks that know nothing of theirs was the
//! alternative: it would need a look-up by address at every acquisition, on lines that all CPUs share.) Compiled in but
//! switched off: one load of a byte that nobody writes. Switched on and uncontended: stores to the thread's own
//! lines only, without a locked instruction; statistics also read the clock twice and ask a contended lock once more.
//! On the simulated machine all of it is free and unseen, so that it cannot disturb what it watches; there it takes
//! the feature, as locks must keep their real layout. Under loom there is none.
//!
//! # Sources
//! The kernel's lockdep (Documentation/locking/lockdep-design.rst) and lock_stat.

mod ask;
mod class;
mod stats;

#[cfg(all(not(feature = "loom"), any(feature = "lock-debug", all(debug_assertions, not(feature = "sim")))))]
#[path = "on/mod.rs"]
mod services;
#[cfg(not(all(
    not(feature = "loom"),
    any(feature = "lock-debug", all(debug_assertions, not(feature = "sim")))
)))]
#[path = "off.rs"]
mod services;

pub use class::LockClass;
pub use services::{COMPILED_IN, check_order, collect_stats, lock_stats, observed_order, reset_lock_stats};
pub use stats::{ClassStats, SiteStats, Times, table};

/// Memory that a lock needs for its class: zero where lock checks are compiled out.
pub const BYTES_PER_LOCK: usize = size_of::<Watch>();

use std::fmt;

pub(crate) use ask::Ask;
pub(crate) use services::{Held, Watch};

/// The environment's name for the file to which every process with the order check appends each [`Dependency`] that it
/// sees for the first time: one a line, four words. So the order of many test programs can be looked at together.
pub const RECORD: &str = "SLUICE_LOCK_ORDER_RECORD";

/// That a lock was taken while another was held, once or more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// The class that was held.
    pub before: String,
    /// Its level, 0 unless it was taken by `..._nested`.
    pub before_level: u8,
    /// The class that was taken.
    pub after: String,
    /// Its level.
    pub after_level: u8,
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.before, self.before_level, self.after, self.after_level)
    }
}

impl Dependency {
    /// Parses a line of the [`RECORD`]; None if malformed.
    pub fn from_record(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut lock = || Some((words.next()?.to_owned(), words.next()?.parse().ok()?));
        let ((before, before_level), (after, after_level)) = (lock()?, lock()?);
        Some(Dependency { before, before_level, after, after_level })
    }
}
