//! `sluice-dlm`: locks between machines that cost a microsecond when nobody else wants them.
//!
//! # Theory
//! A *resource* is a name that nodes agree on. It is locked in one of six [`Mode`]s, as a whole or in part. Each resource belongs
//! to a *shard*, and each shard has one *master*, a node that knows the holders of its locks and the requests that wait:
//!
//! ```text
//!    node A                                 node B: master of the shard          node C
//!    lock, unlock                                                                lock
//!      | cached: nobody is told                                                    |
//!      v                                                                           v
//!    [ word: mode, holders ] <---- Revoke (and: hand it to C) ---- [ queue ] <-- Request
//!      |                                                               ^
//!      +--- Grant, straight to C ------------------------------------- | --------> C has it
//!      +--- Release, to the master ------------------------------------+
//! ```
//!
//! A lock that was granted stays *cached* on its node until another node wants it. Then it is used for a short while more
//! (the *minimum hold*), so that nodes that fight for a lock pass it on a few hundred times a second and not for each use.
//! Messages go only to nodes concerned: how many nodes there are does not matter.
//!
//! A membership that all nodes trust ([`sluice_membership`]) names the members and the master of each shard, with leases. A node that cannot
//! renew its lease stops by itself before the membership calls it dead, and the locks of the dead are free only when
//! nothing that they did can still take effect (the *fence*). A shard that gets a new master gets a new *epoch*;
//! messages of others count for nothing. A master's state survives as the holdings of the other nodes, which report
//! them to the next master.
//!
//! [`Node`] is all of this without threads, clocks or sockets; `tests/simulation` runs it on a network of all faults.
//!
//! # Example
//! Two nodes of one program. Between machines the membership is an [`Etcd`](sluice_membership::Etcd), and each node has an
//! identity of one [`ClusterCa`](sluice_membership::ClusterCa).
//!
//! ```
//! use sluice_dlm::{Config, Dlm, Mode, Want};
//! use sluice_membership::{ClusterCa, InMemory};
//! use std::{error::Error, sync::Arc, time::Duration};
//!
//! # fn main() -> Result<(), Box<dyn Error>> {
//! let (ca, membership) = (ClusterCa::new()?, Arc::new(InMemory::new(8, Duration::from_secs(60))));
//! let join = || Dlm::join_now(Config::local("example", ca.issue()?, membership.clone()));
//! let (one, two) = (join()?, join()?);
//!
//! // One node writes the value block of a resource under an exclusive lock.
//! let guard = one.lock("leader", Mode::Ex).wait()?;
//! guard.set_value(b"one")?;
//! let token = guard.token().ok_or("a member")?;
//! assert!(two.lock_wait(&two.key("leader")?, &Want::now(Mode::Pr), None).is_err());
//! drop(guard);
//!
//! // The other reads it, under a later token. Both may now read it as often as they like without a message.
//! let guard = two.lock("leader", Mode::Ex).wait()?;
//! assert_eq!(&*guard.value().ok_or("it was set")?.bytes, b"one");
//! assert!(guard.token() > Some(token));
//! # Ok(())
//! # }
//! ```
//!
//! # Clients must
//! See [`Node`].
//!
//! # Limits
//! Deadlocks are looked for among the requests of a [`LockParty`], in circles of at most 64. Outside parties, the only
//! search is for two conversions of one lock, and may find a deadlock where none exists: use time limits. A value lives
//! as long as some node has a lock on its resource, be it NL, or has it cached.
//!
//! # Sources
//! Kronenberg, Levy and Strecker, "VAXclusters" (1986): modes, queues, value blocks. Gray and Cheriton, "Leases" (1989). Burrows,
//! "The Chubby lock service" (2006): sequencers, here tokens. Chandy, Misra and Haas, "Distributed deadlock detection" (1983). The kernel's fs/dlm and fs/ocfs2/dlm: what to do otherwise.

#![forbid(unsafe_code)]

mod dlm;
mod error;
mod grants;
mod local;
mod lock_class;
mod message;
mod mode;
mod mutant;
mod name;
mod node;
mod peer;
mod probe;
mod queue;
mod session;
mod status_text;
mod wait;
mod wire;
mod word;

pub use dlm::{Config, Dlm, Fence, Guard, LockFuture, ask_status, ask_status_at};
pub use error::LockError;
pub use local::Notice;
pub use message::{Answer, Body, Message, Next, Token, Value};
pub use mode::Mode;
#[doc(hidden)]
pub use mutant::Mutant;
pub use name::{Key, Name, Range};
pub use node::{
    Count, Effects, Held, LockStatus, Masters, Node, NodeStatus, Options, ResourceStatus, Statistics,
    Submitted, Ticket, Want,
};
pub use probe::{LockParty, Probe, ProbeStep, RequestBefore, WaitId};
pub use session::{Invalid, Packet, Session};
pub use wait::Outcome;
pub use wire::{FRAME_MAX, decode, encode};

/// The longest name of a resource, in bytes.
pub const NAME_MAX: usize = 255;
/// The longest value block, in bytes.
pub const VALUE_MAX: usize = 1024;
