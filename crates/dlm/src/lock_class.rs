//! Lock classes: the names of this crate's own mutexes, in the order in which a thread takes them.

use sluice_sync::LockClass;

pub(crate) static CLUSTER: LockClass = LockClass::new("dlm.cluster");
pub(crate) static SHARD: LockClass = LockClass::new("dlm.shard");
pub(crate) static LOCAL: LockClass = LockClass::new("dlm.local");
pub(crate) static RESOURCE: LockClass = LockClass::new("dlm.resource");
pub(crate) static WAIT: LockClass = LockClass::new("dlm.wait");
pub(crate) static PARTIES: LockClass = LockClass::new("dlm.parties");
pub(crate) static DELIVERY: LockClass = LockClass::new("dlm.delivery");
pub(crate) static PEERS: LockClass = LockClass::new("dlm.peers");
pub(crate) static PEER: LockClass = LockClass::new("dlm.peer");
pub(crate) static WISHES: LockClass = LockClass::new("dlm.wishes");
