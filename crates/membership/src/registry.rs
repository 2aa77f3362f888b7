//! Registry: the membership's state as a value: what leases and claims do to it, without a clock or a disk.

use crate::view::{Member, NodeId, Owner, ShardId, View};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Members, their leases, and masters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    /// How long a lease lasts, in nanoseconds.
    pub(crate) ttl: u64,
    pub(crate) view: View,
    /// When the lease of each living member is over.
    pub(crate) leases: BTreeMap<NodeId, u64>,
    /// Until then no node may become a master: a change that was lost may have made one.
    #[serde(default)]
    pub(crate) claims_from: u64,
}

impl Registry {
    /// A cluster without members, whose leases last for `ttl` nanoseconds.
    pub fn new(shards: u16, ttl: u64) -> Registry {
        let view = View { owners: vec![None; usize::from(shards)], ..View::default() };
        Registry { ttl, view, leases: BTreeMap::new(), claims_from: 0 }
    }

    /// Its state.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Ends leases. True if there were such.
    pub fn expire(&mut self, now: u64) -> bool {
        let over: Vec<_> =
            self.leases.iter().filter(|(_, end)| **end <= now).map(|(&node, _)| node).collect();
        for node in &over {
            self.leases.remove(node);
            if let Some(member) = self.view.members.get_mut(node) {
                member.is_alive = false;
            }
        }
        self.view.revision += u64::from(!over.is_empty());
        !over.is_empty()
    }

    /// The state after `lost` changes that nobody can read: each gave two numbers at most, and may have prolonged any lease, or made
    /// a master. Nobody becomes a master before those leases are over.
    pub(crate) fn pass_over(&mut self, now: u64, lost: u64) {
        self.view.revision += 2 * lost;
        self.leases.values_mut().for_each(|end| *end = now + self.ttl);
        self.claims_from = now + self.ttl;
    }

    /// A new member.
    pub fn join(&mut self, now: u64, address: &str) -> NodeId {
        self.expire(now);
        self.view.revision += 1;
        let node = NodeId(self.view.revision);
        self.view.members.insert(node, Member { address: address.to_string(), is_alive: true });
        self.leases.insert(node, now + self.ttl);
        node
    }

    /// Prolongs a lease. False if it is over.
    pub fn renew(&mut self, now: u64, node: NodeId) -> bool {
        self.expire(now);
        let Some(end) = self.leases.get_mut(&node) else { return false };
        *end = now + self.ttl;
        true
    }

    /// Makes `node` the master of `shard`, if the last one's epoch is `epoch`, and it has resigned or died.
    pub fn claim(&mut self, now: u64, node: NodeId, shard: ShardId, epoch: u64) -> bool {
        self.expire(now);
        let lives = self.view.living_owner(shard).is_some();
        let Some(owner) = self.view.owners.get_mut(usize::from(shard)) else { return false };
        // A time of another boot of the machine says nothing: it may lie days ahead.
        let is_early = now < self.claims_from && self.claims_from <= now.saturating_add(self.ttl);
        if lives
            || is_early
            || owner.map_or(0, |owner| owner.epoch) != epoch
            || !self.leases.contains_key(&node)
        {
            return false;
        }
        self.view.revision += 1;
        *owner = Some(Owner { node, epoch: self.view.revision });
        true
    }

    /// Ends a mastership.
    pub fn resign(&mut self, now: u64, node: NodeId, shard: ShardId, epoch: u64) -> bool {
        self.expire(now);
        let Some(owner) = self.view.owners.get_mut(usize::from(shard)) else { return false };
        if *owner != Some(Owner { node, epoch }) {
            return false;
        }
        *owner = None;
        self.view.revision += 1;
        true
    }

    /// Forgets a dead member, which is fenced.
    pub fn fenced(&mut self, dead: NodeId) -> bool {
        let is_dead = self.view.members.get(&dead).is_some_and(|member| !member.is_alive);
        if is_dead {
            self.view.members.remove(&dead);
            self.view.revision += 1;
        }
        is_dead
    }

    /// A member leaves, and has no locks.
    pub fn leave(&mut self, node: NodeId) {
        if self.view.members.remove(&node).is_some() {
            self.leases.remove(&node);
            for owner in &mut self.view.owners {
                owner.take_if(|owner| owner.node == node);
            }
            self.view.revision += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_goes_to_another_when_its_owner_is_dead_and_no_earlier() {
        let mut registry = Registry::new(2, 100);
        let (a, b) = (registry.join(0, "a"), registry.join(10, "b"));
        assert!(registry.claim(10, a, 0, 0));
        let epoch = registry.view().owners[0].expect("claimed").epoch;
        assert!(!registry.claim(20, b, 0, epoch), "it is alive");
        assert!(registry.renew(90, b));
        assert!(registry.expire(100));
        assert!(!registry.renew(100, a), "too late");
        assert!(!registry.claim(100, b, 0, 0), "another epoch");
        assert!(registry.claim(100, b, 0, epoch));
        assert!(registry.view().owners[0].expect("claimed").epoch > epoch);
        assert!(registry.view().members.contains_key(&a), "until it is fenced");
        assert!(registry.fenced(a) && !registry.fenced(a) && !registry.fenced(b));
    }

    #[test]
    fn after_changes_that_were_lost_nobody_becomes_a_master_for_the_time_of_a_lease() {
        let mut registry = Registry::new(1, 100);
        let a = registry.join(0, "a");
        registry.pass_over(50, 1);
        assert!(registry.renew(140, a) && !registry.claim(149, a, 0, 0));
        assert!(registry.claim(150, a, 0, 0));
        let mut rebooted = Registry::new(1, 100);
        rebooted.pass_over(1_000_000, 1);
        let a = rebooted.join(0, "a");
        assert!(rebooted.claim(0, a, 0, 0), "the clock began anew");
    }

    #[test]
    fn a_shard_without_a_master_is_claimed_again_after_its_last_one_has_resigned_or_left() {
        let mut registry = Registry::new(1, 100);
        let (a, b) = (registry.join(0, "a"), registry.join(0, "b"));
        assert!(registry.claim(0, a, 0, 0));
        let epoch = registry.view().owners[0].expect("claimed").epoch;
        assert!(!registry.resign(0, b, 0, epoch) && registry.resign(0, a, 0, epoch));
        assert!(registry.claim(0, b, 0, 0));
        registry.leave(b);
        assert_eq!(registry.view().owners[0], None);
        assert!(registry.claim(0, a, 0, 0));
    }
}
