//! `sluice-membership`: the members of a cluster, their leases, and the connections between them.
//!
//! A [`Membership`] that all nodes trust names the living nodes and, for each *shard*, one node that is its master. The clients
//! of this crate decide the meaning of a shard: a part of the locks, or a whole file system. Nodes know each other by certificates
//! ([`ClusterCa`], [`Identity`]) and exchange bytes over TLS ([`Secure`], [`Outbox`]).
//!
//! # Sources
//! Gray and Cheriton, "Leases" (1989). Burrows, "The Chubby lock service" (2006).

#![forbid(unsafe_code)]

mod clock;
mod etcd;
mod hello;
mod in_memory;
mod lease_directory;
mod lock_class;
mod membership;
mod outbox;
mod registry;
mod strangers;
mod tls;
mod view;
mod words;

pub use clock::now;
pub use etcd::{Etcd, EtcdAccess};
pub use hello::Hello;
pub use in_memory::InMemory;
pub use lease_directory::LeaseDirectory;
pub use membership::Membership;
pub use outbox::Outbox;
pub use registry::Registry;
pub use strangers::{bind, listen};
pub use tls::{ClusterCa, Identity, Secure};
pub use view::{Member, NodeId, Owner, ShardId, View};
