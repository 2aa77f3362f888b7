//! Tally: counts that each thread keeps for itself by plain stores, and that are added up rarely.
//!
//! # Theory
//! Unlike a CPU, a thread cannot be moved away from its own line, so it adds without a read-modify-write. It may subtract
//! what another has added: only the sum means something.
//!
//! A thread that adds and then reads a flag must not miss a thread that sets that flag and then adds up, nor the other
//! way round. The one that adds up pays for that:
//!
//! ```text
//!   user                          adding up
//!   own count += 1                flag := true
//!   light barrier     <---->      barrier()
//!   load flag                     load all counts
//! ```
//!
//! # Then
//! A sum is exact, but for what was added behind its back: what one thread adds and another subtracts meanwhile may be
//! seen by half.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | announce | `add`: light barrier after the store | [`Tally::barrier`] before the sum | the addition |
//! | added | `add`: Release store | `sum`: Acquire load | what was done before |
//!
//! # Cost
//! `add`: a load and a store of the thread's own line. `sum`: one load per thread. `barrier`: a membarrier(2). Memory: `N`
//! words for each thread that ever added, and a line for each slot.
//!
//! # Sources
//! The kernel's percpu_ref and its mount counts; the barrier of `readers.rs`.

use crate::face::atomic::{AtomicI32, Ordering};
use crate::face::{CachePadded, OnceLock, SlotTable, light_barrier, thread};
use crate::readers::heavy_barrier;

/// `N` counts of many threads.
pub struct Tally<const N: usize> {
    /// By thread slot, each made when its thread first adds.
    threads: SlotTable<CachePadded<OnceLock<Box<CachePadded<ThreadCounts<N>>>>>>,
}

/// The counts that one thread has added. *written by the owner; read by threads that add up (added)*
struct ThreadCounts<const N: usize>([AtomicI32; N]);

impl<const N: usize> Default for ThreadCounts<N> {
    fn default() -> Self {
        ThreadCounts(std::array::from_fn(|_| AtomicI32::new(0)))
    }
}

impl<const N: usize> Tally<N> {
    /// All counts are 0.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Tally { threads: SlotTable::new() }
    }

    /// Adds `n`, which may be negative, to count `at`, below `N`. The count wraps around on overflow.
    #[inline]
    pub fn add(&self, at: usize, n: i32) {
        let ThreadCounts(counts) = &***self.threads.get(thread::slot()).get_or_init(Box::default);
        let count = &counts[at];
        // Relaxed: our own store. Release(added): pairs with Acquire(added) in sum().
        count.store(count.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
        // Barrier(announce): pairs with heavy_barrier() in barrier().
        light_barrier();
    }

    /// After it, what was added before is seen by [`sum`](Self::sum), and a thread that adds later sees what the
    /// caller has stored.
    pub fn barrier(&self) {
        // Barrier(announce): pairs with the light barrier in add().
        heavy_barrier();
    }

    /// Count `at`.
    pub fn sum(&self, at: usize) -> i32 {
        let all = self.threads.iter().filter_map(|own| own.get());
        // Acquire(added): pairs with Release(added) in add().
        all.fold(0, |sum, own| sum.wrapping_add(own.0[at].load(Ordering::Acquire)))
    }
}

impl<const N: usize> std::fmt::Debug for Tally<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tally(..)")
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn what_one_thread_adds_another_may_subtract() {
        let tally = Tally::<2>::new();
        tally.add(0, 5);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..1_000).for_each(|_| tally.add(1, 1)));
            }
            scope.spawn(|| tally.add(0, -4));
        });
        assert_eq!((tally.sum(0), tally.sum(1)), (1, 3_000));
    }
}
