//! Deadlock: parties that wait for each other's locks in a circle are found by probes that follow the waits.
//!
//! # Theory
//! Edge chasing after Chandy, Misra and Haas, for requests that wait for all that is in their way. A wait that lasts sends a
//! *probe* along what it waits for:
//!
//! ```text
//!    node A: wait of party P --- Blocked ---> master of its lock --- Blocks ---> node B: hold of party Q
//!       ^                                                                            |
//!       |                     (to its own node without a message)                    v
//!    hold of party P <--- Blocks --- master of the lock <--- Blocked --- wait of party Q
//! ```
//!
//! *A wait's targets* are holds, never waits: a request behind other requests waits for the holds that block these, on
//! its node (`edges`) and at the master (`Queue::blockers`). There it may wait behind one whose node has just withdrawn
//! it: so the probe goes by way of that node (`Behind`). A grant that is cached but not held blocks no request: a node
//! gives it up on demand.
//!
//! *No false deadlock.* A probe sees its edges one after the other, and possibly no moment has all of them. So when it
//! has come round it goes round again, and the circle counts if each edge is there as it was: the same wait, the same
//! hold, the same way from one to the other. Each of these has a name that is never used again after its end (a
//! converted hold gets a new name). So each edge was there all the time from the first lap to the second, and at the
//! moment between them all were.
//!
//! *One is told.* Waits are ordered by number; a node gives each wait a greater one than those of all probes that it has seen. A probe
//! ends at a wait that is greater than the one that began it. So of a circle only the youngest wait learns, and is told.
//!
//! *Each is found.* A circle stays until a wait of it ends. A probe may be lost with a master, a node or a view, or come too early. So
//! a wait that lasts searches again, when it has waited twice as long, and at least once in [`Options::retry`](super::Options::retry).
//!
//! # Cost
//! A lock that is got within [`Options::search`](super::Options::search): no message. A search goes on once from each party that it comes to.
//!
//! # Sources
//! Chandy, Misra and Haas, "Distributed deadlock detection" (1983). Mitchell and Merritt, "A distributed algorithm for deadlock
//! detection and resolution" (1984): that only one is told.

use super::{After, Effects, Node, Shard};
use crate::error::LockError;
use crate::local::{Local, Slow, Waiter};
use crate::message::{Body, Message};
use crate::mutant::Mutant;
use crate::probe::{LockParty, Probe, RequestBefore, WaitId, mix};
use crate::queue::{GrantInTheWay, Queue, Sends};
use crate::{Key, Mode, Range};
use sluice_membership::NodeId;
use sluice_sync::atomic::Ordering;
use std::collections::BTreeMap;

/// So many searches are remembered; when there are more some probes go twice.
const SEEN_MAX: usize = 4096;

/// The pending waits of a node's parties.
#[derive(Debug, Default)]
pub(super) struct Parties {
    /// For each party, and each number of a wait of it, the lock.
    pub(super) waits: BTreeMap<(LockParty, u64), Key>,
    /// The last search of each wait that has come to a party.
    seen: BTreeMap<(LockParty, WaitId), u64>,
}

impl Parties {
    /// The waits of `party`, if the search of `probe` has not come to it before.
    fn waits_after(&mut self, party: LockParty, probe: &Probe) -> Vec<u64> {
        if self.seen.len() >= SEEN_MAX {
            self.seen.clear();
        }
        let mine = self.waits.range((party, 0)..=(party, u64::MAX)).map(|((_, number), _)| *number);
        let mine: Vec<_> = mine.collect();
        let is_new =
            !mine.is_empty() && self.seen.insert((party, probe.first), probe.round) != Some(probe.round);
        if is_new { mine } else { Vec::new() }
    }
}

/// The targets of a wait, as far as its node knows.
#[derive(Default)]
struct Edges {
    /// Holds of parties of this node: the way, the hold, and the party.
    holds: Vec<(u64, u64, LockParty)>,
    /// The request to the master: the way and the number.
    request: Option<(u64, u64)>,
}

impl<E: Effects> Node<E> {
    /// Begins the searches that are due.
    pub(super) fn look_for_deadlocks(&self, shard: &mut Shard, now: u64, local: &Local, slow: &mut Slow) {
        let Some(more) = slow.more_mut() else { return };
        let mut due = Vec::new();
        for waiter in more.waiters.iter_mut().filter(|waiter| waiter.is_due(now)) {
            let waited = now - waiter.began_at.min(now);
            waiter.look_at =
                now + waited.clamp(self.options.search, self.options.retry.max(self.options.search));
            shard.timers.insert((waiter.look_at, local.key.clone()));
            due.push(waiter.number);
        }
        due.into_iter().for_each(|number| self.search(shard, local, slow, number));
    }

    fn search(&self, shard: &mut Shard, local: &Local, slow: &Slow, number: u64) {
        let first = WaitId { number, node: self.id };
        let round = self.next_serial();
        let probe = Probe { first, round, proved: None, wait: first, way: 0, path: Vec::new() };
        self.chase(shard, local, slow, probe);
    }

    /// Advances a probe from its current wait, if the wait goes on.
    fn chase(&self, shard: &mut Shard, local: &Local, slow: &Slow, probe: Probe) {
        let edges = edges(local, slow, probe.wait.number);
        for (way, hold, party) in edges.holds.into_iter().filter(|(way, ..)| probe.goes_by(*way)) {
            shard.after.extend(probe.step(way, hold).map(|probe| After::Reached(probe, party)));
        }
        if let Some((way, serial)) = edges.request {
            self.statistics.probes.add();
            self.to_master(shard, &local.key, Body::Blocked { serial, probe: Probe { way, ..probe } });
        }
    }

    /// At the master: a probe goes on to the grants that a request waits for.
    pub(super) fn pass_on(
        &self,
        queue: &Queue,
        request: (NodeId, Range, u64),
        probe: &Probe,
        sends: &mut Sends,
    ) {
        let mut found: Vec<GrantInTheWay> = Vec::new();
        for blocker in queue.blockers(request, probe.way) {
            let is_known =
                |other: &GrantInTheWay| other.grant == blocker.grant && other.wanted.covers(blocker.wanted);
            if probe.goes_by(blocker.way) && !found.iter().any(is_known) {
                found.push(blocker);
            }
        }
        for blocker in found {
            self.statistics.probes.add();
            let probe = Probe { way: blocker.way, ..probe.clone() };
            sends.push(next_of(blocker.through, blocker.grant, blocker.wanted, probe));
        }
    }

    /// At a node whose request another one waits for: a probe goes on if it is still wanted.
    pub(super) fn behind(
        &self,
        shard: &mut Shard,
        local: &Local,
        slow: &Slow,
        mut through: Vec<RequestBefore>,
        (grant, wanted, probe): ((NodeId, Range), Mode, Probe),
    ) {
        let Some(link) = (!through.is_empty()).then(|| through.remove(0)) else { return };
        if slow.request().is_some_and(|request| (request.serial, request.turn) == (link.serial, link.turn)) {
            self.statistics.probes.add();
            let (node, range, body) = next_of(through, grant, wanted, probe);
            let key = Key { name: local.key.name.clone(), range };
            self.send(shard, node, Message::Lock { epoch: shard.epoch, key, body });
        }
    }

    /// At a node that has a grant: a probe goes on to the holds that are in the way of `wanted`.
    pub(super) fn blocks(&self, shard: &mut Shard, slow: &Slow, wanted: Mode, probe: &Probe) {
        // Relaxed: only that later numbers are greater.
        self.serial.fetch_max(probe.first.number, Ordering::Relaxed);
        for known in slow.more().into_iter().flat_map(|more| &more.known) {
            if !known.mode.compatible(wanted)
                && let Some(party) = known.party
                && let Some(next) = probe.step(probe.way, known.hold)
            {
                shard.after.push(After::Reached(next, party));
            }
        }
    }

    /// A probe has come to a lock that `party` holds, and goes on from what that waits for.
    pub(super) fn reached(&self, now: u64, probe: Probe, party: LockParty) {
        let first = probe.first;
        let is_round =
            first.node == self.id && self.parties.lock().waits.contains_key(&(party, first.number));
        match probe.proved.map(usize::from) {
            None if is_round && self.options.mutant == Some(Mutant::UnprovedDeadlock) => {
                self.fail(now, party, first.number);
            }
            // Now the second lap.
            None if is_round => self.go_on(now, party, Probe { proved: Some(0), ..probe }.at(first)),
            None => {
                let waits = self.parties.lock().waits_after(party, &probe);
                for number in waits {
                    self.go_on(now, party, probe.clone().at(WaitId { number, node: self.id }));
                }
            }
            Some(proved) => match probe.path.get(proved).map(|step| step.wait) {
                Some(next) => self.go_on(now, party, probe.at(next)),
                None if is_round => self.fail(now, party, first.number),
                None => {}
            },
        }
    }

    /// A probe goes on from the wait of `party` that it is at, or leaves the circle to that if it is younger.
    fn go_on(&self, now: u64, party: LockParty, probe: Probe) {
        if probe.wait <= probe.first {
            self.at_wait(now, party, probe.wait.number, |node, shard, local, slow| {
                node.chase(shard, local, slow, probe);
            });
        }
    }

    /// The wait of `party` is one of a circle.
    fn fail(&self, now: u64, party: LockParty, number: u64) {
        self.at_wait(now, party, number, |node, shard, local, slow| {
            let is_it = |waiter: &Waiter| waiter.number == number;
            if node.withdraw(shard, now, local, slow, is_it, LockError::Deadlock) {
                node.statistics.deadlocks.add();
            }
            slow.tidy();
        });
    }

    fn at_wait(
        &self,
        now: u64,
        party: LockParty,
        number: u64,
        work: impl FnOnce(&Self, &mut Shard, &Local, &mut Slow),
    ) {
        let key = self.parties.lock().waits.get(&(party, number)).cloned();
        let local = key.and_then(|key| self.locals.get(&key, &self.locals.read()).cloned());
        if let Some(local) = local {
            self.under(local.key.shard(), now, |node, shard| {
                work(node, shard, &local, &mut local.slow.lock());
            });
        }
    }
}

/// Where a probe goes from the master: to the nodes whose requests are between, and then to the one that has the grant.
fn next_of(
    through: Vec<RequestBefore>,
    grant: (NodeId, Range),
    wanted: Mode,
    probe: Probe,
) -> (NodeId, Range, Body) {
    match through.first().copied() {
        Some(link) => (link.node, link.range, Body::Behind { through, grant, wanted, probe }),
        None => (grant.0, grant.1, Body::Blocks { wanted, probe }),
    }
}

/// The edges of the request `number`.
fn edges(local: &Local, slow: &Slow, number: u64) -> Edges {
    let mut edges = Edges::default();
    let Some(more) = slow.more() else { return edges };
    let Some(last) = more.waiters.iter().position(|waiter| waiter.number == number) else { return edges };
    let cached = local.word.cached();
    let waits_for_grant = |waiter: &Waiter| {
        let is_covered = cached.is_some_and(|cached| cached.covers(waiter.mode));
        more.request.filter(|request| !is_covered || !request.first.covers(waiter.mode))
    };
    let it = &more.waiters[last];
    // A conversion that needs no grant passes the waiters before it, and a conversion that needs one waits with them
    // for grants alone. Any other request waits for the earlier waiters, and so for every hold that blocks them.
    let is_covered = cached.is_some_and(|cached| cached.covers(it.mode)) && slow.allows(it.mode);
    let begin = if it.holds.is_some() && is_covered { last } else { 0 };
    for waiter in more.waiters.range(begin..=last) {
        let way = mix(0, waiter.number);
        let against = |wanted: Mode, way| {
            let others = more.known.iter().filter(|known| known.number != waiter.known);
            let others = others.filter(move |known| !known.mode.compatible(wanted));
            others.filter_map(move |known| known.party.map(|party| (way, known.hold, party)))
        };
        if it.holds.is_none() || waiter.number == number {
            edges.holds.extend(against(waiter.mode, way));
        }
        if more.is_draining
            && waiter.holds.is_none()
            && let Some(revoke) = &more.revoke
        {
            edges.holds.extend(against(revoke.wanted, mix(way, revoke.number)));
        }
        if let Some(request) = waits_for_grant(waiter) {
            edges.request.get_or_insert((mix(way, request.serial), request.serial));
        }
    }
    edges
}
