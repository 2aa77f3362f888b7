//! Shared byte block: a counted reference to a block, and the memory that blocks come from and return to.
//!
//! # Theory
//! A block's length is known when it is made, so blocks of all lengths are of one type without a size. A reference to one in a
//! slot of a tree is as wide as an address: the length stands in the block, and is read from there.
//!
//! ```text
//!   length          begins                                            memory
//!   below 512       anywhere, as other small objects do               as that of all small objects: `blocks.rs`
//!   below 4096      a cache line                                      the same
//!   4096            16 bytes into one, so that the bytes begin one    kept by each CPU
//! ```
//! A block that begins a line wastes what is left of the line before it, which is too much for short ones. So two of them may
//! share a line at their ends, where the one keeps what is hardly ever written: its length and its references.
//!
//! The longest blocks come and go with every file that has a page, and take long to clear: each CPU keeps some that nobody
//! refers to any more, whole as they are.
//!
//! # Invariants
//! - B1: a block's length equals the length in its head during its whole life, and its memory is at least as large;
//! - B2: it is freed, or put away, when its count of references comes to 0, by the thread that brought it there.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | references | drop: Release decrement | fence after the last decrement, or after a count of 1 was seen | what the others did with the block |

use super::{Head, SeqBytes, WORD, Word};
use crate::face::atomic::{Ordering, fence};
use crate::face::{CACHE_LINE, Mutant, name_value, seeded};
use crate::memory::blocks::BlockKind;
use crate::radix::Object;
use std::alloc::Layout;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{NonNull, slice_from_raw_parts_mut};

/// A counted reference to a block.
pub struct SharedBytes(NonNull<Head>);

/// A block that nobody refers to, and its memory.
struct Unused(NonNull<Head>);

// SAFETY: a counted reference to a block, which is `Send` and `Sync`; the last one frees it, which any thread may do.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}
// SAFETY: it owns a block, which is `Send`.
unsafe impl Send for Unused {}

/// A block of this length and above begins on a line.
const ON_A_LINE_MIN: usize = 512;

/// The memory of a block of `words` words, and at which byte of it the block begins.
#[inline]
fn memory(words: usize) -> (BlockKind, usize) {
    const { assert!(align_of::<Head>() <= CACHE_LINE && align_of::<Word>() <= align_of::<Head>()) };
    let object = size_of::<Head>() + words * size_of::<Word>();
    let (before, align) = match words * WORD {
        SharedBytes::LEN_MAX => ((CACHE_LINE - size_of::<Head>() % CACHE_LINE) % CACHE_LINE, CACHE_LINE),
        ON_A_LINE_MIN.. => (0, CACHE_LINE),
        _ => (0, align_of::<Head>()),
    };
    let size = before + object.next_multiple_of(align_of::<Head>());
    (BlockKind::of(Layout::from_size_align(size, align).expect("it is short")), before)
}

/// The block at `head`, with its length.
///
/// # Safety
/// There is a block, which is not freed meanwhile.
#[inline]
unsafe fn block(head: NonNull<Head>) -> *mut SeqBytes {
    // SAFETY: there is one, by contract; the field is immutable.
    let words = unsafe { (*head.as_ptr()).words } as usize;
    slice_from_raw_parts_mut(head.as_ptr().cast::<Word>(), words) as *mut SeqBytes
}

impl SharedBytes {
    /// The length of the longest block.
    pub const LEN_MAX: usize = 4096;

    /// A block of `len` bytes, rounded up to whole words: zeros but for `bytes`, which begin at `at`.
    ///
    /// # Panics
    /// If `bytes` does not fit, or `len` is above [`LEN_MAX`](Self::LEN_MAX).
    pub fn with(len: usize, at: usize, bytes: &[u8]) -> SharedBytes {
        SharedBytes::made(len, |block| block.fill(at, bytes))
    }

    /// A block of `len` bytes, rounded up to whole words, with the bytes of `block` as far as it reaches and zeros behind them.
    /// They must not change meanwhile: `block` is frozen, or locked.
    ///
    /// # Panics
    /// If `len` is above [`LEN_MAX`](Self::LEN_MAX).
    pub fn copy_of(block: &SeqBytes, len: usize) -> SharedBytes {
        SharedBytes::made(len, |copy| copy.fill_from(block))
    }

    /// A block that `fill` fills where it will stay.
    fn made(len: usize, fill: impl FnOnce(&mut SeqBytes)) -> SharedBytes {
        assert!(len <= Self::LEN_MAX, "a block of {len} bytes");
        let kept = if len == Self::LEN_MAX { spare::take() } else { None };
        let unused = ManuallyDrop::new(kept.unwrap_or_else(|| Unused::new(len.div_ceil(WORD))));
        let mut made = SharedBytes(unused.0);
        // Relaxed: nobody else knows the block yet.
        made.head().references.store(1, Ordering::Relaxed);
        if let Some(block) = made.get_mut() {
            fill(block);
        }
        made
    }

    fn head(&self) -> &Head {
        // SAFETY: this reference keeps the block from being freed (B2).
        unsafe { self.0.as_ref() }
    }

    /// Whether there is no other reference. If so, threads with former references are done with the block.
    #[inline]
    fn is_only(&self) -> bool {
        // Relaxed: the fence orders it.
        let only = self.head().references.load(Ordering::Relaxed) == 1;
        if !seeded(Mutant::SoleWithoutFence) {
            // Acquire(references): what others did with it; pairs with Release(references) in drop().
            fence(Ordering::Acquire);
        }
        only
    }

    /// The block, if nobody else refers to it.
    pub(super) fn get_mut(&mut self) -> Option<&mut SeqBytes> {
        // SAFETY: alive as long as this reference, and no other leads to it: the count is 1, and cannot rise while ours
        // is borrowed exclusively.
        self.is_only().then(|| unsafe { &mut *block(self.0) })
    }
}

impl Deref for SharedBytes {
    type Target = SeqBytes;

    #[inline]
    fn deref(&self) -> &SeqBytes {
        // SAFETY: this reference keeps the block from being freed (B2); `&mut` is given out of the only one (`get_mut`).
        unsafe { &*block(self.0) }
    }
}

impl Clone for SharedBytes {
    fn clone(&self) -> Self {
        // Relaxed: the new reference derives from an existing one, and is passed on by other means.
        self.head().references.fetch_add(1, Ordering::Relaxed);
        SharedBytes(self.0)
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        // Release(references): what we did with the block; pairs with the fence below and in is_only().
        if self.head().references.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // Acquire(references): what others did with it; pairs with the Release above.
        fence(Ordering::Acquire);
        let unused = Unused(self.0);
        if unused.len() == Self::LEN_MAX {
            spare::put(unused);
        }
    }
}

// SAFETY: the raw pointer is the reference's own, at a multiple of 16 as `Head` is; what it leads to lives as long as a
// reference that is not dropped (B2).
unsafe impl Object for SharedBytes {
    type Target = SeqBytes;

    fn into_raw(self) -> NonNull<()> {
        ManuallyDrop::new(self).0.cast()
    }

    unsafe fn from_raw(raw: NonNull<()>) -> Self {
        SharedBytes(raw.cast())
    }

    #[inline]
    unsafe fn target<'a>(raw: NonNull<()>) -> &'a SeqBytes {
        // SAFETY: from into_raw(), of a reference that is not dropped meanwhile, by contract.
        unsafe { &*block(raw.cast()) }
    }

    fn is_sole(&self) -> bool {
        self.is_only()
    }
}

impl Unused {
    /// A new block of `words` zeros.
    fn new(words: usize) -> Unused {
        let (kind, before) = memory(words);
        // SAFETY: the memory begins with as many bytes, and a block is aligned there by `memory`.
        let head = unsafe { kind.allocate().add(before) }.cast::<Head>();
        // SAFETY: new memory, ours alone, with room for the head.
        unsafe { head.write(Head::new(words)) };
        // SAFETY: behind the head begin the words.
        let first = unsafe { head.add(1) }.cast::<Word>();
        // SAFETY: as many as `memory` was asked for.
        (0..words).for_each(|at| unsafe { first.add(at).write(Word::new(0)) });
        // SAFETY: written above, and nobody else knows it.
        name_value(unsafe { &*block(head) }, "SeqBytes", "");
        Unused(head)
    }

    fn len(&self) -> usize {
        // SAFETY: it is not freed before it is dropped; the field is immutable.
        unsafe { self.0.as_ref() }.words as usize * WORD
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        let (kind, before) = memory(self.len() / WORD);
        // SAFETY: `new` made the block, so its memory is of this kind and begins `before` bytes earlier; no reference
        // is left (B2).
        unsafe {
            block(self.0).drop_in_place();
            kind.free(self.0.cast::<u8>().sub(before));
        }
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The longest blocks that nobody refers to.
#[cfg(not(feature = "loom"))]
mod spare {
    use super::{SharedBytes, Unused};
    use crate::OnceLock;
    use crate::drain::{self, Kept};
    use crate::face::{Host, PerHost};
    use crate::percpu::Pool;

    /// How many a CPU keeps: 4 MiB, beside what their users are counted for.
    const SPARE_MAX: usize = 1024;

    fn pool() -> &'static Pool<Unused> {
        static SPARE: PerHost<OnceLock<Pool<Unused>>> = PerHost::new(OnceLock::new());
        SPARE.get(Host::here()).get_or_init(|| {
            drain::register(&Spare);
            Pool::new(SPARE_MAX, SharedBytes::LEN_MAX)
        })
    }

    /// The pool, to be given back when no thread works.
    struct Spare;

    impl Kept for Spare {
        fn kept_bytes(&self) -> u64 {
            pool().kept_bytes()
        }

        fn freed_bytes(&self) -> u64 {
            pool().freed_bytes()
        }

        fn give_back(&self) {
            pool().give_back();
        }
    }

    #[inline]
    pub(super) fn take() -> Option<Unused> {
        pool().take()
    }

    pub(super) fn put(block: Unused) {
        pool().put(block);
    }
}

/// Under the model checker none is kept.
#[cfg(feature = "loom")]
mod spare {
    use super::Unused;

    pub(super) fn take() -> Option<Unused> {
        None
    }

    pub(super) fn put(_: Unused) {}
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::face::SHRUNK;
    use crate::thread;

    fn bytes(block: &SeqBytes) -> Vec<u8> {
        let mut bytes = vec![0; block.len()];
        block.load(0, &mut bytes);
        bytes
    }

    #[test]
    fn blocks_of_every_length_hold_their_bytes_and_begin_where_a_tree_and_a_copy_want_them() {
        for len in [0, 1, 8, 20, 64, 128, 256, 512, 1024, 2048, SharedBytes::LEN_MAX] {
            let source: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x55).collect();
            let block = SharedBytes::with(len, 0, &source);
            assert_eq!((block.len(), &bytes(&block)[..len]), (len.next_multiple_of(WORD), &source[..]));
            let words = block.words.as_ptr().addr();
            assert_eq!(block.0.addr().get() % align_of::<Head>(), 0);
            assert!(len < SharedBytes::LEN_MAX || words.is_multiple_of(CACHE_LINE), "{len}");
        }
    }

    #[test]
    fn a_copy_is_longer_or_shorter_and_ends_in_zeros() {
        let source = SharedBytes::with(64, 0, &[7; 64]);
        source.lock().freeze();
        for len in [8, 64, 128, SharedBytes::LEN_MAX] {
            let copy = SharedBytes::copy_of(&source, len);
            let same = len.min(64);
            assert_eq!(bytes(&copy), [vec![7; same], vec![0; len - same]].concat());
            assert!(!copy.lock().is_frozen());
            let mut padded = [9; 12];
            copy.load_padded(60, &mut padded);
            assert_eq!(padded[..4], [if len < 64 { 0 } else { 7 }; 4]);
            assert_eq!(padded[4..], [0; 8]);
        }
    }

    #[test]
    fn the_last_of_many_threads_that_share_a_block_finds_itself_alone() {
        for len in [16, SharedBytes::LEN_MAX] {
            let mut block = SharedBytes::with(len, 0, &[]);
            thread::scope(|scope| {
                for byte in 1..4 {
                    let block = block.clone();
                    scope.spawn(move || {
                        (0..if SHRUNK { 5 } else { 1_000 }).for_each(|_| drop(block.clone()));
                        block.lock().store(byte, &[byte as u8]);
                    });
                }
            });
            assert!(block.get_mut().is_some());
            assert_eq!(bytes(&block)[..4], [0, 1, 2, 3]);
            let other = block.clone();
            assert!(block.get_mut().is_none() && other.is_same(&block));
        }
    }

    #[test]
    #[should_panic(expected = "a block of 4097 bytes")]
    fn a_block_that_is_too_long_is_refused() {
        SharedBytes::with(SharedBytes::LEN_MAX + 1, 0, &[]);
    }
}
