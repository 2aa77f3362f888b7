//! Chunk: the value of a record of contents: 64 KiB of a file, or where they are.
//!
//! # Theory
//! ```text
//!   0      1          3
//!   | kind | pages    | the bytes of each page that has data, or the extent that holds them        pages: one bit each
//! ```
//! `kind` is 0 where the bytes follow, 1 where an extent does. Little bytes stand in the record: they go to the log and to the
//! tree, and need no flush of their own. More are written once, to a segment.

use crate::data::{CHUNK_PAGES, PAGE, PAGE_SIZE};
use sluice_store::Extent;

/// Bytes of a whole chunk.
pub(super) const CHUNK: u64 = CHUNK_PAGES * PAGE;
/// So many bytes stand in the record: those of one page.
pub(super) const HERE_MAX: usize = PAGE_SIZE;
/// Bytes before those of the pages.
pub(super) const HEAD: usize = 3;
const HERE: u8 = 0;
const THERE: u8 = 1;

/// What a record says of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk<'v> {
    /// The pages that have data, the lowest bit for the first.
    pub(super) present: u16,
    pub(super) bytes: Bytes<'v>,
}

/// The bytes of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Bytes<'v> {
    Here(&'v [u8]),
    There(Extent),
}

impl<'v> Chunk<'v> {
    /// What `value` says, if it is that of a chunk.
    pub(super) fn decode(value: &'v [u8]) -> Option<Chunk<'v>> {
        let ([kind, low, high], rest) = value.split_first_chunk::<HEAD>()?;
        let present = u16::from_le_bytes([*low, *high]);
        let (bytes, len) = match *kind {
            HERE => (Bytes::Here(rest), rest.len()),
            THERE => {
                let (extent, rest) = Extent::decode(rest)?;
                let len = usize::try_from(extent.len()).ok().filter(|_| rest.is_empty())?;
                (Bytes::There(extent), len)
            }
            _ => return None,
        };
        (len <= present.count_ones() as usize * PAGE_SIZE).then_some(Chunk { present, bytes })
    }

    /// Pages with data.
    pub(super) fn pages(&self) -> u64 {
        u64::from(self.present.count_ones())
    }

    /// The extent with its bytes, if they are in one.
    pub(super) fn extent(self) -> Option<Extent> {
        match self.bytes {
            Bytes::Here(_) => None,
            Bytes::There(extent) => Some(extent),
        }
    }
}

/// What a record begins with whose bytes follow.
pub(super) fn here(present: u16) -> [u8; HEAD] {
    let [low, high] = present.to_le_bytes();
    [HERE, low, high]
}

/// The value of a record whose bytes are in `extent`.
pub(super) fn there(present: u16, extent: &Extent) -> Vec<u8> {
    let [low, high] = present.to_le_bytes();
    let mut value = Vec::with_capacity(HEAD + extent.encoded_len());
    value.extend_from_slice(&[THERE, low, high]);
    extent.encode(&mut value);
    value
}
