//! Sharded identifier allocator: each CPU hands out numbers from a range of its own.
//!
//! # Theory
//! A common counter gives a CPU `RANGE` numbers at a time; freed numbers stay with the CPU that freed them and
//! are given out first. When the common counter has reached its end, a CPU takes from the others.
//!
//! # Then
//! - a number is given out again only after it was freed;
//! - `None` means that every number was found taken (a number freed during the search may be missed).
//!
//! # Cost
//! The own CPU's mutex; one read-modify-write of the common line per `RANGE` numbers. O(CPUs) when exhausted.

use super::PerCpu;
use crate::Mutex;
use crate::face::CachePadded;
use crate::face::atomic::{AtomicU64, Ordering};
use std::ops::Range;

/// How many numbers a CPU takes at once.
const RANGE: u64 = if crate::face::SHRUNK { 2 } else { 1024 };

#[derive(Debug, Default)]
struct Shard {
    /// Never given out yet.
    fresh: Range<u64>,
    /// Given out and freed.
    freed: Vec<u64>,
}

impl Shard {
    fn take(&mut self) -> Option<u64> {
        self.freed.pop().or_else(|| self.fresh.next())
    }
}

/// Hands out numbers, each to one owner at a time.
#[derive(Debug)]
pub struct Ida {
    shards: PerCpu<Mutex<Shard>>,
    /// The first number that no CPU has taken. *atomic*
    next: CachePadded<AtomicU64>,
    /// One past the last number. *immutable*
    end: u64,
}

impl Ida {
    /// An allocator of the numbers in `range`.
    pub fn new(range: Range<u64>) -> Self {
        Ida { shards: PerCpu::default(), next: CachePadded::new(AtomicU64::new(range.start)), end: range.end }
    }

    /// A number that nobody has; `None` when all are taken.
    pub fn alloc(&self) -> Option<u64> {
        let here = self.shards.here_at();
        let own = self.shards.get(here)?;
        {
            let mut own = own.lock();
            if let Some(id) = own.take() {
                return Some(id);
            }
            if let Some(range) = self.take_range() {
                own.fresh = range;
                return own.take();
            }
        }
        // Not under our own lock: two that take from each other would wait for each other.
        let cpus = self.shards.len();
        let mut others = (0..cpus).filter_map(|n| self.shards.get((here + n) & (cpus - 1)));
        others.find_map(|shard| shard.lock().take())
    }

    fn take_range(&self) -> Option<Range<u64>> {
        // Relaxed: a number publishes nothing, and the counter's own order keeps ranges apart.
        let grow = |next: u64| (next < self.end).then(|| next.saturating_add(RANGE).min(self.end));
        let start = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).ok()?;
        Some(start..start.saturating_add(RANGE).min(self.end))
    }

    /// Gives `id` back. The caller had it from [`alloc`](Self::alloc) and has freed it only once.
    pub fn free(&self, id: u64) {
        self.shards.here().lock().freed.push(id);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::thread;
    use std::collections::HashSet;

    #[test]
    fn no_number_has_two_owners_and_none_is_lost() {
        let end = 4 * RANGE + 7;
        let ida = Ida::new(10..10 + end);
        let all: Vec<u64> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut mine = Vec::new();
                        while let Some(id) = ida.alloc() {
                            mine.push(id);
                            if mine.len() % 3 == 0 {
                                ida.free(mine.pop().expect("just pushed"));
                                // What was freed may be found by another thread: go on only a while.
                                mine.extend(ida.alloc());
                            }
                        }
                        mine
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("ends")).collect()
        });
        assert!(all.iter().all(|id| (10..10 + end).contains(id)));
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        let rest = std::iter::from_fn(|| ida.alloc()).count();
        assert_eq!(all.len() + rest, usize::try_from(end).expect("small"));
    }

    #[test]
    fn a_freed_number_is_given_out_again_when_all_are_taken() {
        let ida = Ida::new(0..3);
        let taken: Vec<_> = std::iter::from_fn(|| ida.alloc()).collect();
        assert_eq!((taken.len(), ida.alloc()), (3, None));
        ida.free(1);
        assert_eq!((ida.alloc(), ida.alloc()), (Some(1), None));
    }
}
