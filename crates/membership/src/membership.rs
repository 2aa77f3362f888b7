//! Membership: the members of the cluster, and the master of each shard.
//!
//! For several machines etcd keeps it ([`Etcd`](crate::Etcd)). The others keep a [`Registry`]: in the memory of one process ([`InMemory`](crate::InMemory), for
//! nodes of one process and for tests) or in a directory ([`LeaseDirectory`](crate::LeaseDirectory), for the processes of one machine).

use crate::clock::now;
use crate::registry::Registry;
use crate::view::{NodeId, ShardId, View};
use sluice_sync::time::Duration;
use std::io;

/// The registry of members and masters that all nodes trust.
///
/// # Then
/// - a member is called dead when its lease is over, by a clock that the one of its machine does not lag behind by more than the
///   margin that nodes take off their leases;
/// - a shard has at most one living master, and a greater epoch each time;
/// - the number of a node is the revision at which it joined.
pub trait Membership: Send + Sync {
    /// How long a lease lasts.
    fn ttl(&self) -> Duration;
    /// How many shards there are.
    fn shards(&self) -> u16;
    /// A new member, which can be reached at `address`.
    ///
    /// # Errors
    /// If the membership cannot be reached. An error of any call leaves its outcome unknown.
    fn join(&self, address: &str) -> io::Result<NodeId>;
    /// Prolongs a lease. False if it is over.
    ///
    /// # Errors
    /// Errors of [`join`](Self::join).
    fn renew(&self, node: NodeId) -> io::Result<bool>;
    /// Makes `node` master of `shard`, if the last one's epoch is `epoch`, and it has resigned or died.
    ///
    /// # Errors
    /// Errors of [`join`](Self::join).
    fn claim(&self, node: NodeId, shard: ShardId, epoch: u64) -> io::Result<bool>;
    /// Ends a mastership.
    ///
    /// # Errors
    /// Errors of [`join`](Self::join).
    fn resign(&self, node: NodeId, shard: ShardId, epoch: u64) -> io::Result<bool>;
    /// Forgets a dead member, which is fenced.
    ///
    /// # Errors
    /// Errors of [`join`](Self::join).
    fn fenced(&self, dead: NodeId) -> io::Result<bool>;
    /// A member leaves, and has no locks.
    ///
    /// # Errors
    /// Errors of [`join`](Self::join).
    fn leave(&self, node: NodeId) -> io::Result<()>;
    /// The state, as soon as it is newer than `revision`, or after `wait`: not older than when a node joined here.
    ///
    /// # Errors
    /// Errors of [`join`](Self::join).
    fn view(&self, revision: u64, wait: Duration) -> io::Result<View>;
}

/// A place that keeps a [`Registry`]. A membership of such a place differs in how the registry is reached, and how news are
/// waited for.
pub(crate) trait Keeper: Send + Sync {
    /// The length of a lease; see [`Membership::ttl`].
    fn lease(&self) -> Duration;
    /// The number of shards; see [`Membership::shards`].
    fn shard_count(&self) -> u16;
    /// Changes the registry; nothing comes between what `change` reads and what it writes. It may be called again with a newer
    /// registry: what the last call did counts.
    fn change<R>(&self, change: impl Fn(&mut Registry) -> R) -> io::Result<R>;
    /// Waits for a view newer than `revision`; see [`Membership::view`].
    fn wait_for_view(&self, revision: u64, wait: Duration) -> io::Result<View>;
}

impl<K: Keeper> Membership for K {
    fn ttl(&self) -> Duration {
        self.lease()
    }
    fn shards(&self) -> u16 {
        self.shard_count()
    }
    fn join(&self, address: &str) -> io::Result<NodeId> {
        self.change(|registry| registry.join(now(), address))
    }
    fn renew(&self, node: NodeId) -> io::Result<bool> {
        self.change(|registry| registry.renew(now(), node))
    }
    fn claim(&self, node: NodeId, shard: ShardId, epoch: u64) -> io::Result<bool> {
        self.change(|registry| registry.claim(now(), node, shard, epoch))
    }
    fn resign(&self, node: NodeId, shard: ShardId, epoch: u64) -> io::Result<bool> {
        self.change(|registry| registry.resign(now(), node, shard, epoch))
    }
    fn fenced(&self, dead: NodeId) -> io::Result<bool> {
        self.change(|registry| registry.fenced(dead))
    }
    fn leave(&self, node: NodeId) -> io::Result<()> {
        self.change(|registry| registry.leave(node))
    }
    fn view(&self, revision: u64, wait: Duration) -> io::Result<View> {
        self.wait_for_view(revision, wait)
    }
}
