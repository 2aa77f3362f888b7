//! In memory: the membership of nodes of one process.

use crate::clock::now;
use crate::lock_class::REGISTRY;
use crate::membership::Keeper;
use crate::registry::Registry;
use crate::view::View;
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
}

impl Keeper for InMemory {
    fn lease(&self) -> Duration {
        Duration::from_nanos(self.registry.lock().ttl)
    }
    fn shard_count(&self) -> u16 {
        u16::try_from(self.registry.lock().view().owners.len()).unwrap_or(u16::MAX)
    }
    fn change<R>(&self, change: impl Fn(&mut Registry) -> R) -> io::Result<R> {
        let mut registry = self.registry.lock();
        let revision = registry.view().revision;
        let result = change(&mut registry);
        // Waiting calls wait for a newer view.
        if registry.view().revision != revision {
            self.changed.notify_all();
        }
        Ok(result)
    }
    fn wait_for_view(&self, revision: u64, wait: Duration) -> io::Result<View> {
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
