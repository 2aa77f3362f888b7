//! Sharded identifier allocator: each CPU hands out numbers from a range of its own.
//!
//! # Theory
//! Each CPU has its first `RANGE` numbers from the start, so that all can begin at once; a common counter gives it as many
//! more at a time. Freed numbers stay with the CPU that freed them and are given out first. When the common counter
//! has reached its end, a CPU takes from the others.
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
struct NumberShard {
    /// Never given out yet; none before anybody asked.
    fresh: Option<Range<u64>>,
    /// Given out and freed.
    freed: Vec<u64>,
}

impl NumberShard {
    /// A number of this CPU's, whose first ones are `first`.
    fn take(&mut self, first: impl FnOnce() -> Range<u64>) -> Option<u64> {
        self.freed.pop().or_else(|| self.fresh.get_or_insert_with(first).next())
    }
}

/// Hands out numbers, each to one owner at a time.
#[derive(Debug)]
pub struct Ida {
    shards: PerCpu<Mutex<NumberShard>>,
    /// The first number. *immutable*
    start: u64,
    /// The first number that no CPU has taken, or one behind the last. *atomic*
    next: CachePadded<AtomicU64>,
    /// One past the last number, and far from where `next` would wrap. *immutable*
    end: u64,
}

/// Numbers at the end of all that are not given out: many threads that find none left may move `next` past the last together.
const BEYOND: u64 = 1 << 32;

impl Ida {
    /// An allocator of the numbers in `range`.
    pub fn new(range: Range<u64>) -> Self {
        let (shards, start) = (PerCpu::default(), range.start);
        let end = range.end.min(u64::MAX - BEYOND);
        let next = CachePadded::new(AtomicU64::new(start.saturating_add(shards.len() as u64 * RANGE)));
        Ida { shards, start, next, end }
    }

    /// A free number; `None` when all are taken.
    pub fn alloc(&self) -> Option<u64> {
        let here = self.shards.here_at();
        let own = self.shards.get(here)?;
        {
            let mut own = own.lock();
            if let Some(id) = own.take(|| self.first_of(here)) {
                return Some(id);
            }
            if let Some(range) = self.take_range() {
                return own.fresh.insert(range).next();
            }
        }
        // Not under our own lock: two that take from each other would wait for each other.
        let cpus = self.shards.len();
        let mut others = (0..cpus).map(|n| (here + n) & (cpus - 1));
        others.find_map(|cpu| self.shards.get(cpu)?.lock().take(|| self.first_of(cpu)))
    }

    /// The `RANGE` numbers from `start` on, as far as there are any.
    fn range_from(&self, start: u64) -> Range<u64> {
        start.min(self.end)..start.saturating_add(RANGE).min(self.end)
    }

    /// The numbers that `cpu` has from the start.
    fn first_of(&self, cpu: usize) -> Range<u64> {
        self.range_from(self.start.saturating_add(cpu as u64 * RANGE))
    }

    fn take_range(&self) -> Option<Range<u64>> {
        // Relaxed: a number publishes nothing, and the counter's own order keeps ranges apart. Added without a look, since
        // many may come together.
        let start = self.next.fetch_add(RANGE, Ordering::Relaxed);
        if start >= self.end {
            // Lest it move for ever. A thread that adds meanwhile finds it behind the end, too.
            self.next.store(self.end, Ordering::Relaxed);
            return None;
        }
        Some(self.range_from(start))
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
                                // Another thread may find the freed number: so the loop is bounded.
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
