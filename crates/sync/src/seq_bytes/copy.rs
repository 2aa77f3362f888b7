//! Copying bytes that others may be changing: a torn copy is a wrong value, never a race.
//!
//! # Theory
//! The bytes are atomic words, and each is read and written once. That is as well defined as it is slow: a
//! compiler does not merge atomic accesses, so a page takes 512 loads. On x86-64 long copies are therefore one
//! string instruction, which moves a line at a time. The compiler sees neither of its sides: what the instruction
//! does beside another CPU's store is for the machine to define, and it defines that every byte is one that
//! was stored there.
//!
//! # Cost
//! Up to [`STRING_MIN`] bytes about one load and one store a word; above it what `memcpy` costs.
//!
//! # Sources
//! Boehm (2012), as in `seqcount.rs`; Intel's optimization manual on `rep movsb` (ERMSB).

use super::WORD;
use crate::face::atomic::Ordering;
use crate::face::words::{Word, will_load, will_store};

/// The shortest copy for which a string instruction pays: starting one costs about as much as 32 words.
const STRING_MIN: usize = 256;

/// Copies the bytes from `at` on into `buf`.
#[inline]
pub(super) fn load(words: &[Word], at: usize, buf: &mut [u8]) {
    let words = spanned(words, at, buf.len());
    will_load(words);
    if buf.len() >= STRING_MIN && string::load(words, at % WORD, buf) {
        return;
    }
    let (head, rest) = buf.split_at_mut(head_len(at, buf.len()));
    let mut words = words.iter();
    // Relaxed, as all here: whoever asks orders them by the count or by the lock.
    let mut next = || words.next().map_or([0; WORD], |word| word.load(Ordering::Relaxed).to_ne_bytes());
    if !head.is_empty() {
        head.copy_from_slice(&next()[at % WORD..at % WORD + head.len()]);
    }
    let (whole, tail) = rest.as_chunks_mut::<WORD>();
    whole.iter_mut().for_each(|bytes| *bytes = next());
    if !tail.is_empty() {
        tail.copy_from_slice(&next()[..tail.len()]);
    }
}

/// Replaces the bytes from `at` on by `bytes`. The caller excludes other writers.
#[inline]
pub(super) fn store(words: &[Word], at: usize, bytes: &[u8]) {
    let words = spanned(words, at, bytes.len());
    will_store(words);
    if bytes.len() >= STRING_MIN && string::store(words, at % WORD, bytes) {
        return;
    }
    let (head, rest) = bytes.split_at(head_len(at, bytes.len()));
    let mut words = words.iter();
    if !head.is_empty() {
        words.next().into_iter().for_each(|word| patch(word, at % WORD, head));
    }
    let (whole, tail) = rest.as_chunks::<WORD>();
    for (bytes, word) in whole.iter().zip(&mut words) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if !tail.is_empty() {
        words.next().into_iter().for_each(|word| patch(word, 0, tail));
    }
}

/// Replaces a part of a word.
fn patch(word: &Word, at: usize, bytes: &[u8]) {
    let mut whole = word.load(Ordering::Relaxed).to_ne_bytes();
    whole[at..at + bytes.len()].copy_from_slice(bytes);
    word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
}

/// The words in which `len` bytes from `at` on lie.
#[inline]
fn spanned(words: &[Word], at: usize, len: usize) -> &[Word] {
    if len == 0 { &[] } else { &words[at / WORD..(at + len).div_ceil(WORD)] }
}

/// How many of `len` bytes from `at` on lie in a word that begins before them.
#[inline]
fn head_len(at: usize, len: usize) -> usize {
    ((WORD - at % WORD) % WORD).min(len)
}

#[cfg(all(target_arch = "x86_64", not(any(feature = "loom", miri))))]
mod string {
    use super::{WORD, Word};
    use std::arch::asm;

    #[inline]
    pub(super) fn load(words: &[Word], at: usize, buf: &mut [u8]) -> bool {
        assert!(at + buf.len() <= words.len() * WORD, "the words hold the bytes");
        let start = words.as_ptr().cast::<u8>().wrapping_add(at);
        // SAFETY: the assertion says that `buf.len()` bytes from `start` on are in `words`, which is borrowed;
        // they can change under the borrow since `Word` is atomic, and the instruction's reads are the
        // machine's. `buf` is borrowed exclusively, so the two do not overlap.
        unsafe { copy(start, buf.as_mut_ptr(), buf.len()) };
        true
    }

    #[inline]
    pub(super) fn store(words: &[Word], at: usize, bytes: &[u8]) -> bool {
        assert!(at + bytes.len() <= words.len() * WORD, "the words hold the bytes");
        let start = words.as_ptr().cast::<u8>().cast_mut().wrapping_add(at);
        // SAFETY: as in `load`; writing behind the shared borrow is what `Word`, being atomic, allows.
        // `bytes` is borrowed as memory that does not change, so it does not overlap `words`.
        unsafe { copy(bytes.as_ptr(), start, bytes.len()) };
        true
    }

    /// # Safety
    /// `len` bytes from `from` on may be read and as many from `to` on written; they do not overlap.
    #[inline]
    unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise. The direction flag is clear at every function's entry, by the ABI.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Elsewhere words do it.
#[cfg(not(all(target_arch = "x86_64", not(any(feature = "loom", miri)))))]
mod string {
    use super::Word;

    pub(super) fn load(_: &[Word], _: usize, _: &mut [u8]) -> bool {
        false
    }

    pub(super) fn store(_: &[Word], _: usize, _: &[u8]) -> bool {
        false
    }
}
