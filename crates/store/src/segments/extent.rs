//! Extent: where a piece of data lies in the segments, and what says that its blocks are what was written.
//!
//! The checksums stand with the name of the data and not beside the data: so data of an earlier user of the same space, or of
//! another place, does not pass for what was asked for. The bytes of an extent in a record:
//! ```text
//!   0          4        8        12
//!   | segment  | block  | len    | CRC32C of each block of 4 KiB, the last as far as it is used ...
//! ```
//! Numbers are little endian; `block` counts blocks within the segment, `len` bytes.
//!
//! In an encrypted store the highest bit of `len` is set, and nonces and tags stand for the checksums. Whole blocks are encrypted, so
//! that the segment does not show where data end:
//! ```text
//!   0          4        8        12      28
//!   | segment  | block  | len    | nonce | tag of each block, 16 bytes each ...
//! ```
//! The nonce of a block is the one that stands here, and the block's number within the extent (8 bytes).
//!
//! With the second highest bit of `len` the data are compressed. `len` is their length without that. Behind it stands how many bytes are stored,
//! and checksums, or nonces and tags, are of these:
//! ```text
//!   0          4        8        12       16
//!   | segment  | block  | len    | stored | CRC32C of each block ...
//! ```

use crate::encryption::{Cipher, NONCE, StorePart, TAG, random};
use crate::format::BLOCK;
use std::io;

/// The longest extent, in bytes.
pub const EXTENT_MAX: usize = 16 << 20;
/// Bytes before an extent's checksums.
const HEAD: usize = 12;
/// Bytes of a checksum.
const SUM: usize = 4;
/// Bytes of a nonce that all blocks of an extent have in common.
const COMMON: usize = NONCE - 8;
/// The bit of the length that says that an extent is encrypted.
const ENCRYPTED: u32 = 1 << 31;
/// The bit of the length that says that an extent is compressed.
const COMPRESSED: u32 = 1 << 30;
/// Bytes of the length of what is stored.
const STORED: usize = 4;

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
    /// Bytes that are stored of the data: fewer than `len` if they are compressed.
    stored: u32,
    is_encrypted: bool,
    /// As the record has them: a checksum for each block; or a nonce, and a tag for each block.
    proofs: Box<[u8]>,
}

/// Data as an encrypted store has them.
pub(crate) struct EncryptedData {
    /// Whole blocks.
    pub(crate) bytes: Vec<u8>,
    len: usize,
    proofs: Box<[u8]>,
}

impl EncryptedData {
    /// `bytes`, encrypted.
    ///
    /// # Errors
    /// The system's, without random numbers.
    pub(crate) fn of(bytes: &[u8], cipher: &Cipher) -> io::Result<EncryptedData> {
        let (len, common) = (bytes.len(), random::<COMMON>()?);
        let mut proofs = Vec::with_capacity(COMMON + TAG * len.div_ceil(BLOCK as usize));
        proofs.extend_from_slice(&common);
        let mut stored = Vec::with_capacity(len.next_multiple_of(BLOCK as usize));
        stored.extend_from_slice(bytes);
        stored.resize(len.next_multiple_of(BLOCK as usize), 0);
        for (block, bytes) in stored.chunks_mut(BLOCK as usize).enumerate() {
            let nonce = nonce_of(&common, block);
            proofs.extend_from_slice(&cipher.encrypt_under(&nonce, StorePart::Segments, &[], bytes)?);
        }
        Ok(EncryptedData { bytes: stored, len, proofs: proofs.into() })
    }
}

/// The nonce of block `block` of an extent with this `common` one.
fn nonce_of(common: &[u8; COMMON], block: usize) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    nonce[..COMMON].copy_from_slice(common);
    nonce[COMMON..].copy_from_slice(&(block as u64).to_le_bytes());
    nonce
}

impl Span {
    /// The place of its first byte: see [`Extent::place`].
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

    /// The given blocks in as few spans as can be. The spans must not overlap.
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
        let mut sums = Vec::with_capacity(SUM * bytes.len().div_ceil(BLOCK as usize));
        for block in bytes.chunks(BLOCK as usize) {
            sums.extend_from_slice(&crc32c::crc32c(block).to_le_bytes());
        }
        let Span { segment, block, .. } = span;
        let len = bytes.len() as u32;
        Extent { segment, block, len, stored: len, is_encrypted: false, proofs: sums.into() }
    }

    /// Encrypted `data` as they lie in `span`.
    pub(crate) fn of_encrypted(span: Span, data: EncryptedData) -> Extent {
        let Span { segment, block, .. } = span;
        let len = data.len as u32;
        Extent { segment, block, len, stored: len, is_encrypted: true, proofs: data.proofs }
    }

    /// This extent with data that were `len` bytes long before compression.
    pub(crate) fn compressed_from(self, len: usize) -> Extent {
        Extent { len: len as u32, ..self }
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
        let blocks = (self.stored as usize).div_ceil(BLOCK as usize) as u32;
        Span { segment: self.segment, block: self.block, blocks }
    }

    /// Bytes of the segment that say what it holds.
    pub(crate) fn stored(&self) -> u64 {
        if self.is_encrypted { self.allocated() } else { self.stored.into() }
    }

    /// Whether the data are compressed.
    pub(crate) fn is_compressed(&self) -> bool {
        self.stored != self.len
    }

    /// The part of the [`stored`](Self::stored) bytes that is not there to fill a block.
    pub(crate) fn unfilled<'b>(&self, stored: &'b [u8]) -> &'b [u8] {
        &stored[..self.stored as usize]
    }

    /// Whether `next` begins where this extent ends.
    pub(crate) fn is_before(&self, next: &Extent) -> bool {
        let (one, next) = (self.span(), next.span());
        one.segment == next.segment && one.end() == next.block
    }

    /// Whether `bytes` are what block `block` of the extent holds. They are decrypted if the store has a `cipher`.
    pub(crate) fn is_block(&self, block: usize, bytes: &mut [u8], cipher: Option<&Cipher>) -> bool {
        match cipher {
            None => {
                let sum = self.proofs.chunks_exact(SUM).nth(block).filter(|_| !self.is_encrypted);
                sum == Some(&crc32c::crc32c(bytes).to_le_bytes())
            }
            Some(cipher) => {
                let parts = self.proofs.split_first_chunk().filter(|_| self.is_encrypted);
                parts.is_some_and(|(common, tags)| {
                    let tag = tags.as_chunks::<TAG>().0.get(block);
                    let nonce = nonce_of(common, block);
                    tag.is_some_and(|tag| cipher.decrypt_under(&nonce, StorePart::Segments, &[], bytes, tag))
                })
            }
        }
    }

    /// Bytes that [`encode`](Self::encode) appends.
    pub fn encoded_len(&self) -> usize {
        HEAD + if self.is_compressed() { STORED } else { 0 } + self.proofs.len()
    }

    /// Appends the extent as a record holds it.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let is_compressed = self.is_compressed();
        let kinds = [(self.is_encrypted, ENCRYPTED), (is_compressed, COMPRESSED)];
        let len = kinds.iter().filter(|(is, _)| *is).fold(self.len, |len, (_, bit)| len | bit);
        let stored = is_compressed.then_some(self.stored);
        for number in [self.segment, self.block, len].into_iter().chain(stored) {
            to.extend_from_slice(&number.to_le_bytes());
        }
        to.extend_from_slice(&self.proofs);
    }

    /// The extent that `bytes` begin with, and the bytes behind it; none if they begin with no extent.
    pub fn decode(bytes: &[u8]) -> Option<(Extent, &[u8])> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (len, kinds) = (number(8) & !(ENCRYPTED | COMPRESSED), number(8));
        let (is_encrypted, is_compressed) = (kinds & ENCRYPTED != 0, kinds & COMPRESSED != 0);
        if len == 0 || len as usize > EXTENT_MAX {
            return None;
        }
        let blocks_of = |len: u32| (len as usize).div_ceil(BLOCK as usize);
        let (stored, rest) = match rest.split_first_chunk::<STORED>().filter(|_| is_compressed) {
            Some((stored, rest)) => (u32::from_le_bytes(*stored), rest),
            None if is_compressed => return None,
            None => (len, rest),
        };
        let blocks = blocks_of(stored);
        if is_compressed && (stored == 0 || blocks >= blocks_of(len)) {
            return None;
        }
        let proofs = if is_encrypted { COMMON + TAG * blocks } else { SUM * blocks };
        let (proofs, rest) = rest.split_at_checked(proofs)?;
        let (segment, block) = (number(0), number(4));
        Some((Extent { segment, block, len, stored, is_encrypted, proofs: proofs.into() }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_decoded_and_nothing_cut_is(extent: &Extent) {
        let mut bytes = Vec::new();
        extent.encode(&mut bytes);
        assert_eq!(bytes.len(), extent.encoded_len());
        for len in 0..bytes.len() {
            assert!(Extent::decode(&bytes[..len]).is_none(), "{len} bytes");
        }
        bytes.push(9);
        let (decoded, rest) = Extent::decode(&bytes).expect("whole");
        assert_eq!((&decoded, rest), (extent, [9].as_slice()));
    }

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_cut_is() {
        let span = Span { segment: 3, block: 70, blocks: 2 };
        is_decoded_and_nothing_cut_is(&Extent::of(span, &[5; 5000]));
        assert!(Extent::decode(&[0xff; 64]).is_none(), "too long");
        assert!(Extent::decode(&[0; 64]).is_none(), "empty");
    }

    #[test]
    fn a_compressed_extent_takes_the_blocks_that_are_stored_and_nonsense_is_none() {
        let span = Span { segment: 3, block: 70, blocks: 2 };
        let extent = Extent::of(span, &[5; 5000]).compressed_from(60_000);
        is_decoded_and_nothing_cut_is(&extent);
        assert_eq!((extent.len(), extent.stored(), extent.span()), (60_000, 5000, span));
        let mut bytes = Vec::new();
        extent.encode(&mut bytes);
        for (stored, len, is_one) in [
            (5000, 60_000, true),
            (5000, 8193, true),
            (5000, 8192, false),
            (5000, 100, false),
            (0, 60_000, false),
            (60_000, 60_000, false),
            (u32::MAX, 60_000, false),
            (5000, EXTENT_MAX as u32 + 1, false),
            (5000, 0, false),
        ] {
            bytes[8..12].copy_from_slice(&(len | COMPRESSED).to_le_bytes());
            bytes[12..16].copy_from_slice(&stored.to_le_bytes());
            assert_eq!(Extent::decode(&bytes).is_some(), is_one, "{stored} of {len}");
        }
    }

    #[cfg(feature = "encryption")]
    #[test]
    fn encrypted_data_do_not_show_where_they_end_and_no_block_stands_for_another() {
        let (cipher, span) = (Cipher::of(&[7; 32]), Span { segment: 3, block: 70, blocks: 2 });
        let data = EncryptedData::of(&[5; 5000], &cipher).expect("random bytes");
        let stored = data.bytes.clone();
        assert!(stored.len() == 8192 && !stored.ends_with(&[0; 8]));
        let extent = Extent::of_encrypted(span, data);
        is_decoded_and_nothing_cut_is(&extent);
        assert_eq!((extent.len(), extent.stored(), extent.span()), (5000, 8192, span));
        for block in 0..3 {
            for (at, bytes) in stored.chunks(4096).enumerate() {
                let mut bytes = bytes.to_vec();
                assert!(!extent.is_block(block, &mut bytes.clone(), None), "without the key");
                assert_eq!(extent.is_block(block, &mut bytes, Some(&cipher)), at == block);
                if at == block {
                    assert!(bytes.iter().take(5000 - 4096 * at).all(|byte| *byte == 5));
                }
            }
        }
        let plain = Extent::of(span, &[5; 5000]);
        assert!(!plain.is_block(0, &mut [5; 4096], Some(&cipher)), "a store has one kind");
    }
}
