//! Per-CPU counter: adding touches the CPU's own line, reading is cheap and near, summing is dear and exact.
//!
//! # Theory
//! Each CPU gathers a small difference and passes it to the common total when it reaches a batch.
//!
//! ```text
//!   CPU 0  [ +12 ]    CPU 1  [ -3 ]   ...      differences, each below the batch
//!            \__________ +64 ___________ total  written once per batch
//! ```
//!
//! # Then
//! - [`Counter::read`] is less than `batch * CPUs` away from the count;
//! - [`Counter::sum`] is exact when nobody adds meanwhile, and otherwise off by no more than what is added
//!   meanwhile and one batch for each CPU that passes its difference on at that moment.
//!
//! # Ordering
//! A counter publishes nothing. But a thread that adds and then looks at a flag, and one that sets that flag and then sums,
//! must not miss each other: `add` and `sum` are SeqCst, and so is such a flag. The common total is Relaxed: in a counter that
//! is used so, nothing is passed on.
//!
//! # Cost
//! `add`: one read-modify-write on the CPU's own line. `read`: one load of a line written once per batch and
//! CPU. `sum`: one load per CPU.
//!
//! # Used by
//! [`HashTable`](crate::HashTable), which counts its entries; [`super::Budget`], which counts towards a limit.
//!
//! # Sources
//! The kernel's percpu_counter.

use super::PerCpu;
use crate::face::CachePadded;
use crate::face::atomic::{AtomicI64, Ordering};

/// How far a CPU's difference may go before it is passed on.
const BATCH: i64 = 64;

/// A signed 64-bit counter that many CPUs add to.
#[derive(Debug)]
pub struct Counter {
    /// The difference that each CPU has not passed on yet. *atomic*
    differences: PerCpu<AtomicI64>,
    /// All that was passed on. *atomic*
    total: CachePadded<AtomicI64>,
    /// *immutable*
    batch: i64,
}

impl Counter {
    /// A counter at `count`.
    pub fn new(count: i64) -> Self {
        Counter::with_batch(count, BATCH)
    }

    /// A counter at `count` whose CPUs pass on what has reached `batch` in either direction, at least 1.
    pub fn with_batch(count: i64, batch: i64) -> Self {
        Counter {
            differences: PerCpu::default(),
            total: CachePadded::new(AtomicI64::new(count)),
            batch: batch.max(1),
        }
    }

    /// Adds `n`, which may be negative. The count wraps around on overflow. Returns what the CPU has passed on to the common total
    /// by this, mostly nothing.
    #[inline]
    pub fn add(&self, n: i64) -> i64 {
        let own = self.differences.here();
        // SeqCst(flag): pairs with sum(), see the header.
        let difference = own.fetch_add(n, Ordering::SeqCst).wrapping_add(n);
        if difference >= self.batch || difference <= -self.batch {
            return self.pass_on(own);
        }
        0
    }

    /// Adds `n`, which is not negative, unless the CPU would have to pass on and the count is then above `limit`. Returns whether it
    /// was added.
    #[inline]
    pub fn add_about(&self, n: i64, limit: i64) -> bool {
        let own = self.differences.here();
        // SeqCst(flag), both: as in add().
        if own.fetch_add(n, Ordering::SeqCst).wrapping_add(n) >= self.batch {
            if limit < i64::MAX && self.at_least(limit + 1) {
                // The CPU's counted amount stays with it, so the next call that adds is refused, too.
                own.fetch_sub(n, Ordering::SeqCst);
                return false;
            }
            self.pass_on(own);
        }
        true
    }

    #[cold]
    fn pass_on(&self, own: &AtomicI64) -> i64 {
        // Another thread may have added to the count or passed it on meanwhile: take the current value. Relaxed: see
        // the header.
        let difference = own.swap(0, Ordering::Relaxed);
        self.total.fetch_add(difference, Ordering::Relaxed);
        difference
    }

    /// About the count: less than `batch * CPUs` away from it.
    #[inline]
    pub fn read(&self) -> i64 {
        // Relaxed: see the header.
        self.total.load(Ordering::Relaxed)
    }

    /// The count; exact when nobody adds meanwhile.
    pub fn sum(&self) -> i64 {
        // SeqCst(flag): pairs with add(), see the header.
        let add = |sum: i64, own: &AtomicI64| sum.wrapping_add(own.load(Ordering::SeqCst));
        self.differences.iter().fold(self.read(), add)
    }

    /// Whether the count is at least `limit`; sums up only when the cheap reading cannot tell.
    pub fn at_least(&self, limit: i64) -> bool {
        let slack = self.batch.saturating_mul(i64::try_from(self.differences.len()).unwrap_or(i64::MAX));
        let near = self.read();
        if near.saturating_sub(slack) >= limit {
            return true;
        }
        near.saturating_add(slack) >= limit && self.sum() >= limit
    }
}

impl Default for Counter {
    fn default() -> Self {
        Counter::new(0)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn the_sum_is_exact_when_the_adders_have_ended() {
        let counter = Counter::new(5);
        let rounds = if crate::face::SHRUNK { 100 } else { 50_000 };
        thread::scope(|scope| {
            for step in [3, -1, 7, -8] {
                let counter = &counter;
                scope.spawn(move || (0..rounds).for_each(|_| _ = counter.add(step)));
            }
        });
        assert_eq!(counter.sum(), 5 + rounds);
    }

    #[test]
    fn the_cheap_reading_is_near() {
        let counter = Counter::with_batch(0, 10);
        for n in 1..1_000 {
            counter.add(1);
            let slack = 10 * i64::try_from(counter.differences.len()).expect("few CPUs");
            assert!((counter.read() - n).abs() < slack);
            assert!(counter.at_least(n) && !counter.at_least(n + 1));
        }
        counter.add(-5_000);
        assert!(!counter.at_least(-4_000) && counter.at_least(-4_001));
    }
}
