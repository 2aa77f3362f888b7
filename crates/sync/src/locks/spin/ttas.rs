//! Test-and-test-and-set with back-off: a lock of one word.
//!
//! # Theory
//! A waiter that tried to write the lock until it succeeded would take the line away from the owner with every try.
//! Looking first and writing only when the lock looks free removes most of that; looking ever more rarely removes most
//! of the rest, and is unfair: the thread that had the lock last, and still has its line, mostly gets it again.
//!
//! # Sources
//! T. Anderson, "The performance of spin lock alternatives for shared-memory multiprocessors", 1990.

use super::RawSpinLock;
use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::hint::pause;
use crate::face::{SHRUNK, const_new, cpu};

/// Longest pause of a waiter, in turns of a waiting loop.
const BACKOFF_MAX: u32 = if SHRUNK { 1 } else { 1 << 10 };

/// Test-and-test-and-set with exponential back-off.
#[derive(Debug)]
pub struct Ttas {
    /// 1 while held. *atomic (unlock)*
    held: AtomicU32,
}

impl Ttas {
    const_new! {
        /// A free lock.
        pub fn new() -> Self {
            Ttas { held: AtomicU32::new(0) }
        }
    }

    /// Pauses of random length, up to a bound that doubles, with one look between them: waiters that saw the
    /// lock become free at the same time would all try at the same time.
    #[cold]
    fn lock_slow(&self) {
        // Seeded by CPU: threads that compete for a lock at the same time are on different ones.
        let mut random = (cpu::current() as u32).wrapping_add(1).wrapping_mul(0x9E37_79B9);
        let mut bound = 4.min(BACKOFF_MAX);
        loop {
            // Marsaglia's xorshift: any spread will do.
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            pause(1 + random % bound);
            // Relaxed: only to see whether trying is worth it.
            if self.held.load(Ordering::Relaxed) == 0 && self.try_lock().is_some() {
                return;
            }
            bound = (bound * 2).min(BACKOFF_MAX);
        }
    }
}

impl Default for Ttas {
    fn default() -> Self {
        Self::new()
    }
}

impl RawSpinLock for Ttas {
    const NAME: &'static str = "ttas";
    type Token = ();

    fn lock(&self) {
        // Relaxed: only to see whether trying is worth it. A try at a lock that is held would take the line away
        // from its owner, each time that somebody comes.
        if self.held.load(Ordering::Relaxed) != 0 || self.try_lock().is_none() {
            self.lock_slow();
        }
    }

    fn try_lock(&self) -> Option<()> {
        // Acquire(unlock): pairs with Release(unlock) in unlock(). A failure publishes nothing.
        self.held.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| ())
    }

    fn unlock(&self, (): ()) {
        // Release(unlock): the protected data; pairs with Acquire(unlock) in try_lock().
        self.held.store(0, Ordering::Release);
    }
}
