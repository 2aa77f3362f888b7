//! Sequence count: readers of a few words find out afterwards whether a writer was at work.
//!
//! # Theory
//! The count is odd while a writer changes the words. A reader takes an even count, reads, and looks again:
//! if the count has moved, what it read may be torn, and it reads again. Readers store nothing at all.
//!
//! # Clients must
//! - exclude writers from each other (by a lock that is there anyway, or use [`SeqLock`](crate::SeqLock));
//! - hold the data in atomics, read and written with `Relaxed`: a torn read is then a wrong value, not a race;
//! - use what they read only after [`retry`](SeqCount::retry) said false;
//! - keep writes short and rare: a reader's loop has no bound but that. A reader that must have one asks
//!   [`read_bounded`](SeqCount::read_bounded) and falls back to the writers' lock.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | even | `end`: Release store | `begin`: Acquire load | the words of the last write |
//! | odd | `write`: Release fence after the store | `retry`: Acquire fence before the load | that a write began |
//!
//! *odd*: if a reader's load took a word of a write, the writer's fence comes before that word's store and the
//! reader's fence after its load, so the reader's second look sees the odd count or a later one.
//!
//! # Cost
//! Read: two loads of the count's line. Write: two stores to it.
//!
//! # Sources
//! Boehm, "Can Seqlocks Get Along With Programming Language Memory Models?" (2012); the kernel's seqcount_t.

use crate::face::atomic::{AtomicU32, Ordering, fence};
use crate::face::{Mutant, const_new, hint, seeded, thread};

/// Counts the beginnings and ends of writes.
#[derive(Debug)]
pub struct SeqCount {
    /// Odd while a writer is at work. *atomic (even, odd)*
    sequence: AtomicU32,
}

/// Ends the write when dropped.
#[must_use = "the write ends at once when the guard is dropped"]
#[derive(Debug)]
pub struct Writing<'a> {
    count: &'a SeqCount,
    /// The odd count of this write.
    sequence: u32,
}

impl SeqCount {
    const_new! {
        /// A count at zero: no writer.
        pub fn new() -> Self {
            SeqCount { sequence: AtomicU32::new(0) }
        }
    }

    /// Waits until no writer is at work; says what the count is.
    #[inline]
    pub fn begin(&self) -> u32 {
        // Acquire(even): the last write's words; pairs with Release(even) in Writing::drop().
        let sequence = self.sequence.load(Ordering::Acquire);
        if sequence & 1 == 0 { sequence } else { self.begin_slow() }
    }

    #[cold]
    fn begin_slow(&self) -> u32 {
        // Acquire(even): as in begin().
        hint::spin_until(&self.sequence, Ordering::Acquire, |sequence| sequence & 1 == 0)
    }

    /// The current count, if no writer is at work.
    #[inline]
    pub fn try_begin(&self) -> Option<u32> {
        // Acquire(even): as in begin().
        let sequence = self.sequence.load(Ordering::Acquire);
        (sequence & 1 == 0).then_some(sequence)
    }

    /// Whether what was read since [`begin`](Self::begin) returned `sequence` may be torn.
    #[inline]
    pub fn retry(&self, sequence: u32) -> bool {
        if !seeded(Mutant::RetryWithoutFence) {
            // Acquire(odd): our loads come before the next one; pairs with the Release fence in write().
            fence(Ordering::Acquire);
        }
        // Relaxed: the fence orders it.
        self.sequence.load(Ordering::Relaxed) != sequence
    }

    /// Calls `read` until no writer interfered.
    #[inline]
    pub fn read<R>(&self, mut read: impl FnMut() -> R) -> R {
        loop {
            let sequence = self.begin();
            let value = read();
            if !self.retry(sequence) {
                return value;
            }
            hint::spin_loop();
        }
    }

    /// Calls `read` at most `tries` times; `None` if a writer interfered each time.
    #[inline]
    pub fn read_bounded<R>(&self, tries: usize, mut read: impl FnMut() -> R) -> Option<R> {
        for _ in 0..tries {
            if let Some(sequence) = self.try_begin() {
                let value = read();
                if !self.retry(sequence) {
                    return Some(value);
                }
            }
            thread::yield_now();
        }
        None
    }

    /// Begins a write. The caller excludes other writers.
    #[inline]
    pub fn write(&self) -> Writing<'_> {
        // Relaxed: only writers write it, and the caller's lock orders them.
        let sequence = self.sequence.load(Ordering::Relaxed).wrapping_add(1);
        debug_assert!(sequence & 1 == 1, "two writers at once");
        // Relaxed: the fence orders it.
        self.sequence.store(sequence, Ordering::Relaxed);
        // Release(odd): the odd count comes before our words; pairs with the Acquire fence in retry().
        fence(Ordering::Release);
        Writing { count: self, sequence }
    }
}

impl Drop for Writing<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release(even): our words; pairs with Acquire(even) in begin().
        self.count.sequence.store(self.sequence.wrapping_add(1), Ordering::Release);
    }
}

impl Default for SeqCount {
    fn default() -> Self {
        SeqCount::new()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_write_in_between_makes_the_reader_retry() {
        let count = SeqCount::new();
        let sequence = count.begin();
        assert!(!count.retry(sequence));
        let writing = count.write();
        assert!(count.retry(sequence) && count.try_begin().is_none());
        assert_eq!(count.read_bounded(3, || ()), None, "the writer never ends");
        drop(writing);
        assert!(count.retry(sequence));
        assert_eq!(count.read(|| 7), 7);
    }

    #[test]
    fn the_count_wraps_around_to_an_even_number() {
        let count = SeqCount { sequence: AtomicU32::new(u32::MAX - 1) };
        drop(count.write());
        assert_eq!(count.begin(), 0);
    }
}
