//! Compression: bytes that take fewer blocks of a segment than they have.
//!
//! # Theory
//! The algorithm is LZ4, in its block form. An extent is compressed as a whole when that saves blocks, an eighth of them or more. Elsewhere the
//! saved room is not worth a copy at each read. Noise costs little: the longer the compressor finds nothing, the larger its
//! steps become, so no sample is taken before.
//!
//! # Invariant
//! Decompression never takes more memory than the length that the record of the owner names, whatever the bytes are.

use crate::format::BLOCK;

/// Compression must save a block of this many.
const WORTH: usize = 8;
/// Whether this build compresses, and reads what is compressed.
pub(crate) const IS_BUILT_IN: bool = cfg!(feature = "compression");

fn blocks(len: usize) -> usize {
    len.div_ceil(BLOCK as usize)
}

/// The compressed `bytes`, if they take enough blocks less.
#[cfg(feature = "compression")]
pub(crate) fn compressed(bytes: &[u8]) -> Option<Vec<u8>> {
    let of = blocks(bytes.len());
    if of < 2 {
        return None;
    }
    let mut to = vec![0; lz4_flex::block::get_maximum_output_size(bytes.len())];
    let len = lz4_flex::block::compress_into(bytes, &mut to).ok()?;
    to.truncate(len);
    (blocks(len) + of.div_ceil(WORTH) <= of).then_some(to)
}

/// Decompresses `bytes` into `to`, and returns the number of decompressed bytes. None if `to` is too short, or `bytes` did not
/// come from the compressor.
#[cfg(feature = "compression")]
pub(crate) fn decompress(bytes: &[u8], to: &mut [u8]) -> Option<usize> {
    lz4_flex::block::decompress_into(bytes, to).ok()
}

/// None: this build does not compress.
#[cfg(not(feature = "compression"))]
pub(crate) fn compressed(bytes: &[u8]) -> Option<Vec<u8>> {
    let _ = (WORTH, blocks(bytes.len()));
    None
}

/// None: this build does not decompress.
#[cfg(not(feature = "compression"))]
pub(crate) fn decompress(_bytes: &[u8], _to: &mut [u8]) -> Option<usize> {
    None
}

#[cfg(all(test, feature = "compression", not(feature = "sim")))]
mod tests {
    use super::*;
    use sluice_sync::random::Random;

    const B: usize = BLOCK as usize;

    fn noise(random: &mut Random, len: usize) -> Vec<u8> {
        (0..len).map(|_| random.below(256) as u8).collect()
    }

    #[test]
    fn what_saves_too_few_blocks_is_not_compressed() {
        let mut random = Random::new(1);
        for len in [1, 100, B, B + 1, 16 * B] {
            assert!(compressed(&noise(&mut random, len)).is_none_or(|to| to.len() <= B), "{len} bytes");
            assert_eq!(compressed(&vec![7; len]).is_some(), len > B, "{len} bytes");
        }
        // Two of sixteen blocks must be saved.
        for (zeros, is_worth) in [(B, false), (B + B / 2, false), (2 * B + B / 2, true)] {
            let mut bytes = noise(&mut random, 16 * B);
            bytes[..zeros].fill(0);
            assert_eq!(compressed(&bytes).is_some(), is_worth, "{zeros} zeros");
        }
    }

    #[test]
    fn hostile_bytes_give_no_more_than_was_asked_for_and_no_panic() {
        let mut random = Random::new(7);
        let text = b"words that come again and again, words ".repeat(400);
        let whole = compressed(&text).expect("it is worth it");
        let mut to = vec![0; text.len()];
        assert_eq!(decompress(&whole, &mut to), Some(text.len()));
        assert_eq!(to, text);
        let (mut none, mut some) = (0, 0);
        for round in 0..20_000 {
            let mut bytes = whole.clone();
            match round % 3 {
                0 => bytes.truncate(random.below(whole.len())),
                1 => bytes = (0..random.below(300)).map(|_| random.below(256) as u8).collect(),
                _ => (0..1 + random.below(4)).for_each(|_| {
                    let at = random.below(bytes.len());
                    bytes[at] = random.below(256) as u8;
                }),
            }
            let room = if round % 2 == 0 { text.len() } else { random.below(text.len()) };
            let mut to = vec![0; room];
            match decompress(&bytes, &mut to) {
                Some(len) => {
                    assert!(len <= room);
                    some += 1;
                }
                None => none += 1,
            }
        }
        assert!(none > 1000 && some > 100, "{none} {some}");
    }
}
