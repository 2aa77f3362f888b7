//! Master: the resources of the shards that this node is master of.

use super::{Effects, Node, Role, Shard};
use crate::lock_class::RESOURCE;
use crate::message::{Body, Message};
use crate::mutant::Mutant;
use crate::queue::{Asked, Desk, Queue, Sends};
use crate::{Key, Name};
use sluice_membership::NodeId;
use sluice_sync::{Arc, SmallMutex};

/// How many messages a shard keeps that came too early. Messages beyond that are dropped: their senders repeat the
/// requests.
const STASH_MAX: usize = 1 << 20;

impl<E: Effects> Node<E> {
    /// Handles a message from any node, this one included.
    pub(super) fn receive(&self, shard: &mut Shard, now: u64, from: NodeId, message: Message) {
        if shard.view.is_gone(from) {
            return;
        }
        let epoch = message.epoch();
        if epoch > shard.epoch {
            // This node is the designated master, and does not know it yet.
            if shard.stash.len() < STASH_MAX {
                shard.stash.push((from, message));
            }
            return;
        }
        if epoch < shard.epoch && self.options.mutant != Some(Mutant::OldEpochAccepted) {
            return;
        }
        match message {
            Message::Registered { .. } => self.registered(shard, now, from),
            Message::Lock { key, body, .. } => match body {
                Body::Grant { .. }
                | Body::Denied { .. }
                | Body::Revoke { .. }
                | Body::Blocks { .. }
                | Body::Behind { .. } => {
                    self.client(shard, now, from, &key, body);
                }
                _ => self.master(shard, now, from, key, body),
            },
        }
    }

    fn master(&self, shard: &mut Shard, now: u64, from: NodeId, key: Key, body: Body) {
        match shard.role {
            Role::Other => return,
            Role::Recovering(_) if !matches!(body, Body::Held { .. }) => {
                if shard.stash.len() < STASH_MAX {
                    shard.stash.push((from, Message::Lock { epoch: shard.epoch, key, body }));
                }
                return;
            }
            _ => {}
        }
        let is_new = matches!(body, Body::Request { .. } | Body::Held { .. });
        let Some(resource) = self.resource(&key.name, shard.epoch, is_new) else { return };
        let queue = &mut *resource.lock();
        let range = key.range;
        let mut sends = Sends::new();
        let desk = &mut Desk { last: &mut shard.last, sends: &mut sends, mutant: self.options.mutant };
        match body {
            Body::Request { serial, mode, holds, is_try, converts, turn } => {
                let asked = Asked { node: from, range, serial, mode, holds, is_try, converts, turn, now };
                queue.request(&asked, desk);
            }
            Body::Cancel { serial } => queue.cancel(from, range, serial, desk),
            Body::Release { token, to, value, answer } => {
                queue.release((from, range), (token, to, value), answer, desk);
            }
            Body::Busy { token } => queue.busy(from, range, token, desk),
            Body::Held { mode, token, value } => {
                queue.register(from, range, (mode, token), value);
            }
            Body::Blocked { serial, probe } => self.pass_on(queue, (from, range, serial), &probe, &mut sends),
            Body::Grant { .. }
            | Body::Denied { .. }
            | Body::Revoke { .. }
            | Body::Blocks { .. }
            | Body::Behind { .. } => {}
        }
        self.post(shard, &key.name, queue, sends);
    }

    /// Sends what a queue wants sent, and forgets the resource if nobody has a lock on it any more.
    pub(super) fn post(&self, shard: &mut Shard, name: &Name, queue: &Queue, sends: Sends) {
        for (to, range, body) in sends {
            let key = Key { name: name.clone(), range };
            self.send(shard, to, Message::Lock { epoch: shard.epoch, key, body });
        }
        if queue.is_idle() {
            self.resources.remove(name);
        }
    }

    /// The resource, if it is of this epoch; otherwise a new one, if `is_new`.
    pub(super) fn resource(&self, name: &Name, epoch: u64, is_new: bool) -> Option<Arc<SmallMutex<Queue>>> {
        let found = self.resources.get(name, &self.resources.read()).cloned();
        if let Some(found) = found {
            let mut queue = found.lock();
            if queue.epoch != epoch {
                *queue = Queue::of_epoch(epoch);
            }
            drop(queue);
            return Some(found);
        }
        if !is_new {
            return None;
        }
        let queue = Arc::new(SmallMutex::with_class(&RESOURCE, Queue::of_epoch(epoch)));
        // Only a thread that has the shard's mutex enters one.
        let _ = self.resources.insert(name.clone(), queue.clone());
        Some(queue)
    }
}
