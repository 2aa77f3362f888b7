//! Probe: what nodes tell each other to find parties that wait for each other in a circle. How it goes: `node/deadlock.rs`.

use crate::Range;
use foldhash::fast::FixedState;
use sluice_membership::NodeId;
use std::hash::{BuildHasher, Hash};

/// The longest circle that is found, in waits.
pub(crate) const PATH_MAX: usize = 64;

/// Through so many requests that wait before it a wait is followed.
pub(crate) const LINKS_MAX: usize = 8;

/// An entity that holds several locks and waits for others: a thread, a task, a request that is served. See
/// [`Node::party`](crate::Node::party).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockParty(pub(crate) u64);

/// A wait of a party: the later of two that know of each other is the greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId {
    /// Its number on its node.
    pub number: u64,
    /// Its node.
    pub node: NodeId,
}

/// A part of a probe's path: what waits, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProbeStep {
    /// The wait.
    pub wait: WaitId,
    /// Names the requests between the two. The same name later: it was like this all the time.
    pub way: u64,
    /// The lock in the way: a number of the node that it is held on, which no other lock gets.
    pub hold: u64,
}

/// A request through which another one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestBefore {
    /// Its node.
    pub node: NodeId,
    /// The range of the request.
    pub range: Range,
    /// Its number.
    pub serial: u64,
    /// Its turn.
    pub turn: u64,
}

/// A probe: it goes from waits to what they wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// The wait that began it, and is told of a circle.
    pub first: WaitId,
    /// Its search.
    pub round: u64,
    /// On the second lap: how many steps of the path were found again.
    pub proved: Option<u16>,
    /// The wait that it is at.
    pub wait: WaitId,
    /// A hash of the way from that wait to the probe's place.
    pub way: u64,
    /// The steps so far; on the second lap all of them.
    pub path: Vec<ProbeStep>,
}

impl Probe {
    /// The probe after a step. None if that goes nowhere.
    pub(crate) fn step(&self, way: u64, hold: u64) -> Option<Probe> {
        let step = ProbeStep { wait: self.wait, way, hold };
        let mut next = self.clone();
        match &mut next.proved {
            None if self.path.len() < PATH_MAX => next.path.push(step),
            Some(proved) if self.path.get(usize::from(*proved)) == Some(&step) => *proved += 1,
            _ => return None,
        }
        Some(next)
    }

    /// Whether it is to go by this way: on the second lap, that of the first.
    pub(crate) fn goes_by(&self, way: u64) -> bool {
        self.proved
            .is_none_or(|proved| self.path.get(usize::from(proved)).is_some_and(|step| step.way == way))
    }

    /// The probe as it goes on at another wait.
    pub(crate) fn at(self, wait: WaitId) -> Probe {
        Probe { wait, way: 0, ..self }
    }
}

/// A name for having come by `way`, and then by `part`.
pub(crate) fn mix(way: u64, part: impl Hash) -> u64 {
    FixedState::with_seed(way).hash_one(part)
}
