//! Waiters: the requests of one lock space that wait, grouped by what they wait for.
//!
//! # Theory
//! Requests for the same bytes stand together in two queues, one for each kind, oldest first; the groups stand in
//! an interval tree. A release looks only at the groups that meet its bytes. When the first request of a queue cannot be
//! granted, the others of that queue cannot either (`space` knows the exceptions): a thousand waiters cost a release no
//! more than two.
//!
//! # Fairness
//! A newcomer without a conflict is granted past waiters, as on Linux: a reader joins readers although a writer waits.
//! Each grant counts as a *bypass* of the oldest request that it conflicts with. After as many bypasses as the domain
//! allows, that request *starves*: it is then in the way of all later requests.

use crate::interval_tree::{Item, Tree};
use crate::wait::{Detection, Then, WaiterPlace};
use crate::{Owner, Range, RangeRequest};
use sluice_sync::time::Instant;
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow::Continue;

/// A request that waits.
pub(crate) struct Waiter {
    /// Numbers grow with time.
    pub(crate) number: u64,
    pub(crate) request: RangeRequest,
    pub(crate) then: Then,
    pub(crate) since: Instant,
    /// How often later requests were granted ahead of it.
    bypassed: u32,
}

/// All waiting requests of a space. *Protected by the file state.*
#[derive(Default)]
pub(crate) struct Waiters {
    groups: Tree<Group>,
    by_owner: BTreeSet<(Owner, WaiterPlace)>,
    /// Requests that were bypassed as often as is allowed.
    starving: Vec<WaiterPlace>,
    /// Requests whose thread was woken and has not claimed its lock yet.
    called: Vec<WaiterPlace>,
}

/// The requests for one range.
struct Group {
    range: Range,
    /// By kind; within one, oldest first.
    queues: [VecDeque<Waiter>; 2],
}

impl Item for Group {
    type Key = (u64, u64);

    fn key(&self) -> (u64, u64) {
        (self.range.start(), self.range.end())
    }

    fn range(&self) -> Range {
        self.range
    }
}

impl Waiter {
    /// Where it is to be found.
    pub(crate) fn place(&self) -> WaiterPlace {
        WaiterPlace { number: self.number, range: self.request.range, kind: self.request.kind }
    }

    /// The process that waits, if the request takes part in deadlock detection.
    pub(crate) fn process(&self) -> Option<u64> {
        match self.then.detection() {
            Detection::ByOwner => self.request.owner.process(),
            Detection::Off => None,
        }
    }
}

impl Waiters {
    /// True if nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.by_owner.len()
    }

    /// Adds a request, which is the youngest.
    pub(crate) fn push(&mut self, number: u64, request: RangeRequest, then: Then) -> WaiterPlace {
        let waiter = Waiter { number, request, then, since: Instant::now(), bypassed: 0 };
        let place = waiter.place();
        self.by_owner.insert((request.owner, place));
        match self.groups.get_mut(place.group()) {
            Some(group) => group.queues[place.kind as usize].push_back(waiter),
            None => {
                let mut group = Group { range: place.range, queues: Default::default() };
                group.queues[place.kind as usize].push_back(waiter);
                self.groups.insert(group);
            }
        }
        place
    }

    /// The request at `place`, if it still waits.
    pub(crate) fn get(&self, place: WaiterPlace) -> Option<&Waiter> {
        let (queue, at) = self.find(place)?;
        queue.get(at)
    }

    /// The one behind it in its queue.
    pub(crate) fn behind(&self, place: WaiterPlace) -> Option<WaiterPlace> {
        let (queue, at) = self.find(place)?;
        queue.get(at + 1).map(Waiter::place)
    }

    fn find(&self, place: WaiterPlace) -> Option<(&VecDeque<Waiter>, usize)> {
        let queue = &self.groups.get(place.group())?.queues[place.kind as usize];
        Some((queue, queue.binary_search_by_key(&place.number, |waiter| waiter.number).ok()?))
    }

    /// Takes the request at `place` out.
    pub(crate) fn remove(&mut self, place: WaiterPlace) -> Option<Waiter> {
        let group = self.groups.get_mut(place.group())?;
        let queue = &mut group.queues[place.kind as usize];
        let at = queue.binary_search_by_key(&place.number, |waiter| waiter.number).ok()?;
        let waiter = queue.remove(at)?;
        if group.queues.iter().all(VecDeque::is_empty) {
            self.groups.remove(place.group());
        }
        self.by_owner.remove(&(waiter.request.owner, place));
        self.starving.retain(|starving| *starving != place);
        self.called.retain(|called| *called != place);
        Some(waiter)
    }

    /// All requests, oldest first.
    pub(crate) fn all(&self) -> Vec<WaiterPlace> {
        let mut all: Vec<_> = self.by_owner.iter().map(|(_, place)| *place).collect();
        all.sort_unstable();
        all
    }

    /// The first of each queue of requests for bytes of `range`.
    pub(crate) fn heads(&self, range: Range) -> Vec<WaiterPlace> {
        let mut heads = Vec::new();
        let _ = self.groups.visit_overlapping(range, |group| {
            heads.extend(group.queues.iter().filter_map(|queue| queue.front()).map(Waiter::place));
            Continue::<()>(())
        });
        heads
    }

    /// The requests of `owner` in the queue of `place`.
    pub(crate) fn own_in_queue(&self, owner: Owner, place: WaiterPlace) -> impl Iterator<Item = WaiterPlace> {
        let first = WaiterPlace { number: 0, ..place };
        let own = self.by_owner.range((owner, first)..).take_while(move |(other, _)| *other == owner);
        own.map(|(_, own)| *own).filter(move |own| (own.range, own.kind) == (place.range, place.kind))
    }

    /// The requests that a lock of this shape keeps waiting, oldest first.
    pub(crate) fn against(&self, request: &RangeRequest) -> Vec<WaiterPlace> {
        let mut found: Vec<_> = self.conflicting(request).map(Waiter::place).collect();
        found.sort_unstable();
        found
    }

    /// The oldest request that is older than `number`, conflicts with `request` and is not `excused`.
    pub(crate) fn oldest_against(
        &self,
        request: &RangeRequest,
        number: u64,
        excused: impl Fn(&RangeRequest) -> bool,
    ) -> Option<WaiterPlace> {
        let mut oldest: Option<WaiterPlace> = None;
        let _ = self.groups.visit_overlapping(request.range, |group| {
            for queue in &group.queues {
                let first = queue.iter().take_while(|waiter| waiter.number < number).find(|waiter| {
                    let RangeRequest { owner, kind, range, .. } = waiter.request;
                    request.conflicts_with(owner, kind, range) && !excused(&waiter.request)
                });
                oldest = oldest.into_iter().chain(first.map(Waiter::place)).min();
            }
            Continue::<()>(())
        });
        oldest
    }

    fn conflicting(&self, request: &RangeRequest) -> impl Iterator<Item = &Waiter> {
        let request = *request;
        self.heads(request.range).into_iter().flat_map(move |head| {
            let queue = self.find(head).map(|(queue, _)| queue.iter());
            queue.into_iter().flatten().filter(move |waiter| {
                let RangeRequest { owner, kind, range, .. } = waiter.request;
                request.conflicts_with(owner, kind, range)
            })
        })
    }

    // Fairness.

    /// Counts a bypass of the request at `place`, which starves when there have been `most`: true if from now on.
    pub(crate) fn bypass(&mut self, place: WaiterPlace, most: u32) -> bool {
        let Some(group) = self.groups.get_mut(place.group()) else { return false };
        let queue = &mut group.queues[place.kind as usize];
        let Ok(at) = queue.binary_search_by_key(&place.number, |waiter| waiter.number) else { return false };
        queue[at].bypassed += 1;
        let starves = queue[at].bypassed == most;
        if starves {
            self.starving.push(place);
        }
        starves
    }

    /// Lets the request at `place` be bypassed again as often as at first. True if it starved.
    pub(crate) fn forgive(&mut self, place: WaiterPlace) -> bool {
        let Some(at) = self.starving.iter().position(|starving| *starving == place) else { return false };
        self.starving.swap_remove(at);
        if let Some(group) = self.groups.get_mut(place.group()) {
            let queue = &mut group.queues[place.kind as usize];
            if let Ok(at) = queue.binary_search_by_key(&place.number, |waiter| waiter.number) {
                queue[at].bypassed = 0;
            }
        }
        true
    }

    /// The starving requests, older than `number`, that are in the way of `request`.
    pub(crate) fn starving_against(
        &self,
        request: RangeRequest,
        number: u64,
    ) -> impl Iterator<Item = &Waiter> {
        self.among(&self.starving, request, number)
    }

    /// True if `request` conflicts with one whose turn it is, older than `number`.
    pub(crate) fn called_against(&self, request: RangeRequest, number: u64) -> bool {
        self.among(&self.called, request, number).next().is_some()
    }

    fn among<'a>(
        &'a self,
        places: &'a [WaiterPlace],
        request: RangeRequest,
        number: u64,
    ) -> impl Iterator<Item = &'a Waiter> {
        let older = places.iter().filter(move |place| place.number < number);
        older.filter_map(|place| self.get(*place)).filter(move |waiter| {
            let RangeRequest { owner, kind, range, .. } = waiter.request;
            request.conflicts_with(owner, kind, range)
        })
    }

    /// Says that it is the turn of the request at `place`. False if that was so already.
    pub(crate) fn call(&mut self, place: WaiterPlace) -> bool {
        let is_new = !self.called.contains(&place);
        if is_new {
            self.called.push(place);
        }
        is_new
    }

    /// The request at `place` came in vain.
    pub(crate) fn uncall(&mut self, place: WaiterPlace) {
        self.called.retain(|called| *called != place);
    }

    /// True if the request at `place` was bypassed as often as is allowed.
    pub(crate) fn starves(&self, place: WaiterPlace) -> bool {
        self.starving.contains(&place)
    }

    /// True if others wait for the request at `place` although it has no lock yet.
    pub(crate) fn holds_up(&self, place: WaiterPlace) -> bool {
        self.starves(place) || self.called.contains(&place)
    }
}
