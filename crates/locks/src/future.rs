//! Future: a lock request for asynchronous code, which is withdrawn when it is dropped.
//!
//! It needs no runtime: the thread that decides the request wakes the task. Time limits are those of the runtime,
//! which drops the future when they are over.

use crate::file::{FileLocks, whole};
use crate::wait::{Done, Slot, Submitted, Ticket};
use crate::{Kind, LockError, RangeRequest};
use sluice_sync::Arc;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A request that resolves when the lock is held or refused. Made by [`FileLocks::lock_range`] and
/// [`FileLocks::lock_flock`].
///
/// Nothing is asked for before the first poll. Dropped while it waits, it never gets the lock; dropped after the
/// lock was granted, but before it could say so, it unlocks these bytes again, also those that the owner had before.
#[must_use = "nothing is locked before the future is polled"]
pub struct LockFuture<'a> {
    locks: &'a FileLocks,
    request: RangeRequest,
    is_flock: bool,
    stage: Stage,
}

enum Stage {
    New,
    Waiting(Ticket, Arc<Slot>),
    Decided(Result<(), LockError>),
}

impl FileLocks {
    /// F_SETLKW as a future.
    ///
    /// Resolves to an error as [`set_range_wait`](Self::set_range_wait) does.
    pub fn lock_range(&self, request: RangeRequest) -> LockFuture<'_> {
        LockFuture { locks: self, request, is_flock: false, stage: Stage::New }
    }

    /// flock as a future. The lock that is converted is given up at the first poll.
    ///
    /// Resolves to an error as [`set_flock_wait`](Self::set_flock_wait) does.
    pub fn lock_flock(&self, owner: u64, pid: i32, kind: Kind) -> LockFuture<'_> {
        LockFuture { locks: self, request: whole(owner, pid, kind), is_flock: true, stage: Stage::New }
    }
}

impl Future for LockFuture<'_> {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if matches!(self.stage, Stage::New) {
            let mut slot = None;
            let submitted = self.locks.request(
                &self.request,
                self.is_flock,
                Some(|| -> Done {
                    let waker = slot.insert(Arc::<Slot>::default()).clone();
                    Box::new(move |outcome| waker.finish(outcome))
                }),
            );
            self.stage = match (submitted, slot) {
                (Ok(Submitted::Waiting(ticket)), Some(slot)) => Stage::Waiting(ticket, slot),
                (submitted, _) => Stage::Decided(submitted.map(drop)),
            };
        }
        if let Stage::Waiting(_, slot) = &self.stage {
            self.stage = Stage::Decided(ready!(slot.poll(context)));
        }
        match self.stage {
            Stage::Decided(outcome) => Poll::Ready(outcome),
            Stage::New | Stage::Waiting(..) => Poll::Pending,
        }
    }
}

impl Drop for LockFuture<'_> {
    fn drop(&mut self) {
        let Stage::Waiting(ticket, slot) = &self.stage else { return };
        if self.locks.cancel(ticket) {
            return;
        }
        // Decided: whoever did it has told, or is about to.
        if slot.outcome().is_ok() {
            // Only a split can fail, for lack of locks; then the owner keeps what he was granted.
            let _ = self.locks.unlock_in(self.request.owner, self.request.range, self.is_flock);
        }
    }
}

impl fmt::Debug for LockFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockFuture").field("request", &self.request).finish_non_exhaustive()
    }
}
