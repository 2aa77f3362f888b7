//! View: what the membership says at one instant: the members, and the master of each shard.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The number of a shard. It has one master at a time.
pub type ShardId = u16;

/// The number of a node. A node that joins again gets a new number, which no node had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Where it can be reached.
    pub address: String,
    /// False from the end of its lease until it is fenced.
    pub is_alive: bool,
}

/// The master of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The node.
    pub node: NodeId,
    /// The revision at which it became the master; later masters have greater revisions.
    pub epoch: u64,
}

/// A state of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Its number: that of the last change. A node's number is the revision at which it joined.
    pub revision: u64,
    /// The members. A dead node stays a member until it is fenced.
    pub members: BTreeMap<NodeId, Member>,
    /// The master of each shard.
    pub owners: Vec<Option<Owner>>,
}

impl View {
    /// Whether `node` is a member whose lease is not over.
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|member| member.is_alive)
    }

    /// Whether `node` is a former member. A node that has joined since is unknown, not gone.
    pub fn is_gone(&self, node: NodeId) -> bool {
        node.0 <= self.revision && !self.members.contains_key(&node)
    }

    /// The master of `shard`, if it is alive.
    pub fn living_owner(&self, shard: ShardId) -> Option<Owner> {
        self.owners.get(usize::from(shard)).copied().flatten().filter(|owner| self.is_alive(owner.node))
    }

    /// Which of the living members should be master of `shard`: the same answer everywhere, and few other answers when a
    /// member comes or goes (rendezvous hashing).
    pub fn preferred(&self, shard: ShardId) -> Option<NodeId> {
        let weight = |node: NodeId| {
            let mixed = sluice_sync::fibonacci(node.0 ^ sluice_sync::fibonacci(u64::from(shard) + 1));
            sluice_sync::fibonacci(mixed ^ (mixed >> 29))
        };
        let living = self.members.iter().filter(|(_, member)| member.is_alive);
        living.map(|(&node, _)| node).max_by_key(|&node| (weight(node), node))
    }
}
