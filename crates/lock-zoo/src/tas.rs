//! Test-and-set: the smallest lock, and the worst.
//!
//! # Theory
//! A waiter tries to write the lock until it succeeds; every try takes the line away from the owner, so the unlock
//! itself queues behind the tries. [`Ttas`](crate::Ttas) looks before it tries.
//!
//! # Sources
//! T. Anderson, "The performance of spin lock alternatives for shared-memory multiprocessors", 1990.

use crate::RawSpinLock;
use sluice_sync::face::atomic::{AtomicU32, Ordering};
use sluice_sync::face::const_new;
use sluice_sync::face::hint::Waiting;

/// Test-and-set.
#[derive(Debug)]
pub struct Tas {
    /// 1 while held. *atomic (unlock)*
    held: AtomicU32,
}

impl Tas {
    const_new! {
        /// A free lock.
        pub fn new() -> Self {
            Tas { held: AtomicU32::new(0) }
        }
    }
}

impl Default for Tas {
    fn default() -> Self {
        Self::new()
    }
}

impl RawSpinLock for Tas {
    const NAME: &'static str = "tas";
    type Token = ();

    fn lock(&self) {
        let mut waiting = Waiting::new();
        while self.try_lock().is_none() {
            waiting.turn();
        }
    }

    fn try_lock(&self) -> Option<()> {
        // An exchange, which takes the line away from the owner whether it succeeds or not.
        // Acquire(unlock): pairs with Release(unlock) in unlock(). A failure publishes nothing.
        self.held.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| ())
    }

    fn unlock(&self, (): ()) {
        // Release(unlock): the protected data; pairs with Acquire(unlock) in try_lock().
        self.held.store(0, Ordering::Release);
    }
}
