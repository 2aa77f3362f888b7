//! Queue: what the master knows of one resource: what is granted, and what waits, in order.
//!
//! # Theory
//! A pure state machine: each call changes the queue and says what has to be sent. A node has at most one grant and one
//! request for a range.
//!
//! Requests wait in order of arrival; those that convert a lock in use come before the others, since that lock is not given
//! up before. A request is granted when
//! no grant of another node or range conflicts with it, *and no request before it does*: so nobody is bypassed by what it
//! excludes, and a writer waits for readers that were there, never for those that came later.
//!
//! *Hand-over.* If a single grant is in the way of the first request, its holder gets a `Revoke` that names the next holder
//! ([`Next`]): it sends the lock there by itself, and tells the master. Until then nothing else is granted (the *promise*).
//! Three messages on the way of a lock, not four.
//!
//! # Invariants
//! - Q1 Two grants conflict only if one of them has been handed over early (see [`Queue::request`] and
//!   [`Queue::release`]) or was told by a node that registers.
//! - Q2 In the way of each request is a grant whose node has been asked for it, an earlier request, or the promise.
//! - Q3 A node takes a grant only for the request that it waits for now. So a request that does not name the node's grant
//!   proves that the node does not have it, and never will.
//!
//! # Cost
//! Linear in grants, quadratic in the requests that wait for one resource.

use crate::grants::{Grant, Grants};
use crate::message::{Answer, Body, Next, Token, Value};
use crate::mutant::Mutant;
use crate::probe::{LINKS_MAX, RequestBefore, mix};
use crate::{Mode, Range};
use sluice_membership::NodeId;
use std::collections::VecDeque;
use std::mem;

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) node: NodeId,
    pub(crate) range: Range,
    pub(crate) mode: Mode,
    serial: u64,
    is_try: bool,
    converts: bool,
    turn: u64,
    /// When the master heard of it, in nanoseconds.
    pub(crate) since: u64,
}

/// That a holder was told to hand its lock to a waiting node.
#[derive(Clone, Debug)]
struct Promise {
    /// Whose grant is handed over.
    from: (NodeId, Range),
    to: Waiting,
    token: Token,
    /// The promised node will not take the grant.
    is_void: bool,
}

/// Messages to be sent about the resource: to which node, about which range.
pub(crate) type Sends = Vec<(NodeId, Range, Body)>;

/// The master's state of one resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// The epoch of the shard that this is about.
    pub(crate) epoch: u64,
    pub(crate) grants: Grants,
    /// *boxed: most resources have none, and need no room for it*
    demand: Option<Box<Demand>>,
    /// *boxed, as above*
    value: Option<Box<Value>>,
}

/// The state of a resource with waiters, or of one that has moved between nodes.
#[derive(Clone, Debug, Default)]
struct Demand {
    waiting: VecDeque<Waiting>,
    promise: Option<Promise>,
    /// Grants that a node was to hand over, by their tokens. It may have died in between.
    handed: Vec<(Token, NodeId)>,
    /// How often a different node got the grant.
    moves: u64,
    /// To which it was granted last.
    last: Option<NodeId>,
}

/// Grants that a request waits for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GrantInTheWay {
    /// The node and range of the grant.
    pub(crate) grant: (NodeId, Range),
    /// The mode that it is in the way of.
    pub(crate) wanted: Mode,
    /// Names the requests through which it is.
    pub(crate) way: u64,
    /// The earlier requests among these. They may have been withdrawn meanwhile.
    pub(crate) through: Vec<RequestBefore>,
}

/// The master's state that a call needs besides the queue.
pub(crate) struct Desk<'a> {
    /// The token of the last grant of the shard.
    pub(crate) last: &'a mut Token,
    pub(crate) sends: &'a mut Sends,
    pub(crate) mutant: Option<Mutant>,
}

impl Desk<'_> {
    fn token(&mut self) -> Token {
        self.last.number += 1;
        *self.last
    }
}

/// A request as it arrives.
pub(crate) struct Asked {
    pub(crate) node: NodeId,
    pub(crate) range: Range,
    pub(crate) serial: u64,
    pub(crate) mode: Mode,
    pub(crate) holds: Option<Token>,
    pub(crate) is_try: bool,
    pub(crate) converts: bool,
    pub(crate) turn: u64,
    pub(crate) now: u64,
}

impl Queue {
    /// A resource of which nothing is known in `epoch`.
    pub(crate) fn of_epoch(epoch: u64) -> Queue {
        Queue { epoch, ..Queue::default() }
    }

    /// Nothing is left to know.
    pub(crate) fn is_idle(&self) -> bool {
        self.grants.is_empty() && self.waiters().next().is_none()
    }

    /// How often a different node got the grant.
    pub(crate) fn moves(&self) -> u64 {
        self.demand.as_ref().map_or(0, |demand| demand.moves)
    }

    fn demand(&mut self) -> &mut Demand {
        let last = || self.grants.last().map(|grant| grant.node);
        self.demand.get_or_insert_with(|| Box::new(Demand { last: last(), ..Demand::default() }))
    }

    fn promise(&self) -> Option<&Promise> {
        self.demand.as_ref().and_then(|demand| demand.promise.as_ref())
    }

    fn promise_mut(&mut self) -> Option<&mut Promise> {
        self.demand.as_mut().and_then(|demand| demand.promise.as_mut())
    }

    fn take_promise_if(&mut self, wanted: impl FnOnce(&mut Promise) -> bool) -> Option<Promise> {
        self.demand.as_mut().and_then(|demand| demand.promise.take_if(wanted))
    }

    /// The requests that wait, without the one that was promised the lock.
    fn queued(&self) -> impl Iterator<Item = &Waiting> {
        self.demand.iter().flat_map(|demand| &demand.waiting)
    }

    /// Where in the queue the first request is that is `wanted`.
    fn find_queued(&self, wanted: impl FnMut(&Waiting) -> bool) -> Option<usize> {
        self.queued().position(wanted)
    }

    fn queued_at(&self, at: usize) -> Option<Waiting> {
        self.queued().nth(at).cloned()
    }

    /// Keeps of the requests that wait those that are `wanted`.
    fn retain_queued(&mut self, wanted: impl FnMut(&Waiting) -> bool) {
        if let Some(demand) = &mut self.demand {
            demand.waiting.retain(wanted);
        }
    }

    /// A node has shown that it has the grant of this token.
    fn shown(&mut self, token: Token) {
        if let Some(demand) = &mut self.demand {
            demand.handed.retain(|(handed, _)| *handed != token);
        }
    }

    /// The requests that wait, in order; first the one that was promised the lock.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Waiting> {
        self.promise().map(|promise| &promise.to).into_iter().chain(self.queued())
    }

    /// The waiting requests for people: without one whose promise is void, which waits no more.
    pub(crate) fn shown_waiters(&self) -> impl Iterator<Item = &Waiting> {
        let promised = self.promise().filter(|promise| !promise.is_void).map(|promise| &promise.to);
        promised.into_iter().chain(self.queued())
    }

    /// A node wants the lock.
    pub(crate) fn request(&mut self, asked: &Asked, desk: &mut Desk<'_>) {
        let &Asked { node, range, serial, mode, holds, is_try, converts, turn, now } = asked;
        holds.into_iter().for_each(|token| self.shown(token));
        if let Some(promise) = self.promise_mut()
            && (promise.to.node, promise.to.range) == (node, range)
        {
            if promise.to.serial == serial {
                // The node may have changed its mind since: it knows what it was asked for before as void, if that is a conversion.
                let is_new = promise.to.turn < turn;
                (promise.to.turn, promise.to.converts) = (turn, converts);
                if is_new && converts {
                    self.void_asked(node, range);
                }
                return;
            }
            if holds == Some(promise.token) {
                // The lock was handed over. The former holder may have changed the value: its grant stays unchanged
                // until its own message states the rest, or until the node is fenced.
                if let Some(promise) = self.take_promise_if(|_| true) {
                    self.install(&promise, None);
                }
            } else {
                promise.is_void = true;
            }
        }
        if let Some(at) = self.grant_of(node, range) {
            let grant = &self.grants[at];
            if grant.serial == serial && holds != Some(grant.token) {
                // Asked again: the grant has not reached the node.
                let (token, mode) = (grant.token, grant.mode);
                desk.sends.push((node, range, self.grant_message(serial, token, mode)));
                return;
            }
            if holds != Some(grant.token) {
                self.void_asked(node, range);
                self.grants.remove(at);
            }
        }
        let is_known = |waiting: &Waiting| {
            (waiting.node, waiting.range, waiting.serial) == (node, range, serial)
                && (waiting.mode, waiting.turn) == (mode, turn)
        };
        if self.queued().any(is_known) {
            return;
        }
        if converts {
            self.void_asked(node, range);
        }
        let queue = &mut self.demand().waiting;
        queue.retain(|waiting| (waiting.node, waiting.range) != (node, range));
        let at = if converts { queue.iter().take_while(|other| other.converts).count() } else { queue.len() };
        queue.insert(at, Waiting { node, range, mode, serial, is_try, converts, turn, since: now });
        self.settle(desk);
    }

    /// A node does not want it any more.
    pub(crate) fn cancel(&mut self, node: NodeId, range: Range, serial: u64, desk: &mut Desk<'_>) {
        self.retain_queued(|waiting| (waiting.node, waiting.range, waiting.serial) != (node, range, serial));
        self.settle(desk);
    }

    /// A node has less than before.
    pub(crate) fn release(
        &mut self,
        (node, range): (NodeId, Range),
        (token, to, value): (Token, Option<Mode>, Option<Value>),
        answer: Option<Answer>,
        desk: &mut Desk<'_>,
    ) {
        self.shown(token);
        if let Some(promise) = self.promise()
            && (promise.to.node, promise.to.range, promise.token) == (node, range, token)
        {
            // The lock was handed over, and this is known here before the one that did so could tell; and so is the value.
            self.keep_promise();
        }
        if let Some(at) = self.grant_of(node, range).filter(|&at| self.grants[at].token == token) {
            // The value of another grant is of the past.
            self.learn_value(value);
            match to {
                Some(to) => {
                    self.grants[at].mode = to;
                    self.grants[at].asked = None;
                }
                None => self.grants.remove(at),
            }
        }
        // Only the answer ends a promise: another release may have been under way when the holder was asked.
        let is_answered = |promise: &mut Promise| answer.is_some_and(|answer| answer.token == promise.token);
        if let Some(promise) = self.take_promise_if(is_answered)
            && !promise.is_void
        {
            if answer.is_some_and(|answer| answer.is_handed) {
                self.install(&promise, Some(node));
            } else {
                self.put_back(promise.to);
            }
        }
        self.settle(desk);
    }

    /// The value, as a node sends it. An uncertain value stays uncertain until it is changed.
    fn learn_value(&mut self, value: Option<Value>) {
        if let Some(value) = value
            && self.value.as_ref().is_none_or(|old| old.version < value.version)
        {
            self.value = Some(Box::new(value));
        }
    }

    /// A lock that is asked for without waiting is in use.
    pub(crate) fn busy(&mut self, node: NodeId, range: Range, token: Token, desk: &mut Desk<'_>) {
        let Some(at) = self.grant_of(node, range).filter(|&at| self.grants[at].token == token) else {
            return;
        };
        self.grants[at].asked = None;
        let grant = self.grants[at].clone();
        if let Some(at) = self.find_queued(|waiting| waiting.is_try && conflicts(&grant, waiting)) {
            self.refuse(at, desk);
        }
        self.settle(desk);
    }

    /// A node tells a new master what it has.
    pub(crate) fn register(
        &mut self,
        node: NodeId,
        range: Range,
        (mode, token): (Mode, Token),
        value: Option<Value>,
    ) {
        // Under a weaker lock the value may have been changed, by a node that died with the last master.
        let is_current = mode.covers(Mode::Pr);
        self.learn_value(value.map(|value| Value { is_certain: value.is_certain && is_current, ..value }));
        self.grants.push(Grant { node, range, mode, token, serial: 0, asked: None });
    }

    /// A node has died and is fenced.
    pub(crate) fn forget(&mut self, gone: NodeId, desk: &mut Desk<'_>) {
        self.retain_queued(|waiting| waiting.node != gone);
        self.doubt(gone);
        self.grants.retain(|grant| grant.node != gone);
        if let Some(promise) = self.promise_mut() {
            promise.is_void |= promise.to.node == gone;
        }
        // Perhaps the lock has been handed over, perhaps not. The same token makes it the same grant.
        if let Some(promise) = self.take_promise_if(|promise| promise.from.0 == gone)
            && !promise.is_void
        {
            self.install(&promise, Some(gone));
        }
        let handed = self.demand.as_mut().map_or_else(Vec::new, |demand| mem::take(&mut demand.handed));
        let (lost, kept): (Vec<_>, _) = handed.into_iter().partition(|(_, from)| *from == gone);
        if let Some(demand) = &mut self.demand {
            demand.handed = kept;
        }
        for grant in self.grants.iter().filter(|grant| lost.iter().any(|(token, _)| *token == grant.token)) {
            let &Grant { node, range, mode, token, serial, .. } = grant;
            desk.sends.push((node, range, self.grant_message(serial, token, mode)));
        }
        self.settle(desk);
    }

    /// Marks values that a dead node may have changed as uncertain, until a change under a later grant.
    fn doubt(&mut self, gone: NodeId) {
        let had = self.grants.iter().map(|grant| (grant.node, grant.mode, grant.token));
        let promised =
            self.promise().into_iter().map(|promise| (promise.to.node, promise.to.mode, promise.token));
        let writers = had.chain(promised).filter(|(node, mode, _)| *node == gone && mode.writes());
        if let Some(last) = writers.map(|(.., token)| token).max() {
            let last = (last, u64::MAX);
            let (version, bytes) =
                self.value.take().map_or((last, Box::default()), |old| (old.version.max(last), old.bytes));
            self.value = Some(Box::new(Value { version, is_certain: false, bytes }));
        }
    }

    /// The grants that a request waits for: its own, and those of the requests before it that hold it up. `way` names how the
    /// caller came to the request.
    pub(crate) fn blockers(
        &self,
        (node, range, serial): (NodeId, Range, u64),
        way: u64,
    ) -> Vec<GrantInTheWay> {
        let order: Vec<_> = self.waiters().collect();
        let is_it = |w: &&Waiting| (w.node, w.range, w.serial) == (node, range, serial);
        let Some(last) = order.iter().position(is_it) else { return Vec::new() };
        let promise = self.promise();
        // For each earlier request that blocks this one: the chain of requests between them.
        let mut chains: Vec<Option<(u64, Vec<RequestBefore>)>> = vec![None; last + 1];
        let mut blockers = Vec::new();
        for at in (0..=last).rev() {
            let one = order[at];
            // While the promise stands nothing else is granted.
            let is_promised = at == 0 && promise.is_some();
            let before = if at == last || is_promised {
                Some((way, Vec::new()))
            } else {
                let behind = (at + 1..=last).filter(|&n| excludes(one, order[n]));
                let behind =
                    behind.filter_map(|n| chains[n].clone()).min_by_key(|(_, through)| through.len());
                behind.filter(|(_, through)| through.len() < LINKS_MAX).map(|(way, mut through)| {
                    through.push(RequestBefore {
                        node: one.node,
                        range: one.range,
                        serial: one.serial,
                        turn: one.turn,
                    });
                    (way, through)
                })
            };
            let Some((before, through)) = before else { continue };
            let way = mix(before, (self.epoch, one.node, one.serial, one.since, one.turn));
            let blocks = |grant: &&Grant| match promise {
                Some(promise) if is_promised => promise.from == (grant.node, grant.range),
                _ => conflicts(grant, one),
            };
            blockers.extend(self.grants.iter().filter(blocks).map(|grant| GrantInTheWay {
                grant: (grant.node, grant.range),
                wanted: one.mode,
                way,
                through: through.clone(),
            }));
            chains[at] = Some((way, through));
        }
        blockers
    }

    /// Grants what can be granted, and asks for what is in the way of the others.
    pub(crate) fn settle(&mut self, desk: &mut Desk<'_>) {
        let mut at = 0;
        while self.promise().is_none()
            && let Some(first) = self.queued_at(at)
        {
            let bypasses = self.queued().take(at).any(|before| excludes(before, &first));
            let in_the_way = (0..self.grants.len()).filter(|&n| conflicts(&self.grants[n], &first));
            let in_the_way: Vec<_> = in_the_way.collect();
            if bypasses {
                if first.is_try {
                    self.refuse(at, desk);
                } else {
                    at += 1;
                }
            } else if in_the_way.is_empty() {
                self.demand().waiting.remove(at);
                self.grant(&first, desk);
                // The new grant may replace a stronger one of the same node, and so make room for earlier requests.
                at = 0;
            } else {
                self.ask(&first, &in_the_way, at, desk);
                at += 1;
            }
        }
        // A request that would rather be refused does not wait for a promise either.
        while self.promise().is_some()
            && let Some(at) = self.find_queued(|waiting| waiting.is_try)
        {
            self.refuse(at, desk);
        }
        self.demand.take_if(|demand| demand.is_over(&self.grants));
    }

    /// The node will not answer the revocation: it converts its lock, or has none.
    fn void_asked(&mut self, node: NodeId, range: Range) {
        if let Some(at) = self.grant_of(node, range) {
            self.grants[at].asked = None;
        }
        if let Some(promise) = self.take_promise_if(|promise| promise.from == (node, range))
            && !promise.is_void
        {
            self.put_back(promise.to);
        }
    }

    /// Lets a request wait again that was promised the lock: before all that do not convert.
    fn put_back(&mut self, waiting: Waiting) {
        let queue = &mut self.demand().waiting;
        let at = if waiting.converts { 0 } else { queue.iter().take_while(|other| other.converts).count() };
        queue.insert(at, waiting);
    }

    fn refuse(&mut self, at: usize, desk: &mut Desk<'_>) {
        if let Some(refused) = self.demand().waiting.remove(at) {
            desk.sends.push((refused.node, refused.range, Body::Denied { serial: refused.serial }));
        }
    }

    fn grant(&mut self, to: &Waiting, desk: &mut Desk<'_>) {
        let token = desk.token();
        let grant =
            Grant { node: to.node, range: to.range, mode: to.mode, token, serial: to.serial, asked: None };
        self.put(grant);
        desk.sends.push((to.node, to.range, self.grant_message(to.serial, token, to.mode)));
    }

    /// Asks those `in_the_way` of `first`, which is at `at` in the queue, to make room.
    fn ask(&mut self, first: &Waiting, in_the_way: &[usize], at: usize, desk: &mut Desk<'_>) {
        let queue: Vec<_> = self.queued().cloned().collect();
        let waits = |grant: &Grant| queue.iter().find(|w| (w.node, w.range) == (grant.node, grant.range));
        let mut next = None;
        // A holder that waits itself is excluded: if it converts, it keeps its lock until it gets another.
        if let [one] = in_the_way
            && !first.is_try
            && self.grants[*one].asked.is_none()
            && waits(&self.grants[*one]).is_none()
        {
            let token = desk.token();
            let &Waiting { node, range, mode, serial, .. } = first;
            next = Some(Next { node, range, mode, token, serial });
            let from = &self.grants[*one];
            let from = (from.node, from.range);
            let demand = self.demand();
            demand.promise = Some(Promise { from, to: first.clone(), token, is_void: false });
            demand.waiting.remove(at);
        }
        for &n in in_the_way {
            let grant = &mut self.grants[n];
            // One request at a time: the answer to it settles the queue again.
            if grant.asked.is_some() {
                continue;
            }
            grant.asked = Some(first.mode);
            let revoke = Body::Revoke {
                token: grant.token,
                serial: grant.serial,
                knows: waits(grant).map_or(0, |waiting| waiting.turn),
                wanted: first.mode,
                is_try: first.is_try,
                next: next.take(),
            };
            desk.sends.push((grant.node, grant.range, revoke));
        }
        if desk.mutant == Some(Mutant::GrantBeforeDowngrade)
            && let Some(promise) = self.take_promise_if(|_| true)
        {
            self.grants.retain(|grant| (grant.node, grant.range) != promise.from);
            self.grant(&promise.to, desk);
        }
    }

    /// The promised lock was handed over, as its new holder shows. The old one's grant is what it surely is at most, until
    /// its own message tells what it is.
    fn keep_promise(&mut self) {
        let Some(promise) = self.take_promise_if(|_| true) else { return };
        if let Some(at) = self.grant_of(promise.from.0, promise.from.1) {
            let from = &mut self.grants[at];
            from.mode = from.mode.yielding_to(promise.to.mode);
            from.asked = None;
        }
        self.install(&promise, None);
    }

    fn install(&mut self, promise: &Promise, from: Option<NodeId>) {
        let &Waiting { node, range, mode, serial, .. } = &promise.to;
        self.put(Grant { node, range, mode, token: promise.token, serial, asked: None });
        let handed = from.map(|from| (promise.token, from));
        self.demand().handed.extend(handed);
    }

    fn put(&mut self, grant: Grant) {
        let demand = self.demand();
        demand.moves += u64::from(demand.last.replace(grant.node).is_some_and(|last| last != grant.node));
        match self.grant_of(grant.node, grant.range) {
            Some(at) => self.grants[at] = grant,
            None => self.grants.push(grant),
        }
    }

    fn grant_of(&self, node: NodeId, range: Range) -> Option<usize> {
        self.grants.iter().position(|grant| (grant.node, grant.range) == (node, range))
    }

    fn grant_message(&self, serial: u64, token: Token, mode: Mode) -> Body {
        Body::Grant { serial, token, mode, value: self.value.as_deref().cloned() }
    }
}

impl Demand {
    /// Whether the resource has no remaining demand.
    fn is_over(&mut self, grants: &[Grant]) -> bool {
        self.handed.retain(|(token, _)| grants.iter().any(|grant| grant.token == *token));
        self.waiting.is_empty() && self.promise.is_none() && self.handed.is_empty() && self.moves == 0
    }
}

fn conflicts(grant: &Grant, wanted: &Waiting) -> bool {
    (grant.node, grant.range) != (wanted.node, wanted.range)
        && grant.range.overlaps(wanted.range)
        && !grant.mode.compatible(wanted.mode)
}

fn excludes(before: &Waiting, after: &Waiting) -> bool {
    before.range.overlaps(after.range) && !before.mode.compatible(after.mode)
}
