//! Ticket lock: take a number, wait until it is called.
//!
//! # Theory
//! Strictly first come, first served, with one read-modify-write per acquisition. But all waiters watch one word, so
//! each hand-over moves its line to every one of them; and when the next thread in order is preempted, no thread runs.
//!
//! # Sources
//! J. Mellor-Crummey and M. Scott, "Algorithms for scalable synchronization on shared-memory
//! multiprocessors", 1991; Linux's spin lock from 2008 to 2015.

use crate::RawSpinLock;
use sluice_sync::face::atomic::{AtomicU32, Ordering, fence};
use sluice_sync::face::{Mutant, const_new, hint, seeded};

/// Ticket lock.
#[derive(Debug)]
pub struct TicketLock {
    /// The next number to be taken. *atomic*
    next: AtomicU32,
    /// The number whose turn it is. *atomic (unlock); written by the owner*
    serving: AtomicU32,
}

impl TicketLock {
    const_new! {
        /// A free lock.
        pub fn new() -> Self {
            TicketLock { next: AtomicU32::new(0), serving: AtomicU32::new(0) }
        }
    }
}

impl Default for TicketLock {
    fn default() -> Self {
        Self::new()
    }
}

impl RawSpinLock for TicketLock {
    const NAME: &'static str = "ticket";
    type Token = ();

    fn lock(&self) {
        // Relaxed: a number publishes nothing; its turn does.
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        // Relaxed: made an acquire by the fence, once, instead of at every look.
        hint::spin_until(&self.serving, Ordering::Relaxed, |serving| serving == ticket);
        if !seeded(Mutant::TicketWithoutBarrier) {
            // Acquire(unlock): pairs with Release(unlock) in unlock().
            fence(Ordering::Acquire);
        }
    }

    fn try_lock(&self) -> Option<()> {
        // Acquire(unlock): pairs with Release(unlock) in unlock().
        let serving = self.serving.load(Ordering::Acquire);
        // Relaxed: if the number whose turn it is has not been taken, it is ours and we have just acquired.
        let taken = self.next.compare_exchange(
            serving,
            serving.wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        taken.ok().map(|_| ())
    }

    fn unlock(&self, (): ()) {
        // Relaxed: only the owner writes it.
        let ticket = self.serving.load(Ordering::Relaxed);
        // Release(unlock): the protected data; pairs with Acquire(unlock) in lock() and try_lock().
        self.serving.store(ticket.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::SpinLock;
    use sluice_sync::face::SHRUNK;
    use sluice_sync::thread;

    #[test]
    fn numbers_wrap_around_and_nobody_is_lost() {
        let first = u32::MAX - 5;
        let raw = TicketLock { next: AtomicU32::new(first), serving: AtomicU32::new(first) };
        let lock = SpinLock::with_raw(raw, 0);
        let rounds = if SHRUNK { 4 } else { 1_000 };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..rounds).for_each(|_| *lock.lock() += 1));
            }
        });
        assert!(lock.try_lock().is_some());
        assert_eq!(lock.into_inner(), 3 * rounds);
    }
}
