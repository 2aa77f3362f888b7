//! Lock classes: the names of this crate's own mutexes.

use sluice_sync::LockClass;

pub(crate) static ROLE: LockClass = LockClass::new("cluster.role");
pub(crate) static TAKEOVER: LockClass = LockClass::new("cluster.takeover");
pub(crate) static CLOSING: LockClass = LockClass::new("cluster.closing");
pub(crate) static STANDING: LockClass = LockClass::new("cluster.standing");
pub(crate) static SEATS: LockClass = LockClass::new("cluster.seats");
pub(crate) static JOBS: LockClass = LockClass::new("cluster.jobs");
pub(crate) static NOTICES: LockClass = LockClass::new("cluster.notices");
pub(crate) static LINK: LockClass = LockClass::new("cluster.link");
