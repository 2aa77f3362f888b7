//! Progress: how far the move of an array has come, and which thread moves which buckets.
//!
//! # Theory
//! A thread that writes to a table that is being moved also moves some buckets, and says when it has. On one line for all
//! that would be two read-modify-writes of every CPU, one after the other (docs/measurements.md, section 11). So a large
//! array has *sections*. A CPU begins with one, goes on to the others when all of that is claimed, and the last in a
//! section to be done counts the section as moved.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | moved | AcqRel count of a section, then of all | the last one's counts; [`moved`](Progress::moved) | that the buckets are moved |

use crate::face::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::face::{CachePadded, SHRUNK, cpu};
use std::ops::Range;

/// A section has at least so many buckets, ...
const SECTION: usize = if SHRUNK { 2 } else { 256 };
/// ... and so many CPUs share one, if there are enough sections.
const CPUS_A_SECTION: usize = if SHRUNK { 1 } else { 4 };

/// How far the move of an array has come. Apart from what every reader looks at.
pub(crate) struct Progress {
    /// *each on a line of its own*
    sections: Box<[CachePadded<Section>]>,
    /// A power of two. *immutable*
    section_len: usize,
    /// Nobody need look for a section any more. *atomic (hint)*
    all_claimed: AtomicBool,
}

#[derive(Default)]
struct Section {
    /// Buckets that threads have claimed for moving; may be too high. *atomic*
    claimed: AtomicUsize,
    /// How many are moved. *atomic (moved)*
    moved: AtomicUsize,
    /// In the first section: how many sections are moved. *atomic (moved)*
    sections_moved: AtomicUsize,
}

impl Progress {
    /// The progress for an array of `len` buckets, a power of two, with no bucket moved.
    pub(super) fn of(len: usize) -> Self {
        let sections = cpu::possible().div_ceil(CPUS_A_SECTION).next_power_of_two().min(len / SECTION).max(1);
        Progress {
            sections: (0..sections).map(|_| CachePadded::default()).collect(),
            section_len: len / sections,
            all_claimed: AtomicBool::new(false),
        }
    }

    /// Undertakes to move up to `count` buckets; says which.
    pub(super) fn claim(&self, count: usize) -> Range<usize> {
        // Relaxed: a hint; a thread that misses it finds nothing.
        if self.all_claimed.load(Ordering::Relaxed) {
            return 0..0;
        }
        let begin = cpu::current() % self.sections.len();
        for number in (begin..self.sections.len()).chain(0..begin) {
            let claimed = self.sections[number].claim(count, self.section_len);
            if !claimed.is_empty() {
                let first = number * self.section_len;
                return first + claimed.start..first + claimed.end;
            }
        }
        // Relaxed: as above.
        self.all_claimed.store(true, Ordering::Relaxed);
        0..0
    }

    /// Notes that `buckets`, which the caller claimed, are moved. True if these were the last.
    pub(super) fn note_moved(&self, buckets: &Range<usize>) -> bool {
        if buckets.is_empty() {
            return false;
        }
        let section = &self.sections[buckets.start / self.section_len];
        // AcqRel(moved), both: the thread that completes a number hands on that all chains are in place; pairs with itself.
        let moved = section.moved.fetch_add(buckets.len(), Ordering::AcqRel) + buckets.len();
        let all = &self.sections[0].sections_moved;
        moved == self.section_len && all.fetch_add(1, Ordering::AcqRel) + 1 == self.sections.len()
    }

    /// Whether somebody has undertaken to move bucket `at`.
    pub(super) fn is_claimed(&self, at: usize) -> bool {
        self.sections[at / self.section_len].claimed(self.section_len) > at % self.section_len
    }

    /// How many buckets are moved, or are being moved.
    pub(crate) fn claimed(&self) -> usize {
        self.sections.iter().map(|section| section.claimed(self.section_len)).sum()
    }

    /// How many buckets are moved.
    pub(crate) fn moved(&self) -> usize {
        // Acquire(moved): what the moves did; pairs with AcqRel(moved) in note_moved().
        self.sections.iter().map(|section| section.moved.load(Ordering::Acquire)).sum()
    }
}

impl Section {
    fn claim(&self, count: usize, len: usize) -> Range<usize> {
        // The first look keeps the number from growing for ever.
        if self.claimed(len) == len {
            return 0..0;
        }
        // Relaxed: it matters only which thread gets which.
        let first = self.claimed.fetch_add(count, Ordering::Relaxed).min(len);
        first..(first + count).min(len)
    }

    fn claimed(&self, len: usize) -> usize {
        // Relaxed: a thread that saw what a move did sees it claimed, by Acquire of what it saw.
        self.claimed.load(Ordering::Relaxed).min(len)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_is_claimed_once_and_the_last_that_is_moved_is_known() {
        for len in [1, 4, SECTION, 8 * SECTION] {
            let (progress, mut claims) = (Progress::of(len), Vec::new());
            loop {
                match progress.claim(3) {
                    none if none.is_empty() => break,
                    some => claims.push(some),
                }
            }
            let mut buckets: Vec<usize> = claims.iter().cloned().flatten().collect();
            buckets.sort_unstable();
            assert_eq!(buckets, (0..len).collect::<Vec<_>>());
            assert_eq!((progress.claimed(), progress.moved()), (len, 0));
            assert!((0..len).all(|at| progress.is_claimed(at)));
            let (last, others) = claims.split_last().expect("an array has buckets");
            assert!(others.iter().all(|claim| !progress.note_moved(claim)));
            assert!(progress.note_moved(last) && progress.moved() == len);
        }
    }
}
