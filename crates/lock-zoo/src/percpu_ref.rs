//! Per-CPU reference count: references cost the CPU's own line until the count is killed, then it is exact.
//!
//! # Theory
//! While the object lives, nobody needs to know how many references there are, only that there is one: the
//! *initial* one. So taking and putting count on the own CPU, and a CPU's count alone means nothing (a
//! reference taken on one CPU may be put on another). [`PerCpuRef::kill`] puts the initial reference and closes
//! the CPUs' counts one by one, collecting them into the common count:
//!
//! ```text
//!   CPU 0 [ +5 | open ]   --swap-->  [ 0 | CLOSED ]   5 --\
//!   CPU 1 [ -3 | open ]   --swap-->  [ 0 | CLOSED ]  -3 ---+--> common := BIAS + puts - gets ...
//!   common [ BIAS ]                          add 5 - 3 - BIAS --/
//! ```
//!
//! A thread that finds its CPU closed counts in the common word. That word holds a large bias until all CPUs are
//! collected, so it cannot reach zero early; after that it is the number of references, and the thread that takes it
//! to zero calls back. Closing and collecting are one atomic swap, so a reference is counted in a CPU's word
//! before the swap and collected, or finds the mark and is counted in the common word: never both, never
//! neither, wherever its thread was moved to.
//!
//! # Clients must
//! - hold a reference (or know that the count is not killed) to call [`PerCpuRef::get`];
//! - put each reference once.
//!
//! # Then
//! The callback runs exactly once, after the last put, and sees all that was done under any reference.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | put | `put`: the decrement, on either word | `kill`'s swap; the decrement to zero | uses of the object |
//!
//! # Cost
//! get, put: one read-modify-write on the CPU's own line; after the kill, another on one common line.
//!
//! # Used by
//! Nothing of the product. Objects that all CPUs refer to are counted by Refcache (`sluice_sync::refcache`): it needs no
//! word for each CPU in each object, and no call that says that the object may go.
//!
//! # Sources
//! The kernel's percpu_ref, which needs an RCU grace period where the mark in the word suffices here.

use sluice_sync::face::atomic::{AtomicI64, Ordering};
use sluice_sync::face::{CachePadded, Mutant, seeded};
use sluice_sync::percpu::PerCpu;

/// The mark in a CPU's word: count in the common word instead.
const CLOSED: i64 = 1;
/// One reference in a CPU's word.
const ONE: i64 = 2;
/// More than there can be references.
const BIAS: i64 = 1 << 61;

type Callback = Box<dyn Fn() + Send + Sync>;

/// A reference count that is cheap while its object lives and exact when it dies.
pub struct PerCpuRef {
    /// Twice the count, and the mark. *atomic (put)*
    counts: PerCpu<AtomicI64>,
    /// The bias, or when all CPUs are collected the number of references. *atomic (put)*
    common: CachePadded<AtomicI64>,
    /// 1 as soon as somebody kills. *atomic*
    killed: AtomicI64,
    /// *immutable*
    on_zero: Callback,
}

/// A reference, put when dropped.
#[must_use = "the reference is put at once when the guard is dropped"]
pub struct Held<'a> {
    count: &'a PerCpuRef,
}

impl PerCpuRef {
    /// A count with the initial reference, which [`kill`](Self::kill) puts. `on_zero` runs when none is left.
    pub fn new(on_zero: impl Fn() + Send + Sync + 'static) -> Self {
        PerCpuRef {
            counts: PerCpu::default(),
            common: CachePadded::new(AtomicI64::new(BIAS)),
            killed: AtomicI64::new(0),
            on_zero: Box::new(on_zero),
        }
    }

    /// Takes another reference. The caller has one already.
    #[inline]
    pub fn get(&self) {
        if !self.count_here(ONE, Ordering::Relaxed) {
            // Relaxed: the caller's own reference keeps the count above zero.
            let before = self.common.fetch_add(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a reference was taken from nothing");
        }
    }

    /// Takes a reference unless the count has been killed. `None` for certain after `kill` returned.
    #[inline]
    pub fn try_get_live(&self) -> Option<Held<'_>> {
        self.count_here(ONE, Ordering::Relaxed).then(|| Held { count: self })
    }

    /// Takes a reference unless none is left.
    pub fn try_get(&self) -> Option<Held<'_>> {
        if let Some(held) = self.try_get_live() {
            return Some(held);
        }
        // Relaxed: as in get(); a failure publishes nothing.
        let more = |count| (count > 0).then_some(count + 1);
        self.common.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Held { count: self })
    }

    /// Puts a reference back.
    #[inline]
    pub fn put(&self) {
        // Release(put): our uses of the object; pairs with the swap in kill().
        if !self.count_here(-ONE, Ordering::Release) {
            self.add_common(-1);
        }
    }

    /// Adds `n` to the CPU's word. False if it is closed.
    #[inline]
    fn count_here(&self, n: i64, order: Ordering) -> bool {
        let own = self.counts.here();
        // Additions to a closed word are never read.
        own.fetch_add(n, order) & CLOSED == 0
    }

    fn add_common(&self, n: i64) {
        // Release(put): our uses. Acquire(put): if we are the last, everybody's, handed on by the others' Release.
        let left = self.common.fetch_add(n, Ordering::AcqRel) + n;
        debug_assert!(left >= 0, "more references were put than taken");
        if left == 0 {
            (self.on_zero)();
        }
    }

    /// Puts the initial reference and makes the count exact: `on_zero` runs now or with the last put. True for the
    /// first call; later ones do nothing.
    pub fn kill(&self) -> bool {
        // Relaxed: it matters only which call is first.
        if self.killed.swap(1, Ordering::Relaxed) != 0 {
            return false;
        }
        let close = |own: &AtomicI64| {
            if seeded(Mutant::KillInTwoSteps) {
                let counted = own.load(Ordering::Acquire);
                own.store(CLOSED, Ordering::Release);
                return counted / ONE;
            }
            // Acquire(put): uses under references that were put on that CPU; pairs with Release(put) in put().
            own.swap(CLOSED, Ordering::Acquire) / ONE
        };
        let counted: i64 = self.counts.iter().map(close).sum();
        self.add_common(counted - BIAS);
        true
    }

    /// Whether the count has been killed.
    pub fn is_killed(&self) -> bool {
        // Relaxed: a hint.
        self.killed.load(Ordering::Relaxed) != 0
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.count.put();
    }
}

impl std::fmt::Debug for PerCpuRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PerCpuRef").field("killed", &self.is_killed()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use sluice_sync::atomic::AtomicUsize;
    use sluice_sync::{Arc, thread};

    fn counted() -> (PerCpuRef, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let inner = calls.clone();
        let on_zero = move || {
            inner.fetch_add(1, Ordering::Relaxed);
        };
        (PerCpuRef::new(on_zero), calls)
    }

    #[test]
    fn the_callback_waits_for_the_last_reference() {
        let (count, calls) = counted();
        count.get();
        assert!(count.kill() && !count.kill());
        assert!(count.try_get_live().is_none());
        drop(count.try_get().expect("one is left"));
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        count.put();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert!(count.try_get().is_none());
    }

    #[test]
    fn references_taken_and_put_during_the_kill_are_counted_exactly() {
        for _ in 0..if sluice_sync::face::SHRUNK { 3 } else { 30 } {
            let (count, calls) = counted();
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while let Some(held) = count.try_get_live() {
                            count.get();
                            assert_eq!(calls.load(Ordering::Relaxed), 0);
                            drop(held);
                            count.put();
                        }
                    });
                }
                scope.spawn(|| count.kill());
            });
            assert_eq!(calls.load(Ordering::Relaxed), 1);
        }
    }
}
