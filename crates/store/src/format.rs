//! Format: the names of the store's own files, the sizes of their parts, and the file `super`.
//!
//! `super`, 512 bytes:
//! ```text
//!   0          8           12        16       32          40             48         49          50       66
//!   | sluicefs | version   | crc     | uuid   | log size  | segment size | volatile | encrypted | key id | compressed | 67: zeros ...
//! ```
//! `crc` is of all 512 bytes, itself taken as zero. `volatile` is 1 while the store is in use without flushes, `encrypted` if it is
//! encrypted under the key with the number `key id`, `compressed` 1 if
//! its data are compressed with LZ4. Numbers are little endian. `crc` is CRC32C (Castagnoli).

use crate::StoreError;
use crate::encryption::KEY_ID;

/// The file that says what this is.
pub(crate) const SUPER: &str = "super";
/// The file of the log.
pub(crate) const LOG: &str = "log";
/// The file of the engine.
pub(crate) const TREE: &str = "tree";
/// The file that a smaller tree is written to.
pub(crate) const TREE_COPY: &str = "tree.new";
/// The file with the slots of an encrypted store.
pub(crate) const KEYS: &str = "keys";
/// Bytes of that file.
pub(crate) const KEYS_SIZE: usize = 1088;
/// The file that takes the place of the slots.
pub(crate) const KEYS_COPY: &str = "keys.new";

/// The unit of space.
pub(crate) const BLOCK: u64 = 4096;
/// The longest key, in bytes.
pub const KEY_MAX: usize = 1024;
/// The longest value, in bytes.
pub const VALUE_MAX: usize = 1 << 20;

/// The newest version of the format that this program reads, and the one that it writes.
///
/// 2: the contents of files are in segments, inodes have flags. A store of version 1 has none of either, and is else the same.
/// 3: records of chunks that are cut off; use without flushes.
/// 4: extents that several records name.
/// 5: values in the log that are made of the ones before.
/// 6: segments that another engine keeps than files. A store of an earlier version there has none, and is else the same.
/// 7: checksums of the tree's pages. The tree of a store of an earlier version keeps having none.
/// 8: unwritten pages in the records of files. A store of an earlier version has none, and is else the same.
/// 9: encrypted stores.
/// 11: compressed stores.
/// 12: the origin in the records of copies; quotas of directories, and inodes in them. A store of an earlier version has none, and is else
/// the same.
pub(crate) const VERSION: u32 = 12;
/// Bytes of the file `super`.
pub(crate) const SUPER_SIZE: usize = 512;
const MAGIC: &[u8; 8] = b"sluicefs";
/// The byte of `super` that says whether data are compressed.
const COMPRESSED: usize = 50 + KEY_ID;

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
    /// The number of the key under which it is encrypted.
    pub(crate) key_id: Option<[u8; KEY_ID]>,
    /// Its data are compressed where that saves room.
    pub(crate) is_compressed: bool,
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
        if let Some(id) = self.key_id {
            bytes[49] = 1;
            bytes[50..50 + KEY_ID].copy_from_slice(&id);
        }
        bytes[COMPRESSED] = u8::from(self.is_compressed);
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
        let mut id = [0; KEY_ID];
        id.copy_from_slice(&bytes[50..50 + KEY_ID]);
        let key_id = (bytes[49] != 0).then_some(id);
        // Another way to compress is of a newer program.
        if bytes[COMPRESSED] > 1 {
            return Err(StoreError::NewerFormat(version));
        }
        let (log_size, segment_size, is_compressed) = (long(32), long(40), bytes[COMPRESSED] == 1);
        Ok(Super { version, uuid, log_size, segment_size, is_volatile, key_id, is_compressed })
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
            key_id: None,
            is_compressed: false,
        }
        .encode();
        bytes[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
        let error = Super::decode(&bytes).expect_err("newer");
        assert!(matches!(error, StoreError::NewerFormat(newer) if newer == VERSION + 1));
        let line = error.to_string();
        assert!(
            line.contains(&format!("format {}", VERSION + 1))
                && line.contains("newer than this program")
                && !line.contains('\n'),
            "{line}"
        );
    }

    #[test]
    fn a_way_to_compress_that_comes_later_is_refused() {
        let mut bytes = Super {
            version: VERSION,
            uuid: [7; 16],
            log_size: 1 << 33,
            segment_size: 1 << 28,
            is_volatile: false,
            key_id: None,
            is_compressed: true,
        }
        .encode();
        bytes[COMPRESSED] = 2;
        bytes[12..16].fill(0);
        let crc = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(Super::decode(&bytes), Err(StoreError::NewerFormat(_))));
    }

    #[test]
    fn any_flipped_bit_of_super_is_found() {
        let written = Super {
            version: VERSION,
            uuid: [7; 16],
            log_size: 1 << 33,
            segment_size: 1 << 28,
            is_volatile: true,
            key_id: Some([5; KEY_ID]),
            is_compressed: true,
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
