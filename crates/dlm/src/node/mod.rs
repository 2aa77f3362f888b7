//! Node: one member's locks and the resources that it is master of, without threads, clocks or sockets.
//!
//! # Theory
//! The caller of a node tells it what happens (a lock is wanted, a message or a view has come, time has passed) and
//! with the time, in nanoseconds of any clock that never goes back. The node states its requests to the caller by
//! [`Effects`]. So the same code runs over TCP, in a simulation with a clock of its own, and in a model checker.
//!
//! A node plays two parts. As a *client* (`client.rs`, `cached.rs`) it has a table of the locks that it caches: a lock that is cached
//! strongly enough is locked and unlocked there by one exchange each (`word.rs`), found without a lock, and nobody is told. As the
//! *master* of some shards (`master.rs`) it has a table of their resources, each with its `Queue`. `cluster.rs` is about
//! masters that come and go.
//!
//! # Clients must
//! - deliver the messages between two nodes in order and exactly once, or not at all once one node has left;
//! - call [`Node::view`] with views in their order, and [`Node::tick`] a few times in [`Options::hold`];
//! - call [`Node::renewed`] with a time at which the lease is surely not over yet: when the renewal was *sent*, plus the
//!   lease's length, less a margin for clocks of different speed;
//! - tell the membership that a dead node is fenced only when nothing that it did under its locks can still take effect.
//!
//! # Then
//! - two nodes with valid leases never hold conflicting locks at the same time;
//! - what a holder did is refused by a store that compares tokens or has fenced the holder, from before another gets the lock;
//! - each request is decided, if its node stays a member and messages arrive, as soon as those before it unlock.
//!
//! # Lock order
//! `dlm.cluster`, then one `dlm.shard`, then one `dlm.local` or `dlm.resource`. [`Effects`] are called under these. Notices and
//! wakers are called under none.
//!
//! # Cost
//! A cached lock: a look into the table, a pin, an exchange on the lock's own line; unlock likewise. Anything else takes the
//! shard's mutex; two shards share nothing but the tables, whose buckets are locked one at a time.

mod cached;
mod client;
mod cluster;
mod deadlock;
mod master;
mod status;

pub use client::{Held, Submitted, Ticket, Want};
pub use status::{Count, LockStatus, NodeStatus, ResourceStatus, Statistics};

use crate::local::{ByKey, Local, Notice};
use crate::lock_class::{CLUSTER, PARTIES, SHARD};
use crate::message::{Message, Token};
use crate::mutant::Mutant;
use crate::probe::{LockParty, Probe};
use crate::queue::Queue;
use crate::wait::{Outcome, Wait};
use crate::{Key, Mode, Name};
use deadlock::Parties;
use foldhash::fast::FixedState;
use sluice_membership::{NodeId, ShardId, View};
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::reclaim::Reclaimer;
use sluice_sync::{Arc, CachePadded, HashTable, Mutex, SmallMutex, rcu};
use std::collections::{BTreeSet, VecDeque};
use std::task::Waker;
use std::{fmt, mem};

/// The calls by which a node acts on the world. Called with locks of the node held, where nothing else is said: it may
/// queue things, and must not call the node.
pub trait Effects: Send + Sync {
    /// Sends a message; those to one node in this order. It may be queued until [`flush`](Self::flush).
    fn send(&self, to: NodeId, message: Message);
    /// Messages to `to` were sent. Called with no lock of a shard held, so it may take a little longer.
    fn flush(&self, _to: NodeId) {}
    /// Fences a dead node, and then tells the membership. Several nodes may want it, and want it again.
    fn fence(&self, dead: NodeId);
    /// Becomes master of `shard`, if nothing has changed since its owner's `epoch` (0: it has had none).
    fn claim(&self, shard: ShardId, epoch: u64);
    /// Stops being master of `shard`, in favour of another node.
    fn resign(&self, shard: ShardId, epoch: u64);
}

/// The members that become masters of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Masters {
    /// Each member is master of some shards: for members that stay. A new member takes over its part.
    #[default]
    Spread,
    /// The member that joined first is master of all shards: for members that come and go. A new member changes nothing for the
    /// others.
    Oldest,
}

/// How a node behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many shards the cluster has; the same at all nodes.
    pub shards: u16,
    /// How long a node that uses a lock keeps it although another wants it, in nanoseconds.
    pub hold: u64,
    /// Nanoseconds after which an unanswered request is sent again.
    pub retry: u64,
    /// After how many nanoseconds a request of a party that still waits looks for a deadlock. It looks again when it
    /// has waited twice as long, and at least once in `retry`.
    pub search: u64,
    /// How many bytes of cached locks are kept, about.
    pub memory: u64,
    /// Seeds the hash of the tables. Keep it secret if others choose the names.
    pub seed: u64,
    /// The members that become masters; the same at all nodes.
    pub masters: Masters,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            shards: 64,
            hold: 5_000_000,
            retry: 1_000_000_000,
            search: 20_000_000,
            memory: 256 << 20,
            seed: 0,
            masters: Masters::Spread,
            mutant: None,
        }
    }
}

/// A member of the cluster.
pub struct Node<E> {
    /// *immutable*
    pub(crate) id: NodeId,
    /// *immutable*
    pub(crate) options: Options,
    pub(crate) effects: E,
    /// Locks that are cached, held or waited for. *changed under the shard's mutex, except that locks are entered
    /// without*
    locals: HashTable<ByKey, Arc<Local>, FixedState>,
    /// Bounds the memory of `locals`.
    memory: Reclaimer<Arc<Local>>,
    /// Resources whose master is this node. *changed under the shard's mutex*
    resources: HashTable<Name, Arc<SmallMutex<Queue>>, FixedState>,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// The newest view. *protected by its mutex, which is held while it is carried into the shards*
    cluster: Mutex<Arc<View>>,
    /// Until when this node is surely a member. *atomic*
    lease_end: CachePadded<AtomicU64>,
    /// The number of the last request. *atomic*
    serial: AtomicU64,
    /// The pending waits of this node's parties. *protected by its mutex*
    parties: Mutex<Parties>,
    pub(crate) statistics: Statistics,
}

/// A node's state of a shard.
struct Shard {
    /// The epoch of the owner that this node has told what it holds, or is about to.
    epoch: u64,
    owner: Option<NodeId>,
    role: Role,
    /// The last token that was given out here.
    last: Token,
    view: Arc<View>,
    /// Messages for a master that does not serve yet, or for a later one.
    stash: Vec<(NodeId, Message)>,
    /// When to look at which lock again.
    timers: BTreeSet<(u64, Key)>,
    /// Messages of this node to itself.
    inbox: VecDeque<Message>,
    /// Calls to make when the shard is unlocked.
    after: Vec<After>,
}

/// Whether this node is master of a shard.
#[derive(Debug)]
enum Role {
    /// It is not the master.
    Other,
    /// It will be master when these nodes have reported their holdings, or are gone.
    Recovering(BTreeSet<NodeId>),
    /// It is.
    Serving,
}

/// A call that is made with no lock held.
enum After {
    Flush(NodeId),
    Wake(Waker),
    Notice(Notice, Mode),
    /// A probe has come to a lock that a party of this node holds.
    Reached(Probe, LockParty),
}

impl<E: Effects> Node<E> {
    /// A node that has joined as `id`, and knows nothing of the cluster yet.
    pub fn new(id: NodeId, options: Options, effects: E) -> Self {
        let view = Arc::new(View::default());
        let shard = |_| {
            CachePadded::new(Mutex::with_class(
                &SHARD,
                Shard {
                    epoch: 0,
                    owner: None,
                    role: Role::Other,
                    last: Token { epoch: 0, number: 0 },
                    view: view.clone(),
                    stash: Vec::new(),
                    timers: BTreeSet::new(),
                    inbox: VecDeque::new(),
                    after: Vec::new(),
                },
            ))
        };
        let hasher = FixedState::with_seed(options.seed);
        Node {
            id,
            effects,
            locals: HashTable::with_buckets_and_hasher(rcu::domain(), 0, hasher.clone()),
            memory: Reclaimer::new(options.memory),
            resources: HashTable::with_buckets_and_hasher(rcu::domain(), 0, hasher),
            shards: (0..options.shards.max(1)).map(shard).collect(),
            cluster: Mutex::with_class(&CLUSTER, view.clone()),
            lease_end: CachePadded::new(AtomicU64::new(0)),
            serial: AtomicU64::new(0),
            parties: Mutex::with_class(&PARTIES, Parties::default()),
            statistics: Statistics::default(),
            options,
        }
    }

    /// Its number.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The options of the node.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The receiver of the node's messages and calls.
    pub fn effects(&self) -> &E {
        &self.effects
    }

    /// Whether the lease is surely not over.
    #[inline]
    pub fn is_member(&self, now: u64) -> bool {
        // Relaxed: a time, which publishes nothing.
        now < self.lease_end.load(Ordering::Relaxed) || self.options.mutant == Some(Mutant::LeaseIgnored)
    }

    /// Until when this node is surely a member, by the clock of its caller.
    pub fn lease_end(&self) -> u64 {
        // Relaxed: as in is_member().
        self.lease_end.load(Ordering::Relaxed)
    }

    /// Takes in a message of another node.
    pub fn message(&self, now: u64, from: NodeId, message: Message) {
        if !self.is_member(now) {
            // The message is lost: from here on this node must never be a member again.
            self.stop();
        } else if usize::from(message.shard()) < self.shards.len() {
            self.statistics.received.add();
            self.under(message.shard(), now, |node, shard| node.receive(shard, now, from, message));
        }
    }

    /// Does what has become due.
    pub fn tick(&self, now: u64) {
        if !self.is_member(now) {
            self.stop();
            return;
        }
        for number in 0..self.options.shards {
            self.under(number, now, |node, shard| {
                while shard.timers.first().is_some_and(|(due, _)| *due <= now) {
                    let Some((_, key)) = shard.timers.pop_first() else { break };
                    node.look_again(shard, now, &key);
                }
            });
        }
    }

    /// Runs `work` with the shard locked, then what this node sent to itself, and then tells the callers that wait for an outcome.
    fn under<R>(&self, shard: ShardId, now: u64, work: impl FnOnce(&Self, &mut Shard) -> R) -> R {
        let mut guard = self.shards[usize::from(shard) % self.shards.len()].lock();
        let result = work(self, &mut guard);
        while let Some(message) = guard.inbox.pop_front() {
            self.receive(&mut guard, now, self.id, message);
        }
        let after = mem::take(&mut guard.after);
        drop(guard);
        for call in after {
            match call {
                After::Flush(to) => self.effects.flush(to),
                After::Wake(waker) => waker.wake(),
                After::Notice(notice, wanted) => notice(wanted),
                After::Reached(probe, party) => self.reached(now, probe, party),
            }
        }
        result
    }

    /// Decides a request that waited here.
    fn decide(&self, shard: &mut Shard, wait: &Wait, outcome: Outcome) {
        shard.after.extend(wait.decide(outcome).map(After::Wake));
    }

    fn send(&self, shard: &mut Shard, to: NodeId, message: Message) {
        if to == self.id {
            shard.inbox.push_back(message);
        } else {
            self.statistics.sent.add();
            self.effects.send(to, message);
            let is_noted = |after: &After| matches!(after, After::Flush(other) if *other == to);
            if !shard.after.iter().any(is_noted) {
                shard.after.push(After::Flush(to));
            }
        }
    }
}

impl<E> fmt::Debug for Node<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("id", &self.id).finish_non_exhaustive()
    }
}
