//! Record: the values of keys, as bytes.
//!
//! ```text
//!   inode  0      1       2..4   4      8     12    16      20     28     36     44      52      60      68     76
//!          | form | xattrs| flags| mode | uid | gid | nlink | size | pages| rdev | atime | mtime | ctime | born | target ...
//!                                                                 or the holder, of what is no device, fifo or socket
//!   name   0                8      12
//!          | inode          | mode |                 mode: the type only
//!   common 0      1         9        17
//!          | form | numbers | inodes | bytes |        the last two only after a clean close
//!   cut off 0       8     16
//!          | start | end |                          chunks
//! ```
//! Numbers are little endian, times as [`Timestamp`] packs them.

use super::Stored;
use crate::inode::{Body, charged_target};
use crate::stat::Timestamp;
use crate::{FileType, Inode, InodeFlags};
use std::ops::Range;

/// The form of these values, and the newest that is read.
const FORM: u8 = 1;
/// The form of the common record with sums.
const WITH_SUMS: u8 = 2;
/// Bytes before the target of a symbolic link.
const HEAD: usize = 76;

/// An inode in the store, without its names and contents.
pub(super) struct InodeRecord<'r> {
    pub(super) has_xattrs: bool,
    pub(super) flags: InodeFlags,
    /// Type and permissions.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Not of a directory.
    pub(super) nlink: u32,
    pub(super) size: u64,
    /// Pages with data.
    pub(super) pages: u64,
    /// Of a device.
    pub(super) rdev: u64,
    /// A directory with a name of it, if one is known; never of a device, a fifo or a socket.
    pub(super) holder: Option<u64>,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) born: Timestamp,
    pub(super) target: &'r [u8],
}

impl<'r> InodeRecord<'r> {
    /// Of `inode` as it is now.
    pub(super) fn of(inode: &'r Inode) -> InodeRecord<'r> {
        let (size, pages, rdev, target) = match &inode.body {
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
            target,
        }
    }

    /// What its target counts for.
    pub(super) fn charged(&self) -> u64 {
        charged_target(self.target.len())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.target.len());
        // There are no others than these.
        let [low, high, ..] = self.flags.bits().to_le_bytes();
        bytes.extend_from_slice(&[FORM, u8::from(self.has_xattrs), low, high]);
        for word in [self.mode, self.uid, self.gid, self.nlink] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let times = [self.atime, self.mtime, self.ctime, self.born].map(Timestamp::pack);
        let place = self.holder.unwrap_or(self.rdev);
        for word in [self.size, self.pages, place].into_iter().chain(times) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(self.target);
        bytes
    }

    /// Decodes `bytes`; None if they are no inode record.
    pub(super) fn decode(bytes: &'r [u8]) -> Option<InodeRecord<'r>> {
        let (head, target) = bytes.split_first_chunk::<HEAD>()?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let time = |at: usize| Timestamp::unpack(long(at));
        let mode = word(4);
        let file_type = FileType::from_mode(mode)?;
        let is_held = matches!(file_type, FileType::Regular | FileType::Directory | FileType::Symlink);
        let record = InodeRecord {
            has_xattrs: head[1] != 0,
            flags: InodeFlags::from_bits_truncate(word(0) >> 16),
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
            target,
        };
        (head[0] == FORM).then_some(record)
    }
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

/// Totals over the inodes of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) inodes: u64,
    /// Of the space that is limited.
    pub(super) bytes: u64,
}

/// The value of what the file system has once: all numbers of inodes are below `numbers`.
pub(super) fn common(numbers: u64, sums: Option<Totals>) -> Vec<u8> {
    let mut bytes = vec![if sums.is_some() { WITH_SUMS } else { FORM }];
    bytes.extend_from_slice(&numbers.to_le_bytes());
    if let Some(Totals { inodes, bytes: space }) = sums {
        bytes.extend_from_slice(&inodes.to_le_bytes());
        bytes.extend_from_slice(&space.to_le_bytes());
    }
    bytes
}

/// What that says.
pub(super) fn decode_common(value: &[u8]) -> Option<(u64, Option<Totals>)> {
    let (form, rest) = value.split_first()?;
    let (words, rest) = rest.as_chunks();
    match (*form, words, rest) {
        (FORM, [numbers], []) => Some((u64::from_le_bytes(*numbers), None)),
        (WITH_SUMS, [numbers, inodes, bytes], []) => {
            let [numbers, inodes, bytes] = [numbers, inodes, bytes].map(|word| u64::from_le_bytes(*word));
            Some((numbers, Some(Totals { inodes, bytes })))
        }
        _ => None,
    }
}
