//! `sluice-cluster`: one file system on several machines.
//!
//! # Theory
//! One node at a time is the *owner*: it has the store open and executes every operation. Every node, the owner too, has a mount
//! whose requests a [`Relay`] reads: the owner's go to a guest in its own process, those of the others by
//! connection to a guest at the owner.
//!
//! ```text
//!    node A: owner                                      node B
//!    kernel -- relay -- guest --+                       kernel -- relay
//!                               +-- file system -- store            |
//!                       guest --+                                   |
//!                         +------------ requests, answers, notices -+
//! ```
//!
//! *Coherence* is that of guests: kernels cache without a time limit, each change is announced, and the call that made
//! it returns when all have been told. The owner waits for a guest that cannot be told until the guest's lease is over;
//! by then the guest has dropped its kernel's caches.
//!
//! *Leases.* There are two. A node renews its lease with the membership; an owner that cannot stops serving before that calls it
//! dead. A guest's node renews by pings what it may cache: after [`cache_lease`] without an answer it drops it. The owner takes the
//! node for gone later, after the whole lease.
//!
//! *Takeover.* When the owner dies the membership lets another claim its place. It opens the store, waits until the other living
//! members have told what their kernels hold (the *grace* period), and serves. The tree is what was durable; a request that was
//! under way is sent again; one that was executed, as the store says, is answered and not executed again.
//!
//! *Workspaces.* A mount may have several file systems, each below a directory of another: then all of this is there once for each, and one
//! thread that reads the kernel's requests gives each to the relay of its workspace. See `relay/workspaces.rs`, `node/workspaces.rs`.
//!
//! # Code map
//! ```text
//!   node         a node: what it is now, how it becomes the owner or finds it      seeking, connect, closing, trouble
//!     owner        the owner's side: its guests, its store, leases       seat  the mount of another node there
//!     relay        a mount whose requests go elsewhere: what its kernel holds, what it answers itself
//!     guest        the other end: a mount whose requests come from elsewhere, and what waits until all kernels are told
//!     wire         what nodes say to each other                           link  a connection
//!   rendezvous   where nodes find each other      setup  a cluster's directory      status  what it tells people
//! ```
//! `fuse/src/internal.rs` lists the names of `fuse` that `guest` and `relay` use: the kernel's messages, the handler, the device.
//!
//! # Limits
//! One owner executes everything in a workspace: a change at another node costs a round trip, and more nodes do not make it faster. See
//! `docs/cluster.md`.
//!
//! # Lock order
//! ```text
//! cluster.role                  what the node does now; held across no I/O but attaching
//!   cluster.takeover            how long the last takeover took; a leaf
//! cluster.closing               stores that are let go
//! cluster.standing              whose locks nobody else can have had; held while the store makes that durable
//!   cluster.seats               the owner's guests
//!     cluster.jobs              requests that wait for a worker
//!         relay.reading         a relay's request is awaited and handed on: see `relay`
//!           relay.state         what its kernel waits for
//!             relay.workspaces  the relays of a mount, and where their junctions are
//!               relay.ledger    what it holds
//!                 guest         each of a guest's own: a leaf
//!           cluster.nodes       the workspaces of a node; a leaf
//! cluster.notices               what a guest's kernel is being told; never held while one is dropped
//!   cluster.link                what is queued for a connection; a leaf, taken also by a thread that has the turn to write
//! ```

#![forbid(unsafe_code)]

mod guest;
mod link;
mod lock_class;
mod node;
mod owner;
mod relay;
mod rendezvous;
mod seat;
mod setup;
mod status;
mod wire;

pub use guest::{Guest, GuestChannel, Holdings, Host, Lost, Notice, Ticket};
pub use node::{Config, LOST_CHANGES, Node, Open, WorkspaceStores, ask_stat, ask_status};
pub use relay::{Device, Relay, RelayCounts, RestoredGuest, Server, Uplink};
pub use rendezvous::Rendezvous;
pub use setup::Cluster;
pub use status::{Role, Status, Takeover, WorkspaceStatus};
pub use wire::{Frame, decode, encode};

use sluice_sync::time::Duration;

/// For how long a node may use what its kernel has cached, after the owner last heard from it.
pub fn cache_lease(ttl: Duration) -> Duration {
    ttl * 5 / 8
}
