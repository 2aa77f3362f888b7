//! Lock classes: the names of the mount's locks. Each but the relay's is a leaf.

use sluice_sync::LockClass;

pub(crate) static NODES: LockClass = LockClass::new("fuse.nodes");
pub(crate) static HANDLES: LockClass = LockClass::new("fuse.handles");
pub(crate) static CREW: LockClass = LockClass::new("fuse.crew");
pub(crate) static TURNS: LockClass = LockClass::new("fuse.turns");
pub(crate) static SECOND_LOOKS: LockClass = LockClass::new("fuse.second_looks");
pub(crate) static PARKED: LockClass = LockClass::new("fuse.parked");
pub(crate) static LATE: LockClass = LockClass::new("fuse.late");
pub(crate) static PROGRESS: LockClass = LockClass::new("fuse.session.progress");
pub(crate) static CONTROL: LockClass = LockClass::new("fuse.session.control");
pub(crate) static SERVING: LockClass = LockClass::new("fuse.control.serving");
pub(crate) static DELEGATIONS: LockClass = LockClass::new("fuse.delegations");
pub(crate) static GIVEN_UP: LockClass = LockClass::new("fuse.given_up");
pub(crate) static COVERS: LockClass = LockClass::new("fuse.covers");
pub(crate) static AHEAD: LockClass = LockClass::new("fuse.ahead");
pub(crate) static ANNOUNCEMENT: LockClass = LockClass::new("fuse.announcement");
pub(crate) static HOLDS: LockClass = LockClass::new("fuse.holds");
pub(crate) static UNWANTED: LockClass = LockClass::new("fuse.unwanted");
pub(crate) static RELAY: LockClass = LockClass::new("relay.state");
pub(crate) static LEDGER: LockClass = LockClass::new("relay.ledger");
pub(crate) static READING: LockClass = LockClass::new("relay.reading");
pub(crate) static ANNOUNCER: LockClass = LockClass::new("fuse.announcer");
