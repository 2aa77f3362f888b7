//! Keys: what the objects of a file system are called in its store.

use crate::NAME_MAX;
use std::ops::{Deref, Range};

/// A tag, a number, and a name or another number.
const LONGEST: usize = 1 + 8 + NAME_MAX;
/// Bytes of the record of a request, key and value.
pub(super) const REQUEST_LEN: usize = 1 + 8 + 2 + 8 + 8;
/// Room for the records of any change, but for what is of no fixed length: two names, five inodes, what else there is.
pub(super) const FIXED: usize = 2 * (LONGEST + 16) + 5 * 128 + 256 + 2 * REQUEST_LEN;

/// Before [`DATA`]: a check that reads the contents knows which do not count.
pub(super) const CUT_OFF: u8 = b'b';
pub(super) const COMMON: u8 = b'c';
pub(super) const DATA: u8 = b'd';
/// After [`DATA`]: a check that reads these has counted what contents name.
pub(super) const OWNERS: u8 = b'e';
pub(super) const UNOWNED: u8 = b'f';
pub(super) const INODE: u8 = b'i';
pub(super) const NAME: u8 = b'n';
pub(super) const ORPHAN: u8 = b'o';
pub(super) const QUOTA: u8 = b'q';
pub(super) const REQUEST: u8 = b'r';
pub(super) const SCRUB: u8 = b's';
pub(super) const XATTR: u8 = b'x';

/// A key. It has its bytes with it.
pub(super) struct Key {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Key {
    fn new(tag: u8, ino: u64, rest: &[u8]) -> Key {
        let mut bytes = [0; LONGEST];
        let len = 9 + rest.len();
        bytes[0] = tag;
        bytes[1..9].copy_from_slice(&ino.to_be_bytes());
        bytes[9..len].copy_from_slice(rest);
        Key { bytes, len }
    }

    /// All keys with this tag, except for inode number `u64::MAX`, which is never used.
    fn all(tag: u8) -> Range<Key> {
        Key::new(tag, 0, &[])..Key::new(tag, u64::MAX, &[])
    }

    /// The key of the facts that the file system has once.
    pub(super) fn common() -> Key {
        Key::new(COMMON, 0, &[])
    }

    /// The key of an inode.
    pub(super) fn inode(ino: u64) -> Key {
        Key::new(INODE, ino, &[])
    }

    /// The key of `name` in directory `dir`.
    pub(super) fn name(dir: u64, name: &[u8]) -> Key {
        Key::new(NAME, dir, name)
    }

    /// The key of the extended attribute `name`.
    pub(super) fn xattr(ino: u64, name: &[u8]) -> Key {
        Key::new(XATTR, ino, name)
    }

    /// The key of a chunk of the contents.
    pub(super) fn chunk(ino: u64, chunk: u64) -> Key {
        Key::new(DATA, ino, &chunk.to_be_bytes())
    }

    /// The key of the owner count of the extent at `place`.
    pub(super) fn owners(place: u64) -> Key {
        Key::new(OWNERS, place, &[])
    }

    /// The key that marks the extent at `place` as ownerless.
    pub(super) fn unowned(place: u64) -> Key {
        Key::new(UNOWNED, place, &[])
    }

    /// The keys of all counts of owners.
    pub(super) fn all_owners() -> Range<Key> {
        Key::all(OWNERS)
    }

    /// The keys of all extents without an owner.
    pub(super) fn all_unowned() -> Range<Key> {
        Key::all(UNOWNED)
    }

    /// The key of an inode without a name.
    pub(super) fn orphan(ino: u64) -> Key {
        Key::new(ORPHAN, ino, &[])
    }

    /// The key for the range of an inode's chunks that are cut off.
    pub(super) fn cut_off(ino: u64) -> Key {
        Key::new(CUT_OFF, ino, &[])
    }

    /// The keys of all chunks that are cut off.
    pub(super) fn all_cut_off() -> Range<Key> {
        Key::all(CUT_OFF)
    }

    /// The key of the quota `number`; of 0: of the last number that was used.
    pub(super) fn quota(number: u32) -> Key {
        Key::new(QUOTA, number.into(), &[])
    }

    /// The keys of all quotas.
    pub(super) fn quotas() -> Range<Key> {
        Key::all(QUOTA)
    }

    /// The key for the executed request in slot `slot` of mount `mount`.
    pub(super) fn request(mount: u64, slot: u16) -> Key {
        Key::new(REQUEST, mount, &slot.to_be_bytes())
    }

    /// The keys of all that is executed.
    pub(super) fn requests() -> Range<Key> {
        Key::new(REQUEST, 0, &[])..Key::new(REQUEST + 1, 0, &[])
    }

    /// The key of the state of the scrub.
    pub(super) fn scrub() -> Key {
        Key::new(SCRUB, 0, &[])
    }

    /// The keys of all names in directory `dir`.
    pub(super) fn names(dir: u64) -> Range<Key> {
        Key::name(dir, &[])..Key::name(dir + 1, &[])
    }

    /// The keys of all names in all directories.
    pub(super) fn all_names() -> Range<Key> {
        Key::all(NAME)
    }

    /// The keys of all extended attributes of an inode.
    pub(super) fn xattrs(ino: u64) -> Range<Key> {
        Key::xattr(ino, &[])..Key::xattr(ino + 1, &[])
    }

    /// The keys of all its contents.
    pub(super) fn chunks(ino: u64) -> Range<Key> {
        Key::new(DATA, ino, &[])..Key::new(DATA, ino + 1, &[])
    }

    /// The keys of these chunks of its contents.
    pub(super) fn chunks_within(ino: u64, chunks: &Range<u64>) -> Range<Key> {
        Key::chunk(ino, chunks.start)..Key::chunk(ino, chunks.end)
    }

    /// The keys of all inodes.
    pub(super) fn inodes() -> Range<Key> {
        Key::all(INODE)
    }

    /// The keys of all extended attributes of all inodes.
    pub(super) fn all_xattrs() -> Range<Key> {
        Key::all(XATTR)
    }

    /// The keys of all inodes without a name.
    pub(super) fn orphans() -> Range<Key> {
        Key::all(ORPHAN)
    }
}

/// The name behind the number in a key.
pub(super) fn name_of(key: &[u8]) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

/// The number in a key: of an inode, or the place of an extent.
pub(super) fn ino_of(key: &[u8]) -> Option<u64> {
    key.get(1..9)?.try_into().ok().map(u64::from_be_bytes)
}

/// The number behind the number in a key: that of a chunk.
pub(super) fn chunk_of(key: &[u8]) -> Option<u64> {
    name_of(key).try_into().ok().map(u64::from_be_bytes)
}

impl Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
