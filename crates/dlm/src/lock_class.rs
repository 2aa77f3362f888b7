//! Lock classes: the names of this crate's own mutexes, in the order in which a thread takes them.

use sluice_sync::LockClass;

pub(crate) static CLUSTER: LockClass = LockClass::new("dlm.cluster");
pub(crate) static SHARD: LockClass = LockClass::new("dlm.shard");
pub(crate) static LOCAL: LockClass = LockClass::new("dlm.local");
pub(crate) static RESOURCE: LockClass = LockClass::new("dlm.resource");
pub(crate) static WAIT: LockClass = LockClass::new("dlm.wait");
