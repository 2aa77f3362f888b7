//! Open counts: whether a file is open, for leases, without a line that every open writes.
//!
//! # Theory
//! Each thread counts the opens and closes that it does, by a part of the inode number. The sum over all threads is how
//! many descriptions are open on files of that part: 0 is the truth; more may be another file's, and then a lease is
//! refused in vain.
//!
//! # Ordering
//! *lease*: an open counts itself, then looks whether leases are used, and breaks those; a call that takes a lease says that they
//! are used, shows the lease, and sums up. One of them sees the other. For the first lease a barrier of all threads sees to
//! that; once leases are used, and known to be, a fence on both sides is cheaper for programs that take many.
//!
//! # Cost
//! Open and close: one store to the thread's own line each, until leases are used. To sum up: one load per thread.

use sluice_sync::atomic::{AtomicBool, Ordering, fence};
use sluice_sync::percpu::Tally;

/// Inode numbers are told apart modulo this. CPUs take numbers in runs of about as many, so that files made one after
/// the other have parts of their own.
const PARTS: usize = 2048;

/// Which files of a file system are open how often.
pub(crate) struct OpenCounts {
    /// Whether a lease was ever asked for. *Atomic (lease), set once.*
    are_leases_used: AtomicBool,
    /// Every open knows that. *Atomic (lease), set once, after it.*
    is_use_known: AtomicBool,
    /// For each part, the opens for reading only; then, for each part, the opens for writing. *Per thread (lease).*
    counts: Tally<{ 2 * PARTS }>,
}

/// Which count is meant.
fn place(ino: u64, writes: bool) -> usize {
    ino as usize % PARTS + if writes { PARTS } else { 0 }
}

impl OpenCounts {
    pub(crate) fn new() -> OpenCounts {
        let (are_leases_used, is_use_known) = (AtomicBool::new(false), AtomicBool::new(false));
        OpenCounts { are_leases_used, is_use_known, counts: Tally::new() }
    }

    /// Counts one description more.
    pub(crate) fn opened(&self, ino: u64, writes: bool) {
        self.count(ino, writes, 1);
    }

    /// Counts one description less.
    pub(crate) fn closed(&self, ino: u64, writes: bool) {
        self.count(ino, writes, -1);
    }

    fn count(&self, ino: u64, writes: bool, by: i32) {
        self.counts.add(place(ino, writes), by);
        if self.are_leases_used() {
            // SeqCst(lease): pairs with the fence in sum(). An open that does not come here is seen by the barrier in
            // use_leases(), which comes before any sum.
            fence(Ordering::SeqCst);
        }
    }

    /// How many descriptions may be open on the file for reading only.
    pub(crate) fn readers(&self, ino: u64) -> i32 {
        self.sum(ino, false)
    }

    /// How many descriptions may be open on the file for writing.
    pub(crate) fn writers(&self, ino: u64) -> i32 {
        self.sum(ino, true)
    }

    fn sum(&self, ino: u64, writes: bool) -> i32 {
        // SeqCst(lease): pairs with the fence in count(): the lease was shown before.
        fence(Ordering::SeqCst);
        self.counts.sum(place(ino, writes))
    }

    /// Announces that leases are used from now on.
    pub(crate) fn use_leases(&self) {
        // Acquire(lease): pairs with Release(lease) below, as do those in are_leases_used() with both.
        if !self.is_use_known.load(Ordering::Acquire) {
            self.are_leases_used.store(true, Ordering::Release);
            self.counts.barrier();
            self.is_use_known.store(true, Ordering::Release);
        }
    }

    /// False if nobody ever asked for a lease in this file system.
    pub(crate) fn are_leases_used(&self) -> bool {
        self.are_leases_used.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_closed_on_another_cpu_is_not_open_any_more() {
        let counts = OpenCounts::new();
        counts.opened(7, true);
        counts.opened(7, false);
        sluice_sync::thread::scope(|scope| {
            scope.spawn(|| counts.closed(7, true));
        });
        let open = [7, 8].map(|ino| (counts.readers(ino), counts.writers(ino)));
        assert_eq!(open, [(1, 0), (0, 0)]);
    }
}
