//! Internal: what a crate of this workspace uses that serves a kernel which is not its own, or reads a device for another server
//! (`sluice-cluster`). No part of the public interface: it changes without notice.

pub use crate::calling_process::CallingProcess;
pub use crate::coherence::Coherence;
pub use crate::connection::{Answer, Connection, Served};
pub use crate::counters::Counters;
pub use crate::event::{Event, Serving, is_worker};
pub use crate::handler::again::{Again, again};
pub use crate::handler::caller::NOT_TOLD;
pub use crate::handler::locks::set_again as set_lock_again;
pub use crate::handler::turns::Releasing;
pub use crate::handler::{FOREVER, attr_of};
pub use crate::handles::{Handles, Witness, may_map};
pub use crate::marks::{NO_ATIME, SYNCHRONOUS, is_noted};
pub use crate::nodes::{Believed, Nodes};
pub use crate::notify::prune_messages;
pub use crate::reply::{Reply, Seek};
pub use crate::request::{Forgets, Malformed, Operation, Request, request_bytes};
pub use crate::session::Stopping;
pub use crate::transport::Channel;
pub use crate::transport::crew::{Crew, Member};
pub use crate::transport::dev_fuse::{DevFuse, HEADROOM};
pub use crate::transport::policy::give_way;

/// The kernel's protocol.
pub mod abi {
    pub use crate::abi::*;
}

/// Several file systems in one mount.
pub mod workspace {
    pub use crate::workspace::{NUMBER_MAX, WANTED, join, junction, of_junction, split};
}

/// Mounting and unmounting.
pub mod mount {
    pub use crate::mount::{check_checks, mount, mountpoint, unmount_everywhere};
}

/// The socket for questions about a mount.
pub mod control {
    pub use crate::control::order::read_line;
    pub use crate::control::server::{IsThere, Respond, Server, respond};
    pub use crate::control::stat::{of_file_system, of_mount, to_json};
}
