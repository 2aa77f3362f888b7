//! Extent: where a piece of data lies in the segments, and what its blocks must sum to.
//!
//! The checksums stand with the name of the data and not beside the data: so data of an earlier user of the same space, or of
//! another place, does not pass for what was asked for. The bytes of an extent in a record:
//! ```text
//!   0          4        8        12
//!   | segment  | block  | len    | CRC32C of each block of 4 KiB, the last as far as it is used ...
//! ```
//! Numbers are little endian; `block` counts blocks within the segment, `len` bytes.

use crate::log::BLOCK;

/// The longest extent, in bytes.
pub const EXTENT_MAX: usize = 16 << 20;
/// Bytes before an extent's checksums.
const HEAD: usize = 12;

/// Blocks of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Span {
    pub(crate) segment: u32,
    pub(crate) block: u32,
    pub(crate) blocks: u32,
}

/// A piece of data in a segment, as the record of its owner names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    segment: u32,
    block: u32,
    len: u32,
    /// A checksum for each block.
    sums: Box<[u32]>,
}

impl Span {
    /// See [`Extent::place`].
    pub(crate) fn place(self) -> u64 {
        u64::from(self.segment) << 32 | u64::from(self.block)
    }

    /// Bytes of the segment before it.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.block) * BLOCK
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.blocks) * BLOCK
    }

    /// The block after it.
    pub(crate) fn end(self) -> u32 {
        self.block.saturating_add(self.blocks)
    }

    /// The same blocks in as few spans as can be. The spans must not overlap.
    pub(crate) fn merged(mut spans: Vec<Span>) -> Vec<Span> {
        spans.sort_unstable();
        spans.dedup_by(|next, span| {
            let touches = next.segment == span.segment && next.block == span.end();
            span.blocks += if touches { next.blocks } else { 0 };
            touches
        });
        spans
    }
}

impl Extent {
    /// `bytes` as they lie in `span`.
    pub(crate) fn of(span: Span, bytes: &[u8]) -> Extent {
        let sums = bytes.chunks(BLOCK as usize).map(crc32c::crc32c).collect();
        Extent { segment: span.segment, block: span.block, len: bytes.len() as u32, sums }
    }

    /// Length of the data, in bytes: not 0.
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> u64 {
        u64::from(self.len)
    }

    /// Bytes of a segment that it occupies: whole blocks.
    pub fn allocated(&self) -> u64 {
        self.span().bytes()
    }

    /// The place of its first byte: two extents in use at the same time have different places.
    pub fn place(&self) -> u64 {
        self.span().place()
    }

    pub(crate) fn span(&self) -> Span {
        Span { segment: self.segment, block: self.block, blocks: self.sums.len() as u32 }
    }

    /// Whether `bytes` are what block `block` of the extent holds.
    pub(crate) fn is_block(&self, block: usize, bytes: &[u8]) -> bool {
        self.sums.get(block) == Some(&crc32c::crc32c(bytes))
    }

    /// Bytes that [`encode`](Self::encode) appends.
    pub fn encoded_len(&self) -> usize {
        HEAD + 4 * self.sums.len()
    }

    /// Appends the extent as a record holds it.
    pub fn encode(&self, to: &mut Vec<u8>) {
        for number in [self.segment, self.block, self.len].iter().chain(&*self.sums) {
            to.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// The extent that `bytes` begin with, and the bytes behind it; none if they begin with no extent.
    pub fn decode(bytes: &[u8]) -> Option<(Extent, &[u8])> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let len = number(8);
        if len == 0 || len as usize > EXTENT_MAX {
            return None;
        }
        let (sums, rest) = rest.split_at_checked(4 * (len as usize).div_ceil(BLOCK as usize))?;
        let sums = sums.chunks_exact(4).map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]));
        Some((Extent { segment: number(0), block: number(4), len, sums: sums.collect() }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_cut_is() {
        let extent = Extent::of(Span { segment: 3, block: 70, blocks: 2 }, &[5; 5000]);
        let mut bytes = Vec::new();
        extent.encode(&mut bytes);
        assert_eq!(bytes.len(), extent.encoded_len());
        for len in 0..bytes.len() {
            assert!(Extent::decode(&bytes[..len]).is_none(), "{len} bytes");
        }
        bytes.push(9);
        let (decoded, rest) = Extent::decode(&bytes).expect("whole");
        assert_eq!((decoded, rest), (extent, [9].as_slice()));
        assert!(Extent::decode(&[0xff; 64]).is_none(), "too long");
        assert!(Extent::decode(&[0; 64]).is_none(), "empty");
    }
}
