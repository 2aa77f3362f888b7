//! Space: one lock space of one file, that is, its granted locks and the requests that wait for them.
//!
//! # Theory
//! A request is *admissible* when no lock of another owner is in its way, and no starving request either (see
//! `waiters`). A call that frees bytes *settles* the space before it unlocks the file: of the requests that wait for
//! these bytes, oldest first, each that is admissible goes on. How it goes on depends on what waits ([`Then`]). A request
//! with a completion is *granted* on the spot. A thread or task is *called*: it is woken, and claims the lock when it
//! runs. Until then newcomers may take the lock and give it back. Waking takes longer than most locks are held; if the
//! lock were handed over at once, all would wait for the woken thread. Each newcomer counts as a bypass, and a starving
//! request is in the way of newcomers. For other waiters it is as if the called one had its lock already, so that a
//! release calls no more than can go on together.
//!
//! Only the first of each queue is looked at. When it is not admissible, neither are the others of its queue, which
//! want the same lock, with two exceptions:
//! - if one owner alone is in its way, requests of that very owner. An owner that holds a shared lock and wants it
//!   exclusive stands behind another that wants the same, and waits for all but its own lock;
//! - if only a starving request is in its way, requests of the owners that the starving one waits for.

use crate::domain::LockDomain;
use crate::file_state::{FileState, Wait};
use crate::outcomes::Outcomes;
use crate::ranges::{InTheWay, Ranges};
use crate::wait::{Submitted, Then, Ticket, WaiterPlace};
use crate::wait_table::WaitTable;
use crate::waiters::{Waiter, Waiters};
use crate::{LockError, Owner, Range, RangeRequest};
use sluice_sync::Arc;
use sluice_sync::time::{Instant, nanoseconds};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Granted locks and their waiters. *Protected by the file state.*
pub(crate) struct LockSpace {
    pub(crate) granted: Ranges,
    /// Made when a request has to wait.
    waiters: Option<Box<Waiters>>,
    /// Which of the file's spaces it is: flock, or byte ranges. *immutable*
    pub(crate) is_flock: bool,
    pub(crate) statistics: SpaceStatistics,
    /// How often it is left as it is although it could be said in short: requests were in each other's way.
    pub(crate) unrest: u32,
}

/// The counts of one lock space. *Protected by the file state.*
#[derive(Default)]
pub(crate) struct SpaceStatistics {
    pub(crate) grants: u64,
    pub(crate) waits: u64,
    pub(crate) bypasses: u64,
    pub(crate) wait_ns_total: u64,
    pub(crate) wait_ns_max: u64,
}

impl SpaceStatistics {
    /// Counts a request that begins to wait, and numbers it.
    pub(crate) fn count_wait(&mut self) -> u64 {
        self.waits += 1;
        self.waits
    }

    /// Adds a wait since `since` that ends now with a lock.
    pub(crate) fn note_wait(&mut self, since: Instant) {
        let wait_ns = nanoseconds(since.elapsed());
        self.wait_ns_total = self.wait_ns_total.saturating_add(wait_ns);
        self.wait_ns_max = self.wait_ns_max.max(wait_ns);
    }
}

/// For so many changes a space stays whole after a request did not get its lock: where two CPUs fight for a lock, going to
/// and fro between the forms costs more than the mutex. Tests see both forms often.
pub(crate) const UNREST: u32 = if cfg!(test) { 2 } else { 1_024 };

/// The file and the domain that a space belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) file: &'a Arc<FileState>,
    pub(crate) domain: &'a LockDomain,
}

/// The obstacle to a request, if any.
enum Admission {
    Admissible,
    /// Locks of this owner alone.
    Owner(Owner),
    /// Locks of several owners.
    Owners,
    /// No lock, but an older request whose turn it is.
    Called,
    /// No lock, but an older request that starves.
    Starving,
}

/// Newer than any request that waits.
const NEWCOMER: u64 = u64::MAX;

impl LockSpace {
    /// A space without locks.
    pub(crate) fn new(is_flock: bool) -> Self {
        let statistics = SpaceStatistics::default();
        LockSpace { granted: Ranges::default(), waiters: None, is_flock, statistics, unrest: 0 }
    }

    /// The waiting requests, if there are any.
    pub(crate) fn waiters(&self) -> Option<&Waiters> {
        self.waiters.as_deref().filter(|waiters| !waiters.is_empty())
    }

    fn ticket(&self, place: WaiterPlace) -> Ticket {
        Ticket { place, is_flock: self.is_flock }
    }

    fn waiter(&self, place: WaiterPlace) -> Option<&Waiter> {
        self.waiters.as_ref()?.get(place)
    }

    /// The request that waits there.
    pub(crate) fn waiting(&self, place: WaiterPlace) -> Option<RangeRequest> {
        self.waiter(place).map(|waiter| waiter.request)
    }

    /// The process that waits there, if its request takes part in deadlock detection.
    pub(crate) fn waiting_process(&self, place: WaiterPlace) -> Option<u64> {
        self.waiter(place)?.process()
    }

    fn verdict(&self, request: &RangeRequest, number: u64) -> Admission {
        match self.granted.in_the_way(request) {
            InTheWay::One(owner) => Admission::Owner(owner),
            InTheWay::Several => Admission::Owners,
            InTheWay::Nobody if self.waiters().is_none() => Admission::Admissible,
            InTheWay::Nobody if number != NEWCOMER && self.called_in_the_way(request, number) => {
                Admission::Called
            }
            InTheWay::Nobody if self.starving_in_the_way(*request, number).next().is_some() => {
                Admission::Starving
            }
            InTheWay::Nobody => Admission::Admissible,
        }
    }

    fn called_in_the_way(&self, request: &RangeRequest, number: u64) -> bool {
        self.waiters().is_some_and(|waiters| waiters.called_against(*request, number))
    }

    /// The starving requests that are in the way of `request`: not those that wait for its owner themselves.
    fn starving_in_the_way(&self, request: RangeRequest, number: u64) -> impl Iterator<Item = &Waiter> {
        let waiters = self.waiters().into_iter();
        let starving = waiters.flat_map(move |waiters| waiters.starving_against(request, number));
        starving.filter(move |waiter| !self.granted.is_in_the_way(request.owner, &waiter.request))
    }

    /// Grants `request`, or makes it wait and go on as `then` says. That is told how many locks were granted so far; if it
    /// has nothing to say, the request does not wait.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`], [`LockError::NoLocks`]. Deadlock is found out later, see [`Outcomes`].
    pub(crate) fn request<F: FnOnce() -> Then>(
        &mut self,
        around: Around<'_>,
        request: RangeRequest,
        then: impl FnOnce(u64) -> Option<F>,
        outcomes: &mut Outcomes,
    ) -> Result<Submitted, LockError> {
        if matches!(self.verdict(&request, NEWCOMER), Admission::Admissible) {
            if self.grant(around, &request, NEWCOMER, outcomes)? {
                self.settle(around, request.range, outcomes);
            }
            return Ok(Submitted::Granted);
        }
        self.unrest = UNREST;
        let then = then(self.statistics.grants).ok_or(LockError::WouldBlock)?;
        around.domain.quota.reserve(request.owner, 1)?;
        let number = self.statistics.count_wait();
        let place = self.waiters.get_or_insert_default().push(number, request, then());
        let ticket = self.ticket(place);
        if let (Some(waits), Some(process)) = (self.detection(around), self.waiting_process(place)) {
            waits.add(process, Wait { file: around.file.clone(), ticket });
            // The last request of a cycle sees the others here: each says that it waits before it looks.
            if self.processes_in_the_way(place).iter().any(|&process| waits.has(process)) {
                outcomes.suspect(Wait { file: around.file.clone(), ticket });
            }
        }
        Ok(Submitted::Waiting(ticket))
    }

    /// Where waits are noted, for requests of this space.
    fn detection<'a>(&self, around: Around<'a>) -> Option<&'a WaitTable<Wait>> {
        around.domain.waits.as_ref().filter(|_| !self.is_flock)
    }

    /// Grants an admissible request. Returns whether its owner gave up something thereby.
    #[inline]
    fn grant(
        &mut self,
        around: Around<'_>,
        request: &RangeRequest,
        number: u64,
        outcomes: &mut Outcomes,
    ) -> Result<bool, LockError> {
        if self.waiters().is_some() {
            return self.grant_past_waiters(around, request, number, outcomes);
        }
        self.take(around, request)
    }

    #[inline]
    fn take(&mut self, around: Around<'_>, request: &RangeRequest) -> Result<bool, LockError> {
        let gave_up = self.granted.take(request, &around.domain.quota)?;
        self.statistics.grants += 1;
        Ok(gave_up)
    }

    /// [`grant`](Self::grant), when others wait.
    #[inline(never)]
    fn grant_past_waiters(
        &mut self,
        around: Around<'_>,
        request: &RangeRequest,
        number: u64,
        outcomes: &mut Outcomes,
    ) -> Result<bool, LockError> {
        let bypassed = around.domain.bypass_max.and_then(|most| {
            // An owner that is in its way already does not bypass it.
            let excused = |waiter: &RangeRequest| self.granted.is_in_the_way(request.owner, waiter);
            let oldest = self.waiters()?.oldest_against(request, number, excused);
            oldest.map(|place| (place, most))
        });
        let gave_up = self.take(around, request)?;
        if let (Some((place, most)), Some(waiters)) = (bypassed, &mut self.waiters) {
            let starves = waiters.bypass(place, most);
            self.statistics.bypasses += 1;
            // From now on it is in the way of the requests that want the same bytes, and that may close a cycle.
            if starves {
                self.suspect(around, vec![place], outcomes);
            }
        }
        // A process that gets a lock while it waits elsewhere may close a cycle: others now wait for it.
        if let (Some(waits), Some(process)) = (self.detection(around), request.owner.process())
            && waits.has(process)
            && let Some(waiters) = self.waiters()
        {
            self.suspect(around, waiters.against(request), outcomes);
        }
        Ok(gave_up)
    }

    /// Makes suspects of the requests at `places`, each of which has a new blocker. Requests of descriptions are no
    /// suspects, but the requests that wait for a starving one of them are.
    fn suspect(&self, around: Around<'_>, mut places: Vec<WaiterPlace>, outcomes: &mut Outcomes) {
        let (Some(_), Some(waiters)) = (self.detection(around), self.waiters()) else { return };
        let mut at = 0;
        while let Some(&place) = places.get(at) {
            at += 1;
            let Some(request) = self.waiting(place) else { continue };
            if self.waiting_process(place).is_some() {
                outcomes.suspect(Wait { file: around.file.clone(), ticket: self.ticket(place) });
            } else if waiters.starves(place) {
                let behind = waiters.against(&request).into_iter().filter(|behind| place < *behind);
                let new: Vec<_> = behind.filter(|behind| !places.contains(behind)).collect();
                places.extend(new);
            }
        }
    }

    /// Takes `range` away from `owner`, and hands it on.
    ///
    /// # Errors
    /// [`LockError::NoLocks`] if that would split a lock and the limit is reached.
    pub(crate) fn unlock(
        &mut self,
        around: Around<'_>,
        owner: Owner,
        range: Range,
        outcomes: &mut Outcomes,
    ) -> Result<(), LockError> {
        if self.granted.unlock(owner, range, &around.domain.quota)? {
            self.settle(around, range, outcomes);
        }
        Ok(())
    }

    /// Takes everything away from `owner`, and hands it on.
    pub(crate) fn release(&mut self, around: Around<'_>, owner: Owner, outcomes: &mut Outcomes) {
        if let Some(range) = self.granted.release(owner, &around.domain.quota) {
            self.settle(around, range, outcomes);
        }
    }

    /// Grants what can be granted after something in `freed` was set free, oldest first.
    #[inline]
    pub(crate) fn settle(&mut self, around: Around<'_>, freed: Range, outcomes: &mut Outcomes) {
        if self.waiters().is_some() {
            self.settle_waiters(around, freed, outcomes);
        }
    }

    #[inline(never)]
    fn settle_waiters(&mut self, around: Around<'_>, freed: Range, outcomes: &mut Outcomes) {
        let Some(waiters) = self.waiters() else { return };
        let heads = waiters.heads(freed).into_iter();
        // Each with whether the rest of its queue depends on it.
        let mut candidates: BinaryHeap<_> = heads.map(|place| Reverse((place, true))).collect();
        while let Some(Reverse((place, leads))) = candidates.pop() {
            let (Some(waiter), Some(waiters)) = (self.waiter(place), self.waiters()) else { continue };
            let request = waiter.request;
            let behind = waiters.behind(place).filter(|_| leads).map(|behind| Reverse((behind, true)));
            match self.verdict(&request, place.number) {
                Admission::Admissible if let Then::Call(slot) = &waiter.then => {
                    let slot = slot.clone();
                    if self.waiters.as_mut().is_some_and(|waiters| waiters.call(place)) {
                        outcomes.call(&slot);
                    }
                    candidates.extend(behind);
                }
                Admission::Admissible => {
                    let gave_up = self.grant_waiter(around, place, &request, outcomes);
                    candidates.extend(behind);
                    if gave_up && let Some(waiters) = self.waiters() {
                        candidates.extend(
                            waiters.heads(request.range).into_iter().map(|place| Reverse((place, true))),
                        );
                    }
                }
                Admission::Owner(owner) if leads => {
                    candidates.extend(waiters.own_in_queue(owner, place).map(|own| Reverse((own, false))));
                }
                Admission::Starving => candidates.extend(behind),
                Admission::Owner(_) | Admission::Owners | Admission::Called => {}
            }
        }
    }

    /// Grants the admissible request that waits at `place`.
    fn grant_waiter(
        &mut self,
        around: Around<'_>,
        place: WaiterPlace,
        request: &RangeRequest,
        outcomes: &mut Outcomes,
    ) -> bool {
        let Some(waiter) = self.take_out(around, place) else { return false };
        self.statistics.note_wait(waiter.since);
        let outcome = self.grant(around, request, place.number, outcomes);
        outcomes.tell(waiter.then, outcome.map(drop));
        outcome == Ok(true)
    }

    /// Takes a waiting request out, and forgets that it waited.
    fn take_out(&mut self, around: Around<'_>, place: WaiterPlace) -> Option<Waiter> {
        let waiter = self.waiters.as_mut()?.remove(place)?;
        around.domain.quota.release(waiter.request.owner, 1);
        if let (Some(waits), Some(process)) = (self.detection(around), waiter.process()) {
            let ticket = self.ticket(place);
            waits.remove(process, |wait| wait.ticket == ticket && Arc::ptr_eq(&wait.file, around.file));
        }
        Some(waiter)
    }

    /// The request at `place`, which was called, comes for its lock. `None`: the lock was not free, and the request
    /// waits on; or the request waits no more.
    pub(crate) fn claim(
        &mut self,
        around: Around<'_>,
        place: WaiterPlace,
        outcomes: &mut Outcomes,
    ) -> Option<Result<(), LockError>> {
        let request = self.waiting(place)?;
        if !matches!(self.verdict(&request, place.number), Admission::Admissible) {
            self.waiters.as_mut()?.uncall(place);
            // Others may have waited for it alone.
            self.settle(around, place.range, outcomes);
            return None;
        }
        let waiter = self.take_out(around, place)?;
        self.statistics.note_wait(waiter.since);
        let granted = self.grant(around, &request, place.number, outcomes);
        if granted != Ok(false) {
            self.settle(around, place.range, outcomes);
        }
        Some(granted.map(drop))
    }

    /// Takes a waiting request back. Requests that only waited for it, because it starved or was called, go on.
    pub(crate) fn withdraw(
        &mut self,
        around: Around<'_>,
        place: WaiterPlace,
        outcomes: &mut Outcomes,
    ) -> Option<Then> {
        let held_up = self.waiters.as_ref()?.holds_up(place);
        let waiter = self.take_out(around, place)?;
        if held_up {
            self.settle(around, place.range, outcomes);
        }
        Some(waiter.then)
    }

    /// Drops all locks, and ends all waits with [`LockError::Interrupted`].
    pub(crate) fn clear(&mut self, around: Around<'_>, outcomes: &mut Outcomes) {
        let waiting = self.waiters.as_ref().map(|waiters| waiters.all()).unwrap_or_default();
        for waiter in waiting.into_iter().filter_map(|place| self.take_out(around, place)) {
            outcomes.tell(waiter.then, Err(LockError::Interrupted));
        }
        self.granted.clear(&around.domain.quota);
    }

    // Questions of the deadlock detector.

    /// The processes that the request waiting at `place` waits for: those that hold locks in its way, or whose
    /// starving requests are. A starving request of a description stands for the processes that it waits for itself.
    pub(crate) fn processes_in_the_way(&self, place: WaiterPlace) -> Vec<u64> {
        let mut processes = Vec::new();
        let mut places = vec![place];
        let mut at = 0;
        while let Some(&place) = places.get(at) {
            at += 1;
            let Some(request) = self.waiting(place) else { continue };
            processes.extend(self.granted.processes_in_the_way(&request));
            for waiter in self.starving_in_the_way(request, place.number) {
                match waiter.process() {
                    Some(process) => processes.push(process),
                    None if places.contains(&waiter.place()) => {}
                    None => places.push(waiter.place()),
                }
            }
        }
        processes
    }

    /// How the request waiting at `place` waits for `process`, if it does.
    pub(crate) fn edge(&self, place: WaiterPlace, process: u64) -> Option<Edge> {
        let request = self.waiting(place)?;
        if self.granted.is_in_the_way(Owner::Process(process), &request) {
            return Some(Edge::Lock);
        }
        let mut starving = self.starving_in_the_way(request, place.number);
        let starving = starving.find(|waiter| match waiter.process() {
            Some(owner) => owner == process,
            None => self.processes_in_the_way(waiter.place()).contains(&process),
        })?;
        Some(Edge::Starving(starving.place()))
    }

    /// A starving request that the one at `place` waits for.
    pub(crate) fn starving_before(&self, place: WaiterPlace) -> Option<WaiterPlace> {
        let request = self.waiting(place)?;
        self.starving_in_the_way(request, place.number).next().map(Waiter::place)
    }

    /// Lets others pass the starving request at `place` again.
    pub(crate) fn forgive(&mut self, around: Around<'_>, place: WaiterPlace, outcomes: &mut Outcomes) {
        if self.waiters.as_mut().is_some_and(|waiters| waiters.forgive(place)) {
            self.settle(around, place.range, outcomes);
        }
    }
}

/// Why a request waits for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    /// The process holds a lock that is in the way.
    Lock,
    /// A starving request of the process, or one of a description that waits for it, is in the way, and waits there.
    Starving(WaiterPlace),
}
