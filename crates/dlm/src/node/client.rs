//! Client: how a lock of this node is wanted, held and unlocked.
//!
//! A lock that cannot be had at once waits on its own node, in order; the node asks the master for the mode that the first one
//! needs (`cached.rs`).

use super::{Effects, Node, Shard};
use crate::error::LockError;
use crate::local::{ByKey, Local, Notice, Request, Revoke, Slow, Waiter};
use crate::message::{Body, Token, Value};
use crate::mutant::Mutant;
use crate::probe::LockParty;
use crate::wait::{Outcome, Wait};
use crate::{Key, Mode, VALUE_MAX};
use sluice_sync::time::Instant;
use sluice_sync::{Arc, thread};
use std::fmt;
use std::task::{Context, Poll};

/// A lock that is held. Dropping it does not unlock it: see [`Node::unlock`].
#[must_use = "the lock stays held"]
pub struct Held {
    pub(crate) local: Arc<Local>,
    mode: Mode,
    /// The number of the known holder, or 0.
    known: u64,
}

/// A request that waits: see [`Node::finish`].
#[must_use = "the request stays"]
pub struct Ticket {
    wait: Arc<Wait>,
    mode: Mode,
    /// The lock that it converts.
    holds: Option<Mode>,
    held: Held,
    /// The party that waits, and the number of its wait.
    party: Option<(LockParty, u64)>,
}

/// The result of submitting a request.
#[derive(Debug)]
pub enum Submitted {
    /// The lock is held.
    Granted(Held),
    /// It waits.
    Waiting(Ticket),
}

/// How a lock is wanted.
#[derive(Clone)]
pub struct Want {
    /// How strongly.
    pub mode: Mode,
    /// Whether to fail rather than wait for a lock in use. It may wait for messages.
    pub is_try: bool,
    /// Is called when another node wants the lock while it is held.
    pub notice: Option<Notice>,
    /// The party that wants the lock. A wait fails with [`LockError::Deadlock`] if it is the last of several by which
    /// parties wait for each other's locks in a circle. Such a lock is not found by the shortest way, and costs no
    /// message more.
    pub party: Option<LockParty>,
}

impl Want {
    /// `mode`, and to wait for it.
    pub fn new(mode: Mode) -> Want {
        Want { mode, is_try: false, notice: None, party: None }
    }

    /// `mode`, or an error if it is in use.
    pub fn now(mode: Mode) -> Want {
        Want { is_try: true, ..Want::new(mode) }
    }

    /// This wish, by `party`.
    pub fn of(self, party: LockParty) -> Want {
        Want { party: Some(party), ..self }
    }
}

impl From<Mode> for Want {
    fn from(mode: Mode) -> Want {
        Want::new(mode)
    }
}

impl Held {
    /// The locked range.
    pub fn key(&self) -> &Key {
        &self.local.key
    }

    /// How strongly.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The token of the grant, for a store that refuses holders of the past.
    pub fn token(&self) -> Option<Token> {
        self.local.slow.lock().token()
    }
}

impl Ticket {
    /// The result, if it is known.
    pub fn outcome(&self) -> Option<Outcome> {
        self.wait.outcome()
    }

    /// Sleeps until it is decided, or until `deadline`.
    pub fn sleep(&self, deadline: Option<Instant>) -> Option<Outcome> {
        self.wait.sleep(deadline)
    }

    /// Resolves when it is decided.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        self.wait.poll(context)
    }
}

impl<E: Effects> Node<E> {
    /// Locks, if this node has the lock cached and nobody is in the way.
    #[inline]
    pub fn lock_cached(&self, now: u64, key: &Key, mode: Mode) -> Option<Held> {
        if !self.is_member(now) {
            return None;
        }
        let section = self.locals.read();
        let local = self.locals.get(key, &section)?;
        if !local.usage.pin() {
            return None;
        }
        if local.word.take(mode) {
            local.usage.touch();
            return Some(Held { local: local.clone(), mode, known: 0 });
        }
        local.usage.unpin();
        None
    }

    /// Wants a lock.
    ///
    /// # Errors
    /// `Busy`, if it is in use on this node and the request must not wait; `NotMember`.
    pub fn lock(&self, now: u64, key: &Key, want: &Want) -> Result<Submitted, LockError> {
        if !self.is_member(now) {
            return Err(LockError::NotMember);
        }
        if want.notice.is_none()
            && want.party.is_none()
            && let Some(held) = self.lock_cached(now, key, want.mode)
        {
            return Ok(Submitted::Granted(held));
        }
        let local = self.local(key);
        self.enqueue(now, Held { local, mode: want.mode, known: 0 }, None, want).map_err(|(error, held)| {
            held.local.usage.unpin();
            error
        })
    }

    /// Changes the mode of a lock that is held. The lock stays held in its old mode until the change is possible.
    ///
    /// # Errors
    /// Errors of [`lock`](Self::lock), with the lock that is still held.
    pub fn convert(&self, now: u64, held: Held, want: &Want) -> Result<Submitted, (LockError, Held)> {
        if !self.is_member(now) {
            return Err((LockError::NotMember, held));
        }
        let holds = Some(held.mode);
        self.enqueue(now, held, holds, want)
    }

    fn enqueue(
        &self,
        now: u64,
        mut held: Held,
        holds: Option<Mode>,
        want: &Want,
    ) -> Result<Submitted, (LockError, Held)> {
        let number = self.next_serial();
        if held.known == 0 && (want.notice.is_some() || want.party.is_some()) {
            held.known = number;
        }
        let waiter = Waiter {
            wait: Wait::new(),
            mode: want.mode,
            holds,
            is_try: want.is_try,
            number,
            known: held.known,
            notice: want.notice.clone(),
            party: want.party,
            began_at: now,
            look_at: now + self.options.search,
        };
        let wait = waiter.wait.clone();
        let local = held.local.clone();
        let taken_in = self.under(local.key.shard(), now, |node, shard| {
            let slow = &mut *local.slow.lock();
            let result = node.take_in(shard, now, &local, slow, waiter);
            slow.tidy();
            result
        });
        match taken_in {
            Ok(true) => Ok(Submitted::Granted(Held { mode: want.mode, ..held })),
            Ok(false) => {
                let party = want.party.map(|party| (party, number));
                if let Some(waiting) = party {
                    self.parties.lock().waits.insert(waiting, local.key.clone());
                }
                Ok(Submitted::Waiting(Ticket { wait, mode: want.mode, holds, held, party }))
            }
            Err(error) => Err((error, held)),
        }
    }

    /// Grants the lock at once (true), lets `waiter` wait, or refuses it.
    fn take_in(
        &self,
        shard: &mut Shard,
        now: u64,
        local: &Local,
        slow: &mut Slow,
        waiter: Waiter,
    ) -> Result<bool, LockError> {
        if !self.is_member(now) {
            return Err(LockError::NotMember);
        }
        let is_first = slow.more().is_none_or(|more| more.waiters.is_empty() && !more.is_draining);
        let converts = waiter.holds.is_some();
        let is_granted = (is_first || converts)
            && slow.allows(waiter.mode)
            && local.word.take_shut(waiter.mode, waiter.holds);
        if is_granted {
            self.note(slow, waiter);
        } else if waiter.is_try
            && (!is_first || local.word.cached().is_some_and(|cached| cached.covers(waiter.mode)))
        {
            return Err(LockError::Busy);
        } else if slow.more().is_some_and(|more| {
            let stands = |request: &Request, revoke: &Revoke| request.stands_against(&waiter, revoke.wanted);
            let is_asked = more.request.as_ref().zip(more.revoke.as_ref()).is_some_and(|(a, b)| stands(a, b));
            is_asked && waiter.party.is_none()
                || more.waiters.iter().any(|other| other.excludes(&waiter) && waiter.excludes(other))
        }) {
            // Another conversion comes first, here or at another node, and each conflicts with the other's held mode.
            return Err(LockError::Deadlock);
        } else {
            if waiter.party.is_some() {
                shard.timers.insert((waiter.look_at, local.key.clone()));
            }
            let more = slow.say();
            let others = more.waiters.iter().take_while(|other| other.holds.is_some()).count();
            let at = if converts { others } else { more.waiters.len() };
            more.waiters.insert(at, waiter);
            local.word.set_shut(true);
        }
        // A conversion may have made room for others.
        self.advance(shard, local, slow, now);
        Ok(is_granted)
    }

    /// Unlocks. The lock stays cached.
    #[inline]
    pub fn unlock(&self, now: u64, held: Held) {
        if held.local.word.put(held.mode) || held.known != 0 {
            self.unlock_slow(now, &held);
        }
        held.local.usage.unpin();
    }

    #[cold]
    fn unlock_slow(&self, now: u64, held: &Held) {
        let local = &held.local;
        self.under(local.key.shard(), now, |node, shard| {
            let slow = &mut *local.slow.lock();
            if held.known != 0 {
                slow.say().known.retain(|known| known.number != held.known);
            }
            if node.options.mutant != Some(Mutant::WakeUpLost) {
                node.advance(shard, local, slow, now);
            }
            slow.tidy();
        });
    }

    /// Ends a request: returns its result and the lock held now. An undecided request is withdrawn.
    pub fn finish(&self, now: u64, ticket: Ticket) -> (Outcome, Option<Held>) {
        let Ticket { wait, mode, holds, held, party } = ticket;
        let local = held.local.clone();
        if wait.outcome().is_none() {
            self.under(local.key.shard(), now, |node, shard| {
                let slow = &mut *local.slow.lock();
                let of_it = |waiter: &Waiter| Arc::ptr_eq(&waiter.wait, &wait);
                node.withdraw(shard, now, &local, slow, of_it, LockError::Cancelled);
                slow.tidy();
            });
        }
        if let Some(waiting) = party {
            self.parties.lock().waits.remove(&waiting);
        }
        let outcome = wait.outcome().unwrap_or(Err(LockError::Cancelled));
        let left = if outcome.is_ok() { Some(mode) } else { holds };
        if left.is_none() {
            local.usage.unpin();
        }
        (outcome, left.map(|mode| Held { mode, ..held }))
    }

    /// Ends the request that is `wanted`, if it waits here. False if it was decided already.
    pub(super) fn withdraw(
        &self,
        shard: &mut Shard,
        now: u64,
        local: &Local,
        slow: &mut Slow,
        wanted: impl Fn(&Waiter) -> bool,
        error: LockError,
    ) -> bool {
        let is_cached = slow.token().is_some();
        let more = slow.say();
        let found = more.waiters.iter().position(wanted).and_then(|at| more.waiters.remove(at));
        let Some(Waiter { wait, .. }) = found else { return false };
        let serves = |request: &Request| {
            let others = |first: &Waiter| !request.is_try && request.mode.covers(first.mode);
            more.waiters.front().is_some_and(others)
        };
        // A grant that replaces a cached grant must be taken.
        let is_taken_back = !is_cached && more.request.is_some_and(|request| !serves(&request));
        if is_taken_back && let Some(request) = more.request.take() {
            self.ask_no_more(shard, &local.key, more, &request);
            let early = more.early.take();
            self.to_master(shard, &local.key, Body::Cancel { serial: request.serial });
            if let Some(early) = early {
                self.decline(shard, &local.key, early.token, early.answer(false));
            }
        }
        self.decide(shard, &wait, Err(error));
        if slow.say().waiters.iter().all(|waiter| waiter.holds.is_none()) {
            self.convert_no_more(shard, local, slow);
        }
        self.advance(shard, local, slow, now);
        true
    }

    /// A new party: see [`Want::party`].
    pub fn party(&self) -> LockParty {
        LockParty(self.next_serial())
    }

    /// The value of the resource, as it was when the lock came or as it was changed here since.
    pub fn value(&self, held: &Held) -> Option<Value> {
        held.local.slow.lock().value().cloned()
    }

    /// Changes the value of the resource. The next node that gets the lock sees it.
    ///
    /// # Errors
    /// `ReadOnly`, `ValueTooLong`, `NotMember`.
    pub fn set_value(&self, held: &Held, bytes: &[u8]) -> Result<(), LockError> {
        if !held.mode.writes() {
            return Err(LockError::ReadOnly);
        }
        if bytes.len() > VALUE_MAX {
            return Err(LockError::ValueTooLong);
        }
        let slow = &mut *held.local.slow.lock();
        let token = slow.token().ok_or(LockError::NotMember)?;
        let before = slow.value().filter(|value| value.version.0 == token).map_or(0, |value| value.version.1);
        slow.set_value(Some(Value { version: (token, before + 1), is_certain: true, bytes: bytes.into() }));
        slow.set_dirty(true);
        Ok(())
    }

    /// The lock called `key`, pinned.
    fn local(&self, key: &Key) -> Arc<Local> {
        loop {
            if let Some(found) = self.locals.get(key, &self.locals.read()) {
                if found.usage.pin() {
                    found.usage.touch();
                    return found.clone();
                }
            } else {
                let local = Arc::new(Local::new(key.clone()));
                self.memory.enter(local.clone(), |gone| self.let_go(gone));
                if self.locals.insert(ByKey(local.clone()), local.clone()).is_ok() {
                    return local;
                }
                self.memory.remove(&local);
            }
            thread::yield_now();
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({} {})", self.local.key, self.mode.name())
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({} {})", self.held.local.key, self.mode.name())
    }
}
