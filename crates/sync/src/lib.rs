//! `sluice-sync`: the one place where sluicefs touches atomics, locks, threads, time and CPU numbers.
//!
//! # Theory
//! Code above this crate never names `std::sync`, `std::thread` or `thread_local!`. It takes what it needs
//! from here. The same source is compiled against three [`face`]s: native atomics and Linux, the model
//! checker loom, and the simulated multiprocessor; the switch is made once, at the bottom, by twin packages.
//!
//! # Differences from `std`
//! Locks do not poison. A panic inside a critical section is a bug that the caller's tests must find; a
//! file system that answers every later call with a second panic would only spread it.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod brlock;
#[allow(unsafe_code)]
mod chains;
#[allow(unsafe_code)]
mod combining;
mod condvar;
mod fibonacci;
mod gap;
#[allow(unsafe_code)]
mod mutex;
mod readers;
#[allow(unsafe_code)]
mod rwlock;
mod spin_policy;
mod spinner;
mod wait_queue;

pub mod face;
#[allow(unsafe_code)]
pub mod hash_table;
pub mod lock_debug;
pub mod memory;
#[allow(unsafe_code)]
pub mod name_table;
#[allow(unsafe_code)]
pub mod owner_lock;
pub mod percpu;
#[allow(unsafe_code)]
pub mod radix;
pub mod range_lock;
pub mod rcu;
#[allow(unsafe_code)]
pub mod refcache;
pub mod rwsem;
pub mod seq_bytes;
pub mod seqcount;
pub mod seqlock;
pub mod spin;
pub mod time;

pub use brlock::{BrLock, BrReadGuard, BrWriteGuard};
pub use combining::CombiningLock;
pub use condvar::Condvar;
#[cfg(not(feature = "loom"))]
pub use face::{Arc, Barrier, LazyLock, OnceLock, Weak};
pub use face::{CACHE_LINE, CachePadded, SlotTable, atomic, cpu, thread};
pub use fibonacci::fibonacci;
pub use gap::Gap;
pub use hash_table::HashTable;
pub use lock_debug::LockClass;
pub use mutex::{Mutex, MutexGuard};
pub use name_table::NameTable;
pub use radix::RadixTree;
pub use range_lock::{RangeGuard, RangeLock};
pub use refcache::{Ref, RefSlot};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use seq_bytes::{LockedBytes, SeqBytes};
pub use seqcount::SeqCount;
pub use seqlock::SeqLock;

/// Channels for handing values from one thread to another.
#[cfg(not(feature = "loom"))]
pub mod mpsc {
    pub use std::sync::mpsc::{
        Receiver, RecvError, RecvTimeoutError, SendError, Sender, SyncSender, TryRecvError, channel,
        sync_channel,
    };
}
