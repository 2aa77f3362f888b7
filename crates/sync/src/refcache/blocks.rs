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

/// The alignments of blocks: what the allocator gives anyway, and a line.
const ALIGNMENTS: [usize; 2] = [16, 64];
/// Sizes are rounded up to so much more than a multiple of the alignment: allocators keep 8 bytes of their own before
/// each block.
const BEYOND: [usize; 2] = [8, 0];
/// How many sizes there are of each alignment: larger blocks are not kept.
const SIZES: usize = 32;
/// How many blocks of one size a thread keeps.
const KEPT_MAX: usize = 2048;

/// A block of memory that nobody uses.
struct Block(NonNull<u8>);

// SAFETY: it owns memory of the global allocator, which any thread may use and free.
unsafe impl Send for Block {}

/// What one thread keeps.
pub(super) struct Blocks {
    /// By alignment and size.
    kept: [[Vec<Block>; SIZES]; ALIGNMENTS.len()],
}

/// What kind of block an object of this layout needs.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Where blocks of this kind are kept, by alignment and size; nowhere if they are not.
    place: Option<(usize, usize)>,
    layout: Layout,
}

impl Kind {
    /// Of objects of `layout`, which is not empty.
    pub(super) const fn of(layout: Layout) -> Kind {
        let at = if layout.align() <= ALIGNMENTS[0] { 0 } else { 1 };
        let grain = ALIGNMENTS[at];
        let size = layout.size().saturating_sub(BEYOND[at]).div_ceil(grain);
        match Layout::from_size_align(size * grain + BEYOND[at], grain) {
            Ok(whole) if !DETERMINISTIC && !SHRUNK && size < SIZES && layout.align() <= grain => {
                Kind { place: Some((at, size)), layout: whole }
            }
            _ => Kind { place: None, layout },
        }
    }

    /// Whether blocks of this kind are kept at all.
    pub(super) fn is_kept(self) -> bool {
        self.place.is_some()
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

impl Default for Blocks {
    fn default() -> Self {
        Blocks::new()
    }
}

impl Blocks {
    const_new! {
        /// Nothing is kept.
        pub(super) fn new() -> Self {
            Blocks { kept: [const { [const { Vec::new() }; SIZES] }; ALIGNMENTS.len()] }
        }
    }

    /// A block of `kind` that was kept.
    #[inline]
    pub(super) fn take(&mut self, kind: Kind) -> Option<NonNull<u8>> {
        let (at, size) = kind.place?;
        self.kept[at][size].pop().map(|Block(block)| block)
    }

    /// Keeps `block`, or gives it back to the allocator.
    ///
    /// # Safety
    /// As [`Kind::free`].
    pub(super) unsafe fn give(&mut self, kind: Kind, block: NonNull<u8>) {
        match kind.place.map(|(at, size)| &mut self.kept[at][size]) {
            Some(kept) if kept.len() < KEPT_MAX => kept.push(Block(block)),
            // SAFETY: by contract.
            _ => unsafe { kind.free(block) },
        }
    }
}
