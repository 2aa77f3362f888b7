//! Guard: a lock that is held until it is dropped, and the future that becomes one.

use super::Dlm;
use crate::error::LockError;
use crate::message::{Token, Value};
use crate::node::{Held, Submitted, Ticket, Want};
use crate::{Key, Mode};
use sluice_membership::now;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A lock that is held.
///
/// It counts for as long as its node is a member: ask [`Guard::is_valid`], or let the store compare [`Guard::token`]s.
#[must_use = "the lock is unlocked at once when the guard is dropped"]
pub struct Guard<'a> {
    dlm: &'a Dlm,
    /// Some until it is dropped.
    held: Option<Held>,
}

impl<'a> Guard<'a> {
    #[inline]
    pub(super) fn new(dlm: &'a Dlm, held: Held) -> Self {
        Guard { dlm, held: Some(held) }
    }

    fn held(&self) -> &Held {
        self.held.as_ref().expect("it is there until it is dropped")
    }

    /// The locked range.
    pub fn key(&self) -> &Key {
        self.held().key()
    }

    /// How strongly.
    pub fn mode(&self) -> Mode {
        self.held().mode()
    }

    /// The token of the grant, for a store that refuses holders of the past.
    pub fn token(&self) -> Option<Token> {
        self.held().token()
    }

    /// Whether it surely counts at this moment.
    pub fn is_valid(&self) -> bool {
        self.dlm.inner.node.is_member(now())
    }

    /// The value of the resource.
    pub fn value(&self) -> Option<Value> {
        self.dlm.inner.node.value(self.held())
    }

    /// Changes the value of the resource.
    ///
    /// # Errors
    /// `ReadOnly`, `ValueTooLong`, `NotMember`.
    pub fn set_value(&self, bytes: &[u8]) -> Result<(), LockError> {
        self.dlm.inner.node.set_value(self.held(), bytes)
    }

    /// Changes the mode; the thread sleeps until that is possible. The lock stays held as it is until then.
    ///
    /// # Errors
    /// `Deadlock`, `Busy` if it was not to wait, `NotMember`; returns the unchanged lock, too.
    pub fn convert(mut self, want: &Want) -> Result<Guard<'a>, (LockError, Guard<'a>)> {
        let dlm = self.dlm;
        let held = self.held.take().expect("it is there until it is dropped");
        let ticket = match dlm.inner.node.convert(now(), held, want) {
            Ok(Submitted::Granted(held)) => return Ok(Guard::new(dlm, held)),
            Ok(Submitted::Waiting(ticket)) => ticket,
            Err((error, held)) => return Err((error, Guard::new(dlm, held))),
        };
        ticket.sleep(None);
        let (outcome, held) = dlm.inner.node.finish(now(), ticket);
        let guard = Guard::new(dlm, held.expect("a lock that is converted stays held"));
        match outcome {
            Ok(()) => Ok(guard),
            Err(error) => Err((error, guard)),
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.dlm.inner.node.unlock(now(), held);
        }
    }
}

/// A request that resolves when the lock is held or refused.
#[must_use = "nothing is locked before the future is polled"]
pub struct LockFuture<'a> {
    dlm: &'a Dlm,
    key: Result<Key, LockError>,
    want: Want,
    ticket: Option<Ticket>,
}

impl<'a> LockFuture<'a> {
    pub(super) fn new(dlm: &'a Dlm, key: Result<Key, LockError>, want: Want) -> Self {
        LockFuture { dlm, key, want, ticket: None }
    }

    /// For a thread that sleeps until it is decided.
    ///
    /// # Errors
    /// As the future resolves.
    pub fn wait(self) -> Result<Guard<'a>, LockError> {
        self.key.clone().and_then(|key| self.dlm.lock_wait(&key, &self.want, None))
    }
}

impl<'a> Future for LockFuture<'a> {
    type Output = Result<Guard<'a>, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let dlm = this.dlm;
        if this.ticket.is_none() {
            let submitted = this.key.clone().and_then(|key| dlm.submit(&key, &this.want));
            match submitted {
                Ok(Submitted::Granted(held)) => return Poll::Ready(Ok(Guard::new(dlm, held))),
                Ok(Submitted::Waiting(ticket)) => this.ticket = Some(ticket),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if this.ticket.as_ref().is_some_and(|ticket| ticket.poll(context).is_pending()) {
            return Poll::Pending;
        }
        let Some(ticket) = this.ticket.take() else { return Poll::Pending };
        let (outcome, held) = dlm.inner.node.finish(now(), ticket);
        let guard = held.map(|held| Guard::new(dlm, held));
        Poll::Ready(outcome.and_then(|()| guard.ok_or(LockError::Cancelled)))
    }
}

impl Drop for LockFuture<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && let (_, Some(held)) = self.dlm.inner.node.finish(now(), ticket)
        {
            self.dlm.inner.node.unlock(now(), held);
        }
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?})", self.held)
    }
}

impl fmt::Debug for LockFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockFuture").field("key", &self.key).finish_non_exhaustive()
    }
}
