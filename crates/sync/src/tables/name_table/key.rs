//! Keys: paths as words, to be compared and hashed without a call.
//!
//! A key borrows its path and reads the words where they are: words that were just written one by one, and are then copied many at
//! a time, would make the copy wait for the writes (a third of all that looking a path up took).

use crate::face::atomic::{AtomicU64, Ordering};
use crate::fibonacci;

/// The longest path that has a key, in words.
pub(super) const WORDS: usize = 6;

/// How many bits of a tag are left to its keeper.
pub(super) const FREE_BITS: u32 = 4;
/// As many for the length too.
const TAG_BITS: u32 = FREE_BITS + 6;

/// A path from some table on.
#[derive(Clone, Copy)]
pub struct Key<'p> {
    /// Its bytes, but for the last when they are no whole word.
    whole: &'p [[u8; 8]],
    /// These, and zeros behind them.
    last: u64,
    /// A hash, and in it the path's length; the lowest [`FREE_BITS`] are 0.
    pub(super) tag: u64,
}

impl<'p> Key<'p> {
    /// The key of `path` from the table that `from` stands for. None if the path is longer than the remembered length.
    #[inline(always)]
    pub fn new(from: u64, path: &'p [u8]) -> Option<Key<'p>> {
        let (whole, rest) = path.as_chunks::<8>();
        if path.len() > 8 * WORDS {
            return None;
        }
        let last = last_word(path, rest.len());
        let mix = |hash: u64, word: u64| fibonacci((hash ^ word).rotate_left(29));
        let begin = from ^ fibonacci(path.len() as u64);
        let hash = mix(whole.iter().fold(begin, |hash, bytes| mix(hash, u64::from_le_bytes(*bytes))), last);
        // The length tells a path apart from one that goes on with zeros.
        let tag = fibonacci(hash) >> TAG_BITS << TAG_BITS | (path.len() as u64) << FREE_BITS;
        Some(Key { whole, last, tag })
    }

    /// One of `places`, which are a power of two.
    #[inline]
    pub(super) fn choose(&self, places: usize) -> usize {
        (self.tag >> (u64::BITS - places.ilog2())) as usize
    }

    /// Its bytes, and zeros behind them.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        self.whole.iter().map(|bytes| u64::from_le_bytes(*bytes)).chain([self.last])
    }

    /// Whether its [words](Self::words), as many as fit, are `kept`.
    #[inline]
    pub(super) fn is_kept_in(&self, kept: &[AtomicU64; WORDS]) -> bool {
        // Relaxed, both: the caller's own.
        let is_same = |(bytes, kept): (&[u8; 8], &AtomicU64)| {
            kept.load(Ordering::Relaxed) == u64::from_le_bytes(*bytes)
        };
        let last = kept.get(self.whole.len());
        last.is_none_or(|last| last.load(Ordering::Relaxed) == self.last)
            && self.whole.iter().zip(kept).all(is_same)
    }
}

/// The last `rest` bytes of `path`, less than 8. Copied by their number they would cost a call.
#[inline]
fn last_word(path: &[u8], rest: usize) -> u64 {
    let start = path.len() - rest;
    if rest == 0 {
        0
    } else if let Some(last) = path.last_chunk::<8>() {
        u64::from_le_bytes(*last) >> (8 * (8 - rest))
    } else if let Some((first, last)) = path.first_chunk::<4>().zip(path.last_chunk::<4>()) {
        u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (8 * (rest - 4))
    } else {
        path[start..].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_all_paths_apart_that_fit() {
        let mut seen: Vec<(u64, Vec<u64>)> = Vec::new();
        for len in 0..=8 * WORDS {
            for at in 0..=len {
                let mut path = vec![b'x'; len];
                if let Some(byte) = path.get_mut(at) {
                    *byte = b'y';
                }
                let key = Key::new(0, &path).expect("it fits");
                let bytes: Vec<u8> = key.words().flat_map(u64::to_le_bytes).collect();
                assert_eq!(
                    bytes.strip_prefix(&path[..]).map(|rest| rest.iter().any(|byte| *byte != 0)),
                    Some(false)
                );
                seen.push((key.tag, key.words().collect()));
            }
        }
        let all = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), all);
        assert!(Key::new(0, &[b'x'; 8 * WORDS + 1]).is_none());
    }
}
