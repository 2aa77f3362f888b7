//! Parking: a workspace that this node's programs do not use is let go: its node leaves the members, and an owner closes the store.
//!
//! # Theory
//! A thread looks at the workspaces twice a second. A workspace without a request for [a while](super::WorkspaceStores::park_after), in which the
//! kernel has no file open and no lock, is parked; by its owner not before the other nodes have left. When the mount has as many
//! workspaces open as it may, and a further one waits, [a second](IDLE_WHEN_FULL) is enough. [`relay::parking`](crate::relay) has what becomes of the requests.

use super::workspaces::{OpenWorkspaces, end_of};
use super::{FormerNode, Inner, Node};
use crate::relay::{Relay, RelayParking};
use sluice_sync::Arc;
use sluice_sync::atomic::Ordering;
use sluice_sync::thread::{self, Builder};
use sluice_sync::time::{Duration, Instant};
use std::collections::BTreeMap;

/// The idle time after which a workspace makes room for another workspace.
const IDLE_WHEN_FULL: Duration = Duration::from_secs(1);
/// How often the workspaces are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How long the server may take to make the changes durable.
const PATIENCE: Duration = Duration::from_secs(10);
/// The kernel forgets a directory after the names in it, so that it is asked once for each level; at most so often.
const PRUNINGS: u32 = 64;
/// The pause after each time: FORGET comes by itself.
const PRUNED: Duration = Duration::from_millis(10);
/// A workspace of which the kernel knows more inodes, though it was to forget them, stays open.
const KNOWN_MAX: usize = 1024;

/// For each idle workspace, the number of its requests and the time of the last look that found another number.
#[derive(Default)]
pub(super) struct IdleWorkspaces(BTreeMap<u32, (u64, Instant)>);

impl IdleWorkspaces {
    /// For how long workspace `number` has had no request; `requests` is their number by `now`, none while it is in use.
    fn note(&mut self, number: u32, requests: Option<u64>, now: Instant) -> Duration {
        let Some(requests) = requests else {
            self.0.remove(&number);
            return Duration::ZERO;
        };
        let idle = self.0.entry(number).or_insert((requests, now));
        if idle.0 != requests {
            *idle = (requests, now);
        }
        now.saturating_duration_since(idle.1)
    }
}

impl Inner {
    /// Whether others do not need this node: it is a guest, or an owner without guests.
    fn may_leave(&self) -> bool {
        let role = self.role.lock();
        match &role.owner {
            Some(owner) => owner.local().is_some() && owner.seats() == 0 && role.handed_over != owner.epoch,
            None => role.link.is_some(),
        }
    }

    fn before(&self) -> FormerNode {
        // Relaxed: see the field.
        let contact = self.contact.load(Ordering::Relaxed);
        FormerNode { mount: self.mount, epoch: self.role.lock().epoch, contact }
    }
}

impl OpenWorkspaces {
    /// Parks workspaces, until the node leaves.
    pub(super) fn park_idle(self: Arc<Self>, after: Duration) {
        let mut idle = IdleWorkspaces::default();
        while !self.is_over() {
            thread::sleep(LOOK);
            let (nodes, is_full) = self.nodes_in_use();
            let limit = if is_full { IDLE_WHEN_FULL.min(after) } else { after };
            let now = Instant::now();
            let due: Vec<_> = nodes
                .into_iter()
                .filter(|(number, node)| {
                    idle.note(*number, node.inner.relay.requests_if_idle(), now) >= limit
                        && node.inner.may_leave()
                })
                .collect();
            let park = |(number, node): (u32, Arc<Node>)| {
                let this = self.clone();
                // The next attempt comes after the same time.
                idle.0.remove(&number);
                let thread = Builder::new().name("cluster-park".into());
                thread.spawn(move || this.park(number, node))
            };
            // Without a thread it stays open.
            let threads: Vec<_> = due.into_iter().flat_map(park).collect();
            // A panic of its own was reported where it happened.
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }

    /// Parks a workspace if its programs let it.
    fn park(self: &Arc<Self>, number: u32, node: Arc<Node>) {
        let relay = node.inner.relay.clone();
        let Some(requests) = self.unused_since(&relay) else { return };
        // Before the owner forgets this kernel: nothing is cached then, and requests wait.
        if !node.inner.may_leave() || !relay.detach_unused(requests) {
            return;
        }
        let before = node.inner.before();
        self.remove(number, &node);
        if let Err(error) = end_of(number, node) {
            log::warn!("{error}");
        }
        if relay.has_server() {
            relay.detach();
        }
        self.parked(number, relay, before);
    }

    /// If nobody uses the workspace of `relay`: the number of its requests, after which all is durable, and the kernel has forgotten what it need
    /// not know.
    fn unused_since(&self, relay: &Relay) -> Option<u64> {
        let end = Instant::now() + PATIENCE;
        let gives_up = || self.is_over() || Instant::now() > end;
        if !relay.sync(&gives_up) {
            return None;
        }
        let (mut known, mut same) = (relay.prune(), 0);
        for _ in 0..PRUNINGS {
            if known == 0 || same > 2 || gives_up() {
                break;
            }
            thread::sleep(PRUNED);
            let now = relay.prune();
            same = if now == known { same + 1 } else { 0 };
            known = now;
        }
        let is_unused = known <= KNOWN_MAX && relay.are_all_named(&gives_up);
        relay.requests_if_idle().filter(|_| is_unused)
    }

    /// The workspace's node has left.
    fn parked(self: &Arc<Self>, number: u32, relay: Arc<Relay>, before: FormerNode) {
        // Before a request may ask for it.
        self.keep_parked(number, relay.clone(), before);
        match relay.park() {
            RelayParking::Waits => {}
            RelayParking::Ended => drop(self.take_parked(number)),
            RelayParking::No => self.wake(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_is_idle_from_its_last_request_on_and_not_while_it_is_in_use() {
        let (mut idle, begin) = (IdleWorkspaces::default(), Instant::now());
        let mut at = |second, requests| idle.note(7, requests, begin + Duration::from_secs(second)).as_secs();
        assert_eq!(at(0, Some(10)), 0);
        assert_eq!(at(5, Some(10)), 5);
        assert_eq!(at(6, Some(11)), 0, "a request came");
        assert_eq!(at(9, Some(11)), 3);
        assert_eq!(at(10, None), 0, "a file is open");
        assert_eq!(at(11, Some(11)), 0);
        assert_eq!(at(12, Some(11)), 1);
    }
}
