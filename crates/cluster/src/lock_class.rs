//! Lock classes: the names of this crate's own mutexes.

use sluice_sync::LockClass;

pub(crate) static ROLE: LockClass = LockClass::new("cluster.role");
pub(crate) static NODES: LockClass = LockClass::new("cluster.nodes");
pub(crate) static TAKEOVER: LockClass = LockClass::new("cluster.takeover");
pub(crate) static CLOSING: LockClass = LockClass::new("cluster.closing");
pub(crate) static STANDING: LockClass = LockClass::new("cluster.standing");
pub(crate) static SEATS: LockClass = LockClass::new("cluster.seats");
pub(crate) static JOBS: LockClass = LockClass::new("cluster.jobs");
pub(crate) static NOTICES: LockClass = LockClass::new("cluster.notices");
pub(crate) static LINK: LockClass = LockClass::new("cluster.link");

pub(crate) static READING: LockClass = LockClass::new("relay.reading");
pub(crate) static RELAY: LockClass = LockClass::new("relay.state");
pub(crate) static LEDGER: LockClass = LockClass::new("relay.ledger");
pub(crate) static ANNOUNCER: LockClass = LockClass::new("relay.announcer");
pub(crate) static DROPPING: LockClass = LockClass::new("relay.dropping");
pub(crate) static WORKSPACES: LockClass = LockClass::new("relay.workspaces");
pub(crate) static CONTROL: LockClass = LockClass::new("relay.control");

pub(crate) static DELEGATIONS: LockClass = LockClass::new("guest.delegations");
pub(crate) static GIVEN_UP: LockClass = LockClass::new("guest.given_up");
pub(crate) static COVERS: LockClass = LockClass::new("guest.covers");
pub(crate) static AHEAD: LockClass = LockClass::new("guest.ahead");
pub(crate) static ANNOUNCEMENT: LockClass = LockClass::new("guest.announcement");
pub(crate) static HOLDS: LockClass = LockClass::new("guest.holds");
pub(crate) static UNWANTED: LockClass = LockClass::new("guest.unwanted");
