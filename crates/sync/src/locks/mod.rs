//! Locks: one thread at a time, several readers, or a few words read together; the waiting below them, and their checks.

#[allow(unsafe_code)]
mod brlock;
mod condvar;
#[allow(unsafe_code)]
mod inflatable;
pub mod lock_debug;
#[allow(unsafe_code)]
mod mutex;
#[allow(unsafe_code)]
pub mod owner_lock;
#[allow(unsafe_code)]
mod rwlock;
pub mod rwsem;
pub mod seq_bytes;
pub mod seqcount;
pub mod seqlock;
#[allow(unsafe_code)]
pub(crate) mod small_mutex;
pub mod spin;
pub(crate) mod spin_policy;
pub(crate) mod spinner;
pub(crate) mod wait_queue;

pub use brlock::{BrLock, BrReadGuard, BrWriteGuard};
pub use condvar::Condvar;
pub use inflatable::{Inflatable, Inflate, ShortGuard, WholeGuard};
pub use lock_debug::LockClass;
pub use mutex::{Mutex, MutexGuard};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use seq_bytes::{LockedBytes, SeqBytes, SharedBytes};
pub use seqcount::SeqCount;
pub use seqlock::SeqLock;
pub use small_mutex::{SmallMutex, SmallMutexGuard};
