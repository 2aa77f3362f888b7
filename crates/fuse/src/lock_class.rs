//! Lock classes: the names of the mount's locks. Each is a leaf.

use sluice_sync::LockClass;

pub(crate) static NODES: LockClass = LockClass::new("fuse.nodes");
pub(crate) static HANDLES: LockClass = LockClass::new("fuse.handles");
pub(crate) static CREW: LockClass = LockClass::new("fuse.crew");
pub(crate) static TURNS: LockClass = LockClass::new("fuse.turns");
pub(crate) static SECOND_LOOKS: LockClass = LockClass::new("fuse.second_looks");
pub(crate) static PARKED: LockClass = LockClass::new("fuse.parked");
pub(crate) static LOST: LockClass = LockClass::new("fuse.lost");
pub(crate) static LATE: LockClass = LockClass::new("fuse.late");
pub(crate) static PROGRESS: LockClass = LockClass::new("fuse.session.progress");
pub(crate) static CONTROL: LockClass = LockClass::new("fuse.session.control");
pub(crate) static SERVING: LockClass = LockClass::new("fuse.control.serving");
pub(crate) static ENDING: LockClass = LockClass::new("fuse.control.ending");
