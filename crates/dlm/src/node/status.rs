//! Status: what a node knows, for people: its locks, the resources it is master of, and what it has counted.

use super::{Effects, Node};
use crate::message::{Token, Value};
use crate::{Key, Mode, Name, Range};
use sluice_membership::NodeId;
use sluice_sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        // Relaxed: a statistic.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it was so far.
    pub fn get(&self) -> u64 {
        // Relaxed: as in add().
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts of a node. A lock that is cached counts nothing.
#[derive(Debug, Default)]
pub struct Statistics {
    /// Messages to other nodes.
    pub sent: Count,
    /// Messages of other nodes.
    pub received: Count,
    /// Requests to a master, be it this node.
    pub requests: Count,
    /// Grants taken.
    pub grants: Count,
    /// Cached locks that others wanted.
    pub revokes: Count,
    /// Locks handed straight to the next holder.
    pub handed: Count,
    /// Probes sent to find deadlocks, including probes to this node.
    pub probes: Count,
    /// Requests that failed since parties waited for each other.
    pub deadlocks: Count,
}

/// A lock that a node has cached or waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockStatus {
    /// The locked range.
    pub key: Key,
    /// The cached mode.
    pub cached: Option<Mode>,
    /// The token of the grant.
    pub token: Option<Token>,
    /// How many hold it here, by mode.
    pub holders: Vec<(Mode, u64)>,
    /// The modes of the requests that wait here.
    pub waiters: Vec<Mode>,
    /// When it was granted, by the node's clock.
    pub granted_at: u64,
    /// Another node wants it, in this mode.
    pub wanted: Option<Mode>,
    /// The value of the resource, as far as it is known here.
    pub value: Option<Value>,
}

/// A master's state of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceStatus {
    /// The resource.
    pub name: Name,
    /// Its holders: node, range, mode, token.
    pub grants: Vec<(NodeId, Range, Mode, Token)>,
    /// The requests that wait for it: node, range, mode, and since when, by the master's clock.
    pub waiters: Vec<(NodeId, Range, Mode, u64)>,
    /// How often it has gone to another node.
    pub moves: u64,
}

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// Its locks, by name.
    pub locks: Vec<LockStatus>,
    /// The resources that it is master of, by name.
    pub resources: Vec<ResourceStatus>,
}

impl<E: Effects> Node<E> {
    /// The counts of this node.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The state of this node. The status is not atomic: each lock is shown as of its own inspection.
    pub fn status(&self) -> NodeStatus {
        let locks = self.all_locals().into_iter().map(|local| {
            let slow = local.slow.lock();
            let more = slow.more();
            LockStatus {
                key: local.key.clone(),
                cached: local.word.cached(),
                token: slow.token(),
                holders: local.word.holders().collect(),
                waiters: more.iter().flat_map(|more| &more.waiters).map(|waiter| waiter.mode).collect(),
                granted_at: slow.granted_at,
                wanted: more.and_then(|more| more.revoke.as_ref()).map(|revoke| revoke.wanted),
                value: slow.value().cloned(),
            }
        });
        let locks = locks.collect();
        let resources = self.resource_names(|_| true).into_iter().filter_map(|name| {
            let resource = self.resources.get(&name, &self.resources.read()).cloned()?;
            let queue = resource.lock();
            let grants = queue.grants.iter().map(|grant| (grant.node, grant.range, grant.mode, grant.token));
            let waiters = queue
                .shown_waiters()
                .map(|waiting| (waiting.node, waiting.range, waiting.mode, waiting.since));
            Some(ResourceStatus {
                grants: grants.collect(),
                waiters: waiters.collect(),
                moves: queue.moves(),
                name,
            })
        });
        let resources = resources.collect();
        NodeStatus { node: self.id, locks, resources }
    }

    /// All that decides what this node does next while time stands still, as text: a model checker tells states apart by it.
    #[doc(hidden)]
    pub fn state_text(&self) -> String {
        let mut text = String::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let (epoch, owner, role, last) = (shard.epoch, shard.owner, &shard.role, shard.last);
            text +=
                &format!("{epoch} {owner:?} {role:?} {last:?} {:?} {:?};", shard.view.revision, shard.stash);
        }
        for local in self.all_locals() {
            let slow = local.slow.lock();
            let (token, value, is_dirty) = (slow.token(), slow.value(), slow.is_dirty());
            text += &format!("{} {:?} {token:?} {value:?} {is_dirty}", local.key, local.word);
            if let Some(more) = slow.more() {
                let waiters: Vec<_> =
                    more.waiters.iter().map(|waiter| (waiter.mode, waiter.holds, waiter.is_try)).collect();
                let (request, revoke, early) = (more.request, &more.revoke, &more.early);
                text += &format!(" {waiters:?} {request:?} {revoke:?} {early:?} {}", more.is_draining);
            }
            text.push(';');
        }
        for name in self.resource_names(|_| true) {
            if let Some(queue) = self.resources.get(&name, &self.resources.read()) {
                text += &format!("{name} {:?};", &*queue.lock());
            }
        }
        text
    }

    /// How many locks are cached, held or waited for here.
    pub fn locks(&self) -> usize {
        self.locals.len()
    }

    /// How many resources this node is master of.
    pub fn resources(&self) -> usize {
        self.resources.len()
    }
}
