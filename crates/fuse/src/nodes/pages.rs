//! Pages: what the kernel may have newer of one file. See the header of `nodes`.

use std::ops::Range;

/// A page of the kernel, or a part of one.
const PAGE: u64 = 4096;

/// The pages of a file that the kernel may have.
#[derive(Default)]
pub(super) struct Pages {
    /// The range of possible pages.
    pub(super) cached: Hull,
    /// The range that may contain pages which were holes here.
    pub(super) holes: Hull,
    /// A write-back leaves the times for now, and owes their change.
    pub(super) is_quiet: bool,
    /// The times are to move because of something that was written back.
    pub(super) owes_times: bool,
}

/// Which pages of a node are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// Pages that the kernel may have.
    Cached,
    /// Such pages that were holes here.
    Holes,
}

/// The smallest range around the bytes that were added; nothing was if it is empty.
#[derive(Default)]
pub(super) struct Hull(Range<u64>);

impl Hull {
    /// A hull no longer than this is taken whole, so that what is asked in small pieces is asked once.
    const WHOLE_MAX: u64 = 4 << 20;

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the pages of `bytes`.
    pub(super) fn add(&mut self, bytes: &Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let Hull(all) = self;
        let pages = bytes.start / PAGE * PAGE..bytes.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        *all = if all.is_empty() { pages } else { all.start.min(pages.start)..all.end.max(pages.end) };
    }

    pub(super) fn meets(&self, bytes: &Range<u64>) -> bool {
        self.0.start.max(bytes.start) < self.0.end.min(bytes.end)
    }

    /// The part of the hull to hand down because of `bytes`, if there is one. It leaves the hull where that stays a range.
    pub(super) fn take(&mut self, bytes: &Range<u64>) -> Option<Range<u64>> {
        if !self.meets(bytes) {
            return None;
        }
        let Hull(all) = self;
        if all.end - all.start <= Hull::WHOLE_MAX {
            return Some(std::mem::take(all));
        }
        let part = all.start.max(bytes.start)..all.end.min(bytes.end);
        // The rest of a page in which the part ends stays.
        if part.start == all.start {
            all.start = part.end / PAGE * PAGE;
        } else if part.end == all.end {
            all.end = part.start.next_multiple_of(PAGE);
        }
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_large_hull_the_ends_are_taken_and_a_small_one_is_taken_whole() {
        let mut hull = Hull::default();
        assert_eq!(hull.take(&(0..u64::MAX)), None);
        hull.add(&(4096..8192));
        hull.add(&(0..1));
        hull.add(&(9000..9000));
        assert!(hull.meets(&(8191..8192)) && !hull.meets(&(8192..9000)) && !hull.meets(&(5..5)));
        assert_eq!(hull.take(&(8191..9000)), Some(0..8192));
        assert_eq!(hull.take(&(0..u64::MAX)), None);
        let end = 2 * Hull::WHOLE_MAX;
        hull.add(&(0..end));
        assert_eq!(hull.take(&(4096..8192)), Some(4096..8192));
        assert_eq!(hull.take(&(0..5000)), Some(0..5000));
        assert_eq!(hull.take(&(end - 5000..u64::MAX)), Some(end - 5000..end));
        assert_eq!(hull.0, 4096..end - 4096);
    }
}
