//! Lock classes: the names of this crate's own mutexes, in the order in which a thread takes them. (A file's POSIX
//! ranges and its flock locks are lock classes of another kind: [`LockClass`](crate::LockClass).)

use sluice_sync::LockClass;

pub(crate) static DEADLOCK_SEARCH: LockClass = LockClass::new("locks.deadlock.search");
pub(crate) static FILE_RANGES: LockClass = LockClass::new("locks.file.ranges");
pub(crate) static FILE_FLOCKS: LockClass = LockClass::new("locks.file.flocks");
pub(crate) static FILE_LEASES: LockClass = LockClass::new("locks.file.leases");
pub(crate) static WAIT_TABLE: LockClass = LockClass::new("locks.wait_table");
pub(crate) static OWNER_LOCKS: LockClass = LockClass::new("locks.domain.owners");
pub(crate) static DOMAIN_FILES: LockClass = LockClass::new("locks.domain.files");
pub(crate) static CANCEL_TOKEN: LockClass = LockClass::new("locks.cancel.token");
pub(crate) static WAIT_SLOT: LockClass = LockClass::new("locks.wait.slot");
