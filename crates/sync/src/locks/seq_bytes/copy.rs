//! Copying bytes that others may be changing: a torn copy is a wrong value, never a race.
//!
//! # Theory
//! The bytes are atomic words, and each is read and written once. That is as well defined as it is slow: a
//! compiler does not merge atomic accesses, so a page takes 512 loads. On x86-64 long copies are therefore machine
//! code, which moves 32 or 64 bytes at a time. The compiler sees neither of its sides: what the instructions
//! do beside another CPU's store is for the machine to define, and it defines that every byte is one that
//! was stored there.
//!
//! A string instruction, as many a `memcpy` uses, is slow on AMD CPUs where the target lies some bytes further in its page than
//! the source in its own. Reads use AVX-512 where the CPU has it. Writes use AVX: AVX-512 made them slower, for a reason that
//! we do not know (docs/measurements.md, section 16).
//!
//! # Cost
//! Up to [`WIDE_MIN`] bytes about one load and one store a word; above it what `memcpy` costs, or less.
//!
//! # Sources
//! Boehm (2012), as in `seqcount.rs`.

use super::WORD;
use crate::face::atomic::Ordering;
use crate::face::words::{Word, will_load, will_store};

/// The shortest copy that is made by machine code.
const WIDE_MIN: usize = 128;

/// Copies the bytes from `at` on into `buf`.
#[inline]
pub(super) fn load(words: &[Word], at: usize, buf: &mut [u8]) {
    let words = spanned(words, at, buf.len());
    will_load(words);
    if buf.len() >= WIDE_MIN && wide::load(words, at % WORD, buf) {
        return;
    }
    let (head, rest) = buf.split_at_mut(head_len(at, buf.len()));
    let mut words = words.iter();
    // Relaxed, as all here: the caller orders them by the count or by the lock.
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
    if bytes.len() >= WIDE_MIN && wide::store(words, at % WORD, bytes) {
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
mod wide {
    use super::{WIDE_MIN, WORD, Word};
    use std::arch::asm;

    #[inline]
    pub(super) fn load(words: &[Word], at: usize, buf: &mut [u8]) -> bool {
        assert!(buf.len() >= WIDE_MIN && at + buf.len() <= words.len() * WORD, "the words hold the bytes");
        let start = words.as_ptr().cast::<u8>().wrapping_add(at);
        // Not by AVX-512 alone: the first CPUs that had it ran slower for a while when they used it.
        if buf.len() >= AVX512_BLOCK && is_x86_feature_detected!("avx512vbmi2") {
            // SAFETY: as below; as many bytes as a block, and the CPU has AVX-512.
            unsafe { copy_by_avx512(start, buf.as_mut_ptr(), buf.len()) };
            return true;
        }
        // SAFETY: the assertions say that `buf.len()` bytes from `start` on are in `words`, which is borrowed, and how many;
        // they can change under the borrow since `Word` is atomic, and the instructions' reads are the
        // machine's. `buf` is borrowed exclusively, so the two do not overlap.
        unsafe { copy(start, buf.as_mut_ptr(), buf.len()) };
        true
    }

    #[inline]
    pub(super) fn store(words: &[Word], at: usize, bytes: &[u8]) -> bool {
        assert!(
            bytes.len() >= WIDE_MIN && at + bytes.len() <= words.len() * WORD,
            "the words hold the bytes"
        );
        let start = words.as_ptr().cast::<u8>().cast_mut().wrapping_add(at);
        // SAFETY: as in `load`; writing behind the shared borrow is what `Word`, being atomic, allows. `bytes` is
        // borrowed as immutable memory, so it does not overlap `words`.
        unsafe { copy(bytes.as_ptr(), start, bytes.len()) };
        true
    }

    /// # Safety
    /// `len` bytes from `from` on may be read and as many from `to` on written; they do not overlap, and are at least
    /// [`WIDE_MIN`].
    #[inline]
    unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        if is_x86_feature_detected!("avx") {
            // SAFETY: the caller's promise; as many bytes as a block, and the CPU has AVX.
            unsafe { copy_by_avx(from, to, len) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { copy_by_string(from, to, len) }
        }
    }

    /// # Safety
    /// The contract of [`copy`].
    unsafe fn copy_by_string(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: by contract. The direction flag is clear at every function's entry, by the ABI.
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

    /// Defines a function as [`copy`], in blocks of four registers, the last of which may overlap the one before.
    macro_rules! copy_in_blocks {
        ($name:ident, $feature:literal, $register:literal, $width:literal, $block:ident) => {
            const $block: usize = 4 * $width;

            #[doc = concat!("Copies by ", $feature, ".")]
            ///
            /// # Safety
            /// The contract of [`copy`]; `len` is a block at least, and the CPU has the feature.
            #[target_feature(enable = $feature)]
            unsafe fn $name(from: *const u8, to: *mut u8, len: usize) {
                // SAFETY: by contract `len` is a block at least, so all blocks from 0 on and the one that ends at `len` lie
                // within. The flags and what a call may change is all that changes.
                unsafe {
                    asm!(
                        "test {last}, {last}",
                        "jz 3f",
                        "2:",
                        concat!("vmovups ", $register, "0, [{from} + rax]"),
                        concat!("vmovups ", $register, "1, [{from} + rax + ", $width, "]"),
                        concat!("vmovups ", $register, "2, [{from} + rax + 2 * ", $width, "]"),
                        concat!("vmovups ", $register, "3, [{from} + rax + 3 * ", $width, "]"),
                        concat!("vmovups [{to} + rax], ", $register, "0"),
                        concat!("vmovups [{to} + rax + ", $width, "], ", $register, "1"),
                        concat!("vmovups [{to} + rax + 2 * ", $width, "], ", $register, "2"),
                        concat!("vmovups [{to} + rax + 3 * ", $width, "], ", $register, "3"),
                        "add rax, {block}",
                        "cmp rax, {last}",
                        "jb 2b",
                        "3:",
                        // Once more, and not in the loop with a conditional move: by that a write of 4 KiB takes 7 % longer.
                        concat!("vmovups ", $register, "0, [{from} + {last}]"),
                        concat!("vmovups ", $register, "1, [{from} + {last} + ", $width, "]"),
                        concat!("vmovups ", $register, "2, [{from} + {last} + 2 * ", $width, "]"),
                        concat!("vmovups ", $register, "3, [{from} + {last} + 3 * ", $width, "]"),
                        concat!("vmovups [{to} + {last}], ", $register, "0"),
                        concat!("vmovups [{to} + {last} + ", $width, "], ", $register, "1"),
                        concat!("vmovups [{to} + {last} + 2 * ", $width, "], ", $register, "2"),
                        concat!("vmovups [{to} + {last} + 3 * ", $width, "], ", $register, "3"),
                        // Or what comes next is slow on some CPUs.
                        "vzeroupper",
                        from = in(reg) from,
                        to = in(reg) to,
                        last = in(reg) len - $block,
                        block = const $block,
                        inout("rax") 0_usize => _,
                        clobber_abi("sysv64"),
                        options(nostack)
                    );
                }
            }
        };
    }

    copy_in_blocks!(copy_by_avx, "avx", "ymm", 32, AVX_BLOCK);
    copy_in_blocks!(copy_by_avx512, "avx512f", "zmm", 64, AVX512_BLOCK);
    const _: () = assert!(AVX_BLOCK <= WIDE_MIN);

    #[cfg(test)]
    mod tests {
        use super::super::tests::pattern;
        use super::*;

        #[test]
        fn each_way_that_this_cpu_has_copies_all_bytes_and_no_more() {
            type Way = (unsafe fn(*const u8, *mut u8, usize), usize, bool);
            let ways: [Way; 3] = [
                (copy_by_string, WIDE_MIN, true),
                (copy_by_avx, AVX_BLOCK, is_x86_feature_detected!("avx")),
                (copy_by_avx512, AVX512_BLOCK, is_x86_feature_detected!("avx512f")),
            ];
            for (copy, block, _) in ways.into_iter().filter(|(.., has_it)| *has_it) {
                for len in [block, block + 1, 2 * block - 1, 2 * block, 2 * block + 7, 4096] {
                    let (bytes, mut to) = (pattern(len), vec![0xff; len + 2]);
                    // SAFETY: the CPU has the feature, `to` has room behind its first byte, and `len` is a block at least.
                    unsafe { copy(bytes.as_ptr(), to.as_mut_ptr().wrapping_add(1), len) };
                    assert_eq!(
                        (to[0], &to[1..=len], to[len + 1]),
                        (0xff, &bytes[..], 0xff),
                        "{len} by {block}"
                    );
                }
            }
        }
    }
}

/// Elsewhere words do it.
#[cfg(not(all(target_arch = "x86_64", not(any(feature = "loom", miri)))))]
mod wide {
    use super::Word;

    pub(super) fn load(_: &[Word], _: usize, _: &mut [u8]) -> bool {
        false
    }

    pub(super) fn store(_: &[Word], _: usize, _: &[u8]) -> bool {
        false
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Bytes that differ from their neighbours, and from those a block away.
    pub(super) fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn copies_of_every_length_from_every_byte_of_a_word_are_whole_and_leave_the_rest() {
        let lens =
            (0..20).chain(WIDE_MIN - 9..WIDE_MIN + 9).chain([255, 256, 257, 383, 384, 385, 1_000, 4_096]);
        for (len, at) in lens.flat_map(|len| (0..=WORD).map(move |at| (len, at))) {
            let bytes = pattern(len);
            let words: Vec<Word> = (0..(at + len) / WORD + 2).map(|_| Word::new(u64::MAX)).collect();
            store(&words, at, &bytes);
            let mut all = vec![0; words.len() * WORD];
            load(&words, 0, &mut all);
            assert!(all[..at].iter().chain(&all[at + len..]).all(|byte| *byte == 0xff), "{len} at {at}");
            let mut back = vec![0; len + 1];
            load(&words, at, &mut back[..len]);
            assert_eq!(
                (&back[..len], &all[at..at + len], back[len]),
                (&bytes[..], &bytes[..], 0),
                "{len} at {at}"
            );
        }
    }
}
