//! Reply: the outcome of a request, and the bytes of its answer, header and body in one buffer that a worker uses again and again.

use crate::abi::{InHeader, OutHeader};
use sluice_vfs::{Errno, Whence};
use zerocopy::{Immutable, IntoBytes};

const HEADER: usize = size_of::<OutHeader>();

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Served: answer with the body, or with the error.
    Done(Result<(), Errno>),
    /// Served, and not to be answered.
    NoReply,
    /// Waits for a lock, or for earlier requests; will be answered later.
    Parked,
    /// Waits for the kernel's pages.
    Seek(Seek),
}

/// An LSEEK that waits for the kernel's pages.
#[derive(Debug, PartialEq, Eq)]
pub struct Seek {
    pub(crate) header: InHeader,
    pub(crate) offset: u64,
    pub(crate) whence: Whence,
}

/// An answer under construction.
#[derive(Debug)]
pub struct Reply(Vec<u8>);

#[allow(clippy::new_without_default)] // `new` is what readers expect of scratch space
impl Reply {
    /// An empty answer.
    pub fn new() -> Reply {
        Reply(vec![0; HEADER])
    }

    /// Drops the body.
    pub fn clear(&mut self) {
        self.0.truncate(HEADER);
    }

    /// The length of the body.
    pub(crate) fn len(&self) -> usize {
        self.0.len() - HEADER
    }

    /// Adds a layout to the body.
    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.0.extend_from_slice(value.as_bytes());
    }

    /// Adds bytes to the body.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Adds zeros until the body's length is a multiple of `align`.
    pub(crate) fn pad(&mut self, align: usize) {
        let len = self.len().next_multiple_of(align);
        self.0.resize(HEADER + len, 0);
    }

    /// Writes `value` over what is at `offset` of the body.
    ///
    /// # Panics
    /// When the body does not reach that far, which would be a bug of the caller.
    pub(crate) fn put_at<T: IntoBytes + Immutable>(&mut self, offset: usize, value: &T) {
        let start = HEADER + offset;
        self.0[start..start + size_of::<T>()].copy_from_slice(value.as_bytes());
    }

    /// Adds up to `len` bytes that `fill` writes; it returns how many there are.
    pub(crate) fn fill<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let start = self.0.len();
        self.0.resize(start + len, 0);
        let filled = fill(&mut self.0[start..]);
        self.0.truncate(start + *filled.as_ref().unwrap_or(&0));
        filled.map(|_| ())
    }

    /// The message that answers request `unique` with the body.
    pub fn success(&mut self, unique: u64) -> &[u8] {
        self.seal(unique, 0)
    }

    /// The message that answers request `unique` with `errno`; the body is dropped.
    pub fn failure(&mut self, unique: u64, errno: Errno) -> &[u8] {
        self.clear();
        self.seal(unique, -errno.raw())
    }

    /// The message that notifies the kernel of `code` with the body.
    pub fn notification(&mut self, code: i32) -> &[u8] {
        self.seal(0, code)
    }

    fn seal(&mut self, unique: u64, error: i32) -> &[u8] {
        let len = u32::try_from(self.0.len()).expect("a reply is limited by the largest request");
        self.0[..HEADER].copy_from_slice(OutHeader { len, error, unique }.as_bytes());
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_drops_what_was_put() {
        let mut reply = Reply::new();
        reply.put_bytes(b"half an answer");
        let message = reply.failure(9, Errno::EIO).to_vec();
        assert_eq!(message.len(), 16);
        assert_eq!(message[4..8], (-5_i32).to_ne_bytes());
        assert_eq!(message[8..16], 9_u64.to_ne_bytes());
    }

    #[test]
    fn fill_keeps_what_was_filled() {
        let mut reply = Reply::new();
        reply
            .fill(100, |bytes| {
                bytes[..3].copy_from_slice(b"abc");
                Ok::<_, Errno>(3)
            })
            .expect("filling succeeds");
        reply.pad(8);
        assert_eq!(&reply.success(1)[16..], b"abc\0\0\0\0\0");
        reply.clear();
        assert_eq!(reply.fill(8, |_| Err(Errno::EIO)), Err(Errno::EIO));
        assert_eq!(reply.len(), 0);
    }
}
