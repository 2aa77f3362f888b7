//! Nodes: a few real ones whose messages arrive when a test says so, and at once.

use sluice_dlm::{
    Effects, Held, Key, LockError, Message, Name, Node, Options, Packet, Submitted, Ticket, Want, decode,
    encode,
};
use sluice_membership::{NodeId, Registry, ShardId};
use std::collections::VecDeque;
use std::sync::Mutex;

pub(crate) const MS: u64 = 1_000_000;

#[derive(Default)]
pub(crate) struct Out(pub(crate) Mutex<VecDeque<(NodeId, Message)>>);

impl Effects for Out {
    fn send(&self, to: NodeId, message: Message) {
        self.0.lock().unwrap().push_back((to, message));
    }
    fn fence(&self, _: NodeId) {}
    fn claim(&self, _: ShardId, _: u64) {}
    fn resign(&self, _: ShardId, _: u64) {}
}

/// Nodes of which the first is master of everything.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node<Out>>,
    pub(crate) registry: Registry,
    pub(crate) now: u64,
}

#[allow(dead_code)] // Not each test needs all of it.
impl Cluster {
    pub(crate) fn new(count: usize, options: &Options) -> Cluster {
        let mut registry = Registry::new(options.shards, 1_000_000 * MS);
        let join = |registry: &mut Registry| Node::new(registry.join(0, ""), options.clone(), Out::default());
        let nodes: Vec<_> = (0..count).map(|_| join(&mut registry)).collect();
        (0..options.shards).for_each(|shard| assert!(registry.claim(0, nodes[0].id(), shard, 0)));
        let mut cluster = Cluster { nodes, registry, now: 0 };
        cluster.nodes.iter().for_each(|node| node.renewed(1_000_000 * MS));
        cluster.show();
        cluster
    }

    /// Everybody learns the view.
    pub(crate) fn show(&mut self) {
        self.nodes.iter().for_each(|node| node.view(self.now, self.registry.view().clone()));
        self.deliver();
    }

    /// Delivers messages until there are none. Returns how many there were.
    pub(crate) fn deliver(&self) -> usize {
        let mut count = 0;
        loop {
            let before = count;
            count += (0..self.nodes.len()).map(|node| self.deliver_from(node)).sum::<usize>();
            if count == before {
                return count;
            }
        }
    }

    /// Delivers what a node has sent.
    pub(crate) fn deliver_from(&self, node: usize) -> usize {
        let node = &self.nodes[node];
        let mut count = 0;
        while let Some((to, message)) = { node.effects().0.lock().unwrap().pop_front() } {
            count += 1;
            let to = self.nodes.iter().find(|other| other.id() == to).expect("it is a member");
            to.message(self.now, node.id(), as_read(message));
        }
        count
    }

    pub(crate) fn ask(&self, node: usize, key: &Key, want: &Want) -> Ticket {
        match self.nodes[node].lock(self.now, key, want).expect("it may wait") {
            Submitted::Waiting(ticket) => ticket,
            Submitted::Granted(held) => panic!("{held:?} was cached"),
        }
    }

    pub(crate) fn lock(&self, node: usize, key: &Key, want: impl Into<Want>) -> Held {
        match self.nodes[node].lock(self.now, key, &want.into()).expect("nobody is in the way") {
            Submitted::Granted(held) => held,
            Submitted::Waiting(ticket) => {
                self.deliver();
                self.end(node, ticket).expect("nobody is in the way")
            }
        }
    }

    pub(crate) fn end(&self, node: usize, ticket: Ticket) -> Result<Held, LockError> {
        let (outcome, held) = self.nodes[node].finish(self.now, ticket);
        outcome.map(|()| held.expect("it is held"))
    }

    pub(crate) fn unlock(&self, node: usize, held: Held) {
        self.nodes[node].unlock(self.now, held);
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, time: u64) {
        self.now += time;
        self.nodes.iter().for_each(|node| node.tick(self.now));
    }
}

/// A message as the other side reads it: with nothing shared.
fn as_read(message: Message) -> Message {
    let mut frame = Vec::new();
    encode(&Packet { number: 1, acknowledged: 0, message: Some(message) }, &mut frame);
    decode(&frame[4..]).ok().and_then(|packet| packet.message).expect("what was written is read again")
}

pub(crate) fn options() -> Options {
    Options { shards: 1, hold: 4 * MS, ..Options::default() }
}

pub(crate) fn key(name: &str) -> Key {
    Key::whole(Name::hashed(name.as_bytes(), 1).expect("short"))
}
