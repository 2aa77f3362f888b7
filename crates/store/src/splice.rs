//! Splice: a value that is made of the one before it, so that a push writes only what is new of a large value.
//!
//! # Theory
//! A splice is a list of pieces. A piece has its bytes beside it, or is taken from the former value:
//! ```text
//!   0                      4       8
//!   | from: u32            | len   |                 `len` bytes of the former value, `from` there on; zeros where it ends before
//!   | u32::MAX             | len   | bytes ...       these
//! ```
//! Numbers are little endian. The log alone has splices: batches that go to the tree have values ([`Batch::merge`](crate::Batch)).

use crate::format::VALUE_MAX;

/// Stands for a place in the former value: the bytes are here.
const HERE: u32 = u32::MAX;
/// Bytes before those of a piece.
const HEAD: usize = 8;

/// Instructions to derive a value from the key's former value. The key has a value, or the store is damaged.
#[derive(Clone, Debug, Default)]
pub struct Splice {
    bytes: Vec<u8>,
    /// Where the last piece begins.
    last: usize,
}

impl Splice {
    /// An empty one, with memory for so many bytes in a few pieces.
    pub fn with_capacity(bytes: usize) -> Splice {
        Splice { bytes: Vec::with_capacity(bytes + 4 * HEAD), last: 0 }
    }

    /// Appends `bytes`.
    pub fn put(&mut self, bytes: &[u8]) {
        match self.last_piece() {
            Some((HERE, len)) => self.set_last_len(len + bytes.len() as u32),
            _ => self.begin(HERE, bytes.len() as u32),
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends `len` bytes of the former value, from `from` on.
    pub fn keep(&mut self, from: u32, len: u32) {
        match self.last_piece() {
            Some((before, so_far)) if before != HERE && before + so_far == from => {
                self.set_last_len(so_far + len);
            }
            _ => self.begin(from, len),
        }
    }

    /// As a record holds it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn last_piece(&self) -> Option<(u32, u32)> {
        let (from, len, _) = split_piece(self.bytes.get(self.last..)?)?;
        Some((from, len))
    }

    fn begin(&mut self, from: u32, len: u32) {
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(&from.to_le_bytes());
        self.bytes.extend_from_slice(&len.to_le_bytes());
    }

    fn set_last_len(&mut self, len: u32) {
        self.bytes[self.last + 4..self.last + HEAD].copy_from_slice(&len.to_le_bytes());
    }
}

/// The value that `splice`, as a record holds it, makes of the `former` one; none if it is no splice, or makes too long a value.
pub(crate) fn apply(mut splice: &[u8], former: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    while !splice.is_empty() {
        let (from, len, rest) = split_piece(splice)?;
        let (from, len) = (from as usize, len as usize);
        let end = value.len().checked_add(len).filter(|end| *end <= VALUE_MAX)?;
        if from == HERE as usize {
            let (here, rest) = rest.split_at_checked(len)?;
            value.extend_from_slice(here);
            splice = rest;
        } else {
            let there = former.get(from..).unwrap_or_default();
            value.extend_from_slice(&there[..there.len().min(len)]);
            value.resize(end, 0);
            splice = rest;
        }
    }
    Some(value)
}

/// Place and length of the piece that `bytes` begin with, and what is behind its head.
fn split_piece(bytes: &[u8]) -> Option<(u32, u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    Some((number(0), number(4), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_of_the_former_one_and_of_new_bytes() {
        let mut splice = Splice::default();
        splice.put(b"a");
        splice.put(b"b");
        splice.keep(1, 2);
        splice.keep(3, 1);
        splice.put(b"c");
        splice.keep(5, 3);
        assert_eq!(splice.bytes().len(), 4 * HEAD + 3, "what touches is one piece");
        assert_eq!(apply(splice.bytes(), b"012345").as_deref(), Some(b"ab123c5\0\0".as_slice()));
        assert_eq!(apply(splice.bytes(), b"").as_deref(), Some(b"ab\0\0\0c\0\0\0".as_slice()));
    }

    #[test]
    fn what_is_no_splice_makes_no_value() {
        let mut splice = Splice::default();
        splice.put(b"some bytes");
        for len in 1..splice.bytes().len() {
            assert!(apply(&splice.bytes()[..len], b"former").is_none(), "{len} bytes");
        }
        let mut long = Splice::default();
        long.keep(0, u32::MAX);
        assert!(apply(long.bytes(), b"former").is_none(), "longer than a value may be");
    }
}
