//! Blocks: the memory of objects, kept by the thread that freed it for the next that it makes.
//!
//! # Theory
//! Files are opened and closed all the time, and each time an object comes and goes. Objects are found dead in batches,
//! more than an allocator's own cache of a thread holds; so a thread keeps blocks of each size itself, up to a bound.
//! On simulated machines, where allocation costs nothing and a run must not depend on the one before it, and under
//! loom, nothing is kept.

use crate::face::{DETERMINISTIC, SHRUNK, const_new};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Sizes are rounded up to a multiple of this, which is also the alignment of every block.
const GRAIN: usize = 16;
/// How many sizes there are: larger blocks are not kept.
const SIZES: usize = 32;
/// How many blocks of one size a thread keeps.
const KEPT_MAX: usize = 2048;

/// A block of memory that nobody uses.
struct Block(NonNull<u8>);

// SAFETY: it owns memory of the global allocator, which any thread may use and free.
unsafe impl Send for Block {}

/// What one thread keeps.
pub(super) struct Blocks {
    /// By size.
    kept: [Vec<Block>; SIZES],
}

/// What kind of block an object of this layout needs.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Where blocks of this kind are kept; nowhere if they are not.
    size: Option<usize>,
    layout: Layout,
}

impl Kind {
    /// Of objects of `layout`, which is not empty.
    pub(super) const fn of(layout: Layout) -> Kind {
        let size = (layout.size() - 1) / GRAIN;
        if DETERMINISTIC || SHRUNK || size >= SIZES || layout.align() > GRAIN {
            return Kind { size: None, layout };
        }
        match Layout::from_size_align((size + 1) * GRAIN, GRAIN) {
            Ok(layout) => Kind { size: Some(size), layout },
            Err(_) => Kind { size: None, layout },
        }
    }

    /// Whether blocks of this kind are kept at all.
    pub(super) fn is_kept(self) -> bool {
        self.size.is_some()
    }

    /// A new block.
    pub(super) fn allocate(self) -> NonNull<u8> {
        // SAFETY: the layout is not empty.
        let block = unsafe { alloc(self.layout) };
        NonNull::new(block).unwrap_or_else(|| handle_alloc_error(self.layout))
    }

    /// Gives `block` back to the allocator.
    ///
    /// # Safety
    /// It came from [`allocate`](Self::allocate) of an equal kind, and nobody will use it again.
    pub(super) unsafe fn free(self, block: NonNull<u8>) {
        // SAFETY: by contract.
        unsafe { dealloc(block.as_ptr(), self.layout) };
    }
}

impl Blocks {
    const_new! {
        /// Nothing is kept.
        pub(super) fn new() -> Self {
            Blocks { kept: [const { Vec::new() }; SIZES] }
        }
    }

    /// A block of `kind` that was kept.
    #[inline]
    pub(super) fn take(&mut self, kind: Kind) -> Option<NonNull<u8>> {
        self.kept[kind.size?].pop().map(|Block(block)| block)
    }

    /// Keeps `block`, or gives it back to the allocator.
    ///
    /// # Safety
    /// As [`Kind::free`].
    pub(super) unsafe fn give(&mut self, kind: Kind, block: NonNull<u8>) {
        match kind.size.map(|size| &mut self.kept[size]) {
            Some(kept) if kept.len() < KEPT_MAX => kept.push(Block(block)),
            // SAFETY: by contract.
            _ => unsafe { kind.free(block) },
        }
    }
}
