//! Cluster: masters that come and go, nodes that die, and the end of this one.
//!
//! # Theory
//! When a shard has got a new owner, each node drops what was under way about its locks, and sends the owner what it
//! *has* (`Held`), and that this was all (`Registered`); then it asks again for what it waits for. The owner serves
//! when all nodes that were members at that time have told, or are gone. A dead node is gone when it is fenced: so its
//! locks end exactly then. Promises of an older epoch are void: a node takes no grant of an epoch that it has left, and
//! registers no grant that it has given away.

use super::{Effects, Masters, Node, Role, Shard};
use crate::Name;
use crate::error::LockError;
use crate::local::{Local, Slow};
use crate::message::{Body, Message, Token};
use crate::mutant::Mutant;
use crate::queue::{Desk, Sends};
use sluice_membership::{NodeId, ShardId, View};
use sluice_sync::Arc;
use sluice_sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

/// The end of the lease of a node that has stopped: it does not begin again.
const OVER: u64 = 1;

impl<E: Effects> Node<E> {
    /// Takes in a newer view.
    pub fn view(&self, now: u64, view: View) {
        if !self.is_member(now) {
            return;
        }
        let mut cluster = self.cluster.lock();
        if view.revision <= cluster.revision {
            return;
        }
        let gone: Vec<_> =
            cluster.members.keys().filter(|node| !view.members.contains_key(node)).copied().collect();
        let view = Arc::new(view);
        *cluster = view.clone();
        if !view.is_alive(self.id) {
            self.stop();
            return;
        }
        // The new epochs come first, so that grants of old epochs are refused from here on; then the reports.
        let mut moved = BTreeSet::new();
        for number in 0..self.options.shards {
            let is_moved = self.under(number, now, |node, shard| node.turn_to(shard, now, number, &view));
            moved.extend(is_moved.then_some(number));
        }
        if !moved.is_empty() {
            self.forget_resources(now, &moved);
            self.register(now, &moved);
        }
        if !gone.is_empty() {
            self.forget(now, &gone);
        }
        self.ask_membership(&view);
    }

    /// Carries the view into a shard. True if that has another owner.
    fn turn_to(&self, shard: &mut Shard, now: u64, number: ShardId, view: &Arc<View>) -> bool {
        shard.view = view.clone();
        let Some(owner) = view.owners.get(usize::from(number)).copied().flatten() else {
            shard.owner = None;
            shard.role = Role::Other;
            return false;
        };
        if owner.epoch <= shard.epoch {
            return false;
        }
        shard.epoch = owner.epoch;
        shard.owner = Some(owner.node);
        shard.role = if owner.node == self.id {
            shard.last = Token { epoch: owner.epoch, number: 0 };
            Role::Recovering(view.members.keys().copied().collect())
        } else {
            Role::Other
        };
        // Messages that came early for this node as the master. The master does not serve before it has reported its
        // own holdings to itself.
        for (from, message) in mem::take(&mut shard.stash) {
            self.receive(shard, now, from, message);
        }
        true
    }

    /// Forgets what this node knew of the locks of shards as their master.
    fn forget_resources(&self, now: u64, shards: &BTreeSet<ShardId>) {
        for name in self.resource_names(|name| shards.contains(&name.shard())) {
            self.under(name.shard(), now, |node, shard| {
                let Some(resource) = node.resources.get(&name, &node.resources.read()).cloned() else {
                    return;
                };
                // One of the new epoch has come in between.
                if resource.lock().epoch != shard.epoch {
                    node.resources.remove(&name);
                }
            });
        }
    }

    pub(super) fn resource_names(&self, wanted: impl Fn(&Name) -> bool) -> Vec<Name> {
        let mut names = Vec::new();
        self.resources.for_each(|name, _| names.extend(wanted(name).then(|| name.clone())));
        names.sort_unstable();
        names.dedup();
        names
    }

    pub(super) fn all_locals(&self) -> Vec<Arc<Local>> {
        let mut locals = Vec::new();
        self.locals.for_each(|_, local| locals.push(local.clone()));
        locals.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        locals.dedup_by(|a, b| a.key == b.key);
        locals
    }

    /// Reports this node's locks and requests to the new owners of `shards`.
    fn register(&self, now: u64, shards: &BTreeSet<ShardId>) {
        let mut by_shard: BTreeMap<ShardId, Vec<Arc<Local>>> = BTreeMap::new();
        for local in self.all_locals() {
            by_shard.entry(local.key.shard()).or_default().push(local);
        }
        for &number in shards {
            let locals = by_shard.remove(&number).unwrap_or_default();
            self.under(number, now, |node, shard| {
                for local in &locals {
                    node.tell(shard, local, &mut local.slow.lock());
                }
                if let Some(owner) = shard.owner {
                    node.send(shard, owner, Message::Registered { shard: number, epoch: shard.epoch });
                }
                for local in &locals {
                    let slow = &mut *local.slow.lock();
                    if let Some(request) = slow.request() {
                        node.ask(shard, local, slow.token(), request);
                    }
                    node.advance(shard, local, slow, now);
                    slow.tidy();
                }
            });
        }
    }

    fn tell(&self, shard: &mut Shard, local: &Local, slow: &mut Slow) {
        if let Some(more) = slow.more_mut() {
            more.revoke = None;
            more.early = None;
            more.is_draining = false;
            if let Some(request) = &mut more.request {
                // The new master hears of the conversion that there is, and of none before.
                request.voids = if request.converts { request.turn } else { 0 };
            }
        }
        let (Some(token), Some(cached)) = (slow.token(), local.word.cached()) else { return };
        // The last master may have granted what was asked for, in place of what is cached.
        let mode = slow.request().map_or(cached, |request| cached.meet(request.first));
        local.word.set_cached(Some(mode));
        let value = slow.value().cloned();
        self.to_master(shard, &local.key, Body::Held { mode, token, value });
    }

    /// A node has told this new master all that it has.
    pub(super) fn registered(&self, shard: &mut Shard, now: u64, from: NodeId) {
        let Role::Recovering(waiting) = &mut shard.role else { return };
        waiting.remove(&from);
        self.serve_if_complete(shard, now);
    }

    fn serve_if_complete(&self, shard: &mut Shard, now: u64) {
        let Role::Recovering(waiting) = &shard.role else { return };
        if !waiting.is_empty() && self.options.mutant != Some(Mutant::ServesUnregistered) {
            return;
        }
        shard.role = Role::Serving;
        for (from, message) in mem::take(&mut shard.stash) {
            self.receive(shard, now, from, message);
        }
    }

    /// Nodes have died and are fenced, or have left.
    fn forget(&self, now: u64, gone: &[NodeId]) {
        for number in 0..self.options.shards {
            self.under(number, now, |node, shard| {
                if let Role::Recovering(waiting) = &mut shard.role {
                    waiting.retain(|waiting| !gone.contains(waiting));
                }
                node.serve_if_complete(shard, now);
            });
        }
        self.free(now, gone);
    }

    /// Frees what dead nodes had.
    fn free(&self, now: u64, gone: &[NodeId]) {
        for name in self.resource_names(|_| true) {
            self.under(name.shard(), now, |node, shard| {
                let Some(resource) = node.resource(&name, shard.epoch, false) else { return };
                let queue = &mut *resource.lock();
                let mut sends = Sends::new();
                let desk =
                    &mut Desk { last: &mut shard.last, sends: &mut sends, mutant: node.options.mutant };
                for &gone in gone {
                    queue.forget(gone, desk);
                }
                node.post(shard, &name, queue, sends);
            });
        }
    }

    /// Asks the membership for what this node should do now. It may be asked again: see [`Node::remind`].
    fn ask_membership(&self, view: &View) {
        for (&node, member) in &view.members {
            if !member.is_alive {
                self.effects.fence(node);
            }
        }
        for (number, owner) in (0..self.options.shards).zip(&view.owners) {
            let preferred = self.preferred_master(view, number) == Some(self.id);
            match view.living_owner(number) {
                None if preferred => self.effects.claim(number, owner.map_or(0, |owner| owner.epoch)),
                Some(owner)
                    if owner.node == self.id
                        && view.is_alive(self.id)
                        && (!preferred || self.tokens_run_out(number)) =>
                {
                    self.effects.resign(number, owner.epoch);
                }
                _ => {}
            }
        }
    }

    /// The member that is to be master of `shard`.
    fn preferred_master(&self, view: &View, shard: ShardId) -> Option<NodeId> {
        match self.options.masters {
            Masters::Spread => view.preferred(shard),
            Masters::Oldest => view.members.iter().find(|(_, member)| member.is_alive).map(|(&node, _)| node),
        }
    }

    /// Whether the tokens of this epoch, as numbers, are half used.
    fn tokens_run_out(&self, shard: ShardId) -> bool {
        self.shards[usize::from(shard)].lock().last.number >> (Token::NUMBER_BITS - 1) != 0
    }

    /// Asks the membership again for what has not come about: for a caller whose calls to it may fail.
    pub fn remind(&self, now: u64) {
        if self.is_member(now) {
            let view = self.cluster.lock().clone();
            self.ask_membership(&view);
            if self.options.mutant == Some(Mutant::FreedBeforeFence) {
                let dead = view.members.iter().filter(|(_, member)| !member.is_alive).map(|(&node, _)| node);
                self.forget(now, &dead.collect::<Vec<_>>());
            }
        }
    }

    /// The lease is renewed: this node is surely a member until `lease_end`.
    pub fn renewed(&self, lease_end: u64) {
        let later = |old| (old != OVER).then(|| lease_end.max(old));
        // Relaxed: a time, which publishes nothing. It fails when this node has stopped.
        let _ = self.lease_end.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// Gives up all locks, as far as messages get through, and stops. Then the membership may be left.
    pub fn leave(&self, now: u64) {
        for local in self.all_locals() {
            self.under(local.key.shard(), now, |node, shard| {
                let slow = &mut *local.slow.lock();
                local.word.set_cached(None);
                node.give_back(shard, &local, slow, None, None);
            });
        }
        self.stop();
    }

    /// This node has lost its membership, or may have: it gives out no more locks, and waiting callers get an error.
    pub fn stop(&self) {
        // Relaxed: as in renewed().
        self.lease_end.store(OVER, Ordering::Relaxed);
        for local in self.all_locals() {
            self.under(local.key.shard(), 0, |node, shard| {
                let slow = &mut *local.slow.lock();
                local.word.set_cached(None);
                local.word.set_shut(true);
                slow.set_token(None);
                if let Some(more) = slow.take_more() {
                    for waiter in more.waiters {
                        node.decide(shard, &waiter.wait, Err(LockError::NotMember));
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Options;
    use sluice_membership::Registry;
    use sluice_sync::Mutex;

    /// The shards that are resigned.
    struct Resigned(Mutex<Vec<ShardId>>);

    impl Effects for Resigned {
        fn send(&self, _: NodeId, _: Message) {}
        fn fence(&self, _: NodeId) {}
        fn claim(&self, _: ShardId, _: u64) {}
        fn resign(&self, shard: ShardId, _: u64) {
            self.0.lock().push(shard);
        }
    }

    /// The shards that the master of 16 gives up when seven others join, and when it has given out so many tokens.
    fn resigned(masters: Masters, tokens: u64) -> usize {
        let mut registry = Registry::new(16, 1_000);
        let id = registry.join(0, "");
        let options = Options { shards: 16, masters, ..Options::default() };
        let node = Node::new(id, options, Resigned(Mutex::new(Vec::new())));
        (0..16).for_each(|shard| assert!(registry.claim(0, id, shard, 0)));
        for _ in 0..7 {
            registry.join(0, "");
        }
        node.renewed(1_000);
        node.view(0, registry.view().clone());
        node.effects().0.lock().clear();
        node.shards[3].lock().last.number = tokens;
        node.remind(0);
        node.effects().0.lock().len()
    }

    #[test]
    fn the_oldest_member_stays_master_when_others_come() {
        assert_eq!(resigned(Masters::Oldest, 0), 0);
        assert!(resigned(Masters::Spread, 0) > 4);
    }

    #[test]
    fn a_master_begins_a_new_epoch_before_tokens_are_too_large_for_a_number() {
        let last = Token { epoch: 1, number: (1 << Token::NUMBER_BITS) - 1 };
        let next = Token { number: last.number + 1, ..last };
        assert!(last.as_number().is_some() && next.as_number().is_none());
        assert_eq!(resigned(Masters::Oldest, last.number / 2), 0);
        assert_eq!(resigned(Masters::Oldest, last.number / 2 + 1), 1);
    }
}
