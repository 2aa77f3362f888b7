//! Used: which buckets of a sparse array were ever used, so that a walk over all of them skips the others 64 at a time.
//!
//! # Theory
//! An array that is grown because many wait for its buckets has far more of them than nodes. So it has a bit for each
//! bucket, set before the first node comes into it or it is moved, and never cleared; the bucket's head has a mark that
//! says so, for later writers. A bucket without the bit is untouched since its creation. An array that grew with its
//! nodes has no bits, and counts as used all over.
//!
//! # Ordering
//! All Relaxed. A thread that must see a node, because something that it saw came after the node did, must see the bit too: it was
//! set before the Release store (bucket) of the head that published the node, or the mark *moved*.
//!
//! # Cost
//! The first use of a bucket is one read-modify-write on the line of its 64 bits, which stand on a line of their own, for
//! a crowd uses thousands of buckets for the first time. Memory: a 64th of the buckets' own.

use crate::face::CachePadded;
use crate::face::atomic::{AtomicU64, Ordering};

const WORD: usize = u64::BITS as usize;

/// A bit for each bucket; without any word all are used. *each word: atomic*
pub(super) struct Used(Box<[CachePadded<AtomicU64>]>);

/// The word of an array's bits that was looked at last.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    number: Option<usize>,
    bits: u64,
}

impl Used {
    /// All buckets, for good.
    pub(super) fn all() -> Self {
        Used(Box::default())
    }

    /// None of `len` buckets yet.
    pub(super) fn none(len: usize) -> Self {
        Used((0..len.div_ceil(WORD)).map(|_| CachePadded::default()).collect())
    }

    #[inline]
    pub(super) fn are_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes that bucket `at` is about to be used, for the first time.
    #[inline]
    pub(super) fn note(&self, at: usize) {
        let Some(word) = self.0.get(at / WORD) else { return };
        // Relaxed: see above.
        word.fetch_or(1 << (at % WORD), Ordering::Relaxed);
    }

    /// The first used bucket from `at` on, and what was seen there, which a caller that looks at one after the other gives
    /// back for the next: it may miss what comes into the array meanwhile.
    #[inline]
    pub(super) fn first_from(&self, at: usize, mut seen: Seen) -> Option<(usize, Seen)> {
        if self.are_all() {
            return Some((at, seen));
        }
        let mut wanted = u64::MAX << (at % WORD);
        for (number, word) in self.0.iter().enumerate().skip(at / WORD) {
            if seen.number != Some(number) {
                // Relaxed: see above.
                seen = Seen { number: Some(number), bits: word.load(Ordering::Relaxed) };
            }
            let found = seen.bits & wanted;
            if found != 0 {
                // Lossless: below 64.
                return Some((number * WORD + found.trailing_zeros() as usize, seen));
            }
            wanted = u64::MAX;
        }
        None
    }
}
