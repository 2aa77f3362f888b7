//! PageSet: a set of page numbers kept as ranges, so that reserving a terabyte costs one entry.
//!
//! # Invariants
//! - P1: ranges are not empty, do not overlap and do not touch (touching ranges are one range).
//! - P2: `pages` is the sum of their lengths.
//! - P3: an empty set has no heap memory.
//!
//! # Cost
//! Each call is O(log n) in the number of ranges, plus the ranges that its argument meets.

use std::collections::BTreeMap;
use std::ops::Range;
use std::{iter, mem};

/// A set of page numbers. 8 bytes, and nothing on the heap, while it is empty.
#[derive(Debug, Default)]
pub(crate) struct PageSet(Option<Box<Ranges>>);

#[derive(Debug, Default)]
struct Ranges {
    /// The first one, which mostly is the only one. Empty only while ranges are changed.
    first: Range<u64>,
    /// First page of each other range, and the page after its last.
    ends: BTreeMap<u64, u64>,
    /// Number of pages in all ranges.
    pages: u64,
}

impl PageSet {
    /// The empty set.
    pub(crate) const fn new() -> PageSet {
        PageSet(None)
    }

    /// Number of pages in the set.
    pub(crate) fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |ranges| ranges.pages)
    }

    /// The page after the last one; 0 when the set is empty.
    pub(crate) fn end(&self) -> u64 {
        let Some(ranges) = &self.0 else { return 0 };
        ranges.ends.last_key_value().map_or(ranges.first.end, |(_, &end)| end)
    }

    /// Number of pages of `pages` that are in the set.
    pub(crate) fn count(&self, pages: &Range<u64>) -> u64 {
        let Some(ranges) = &self.0 else { return 0 };
        ranges.meeting(pages).map(|met| met.end.min(pages.end) - met.start.max(pages.start)).sum()
    }

    /// Adds `pages`; those that are in the set already stay.
    pub(crate) fn insert(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let ranges = self.0.get_or_insert_default();
        let mut merged = pages;
        // Widened by one page on each side, so that ranges that only touch are merged too (P1).
        let neighbours = merged.start.saturating_sub(1)..merged.end.saturating_add(1);
        while let Some(met) = ranges.take_first_meeting(&neighbours) {
            merged = merged.start.min(met.start)..merged.end.max(met.end);
        }
        ranges.add(merged);
    }

    /// The parts of `pages` that are in the set, in order.
    pub(crate) fn within(&self, pages: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let Range { start, end } = *pages;
        let met = self.0.iter().flat_map(move |ranges| ranges.meeting(&(start..end)));
        met.map(move |met| met.start.max(start)..met.end.min(end))
    }

    /// A bit for each of `pages`, 64 at most, the lowest for the first: whether it is in the set.
    pub(crate) fn mask(&self, pages: &Range<u64>) -> u64 {
        self.within(pages).flatten().fold(0, |mask, page| mask | 1 << (page - pages.start))
    }

    /// Takes `pages` out of the set and tells how many of them were in it.
    pub(crate) fn remove(&mut self, pages: &Range<u64>) -> u64 {
        let Some(ranges) = &mut self.0 else { return 0 };
        if pages.is_empty() {
            return 0;
        }
        let before = ranges.pages;
        while let Some(met) = ranges.take_first_meeting(pages) {
            ranges.add(met.start..pages.start.max(met.start));
            ranges.add(pages.end.min(met.end)..met.end);
        }
        let removed = before - ranges.pages;
        if ranges.pages == 0 {
            self.0 = None;
        }
        removed
    }

    /// Moves every page from `from` on to where `to` says; `to` must keep distances and must not move a page
    /// onto one below `from` that is in the set.
    pub(crate) fn shift(&mut self, from: u64, to: impl Fn(u64) -> u64) {
        let Some(ranges) = &self.0 else { return };
        let moved: Vec<Range<u64>> = ranges.meeting(&(from..u64::MAX)).collect();
        self.remove(&(from..u64::MAX));
        for range in moved {
            self.insert(to(range.start.max(from))..to(range.end));
        }
    }

    /// Asserts the invariants of the module's header.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut free_from = 0;
        for range in self.ranges() {
            assert!(!range.is_empty() && (range.start > free_from || free_from == 0), "P1: {range:?}");
            free_from = range.end;
        }
        assert_eq!(self.len(), self.ranges().map(|range| range.end - range.start).sum::<u64>(), "P2");
        assert_eq!(self.0.is_none(), self.len() == 0, "P3");
    }

    /// The ranges, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().flat_map(|ranges| {
            let others = ranges.ends.iter().map(|(&start, &end)| start..end);
            iter::once(ranges.first.clone()).chain(others)
        })
    }
}

impl Ranges {
    /// The ranges that have a page in common with `pages`, in order.
    fn meeting(&self, pages: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let meets = self.first.start < pages.end && pages.start < self.first.end;
        let found = meets.then(|| self.first.clone());
        let first = self.ends.range(..=pages.start).next_back().filter(|&(_, &end)| end > pages.start);
        let first = first.map_or(pages.start, |(&start, _)| start);
        let within = first..pages.end.max(first);
        found.into_iter().chain(self.ends.range(within).map(|(&start, &end)| start..end))
    }

    /// Takes out, whole, the first range that has a page in common with `pages`.
    fn take_first_meeting(&mut self, pages: &Range<u64>) -> Option<Range<u64>> {
        let met = self.meeting(pages).next()?;
        if met == self.first {
            let next = self.ends.pop_first();
            self.first = next.map_or(0..0, |(start, end)| start..end);
        } else {
            self.ends.remove(&met.start);
        }
        self.pages -= met.end - met.start;
        Some(met)
    }

    /// Adds a range that touches no other; an empty one is left out.
    fn add(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.pages += range.end - range.start;
            let mut other = range;
            if self.first.is_empty() || other.start < self.first.start {
                mem::swap(&mut self.first, &mut other);
            }
            if !other.is_empty() {
                self.ends.insert(other.start, other.end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(u64, u64)]) -> PageSet {
        let mut set = PageSet::new();
        ranges.iter().for_each(|&(start, end)| set.insert(start..end));
        set
    }

    fn listed(set: &PageSet) -> Vec<(u64, u64)> {
        set.check();
        set.ranges().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn touching_ranges_become_one() {
        let joined = set(&[(2, 4), (6, 8), (4, 6)]);
        assert_eq!(listed(&joined), [(2, 8)]);
        assert_eq!(joined.len(), 6);
        assert_eq!(listed(&set(&[(0, 1), (2, 3)])), [(0, 1), (2, 3)]);
        assert_eq!(listed(&set(&[(5, 6), (1, 9)])), [(1, 9)]);
    }

    #[test]
    fn removing_the_middle_leaves_two_ranges_and_removing_all_frees_the_memory() {
        let mut holed = set(&[(0, 10)]);
        assert_eq!(holed.remove(&(3..5)), 2);
        assert_eq!(listed(&holed), [(0, 3), (5, 10)]);
        assert_eq!(holed.remove(&(3..5)), 0);
        assert_eq!(holed.count(&(2..6)), 2);
        assert_eq!(holed.remove(&(0..u64::MAX)), 8);
        assert_eq!(listed(&holed), []);
        assert_eq!((holed.len(), holed.end()), (0, 0));
    }

    #[test]
    fn an_empty_range_changes_nothing() {
        let mut pages = set(&[(2, 6)]);
        pages.insert(4..4);
        assert_eq!((pages.remove(&(4..4)), pages.count(&(4..4))), (0, 0));
        assert_eq!(listed(&pages), [(2, 6)]);
    }

    #[test]
    fn shifting_splits_a_range_going_up_and_joins_ranges_going_down() {
        let mut pages = set(&[(0, 4), (8, 9)]);
        pages.shift(2, |page| page + 3);
        assert_eq!(listed(&pages), [(0, 2), (5, 7), (11, 12)]);
        pages.shift(5, |page| page - 3);
        assert_eq!(listed(&pages), [(0, 4), (8, 9)]);
    }

    #[test]
    fn the_largest_page_numbers_do_not_overflow() {
        let mut pages = set(&[(u64::MAX - 1, u64::MAX)]);
        pages.insert(0..1);
        assert_eq!((pages.len(), pages.end()), (2, u64::MAX));
        assert_eq!(pages.remove(&(1..u64::MAX)), 1);
    }
}
