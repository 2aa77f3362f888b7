//! Future: a lock request for asynchronous code, which is withdrawn when it is dropped.
//!
//! It needs no runtime: the thread that decides the request wakes the task. Time limits are those of the runtime,
//! which drops the future when they are over.

use crate::file::{FileLocks, whole};
use crate::wait::{Submitted, Then, Ticket, WaitSlot};
use crate::{Kind, LockError, RangeRequest};
use sluice_sync::Arc;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A request that resolves when the lock is held or refused. Made by [`FileLocks::lock_range`] and
/// [`FileLocks::lock_flock`].
///
/// Nothing is asked for before the first poll, and the lock is taken by a poll: a future that is dropped before it has
/// said so holds nothing.
#[must_use = "nothing is locked before the future is polled"]
pub struct LockFuture<L: Deref<Target = FileLocks>> {
    locks: L,
    request: RangeRequest,
    is_flock: bool,
    stage: FutureStage,
}

enum FutureStage {
    New,
    Waiting(Ticket, Arc<WaitSlot>),
    Decided(Result<(), LockError>),
}

impl FileLocks {
    /// F_SETLKW as a future.
    ///
    /// Resolves to an error as [`set_range_wait`](Self::set_range_wait) does.
    pub fn lock_range(&self, request: RangeRequest) -> LockFuture<&Self> {
        LockFuture::range(self, request)
    }

    /// flock as a future. The lock that is converted is given up at the first poll.
    ///
    /// Resolves to an error as [`set_flock_wait`](Self::set_flock_wait) does.
    pub fn lock_flock(&self, owner: u64, pid: i32, kind: Kind) -> LockFuture<&Self> {
        LockFuture::flock(self, owner, pid, kind)
    }
}

impl<L: Deref<Target = FileLocks>> LockFuture<L> {
    /// [`FileLocks::lock_range`], with any hold on the file's locks, such as an `Arc`.
    pub fn range(locks: L, request: RangeRequest) -> Self {
        LockFuture { locks, request, is_flock: false, stage: FutureStage::New }
    }

    /// [`FileLocks::lock_flock`], likewise.
    pub fn flock(locks: L, owner: u64, pid: i32, kind: Kind) -> Self {
        LockFuture { locks, request: whole(owner, pid, kind), is_flock: true, stage: FutureStage::New }
    }
}

impl<L: Deref<Target = FileLocks> + Unpin> Future for LockFuture<L> {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if matches!(this.stage, FutureStage::New) {
            let mut slot = None;
            let submitted = this.locks.request(
                &this.request,
                this.is_flock,
                |_| Some(|| Then::Call(slot.insert(Arc::<WaitSlot>::default()).clone())),
                || (),
            );
            this.stage = match (submitted, slot) {
                (Ok(Submitted::Waiting(ticket)), Some(slot)) => FutureStage::Waiting(ticket, slot),
                (submitted, _) => FutureStage::Decided(submitted.map(drop)),
            };
        }
        if let FutureStage::Waiting(ticket, slot) = &this.stage {
            this.stage = FutureStage::Decided(ready!(slot.poll(context, || this.locks.claim(ticket, || ()))));
        }
        match this.stage {
            FutureStage::Decided(outcome) => Poll::Ready(outcome),
            FutureStage::New | FutureStage::Waiting(..) => Poll::Pending,
        }
    }
}

impl<L: Deref<Target = FileLocks>> Drop for LockFuture<L> {
    fn drop(&mut self) {
        if let FutureStage::Waiting(ticket, _) = &self.stage {
            // If it was decided meanwhile, it was refused.
            self.locks.cancel(ticket);
        }
    }
}

impl<L: Deref<Target = FileLocks>> fmt::Debug for LockFuture<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockFuture").field("request", &self.request).finish_non_exhaustive()
    }
}
