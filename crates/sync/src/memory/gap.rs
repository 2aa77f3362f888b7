//! Gap: bytes that nobody touches, between fields that calls of different kinds write.
//!
//! # Theory
//! Two fields of an object that are written by different CPUs belong on different lines. A field on a line of its own
//! ([`CachePadded`](crate::CachePadded)) makes the whole object aligned, which ordinary allocators do slowly and with
//! waste. In small objects that are made often a gap does nearly as well: the fields on its two sides lie so far apart,
//! wherever the object begins. The gap is not even written when an object is made.

use std::fmt;
use std::mem::MaybeUninit;

/// So many bytes between the field before and the field behind; for structures of a fixed order (`repr(C)`).
pub struct Gap<const BYTES: usize>(#[allow(dead_code)] MaybeUninit<[u8; BYTES]>);

impl<const BYTES: usize> Gap<BYTES> {
    /// Costs nothing.
    #[inline]
    pub const fn new() -> Self {
        Gap(MaybeUninit::uninit())
    }
}

impl<const BYTES: usize> Default for Gap<BYTES> {
    fn default() -> Self {
        Gap::new()
    }
}

impl<const BYTES: usize> fmt::Debug for Gap<BYTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gap({BYTES})")
    }
}
