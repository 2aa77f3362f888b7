//! Format: what the store's own files begin with.
//!
//! `super`, 512 bytes:
//! ```text
//!   0          8           12        16       32          40             48
//!   | sluicefs | version   | crc     | uuid   | log size  | segment size | volatile | zeros ...        crc: of all 512 bytes, itself taken as zero
//! ```
//! `volatile` is 1 while the store is in use without flushes. Numbers are little endian. `crc` is CRC32C (Castagnoli).

use crate::StoreError;

/// The version of the format that this program writes, and the newest that it reads.
///
/// 2: the contents of files are in segments, inodes have flags. A store of version 1 has none of either, and is else the same.
/// 3: records of chunks that are cut off; use without flushes.
/// 4: extents that several records name.
/// 5: values in the log that are made of the ones before.
/// 6: segments of a store in an object store. One of an earlier version there has none, and is else the same.
/// 7: checksums of the tree's pages. The tree of a store of an earlier version keeps having none.
pub(crate) const VERSION: u32 = 7;
/// Bytes of the file `super`.
pub(crate) const SUPER_SIZE: usize = 512;
const MAGIC: &[u8; 8] = b"sluicefs";

/// The content of the file `super`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Super {
    /// The version of the format that it has.
    pub(crate) version: u32,
    pub(crate) uuid: [u8; 16],
    /// Bytes of the file `log`.
    pub(crate) log_size: u64,
    /// Bytes of each segment.
    pub(crate) segment_size: u64,
    /// The store is or was in use without flushes, and did not end cleanly.
    pub(crate) is_volatile: bool,
}

impl Super {
    /// The file's bytes.
    pub(crate) fn encode(&self) -> [u8; SUPER_SIZE] {
        let mut bytes = [0; SUPER_SIZE];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.uuid);
        bytes[32..40].copy_from_slice(&self.log_size.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.segment_size.to_le_bytes());
        bytes[48] = u8::from(self.is_volatile);
        let crc = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes `bytes`.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::NewerFormat`], [`StoreError::Damaged`].
    pub(crate) fn decode(bytes: &[u8; SUPER_SIZE]) -> Result<Super, StoreError> {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if &bytes[..8] != MAGIC {
            return Err(StoreError::NotAStore);
        }
        let version = number(8);
        if version > VERSION {
            return Err(StoreError::NewerFormat(version));
        }
        let mut zeroed = *bytes;
        zeroed[12..16].fill(0);
        if crc32c::crc32c(&zeroed) != number(12) {
            return Err(StoreError::Damaged("the checksum of `super` is wrong".into()));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        let long = |at| u64::from(number(at)) | u64::from(number(at + 4)) << 32;
        let is_volatile = bytes[48] != 0;
        Ok(Super { version, uuid, log_size: long(32), segment_size: long(40), is_volatile })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_version_is_refused_by_its_number_whatever_else_it_holds() {
        let mut bytes = Super {
            version: VERSION,
            uuid: [7; 16],
            log_size: 1 << 33,
            segment_size: 1 << 28,
            is_volatile: false,
        }
        .encode();
        bytes[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
        let error = Super::decode(&bytes).expect_err("newer");
        assert!(matches!(error, StoreError::NewerFormat(newer) if newer == VERSION + 1));
        let line = error.to_string();
        assert!(
            line.contains(&format!("format {}", VERSION + 1))
                && line.contains("use a newer sluice")
                && !line.contains('\n'),
            "{line}"
        );
    }

    #[test]
    fn any_flipped_bit_of_super_is_found() {
        let written = Super {
            version: VERSION,
            uuid: [7; 16],
            log_size: 1 << 33,
            segment_size: 1 << 28,
            is_volatile: true,
        };
        let bytes = written.encode();
        assert_eq!(Super::decode(&bytes).expect("as written"), written);
        for bit in 0..SUPER_SIZE * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = Super::decode(&flipped).expect_err("it is found").to_string();
            let told = ["no sluicefs store", "newer than this program", "the checksum of `super` is wrong"];
            assert!(told.iter().any(|text| error.contains(text)), "bit {bit}: {error}");
        }
    }
}
