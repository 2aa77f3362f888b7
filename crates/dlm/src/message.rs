//! Messages: what nodes tell each other about locks.
//!
//! Each is about one resource and carries the epoch of its shard. A receiver that knows another epoch drops it: what it
//! asked for is asked for again, and what it told is told anew, to the shard's next owner.

use crate::probe::{Probe, RequestBefore};
use crate::{Key, Mode, Range};
use sluice_membership::{NodeId, ShardId};

/// The fencing token of a grant: grants of a resource that exclude each other have tokens in their order. A store that
/// remembers the greatest that it has seen refuses holders of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The epoch of the shard's owner that granted it.
    pub epoch: u64,
    /// Its number in this epoch.
    pub number: u64,
}

impl Token {
    /// So many bits of [`as_number`](Self::as_number) are the number. A master that has given out half of them begins a new epoch.
    pub(crate) const NUMBER_BITS: u32 = 25;

    /// The token as a number, in the same order, for stores and programs that compare 64-bit integers. `None` from epoch 2^38 on.
    ///
    /// ```
    /// use sluice_dlm::Token;
    /// let number = |epoch, number| Token { epoch, number }.as_number();
    /// assert!(number(7, 1) < number(7, 2) && number(7, 2) < number(8, 1));
    /// assert_eq!(number(1 << 38, 1), None);
    /// ```
    pub fn as_number(self) -> Option<u64> {
        let is_small = self.epoch >> (63 - Token::NUMBER_BITS) == 0 && self.number >> Token::NUMBER_BITS == 0;
        is_small.then_some(self.epoch << Token::NUMBER_BITS | self.number)
    }
}

/// The value block of a resource: a few bytes that go from holder to holder with the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Under which grant it was changed, and how often under that: the later of two values has the greater one.
    pub version: (Token, u64),
    /// False if a holder that could change it died: it may have been changed since.
    pub is_certain: bool,
    /// The content.
    pub bytes: Box<[u8]>,
}

/// The node that a holder hands its lock to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The node.
    pub node: NodeId,
    /// The range of the new grant.
    pub range: Range,
    /// How strongly.
    pub mode: Mode,
    /// The token of the grant.
    pub token: Token,
    /// The request that is answered.
    pub serial: u64,
}

/// Whether a holder has handed its lock on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The token of the grant that was to be handed on.
    pub token: Token,
    /// Whether it was. False: it was not, and never will be.
    pub is_handed: bool,
}

/// A message about a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// To the master: a node wants the lock in `mode`.
    Request {
        /// The number of the request, never used again by the node.
        serial: u64,
        /// The mode.
        mode: Mode,
        /// The grant that the node has. A node that names no grant here has none, and refuses a grant still under way.
        holds: Option<Token>,
        /// Whether it would rather be refused than wait for a lock in use.
        is_try: bool,
        /// Whether a lock in use is converted, which is not given up meanwhile: such requests come before others, and void
        /// what the node was asked for before.
        converts: bool,
        /// A number that is greater each time that the node changes its mind about that.
        turn: u64,
    },
    /// To the master: the node does not want it any more.
    Cancel {
        /// The number of the request.
        serial: u64,
    },
    /// To the master: a grant has become weaker, or has ended.
    Release {
        /// The grant.
        token: Token,
        /// The mode that the node keeps.
        to: Option<Mode>,
        /// The value, if the node changed it.
        value: Option<Value>,
        /// The answer to a `Revoke` that named the next holder.
        answer: Option<Answer>,
    },
    /// To the master: a lock that is asked for by a node that does not wait is in use.
    Busy {
        /// The grant.
        token: Token,
    },
    /// From the master, or the holder before: the lock.
    Grant {
        /// The request that is answered.
        serial: u64,
        /// The token of the grant.
        token: Token,
        /// The mode.
        mode: Mode,
        /// The value, if there is one.
        value: Option<Value>,
    },
    /// From the master: a request without waiting is refused.
    Denied {
        /// The number of the request.
        serial: u64,
    },
    /// From the master: make room.
    Revoke {
        /// The grant that is in the way.
        token: Token,
        /// The request that it answered.
        serial: u64,
        /// The turn of the node's request that the master knows of, or 0.
        knows: u64,
        /// The mode that it is in the way of.
        wanted: Mode,
        /// Whether to refuse if the lock is in use.
        is_try: bool,
        /// The node to hand the lock to.
        next: Option<Next>,
    },
    /// To a new master: the node has this grant.
    Held {
        /// The mode.
        mode: Mode,
        /// The token of the grant.
        token: Token,
        /// The value.
        value: Option<Value>,
    },
    /// To the master: what does a request wait for?
    Blocked {
        /// The number of the request.
        serial: u64,
        /// The probe that is to go on.
        probe: Probe,
    },
    /// From the master, or the node before: does this node still want what another request waits for?
    Behind {
        /// The node's request, and the requests of other nodes to ask next.
        through: Vec<RequestBefore>,
        /// The grant that blocks these requests: its node and range.
        grant: (NodeId, Range),
        /// The mode that it is in the way of.
        wanted: Mode,
        /// The probe that is to go on.
        probe: Probe,
    },
    /// From the master, or a node whose request is between: which locks that are held on this node are in the way?
    Blocks {
        /// The mode that they are in the way of.
        wanted: Mode,
        /// The probe that is to go on.
        probe: Probe,
    },
}

/// A message between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// About a resource.
    Lock {
        /// The epoch of the shard that the sender knows.
        epoch: u64,
        /// The resource and range.
        key: Key,
        /// The message about the resource.
        body: Body,
    },
    /// To a new master: the node has told all that it has of the shard.
    Registered {
        /// The shard.
        shard: ShardId,
        /// The epoch of the new master.
        epoch: u64,
    },
}

impl Message {
    /// The shard it is about.
    pub fn shard(&self) -> ShardId {
        match self {
            Message::Lock { key, .. } => key.shard(),
            Message::Registered { shard, .. } => *shard,
        }
    }

    /// The epoch that its sender knows.
    pub fn epoch(&self) -> u64 {
        match self {
            Message::Lock { epoch, .. } | Message::Registered { epoch, .. } => *epoch,
        }
    }
}
