//! Wishes: what a node wants done, kept until the test does it.

use sluice_dlm::{Effects, Message};
use sluice_membership::{NodeId, ShardId};
use std::sync::Mutex;

/// The effects that a node wants, in its order.
#[derive(Default)]
pub(crate) struct Wishes(Mutex<Vec<Wish>>);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Send(NodeId, Message),
    Fence(NodeId),
    Claim(ShardId, u64),
    Resign(ShardId, u64),
}

impl Wishes {
    /// Takes the wishes since the last call.
    pub(crate) fn take(&self) -> Vec<Wish> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }

    fn push(&self, wish: Wish) {
        self.0.lock().expect("no panic").push(wish);
    }
}

impl Effects for Wishes {
    fn send(&self, to: NodeId, message: Message) {
        self.push(Wish::Send(to, message));
    }
    fn fence(&self, dead: NodeId) {
        self.push(Wish::Fence(dead));
    }
    fn claim(&self, shard: ShardId, epoch: u64) {
        self.push(Wish::Claim(shard, epoch));
    }
    fn resign(&self, shard: ShardId, epoch: u64) {
        self.push(Wish::Resign(shard, epoch));
    }
}
