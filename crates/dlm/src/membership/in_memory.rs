//! In memory: the membership of nodes of one process.

use super::{Membership, Registry};
use crate::clock::now;
use crate::lock_class::REGISTRY;
use crate::view::View;
use crate::{NodeId, ShardId};
use sluice_sync::time::{Duration, Instant, nanoseconds};
use sluice_sync::{Condvar, Mutex};
use std::io;

/// A membership that ends with the process.
#[derive(Debug)]
pub struct InMemory {
    registry: Mutex<Registry>,
    changed: Condvar,
}

impl InMemory {
    /// A cluster without members.
    pub fn new(shards: u16, ttl: Duration) -> InMemory {
        let registry = Registry::new(shards, nanoseconds(ttl));
        InMemory { registry: Mutex::with_class(&REGISTRY, registry), changed: Condvar::new() }
    }

    fn change<R>(&self, change: impl FnOnce(&mut Registry) -> R) -> io::Result<R> {
        let result = change(&mut self.registry.lock());
        self.changed.notify_all();
        Ok(result)
    }
}

impl Membership for InMemory {
    fn ttl(&self) -> Duration {
        Duration::from_nanos(self.registry.lock().ttl)
    }
    fn shards(&self) -> u16 {
        u16::try_from(self.registry.lock().view().owners.len()).unwrap_or(u16::MAX)
    }
    fn join(&self, address: &str) -> io::Result<NodeId> {
        self.change(|registry| registry.join(now(), address))
    }
    fn renew(&self, node: NodeId) -> io::Result<bool> {
        Ok(self.registry.lock().renew(now(), node))
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
        let end = Instant::now() + wait;
        let mut registry = self.registry.lock();
        loop {
            registry.expire(now());
            let left = end.saturating_duration_since(Instant::now());
            if registry.view().revision > revision || left.is_zero() {
                return Ok(registry.view().clone());
            }
            // Leases end without a notification.
            registry = self.changed.wait_timeout(registry, left.min(Duration::from_millis(20))).0;
        }
    }
}
