//! Record: the values of keys, as bytes.
//!
//! ```text
//!   inode  0      1       2..4   4      8     12    16      20     28     36     44      52      60      68     76
//!          | form | xattrs| flags| mode | uid | gid | nlink | size | pages| rdev | atime | mtime | ctime | born | tail ...
//!                                                                 or the holder, of what is no device, fifo or socket
//!   form 2, of a copy, has its origin before the tail: 8 bytes; form 3, of an inode in a quota, the number of the quota: 4 bytes;
//!   form 4 has both, in this order
//!   tail   of a symbolic link: its target
//!   tail   0       8       16      24               of a regular file: its unwritten pages, in ranges
//!          | first | pages | first | pages ...
//!   name   0                8      12
//!          | inode          | mode |                 mode: the type only
//!   common 0      1         9        17      25
//!          | form | numbers | inodes | bytes | unwritten |    the last three only after a clean close
//!   cut off 0       8     16
//!          | start | end |                          chunks
//!   quota  0           8       16     24
//!          | directory | limit | used | stage |      used only after a clean close; stage 0: whole, 1: coming, 2: going
//!   scrub  0         8          16      24   32        40
//!          | started | last end | bytes | of | damaged | place ...     no place once the scrub has ended; last end: 0 before the first
//! ```
//! Numbers are little endian, times as [`Timestamp`] packs them.

use super::Stored;
use crate::data::{PAGE, PAGES_MAX, PageSet, RANGES_MAX};
use crate::inode::{Body, charged_target};
use crate::quota::{NO_QUOTA, QuotaStage};
use crate::stat::Timestamp;
use crate::{FileType, Inode, InodeFlags};
use std::collections::BTreeMap;
use std::ops::Range;

/// The form of these values, and the newest that is read.
const FORM: u8 = 1;
/// Added to the form of an inode that is a copy of another one.
const WITH_ORIGIN: u8 = 1;
/// Added to the form of an inode that belongs to a quota.
const IN_QUOTA: u8 = 2;
/// The form of the common record with sums.
const WITH_SUMS: u8 = 3;
/// The one before, without unwritten pages: there were none.
const WITH_TWO_SUMS: u8 = 2;
/// Beside the flags that `chattr` sets: the inode is in a snapshot.
const READ_ONLY: u32 = 0x8000;
/// Bytes before the number of a quota, or the tail.
const HEAD: usize = 76;

/// Whether a record could be decoded.
pub(super) fn readable<T>(decoded: Option<T>) -> Result<(), &'static str> {
    decoded.map(drop).ok_or("it cannot be read")
}

/// An inode in the store, without its names and contents.
pub(super) struct InodeRecord<'r> {
    pub(super) has_xattrs: bool,
    pub(super) flags: InodeFlags,
    /// In a snapshot.
    pub(super) is_read_only: bool,
    /// Type and permissions.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Not of a directory.
    pub(super) nlink: u32,
    pub(super) size: u64,
    /// Pages with data.
    pub(super) pages: u64,
    /// The number of a device.
    pub(super) rdev: u64,
    /// A directory with a name of it, if one is known; never of a device, a fifo or a socket.
    pub(super) holder: Option<u64>,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) born: Timestamp,
    /// The number of the inode that was copied; 0: it is no copy, or nobody knows.
    pub(super) origin: u64,
    /// The number of its quota.
    pub(super) quota: u32,
    /// The target of a symbolic link, or the [unwritten](Self::unwritten) pages of a regular file.
    pub(super) tail: &'r [u8],
}

impl<'r> InodeRecord<'r> {
    /// The record of `inode` as it is now, without its unwritten pages.
    pub(super) fn of(inode: &'r Inode) -> InodeRecord<'r> {
        let (size, pages, rdev, tail) = match &inode.body {
            Body::Regular => (inode.data.size(), inode.data.data_pages(), 0, &[][..]),
            Body::Directory(_) => (0, 0, 0, &[][..]),
            Body::Symlink(target) => (0, 0, 0, &target[..]),
            Body::Special { rdev, .. } => (0, 0, *rdev, &[][..]),
        };
        let nlink = if inode.is_dir() { 0 } else { inode.nlink() };
        let holder = inode.stored().and_then(Stored::holder);
        let has_xattrs = inode.has_xattrs();
        let attr = inode.attr.read();
        InodeRecord {
            has_xattrs: has_xattrs || attr.has_acls,
            flags: inode.flags(),
            is_read_only: inode.is_read_only(),
            mode: inode.file_type().mode_bits() | attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            nlink,
            size,
            pages,
            rdev,
            holder: holder.filter(|_| !matches!(inode.body, Body::Special { .. })),
            atime: inode.times.atime(),
            mtime: inode.times.mtime(),
            ctime: inode.times.ctime(),
            born: inode.born(),
            origin: inode.origin_if_other(),
            quota: inode.quota_number(),
            tail,
        }
    }

    /// Bytes that it counts for, but for extended attributes.
    pub(super) fn charged(&self) -> u64 {
        match FileType::from_mode(self.mode) {
            Some(FileType::Symlink) => charged_target(self.tail.len()),
            _ => (self.pages + self.unwritten().map_or(0, |unwritten| unwritten.len())).saturating_mul(PAGE),
        }
    }

    /// The unwritten pages, which only a regular file has; None if these are no ranges in order, or too many.
    pub(super) fn unwritten(&self) -> Option<PageSet> {
        let is_regular = FileType::from_mode(self.mode) == Some(FileType::Regular);
        let (words, rest) = if is_regular { self.tail } else { &[] }.as_chunks::<8>();
        let (ranges, odd) = words.as_chunks::<2>();
        let (mut unwritten, mut free_from) = (PageSet::new(), 0);
        for [first, pages] in ranges.iter().map(|range| range.map(u64::from_le_bytes)) {
            let end = first.checked_add(pages).filter(|end| pages > 0 && *end <= PAGES_MAX)?;
            // Two ranges that touch would be one.
            if first < free_from {
                return None;
            }
            free_from = end + 1;
            unwritten.insert(first..end);
        }
        (ranges.len() <= RANGES_MAX && odd.is_empty() && rest.is_empty()).then_some(unwritten)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + 12 + self.tail.len());
        // There are no others than these.
        let read_only = if self.is_read_only { READ_ONLY } else { 0 };
        let [low, high, ..] = (self.flags.bits() | read_only).to_le_bytes();
        let with_origin = if self.origin == 0 { 0 } else { WITH_ORIGIN };
        let form = FORM + with_origin + if self.quota == NO_QUOTA { 0 } else { IN_QUOTA };
        bytes.extend_from_slice(&[form, u8::from(self.has_xattrs), low, high]);
        for word in [self.mode, self.uid, self.gid, self.nlink] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let times = [self.atime, self.mtime, self.ctime, self.born].map(Timestamp::pack);
        let place = self.holder.unwrap_or(self.rdev);
        for word in [self.size, self.pages, place].into_iter().chain(times) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        if self.origin != 0 {
            bytes.extend_from_slice(&self.origin.to_le_bytes());
        }
        if self.quota != NO_QUOTA {
            bytes.extend_from_slice(&self.quota.to_le_bytes());
        }
        bytes.extend_from_slice(self.tail);
        bytes
    }

    /// Decodes `bytes`; None if they are no inode record.
    pub(super) fn decode(bytes: &'r [u8]) -> Option<InodeRecord<'r>> {
        InodeRecord::decode_head(bytes).filter(|record| record.unwritten().is_some())
    }

    /// Decodes `bytes`, whatever the tail of a regular file is.
    pub(super) fn decode_head(bytes: &'r [u8]) -> Option<InodeRecord<'r>> {
        let (head, mut tail) = bytes.split_first_chunk::<HEAD>()?;
        let parts = head[0].checked_sub(FORM).filter(|parts| *parts <= WITH_ORIGIN + IN_QUOTA)?;
        let (mut origin, mut quota) = (0, NO_QUOTA);
        if parts & WITH_ORIGIN != 0 {
            let number;
            (number, tail) = tail.split_first_chunk()?;
            origin = u64::from_le_bytes(*number);
        }
        if parts & IN_QUOTA != 0 {
            let number;
            (number, tail) = tail.split_first_chunk()?;
            quota = u32::from_le_bytes(*number);
        }
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let time = |at: usize| Timestamp::unpack(long(at));
        let mode = word(4);
        let file_type = FileType::from_mode(mode)?;
        let is_held = matches!(file_type, FileType::Regular | FileType::Directory | FileType::Symlink);
        Some(InodeRecord {
            has_xattrs: head[1] != 0,
            flags: InodeFlags::from_bits_truncate(word(0) >> 16),
            is_read_only: word(0) >> 16 & READ_ONLY != 0,
            mode,
            uid: word(8),
            gid: word(12),
            nlink: word(16),
            size: long(20),
            pages: long(28),
            rdev: if is_held { 0 } else { long(36) },
            holder: Some(long(36)).filter(|holder| is_held && *holder != 0),
            atime: time(44),
            mtime: time(52),
            ctime: time(60),
            born: time(68),
            origin,
            quota,
            tail,
        })
    }
}

/// The tail of a regular file's record.
pub(super) fn tail_of(unwritten: &PageSet) -> Vec<u8> {
    let words = unwritten.ranges().flat_map(|range| [range.start, range.end - range.start]);
    words.flat_map(u64::to_le_bytes).collect()
}

/// The value of a name.
pub(super) fn name(inode: &Inode) -> [u8; 12] {
    name_value(inode.ino(), inode.file_type())
}

/// The value of a name that leads to inode `ino`.
pub(super) fn name_value(ino: u64, file_type: FileType) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&ino.to_le_bytes());
    bytes[8..].copy_from_slice(&file_type.mode_bits().to_le_bytes());
    bytes
}

/// The inode to which a name with this value leads, and the bits of its type.
pub(super) fn named_type(bytes: &[u8]) -> Option<(u64, u32)> {
    let (ino, bits) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*ino), u32::from_le_bytes(bits.try_into().ok()?)))
}

/// The inode to which a name with this value leads.
pub(super) fn named(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk::<8>().map(|ino| u64::from_le_bytes(*ino))
}

/// The value of an orphan record, of a directory that has names or not.
pub(super) fn orphan(has_names: bool) -> &'static [u8] {
    if has_names { b"n" } else { b"" }
}

/// The value of what is cut off: these chunks.
pub(super) fn cut_off(chunks: &Range<u64>) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&chunks.start.to_le_bytes());
    bytes[8..].copy_from_slice(&chunks.end.to_le_bytes());
    bytes
}

/// The chunks that this value says.
pub(super) fn decode_cut_off(bytes: &[u8]) -> Option<Range<u64>> {
    let ([start, end], []) = bytes.as_chunks::<8>() else { return None };
    Some(u64::from_le_bytes(*start)..u64::from_le_bytes(*end))
}

/// A quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QuotaRecord {
    /// The inode number of its directory.
    pub(super) dir: u64,
    /// The most bytes.
    pub(super) limit: u64,
    /// Bytes in use; true as long as the sums of all files are.
    pub(super) used: u64,
    pub(super) stage: QuotaStage,
}

impl QuotaRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut value: Vec<u8> =
            [self.dir, self.limit, self.used].iter().flat_map(|word| word.to_le_bytes()).collect();
        value.push(match self.stage {
            QuotaStage::Whole => 0,
            QuotaStage::Coming => 1,
            QuotaStage::Going => 2,
        });
        value
    }

    pub(super) fn decode(value: &[u8]) -> Option<QuotaRecord> {
        let (words, [stage]) = value.as_chunks::<8>() else { return None };
        let [dir, limit, used] = words else { return None };
        let stage = match stage {
            0 => QuotaStage::Whole,
            1 => QuotaStage::Coming,
            2 => QuotaStage::Going,
            _ => return None,
        };
        let [dir, limit, used] = [dir, limit, used].map(|word| u64::from_le_bytes(*word));
        Some(QuotaRecord { dir, limit, used, stage })
    }
}

/// Bytes in use, by the number of the quota.
pub(super) type QuotaUses = BTreeMap<u32, u64>;

/// How far the scrub has got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScrubRecord {
    pub(super) started: Timestamp,
    /// The time at which a scrub ended last.
    pub(super) last_end: Option<Timestamp>,
    /// Bytes that were read, of so many.
    pub(super) bytes: u64,
    pub(super) of: u64,
    /// Findings.
    pub(super) damaged: u64,
    /// The key at which the next step begins; empty when the scrub has ended.
    pub(super) place: Vec<u8>,
}

impl ScrubRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let last_end = self.last_end.map_or(0, Timestamp::pack);
        let words = [self.started.pack(), last_end, self.bytes, self.of, self.damaged];
        let mut value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        value.extend_from_slice(&self.place);
        value
    }

    pub(super) fn decode(value: &[u8]) -> Option<ScrubRecord> {
        let (words, place) = value.split_first_chunk::<40>()?;
        let (words, []) = words.as_chunks::<8>() else { return None };
        let [started, last_end, bytes, of, damaged] = words else { return None };
        let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        Some(ScrubRecord {
            started: Timestamp::unpack(word(started)),
            last_end: (word(last_end) != 0).then(|| Timestamp::unpack(word(last_end))),
            bytes: word(bytes),
            of: word(of),
            damaged: word(damaged),
            place: place.to_vec(),
        })
    }
}

/// Totals over the inodes of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) inodes: u64,
    /// Bytes of the limited space.
    pub(super) bytes: u64,
    /// Unwritten pages.
    pub(super) unwritten: u64,
}

/// The value of what the file system has once: all numbers of inodes are below `numbers`.
pub(super) fn common(numbers: u64, sums: Option<Totals>) -> Vec<u8> {
    let mut bytes = vec![if sums.is_some() { WITH_SUMS } else { FORM }];
    bytes.extend_from_slice(&numbers.to_le_bytes());
    if let Some(Totals { inodes, bytes: space, unwritten }) = sums {
        [inodes, space, unwritten].iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    }
    bytes
}

/// Decodes such a value.
pub(super) fn decode_common(value: &[u8]) -> Option<(u64, Option<Totals>)> {
    let (form, rest) = value.split_first()?;
    let (words, rest) = rest.as_chunks();
    match (*form, words, rest) {
        (FORM, [numbers], []) => Some((u64::from_le_bytes(*numbers), None)),
        (WITH_SUMS | WITH_TWO_SUMS, [numbers, inodes, bytes, unwritten @ ..], [])
            if unwritten.len() == usize::from(*form == WITH_SUMS) =>
        {
            let [numbers, inodes, bytes] = [numbers, inodes, bytes].map(|word| u64::from_le_bytes(*word));
            let unwritten = unwritten.first().map_or(0, |word| u64::from_le_bytes(*word));
            Some((numbers, Some(Totals { inodes, bytes, unwritten })))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Superblock;

    #[test]
    fn a_record_without_an_origin_is_as_earlier_versions_wrote_it_and_one_with_it_is_longer() {
        let superblock = Superblock::new(crate::Options::default());
        let record = InodeRecord { tail: &[7; 16], ..InodeRecord::of(superblock.root()) };
        let plain = record.encode();
        assert_eq!((plain[0], plain.len(), &plain[HEAD..]), (FORM, HEAD + 16, &[7; 16][..]));
        assert_eq!(InodeRecord::decode_head(&plain).map(|record| record.origin), Some(0));
        let copy = InodeRecord { origin: 1 << 40, ..record }.encode();
        assert_eq!((copy[0], &copy[1..HEAD], copy.len()), (FORM + WITH_ORIGIN, &plain[1..HEAD], HEAD + 24));
        let decoded = InodeRecord::decode_head(&copy).map(|record| (record.origin, record.tail));
        assert_eq!(decoded, Some((1 << 40, &[7; 16][..])));
        let cut = InodeRecord::decode_head(&copy[..HEAD + 7]);
        assert!(cut.is_none() && InodeRecord::decode_head(&[&[5], &plain[1..]].concat()).is_none());
    }
}
