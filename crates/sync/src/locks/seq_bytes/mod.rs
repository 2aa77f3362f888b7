//! Byte block: bytes that are read without a lock while a writer may be changing them, and never seen torn.
//!
//! # Theory
//! A [`SeqLock`](crate::SeqLock) for a page of memory: a mutex orders the writers, a [`SeqCount`] tells readers
//! that one was at work. Two things differ. The count is odd for as long as the lock is held, so that a writer
//! of several blocks shuts readers out of all of them at once. And a block can be *frozen*: its bytes then
//! belong to more than one owner, and a writer that finds it so under the lock must write to a copy. Or it can be *settled*,
//! which means what its client makes of it, and is read like the bytes.
//!
//! ```text
//!   one read of blocks A and B       begin A | copy | begin B | copy | retry A, retry B
//!   one write of blocks A and B      lock A, lock B | store | unlock
//! ```
//! Both blocks were as the reader found them from `begin B` to `retry A`: it read one state of the two.
//!
//! A block keeps the length that it was made with. A longer one takes its place wherever it is found; the owner of the place
//! sees to that. Blocks are made, shared and freed by [`SharedBytes`].
//!
//! # Clients must
//! - lock several blocks in one order (a file: by page number);
//! - use what [`load`](SeqBytes::load) gave only after [`retry`](SeqCount::retry) said false, or under the lock.
//!
//! # Cost
//! Read: nothing is stored; the line that begins the block twice, and the lines of the bytes. Write: that line and
//! the lines of the bytes. A long block lies on lines of its own. Memory: 48 bytes a block, beside its bytes.
//!
//! # Sources
//! As in `seqcount.rs`.

#[allow(unsafe_code)]
mod copy;
#[allow(unsafe_code)]
mod shared;

pub use self::shared::SharedBytes;

use crate::face::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::face::words::Word;
use crate::seqcount::Writing;
use crate::{LockClass, Mutex, MutexGuard, SeqCount};
use std::fmt;
use std::ops::Range;

static WRITERS: LockClass = LockClass::new("sync.seq_bytes.writers");

/// Bytes in a word.
const WORD: usize = 8;
/// Bytes that are copied at once where a block cannot be.
const PIECE: usize = 4096;

/// A block of bytes. Each reference includes the length of the block.
#[repr(C)]
pub struct SeqBytes {
    head: Head,
    /// *written under `writers`, read under `count`*
    words: [Word],
}

/// The fields of a block beside its bytes. Its alignment leaves the trees that hold blocks the low bits of an address.
#[repr(C, align(16))]
struct Head {
    /// References to the block. *atomic (references), see `shared.rs`*
    references: AtomicUsize,
    /// How many words there are. *immutable*
    words: u32,
    count: SeqCount,
    /// *written under `writers`, read under `count`*
    settled: AtomicBool,
    /// Orders the writers; whether the block is frozen.
    writers: Mutex<bool>,
}

/// A block that its holder alone may change; readers wait or come back.
#[must_use = "the block is unlocked at once when the guard is dropped"]
pub struct LockedBytes<'a> {
    block: &'a SeqBytes,
    /// Ends before the lock does: fields are dropped in this order.
    _writing: Writing<'a>,
    frozen: MutexGuard<'a, bool>,
}

impl Head {
    /// The head of a block of `words` words with one reference.
    fn new(words: usize) -> Head {
        Head {
            references: AtomicUsize::new(1),
            words: words as u32,
            count: SeqCount::new(),
            settled: AtomicBool::new(false),
            writers: Mutex::with_class(&WRITERS, false),
        }
    }
}

// Any length is valid for a block, so `is_empty` has no use.
#[allow(clippy::len_without_is_empty)]
impl SeqBytes {
    /// How many bytes the block has.
    #[inline]
    pub fn len(&self) -> usize {
        self.words.len() * WORD
    }

    /// Makes this a block of zeros but for `bytes`, which begin at `at`, neither frozen nor settled.
    fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.reset();
        zero(&self.words, 0..at);
        copy::store(&self.words, at, bytes);
        zero(&self.words, at + bytes.len()..self.len());
    }

    /// Makes this a block with the bytes of `other` as far as it reaches, and zeros behind them.
    fn fill_from(&mut self, other: &SeqBytes) {
        self.reset();
        let same = self.len().min(other.len());
        let mut piece = [0; PIECE];
        for start in (0..same).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(same - start)];
            copy::load(&other.words, start, piece);
            copy::store(&self.words, start, piece);
        }
        zero(&self.words, same..self.len());
    }

    fn reset(&mut self) {
        *self.head.writers.get_mut() = false;
        // Relaxed: `&mut self`.
        self.head.settled.store(false, Ordering::Relaxed);
    }

    /// Whether the block is settled; to be used as what [`load`](Self::load) gives.
    #[inline]
    pub fn is_settled(&self) -> bool {
        // Relaxed: read under the count, like the bytes.
        self.head.settled.load(Ordering::Relaxed)
    }

    /// Whether `other` is this block.
    #[inline]
    pub fn is_same(&self, other: &SeqBytes) -> bool {
        std::ptr::addr_eq(self, other)
    }

    /// Tells a reader whether a writer was at work.
    #[inline]
    pub fn count(&self) -> &SeqCount {
        &self.head.count
    }

    /// Copies the bytes from `at` on into `buf`. They may be torn: ask [`count`](Self::count).
    ///
    /// # Panics
    /// If the block has not as many.
    #[inline]
    pub fn load(&self, at: usize, buf: &mut [u8]) {
        copy::load(&self.words, at, buf);
    }

    /// The variant of [`load`](Self::load) that pads with zeros behind the end of the block.
    pub fn load_padded(&self, at: usize, buf: &mut [u8]) {
        let (bytes, behind) = buf.split_at_mut(self.len().saturating_sub(at).min(buf.len()));
        if !bytes.is_empty() {
            self.load(at, bytes);
        }
        behind.fill(0);
    }

    /// Waits for other writers and shuts out readers.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> LockedBytes<'_> {
        let frozen = self.head.writers.lock_in_order();
        LockedBytes { block: self, _writing: self.head.count.write(), frozen }
    }
}

#[allow(clippy::len_without_is_empty)]
impl LockedBytes<'_> {
    /// How many bytes the block has.
    #[inline]
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Whether the bytes belong to others too and must not be changed.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        *self.frozen
    }

    /// Whether the guard is of `block`.
    #[inline]
    pub fn is_of(&self, block: &SeqBytes) -> bool {
        self.block.is_same(block)
    }

    /// Whether the block is settled.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.block.is_settled()
    }

    /// Says whether the block is settled.
    #[inline]
    pub fn settle(&mut self, settled: bool) {
        if self.is_settled() != settled {
            // Relaxed: written under the count, like the bytes.
            self.block.head.settled.store(settled, Ordering::Relaxed);
        }
    }

    /// From now on nobody changes the bytes.
    pub fn freeze(&mut self) {
        *self.frozen = true;
    }

    /// The bytes have one owner again.
    pub fn thaw(&mut self) {
        *self.frozen = false;
    }

    /// Replaces what is at `at` by `bytes`.
    ///
    /// # Panics
    /// If `bytes` does not fit, or the block is frozen.
    #[inline]
    pub fn store(&mut self, at: usize, bytes: &[u8]) {
        assert!(!self.is_frozen(), "the bytes belong to others too");
        copy::store(&self.block.words, at, bytes);
    }

    /// Makes the bytes of `range` zero that the block has.
    ///
    /// # Panics
    /// If it is frozen.
    pub fn zero(&mut self, range: Range<usize>) {
        assert!(!self.is_frozen(), "the bytes belong to others too");
        zero(&self.block.words, range.start..range.end.min(self.len()));
    }
}

/// Makes `range` of the bytes in `words` zero. The caller excludes other writers.
fn zero(words: &[Word], range: Range<usize>) {
    static ZEROS: [u8; PIECE] = [0; PIECE];
    for start in range.clone().step_by(PIECE) {
        copy::store(words, start, &ZEROS[..PIECE.min(range.end - start)]);
    }
}

impl fmt::Debug for SeqBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeqBytes").field("count", self.count()).finish_non_exhaustive()
    }
}

impl fmt::Debug for LockedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedBytes").field("frozen", &self.is_frozen()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::face::SHRUNK;
    use crate::thread;

    const LEN: usize = if SHRUNK { 1024 } else { SharedBytes::LEN_MAX };

    fn page(at: usize, bytes: &[u8]) -> SharedBytes {
        SharedBytes::with(LEN, at, bytes)
    }

    fn bytes(page: &SeqBytes) -> Vec<u8> {
        let mut bytes = vec![0; page.len()];
        page.load(0, &mut bytes);
        bytes
    }

    #[test]
    fn every_part_of_a_block_is_stored_and_loaded_alone() {
        let source: Vec<u8> = (0..LEN).map(|n| (n % 251) as u8).collect();
        let lens: &[_] =
            if SHRUNK { &[0, 3, 8, 17] } else { &[0, 1, 3, 7, 8, 9, 16, 63, 255, 256, 257, 1000] };
        for &len in lens {
            for at in [0, 1, 5, 8, 100, LEN / 4, LEN - len] {
                let page = page(0, &[0xAA; LEN]);
                page.lock().store(at, &source[..len]);
                let mut expected = vec![0xAA; LEN];
                expected[at..at + len].copy_from_slice(&source[..len]);
                assert!(bytes(&page) == expected, "stored {len} at {at}");
                let mut part = vec![0; len];
                page.load(at, &mut part);
                assert!(part == source[..len], "loaded {len} at {at}");
                page.lock().zero(at..at + len);
                assert_eq!(bytes(&page).iter().filter(|byte| **byte == 0).count(), len);
            }
        }
    }

    #[test]
    fn nothing_is_left_of_what_a_block_held_before_it_was_filled() {
        let mut page = page(0, &[0xAA; LEN]);
        page.lock().freeze();
        page.get_mut().expect("nobody shares it").fill(700, b"new");
        assert!(!page.lock().is_frozen());
        assert_eq!(bytes(&page)[700..703], *b"new");
        assert_eq!(bytes(&page).iter().filter(|byte| **byte == 0).count(), LEN - 3);
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn bytes_past_the_end_are_refused() {
        page(LEN - 3, b"four");
    }

    #[test]
    #[should_panic(expected = "belong to others")]
    fn a_frozen_block_is_not_changed() {
        let page = page(0, b"shared");
        page.lock().freeze();
        let copy = SharedBytes::copy_of(&page, LEN);
        assert!(bytes(&copy) == bytes(&page) && !copy.lock().is_frozen());
        page.lock().store(0, b"x");
    }

    #[test]
    fn a_read_of_two_blocks_sees_a_write_of_both_whole_or_not_at_all() {
        let pages = [page(0, &[]), page(0, &[])];
        let rounds = if SHRUNK { 10 } else { 5_000 };
        thread::scope(|scope| {
            for step in 1..3 {
                let [first, second] = &pages;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let mut locked = [first.lock(), second.lock()];
                        locked.iter_mut().for_each(|page| page.store(0, &[(round * step) as u8; 300]));
                    }
                });
                scope.spawn(move || {
                    let mut accepted = 0;
                    while accepted < rounds {
                        let mut read = [[0; 300]; 2];
                        let one = first.count().begin();
                        first.load(0, &mut read[0]);
                        let two = second.count().begin();
                        second.load(0, &mut read[1]);
                        if !first.count().retry(one) && !second.count().retry(two) {
                            assert!(read.as_flattened().iter().all(|byte| *byte == read[0][0]), "torn");
                            accepted += 1;
                        }
                    }
                });
            }
        });
    }
}
