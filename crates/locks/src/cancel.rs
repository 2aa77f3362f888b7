//! Cancel: a token by which any thread can end the lock waits of others.

use crate::LockError;
use crate::lock_class::CANCEL_TOKEN;
use crate::wait::WaitSlot;
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Mutex};
use std::fmt;

/// Ends blocking lock requests: by [`cancel`](Self::cancel) from any thread, or by a deadline.
///
/// Clones share one token, and many waits may use it. A token that was cancelled stays so: a later request
/// with it still succeeds when it need not wait, and is interrupted when it must (as by a pending signal).
#[derive(Clone, Default)]
pub struct Cancel {
    /// `None`: cannot be cancelled. *immutable*
    token: Option<Arc<Mutex<CancelState>>>,
    /// *immutable*
    deadline: Option<Instant>,
}

#[derive(Default)]
struct CancelState {
    cancelled: bool,
    /// The threads that sleep under this token.
    sleepers: Vec<Arc<WaitSlot>>,
}

impl Cancel {
    /// A token that waits until somebody cancels it.
    pub fn new() -> Self {
        let token = Mutex::with_class(&CANCEL_TOKEN, CancelState::default());
        Cancel { token: Some(Arc::new(token)), deadline: None }
    }

    /// No token at all: [`cancel`](Self::cancel) has no effect, the wait lasts until the lock is decided.
    pub const fn never() -> Self {
        Cancel { token: None, deadline: None }
    }

    /// A token that ends waits with [`LockError::TimedOut`] at `deadline`.
    pub fn with_deadline(deadline: Instant) -> Self {
        Cancel { deadline: Some(deadline), ..Self::new() }
    }

    /// [`with_deadline`](Self::with_deadline), `timeout` from now. A time too far to express never comes.
    pub fn with_timeout(timeout: Duration) -> Self {
        Cancel { deadline: Instant::now().checked_add(timeout), ..Self::new() }
    }

    /// Ends all present and future waits under this token with
    /// [`LockError::Interrupted`]. May be called again.
    pub fn cancel(&self) {
        let Some(token) = &self.token else { return };
        let sleepers = {
            let mut token = token.lock();
            token.cancelled = true;
            std::mem::take(&mut token.sleepers)
        };
        for slot in sleepers {
            slot.interrupt();
        }
    }

    /// True after [`cancel`](Self::cancel). Deadlines do not count.
    pub fn is_cancelled(&self) -> bool {
        self.token.as_ref().is_some_and(|token| token.lock().cancelled)
    }

    /// When waits under this token end by themselves.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The same token, with waits that end at `deadline` at the latest.
    pub(crate) fn until(&self, deadline: Instant) -> Cancel {
        Cancel { deadline: Some(self.deadline.map_or(deadline, |at| at.min(deadline))), ..self.clone() }
    }

    /// Sleeps in `slot` as [`WaitSlot::sleep`] says, until the token is cancelled or its time is over.
    pub(crate) fn sleep(
        &self,
        slot: &Arc<WaitSlot>,
        claim: impl Fn() -> Option<Result<(), LockError>>,
        withdraw: impl FnOnce() -> bool,
    ) -> Result<(), LockError> {
        let _registration = self.register(slot);
        slot.sleep(self.deadline, claim, withdraw)
    }

    /// Has `slot` interrupted when the token is cancelled, now if it is already, until the result is dropped.
    fn register<'a>(&'a self, slot: &'a Arc<WaitSlot>) -> Registration<'a> {
        if let Some(token) = &self.token {
            let mut token = token.lock();
            let cancelled = token.cancelled;
            if !cancelled {
                token.sleepers.push(slot.clone());
            }
            drop(token);
            if cancelled {
                slot.interrupt();
            }
        }
        Registration { cancel: self, slot }
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel")
            .field("cancelled", &self.is_cancelled())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// A slot's place among the sleepers of a token; left on drop.
struct Registration<'a> {
    cancel: &'a Cancel,
    slot: &'a Arc<WaitSlot>,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        if let Some(token) = &self.cancel.token {
            token.lock().sleepers.retain(|slot| !Arc::ptr_eq(slot, self.slot));
        }
    }
}
