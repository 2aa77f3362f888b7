//! Queue: one lock space of one file, that is, its granted locks and those who wait for them.

use crate::domain::{LockDomain, Quota};
use crate::wait::{Completions, Done, Submitted, Ticket};
use crate::{LockError, deadlock::WaitGraph};

/// A set of granted locks, as the queue of its waiters sees it.
pub(crate) trait Granted: Default {
    /// What is asked for.
    type Request: Copy;

    /// True if no lock of another owner conflicts with `request`.
    fn admits(&self, request: &Self::Request) -> bool;

    /// Grants `request`, which the set admits. Returns whether the owner thereby gave up some protection (a
    /// downgrade), so that others may proceed.
    fn take(&mut self, request: &Self::Request, quota: &Quota) -> Result<bool, LockError>;

    /// The node of the wait-for graph that makes `request`, if it takes part in deadlock detection.
    fn process(request: &Self::Request) -> Option<u64>;

    /// The nodes of the wait-for graph that `request` has to wait for.
    fn blockers(&self, request: &Self::Request) -> Vec<u64>;

    /// Drops all locks and returns how many there were.
    fn clear(&mut self) -> usize;
}

/// Granted locks and their waiters. *Protected by the file state.*
pub(crate) struct Queue<G: Granted> {
    pub(crate) granted: G,
    /// Oldest first. When the file is unlocked, none of them could be granted (I2).
    waiters: Vec<Waiter<G::Request>>,
}

struct Waiter<R> {
    ticket: Ticket,
    request: R,
    done: Done,
}

impl<G: Granted> Default for Queue<G> {
    fn default() -> Self {
        Queue { granted: G::default(), waiters: Vec::new() }
    }
}

impl<G: Granted> Queue<G> {
    /// Grants `request`, or makes it wait with the completion that `done` builds. Without `done` it does not
    /// wait. The caller must [`settle`](Self::settle) afterwards.
    pub(crate) fn request(
        &mut self,
        request: G::Request,
        domain: &LockDomain,
        done: Option<impl FnOnce() -> Done>,
    ) -> Result<Submitted, LockError> {
        if self.granted.admits(&request) {
            self.granted.take(&request, &domain.quota)?;
            return Ok(Submitted::Granted);
        }
        let done = done.ok_or(LockError::WouldBlock)?;
        domain.quota.reserve(1)?;
        let ticket = domain.new_ticket();
        if let (Some(graph), Some(process)) = (&domain.graph, G::process(&request)) {
            let blockers = self.granted.blockers(&request);
            if graph.lock().wait(ticket.0, process, blockers).is_err() {
                domain.quota.release(1);
                return Err(LockError::Deadlock);
            }
        }
        self.waiters.push(Waiter { ticket, request, done: done() });
        Ok(Submitted::Waiting(ticket))
    }

    /// Restores I2 and I3 after a change of the granted set: grants what can be granted, oldest first, and
    /// tells the wait-for graph whom the others wait for now.
    pub(crate) fn settle(&mut self, domain: &LockDomain, finished: &mut Completions) {
        if self.waiters.is_empty() {
            return;
        }
        let mut left = Vec::new();
        let mut next = 0;
        while next < self.waiters.len() {
            if !self.granted.admits(&self.waiters[next].request) {
                next += 1;
                continue;
            }
            let waiter = self.waiters.remove(next);
            // The waiter's own record goes to the lock that it gets.
            domain.quota.release(1);
            let outcome = self.granted.take(&waiter.request, &domain.quota);
            if outcome == Ok(true) {
                // A downgrade by this grant may have freed an older waiter.
                next = 0;
            }
            finished.add(waiter.done, outcome.map(drop));
            if G::process(&waiter.request).is_some() {
                left.push(waiter.ticket);
            }
        }
        if let Some(graph) = &domain.graph
            && (!left.is_empty() || self.waiters.iter().any(|w| G::process(&w.request).is_some()))
        {
            self.redraw(&mut graph.lock(), &left, &domain.quota, finished);
        }
    }

    /// Brings this file's part of `graph` up to date and ends the waits that now close a cycle.
    ///
    /// Edges that are gone go first, for all waiters: none may help to close a cycle that does not exist.
    fn redraw(&mut self, graph: &mut WaitGraph, left: &[Ticket], quota: &Quota, finished: &mut Completions) {
        for ticket in left {
            graph.remove(ticket.0);
        }
        let granted = &self.granted;
        let blockers: Vec<_> = self.waiters.iter().map(|waiter| granted.blockers(&waiter.request)).collect();
        for (waiter, blockers) in self.waiters.iter().zip(&blockers) {
            graph.retain(waiter.ticket.0, blockers);
        }
        let mut doomed = Vec::new();
        for (waiter, blockers) in self.waiters.iter().zip(blockers) {
            if let Some(process) = G::process(&waiter.request)
                && graph.wait(waiter.ticket.0, process, blockers).is_err()
            {
                doomed.push(waiter.ticket);
            }
        }
        for waiter in self.waiters.extract_if(.., |waiter| doomed.contains(&waiter.ticket)) {
            quota.release(1);
            finished.add(waiter.done, Err(LockError::Deadlock));
        }
    }

    /// Takes a waiter out of the queue, and gives back its completion.
    pub(crate) fn withdraw(&mut self, ticket: Ticket, domain: &LockDomain) -> Option<Done> {
        let at = self.waiters.iter().position(|waiter| waiter.ticket == ticket)?;
        // `remove`, not `swap_remove`: the others keep their order.
        let waiter = self.waiters.remove(at);
        Self::forget(&waiter, domain);
        Some(waiter.done)
    }

    /// Drops all locks, and ends all waits with [`LockError::Interrupted`].
    pub(crate) fn clear(&mut self, domain: &LockDomain, finished: &mut Completions) {
        for waiter in self.waiters.drain(..) {
            Self::forget(&waiter, domain);
            finished.add(waiter.done, Err(LockError::Interrupted));
        }
        domain.quota.release(self.granted.clear());
    }

    /// The waiting requests, oldest first.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &G::Request> {
        self.waiters.iter().map(|waiter| &waiter.request)
    }

    /// True if somebody waits.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    fn forget(waiter: &Waiter<G::Request>, domain: &LockDomain) {
        domain.quota.release(1);
        if let (Some(graph), Some(_)) = (&domain.graph, G::process(&waiter.request)) {
            graph.lock().remove(waiter.ticket.0);
        }
    }
}
