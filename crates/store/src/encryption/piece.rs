//! Piece: a part of a store that is encrypted by itself, and the lengths of what stands beside it.

/// Bytes of a nonce.
pub(crate) const NONCE: usize = 24;
/// Bytes of a tag.
pub const TAG: usize = 16;
/// Bytes of the number of an object, of which all pieces have nonces.
pub const ID: usize = 16;
/// Bytes of a nonce and a tag.
pub(crate) const SEAL: usize = NONCE + TAG;
/// Bytes of the number by which a store knows its key.
pub(crate) const KEY_ID: usize = 16;

/// The part of a store that a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorePart {
    Log,
    Tree,
    Segments,
    /// Records that another engine keeps, in objects.
    Objects,
}
