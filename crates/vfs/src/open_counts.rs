//! Open counts: whether anybody has a file open, for leases, without a line that all who open it write.
//!
//! # Theory
//! Each CPU counts the opens and closes that it does, by a part of the inode number. The sum over all CPUs is how
//! many descriptions are open on files of that part: 0 is the truth; more may be another file's, and then a lease is
//! refused in vain.
//!
//! # Ordering
//! | label | |
//! |---|---|
//! | lease | who opens: counts itself, looks whether leases are used and broken by that; who takes a lease: says that they are used, shows the lease, sums up. All SeqCst: one of them sees the other. |
//!
//! # Cost
//! Open and close: one read-modify-write of the CPU's own line. To sum up: one load per CPU.

use sluice_sync::atomic::{AtomicBool, AtomicI32, Ordering};
use sluice_sync::percpu::PerCpu;

/// Inode numbers are told apart modulo this. CPUs take numbers in runs of about as many, so that files made one after
/// the other have parts of their own.
const PARTS: usize = 2048;

/// Who has which files of a file system open.
pub(crate) struct OpenCounts {
    /// Whether a lease was ever asked for. *Atomic (lease), set once.*
    are_leases_used: AtomicBool,
    /// *Per CPU.*
    counts: PerCpu<[Part; PARTS]>,
}

/// The files of one part.
#[derive(Default)]
struct Part {
    /// Open for reading only. *Atomic (lease).*
    readers: AtomicI32,
    /// Open for writing. *Atomic (lease).*
    writers: AtomicI32,
}

impl OpenCounts {
    pub(crate) fn new() -> OpenCounts {
        let counts = PerCpu::new(|_| std::array::from_fn(|_| Part::default()));
        OpenCounts { are_leases_used: AtomicBool::new(false), counts }
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
        let part = &self.counts.here()[ino as usize % PARTS];
        let count = if writes { &part.writers } else { &part.readers };
        // SeqCst(lease): see the header.
        count.fetch_add(by, Ordering::SeqCst);
    }

    /// How many descriptions may be open on the file: for reading only, and for writing.
    pub(crate) fn sum(&self, ino: u64) -> (i64, i64) {
        let parts = self.counts.iter().map(|part| &part[ino as usize % PARTS]);
        // SeqCst(lease): see the header.
        let seen = |count: &AtomicI32| i64::from(count.load(Ordering::SeqCst));
        parts.fold((0, 0), |(readers, writers), part| {
            (readers + seen(&part.readers), writers + seen(&part.writers))
        })
    }

    /// Says that leases will be asked for from now on.
    pub(crate) fn use_leases(&self) {
        // SeqCst(lease): see the header.
        if !self.are_leases_used.load(Ordering::SeqCst) {
            self.are_leases_used.store(true, Ordering::SeqCst);
        }
    }

    /// False if nobody ever asked for a lease in this file system.
    pub(crate) fn are_leases_used(&self) -> bool {
        // SeqCst(lease): see the header.
        self.are_leases_used.load(Ordering::SeqCst)
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
        assert_eq!((counts.sum(7), counts.sum(8)), ((1, 0), (0, 0)));
    }
}
