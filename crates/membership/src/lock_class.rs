//! Lock classes: the names of this crate's own mutexes, in the order in which a thread takes them.

use sluice_sync::LockClass;

pub(crate) static WRITING: LockClass = LockClass::new("membership.writing");
pub(crate) static TLS: LockClass = LockClass::new("membership.tls");
pub(crate) static REGISTRY: LockClass = LockClass::new("membership.registry");
pub(crate) static STRANGERS: LockClass = LockClass::new("membership.strangers");
