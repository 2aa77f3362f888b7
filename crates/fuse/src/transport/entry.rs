//! Entry: the memory through which one request after another goes over a ring.
//!
//! # Theory
//! The kernel puts a request into two pieces of memory that were registered with it: a header of fixed size, and a payload.
//! An entry has both in one block, with room between them, so that the request can be made one message without moving its
//! data:
//! ```text
//!   0           128         256       288       456                      456 + payload
//!   | in/out    | op        | place   | room    | payload                |
//!     header of   its fixed   which     |         names or data;
//!     the message layout      request   |         then the body of the answer
//!                                       +- the first two are copied to the end of this
//! ```
//! The answer takes the same way back: its header where that of the request was, its body over the payload. So it must
//! have been built elsewhere.
//!
//! # Invariants
//! - I1 Nothing that the kernel writes makes an access leave the block.

use crate::abi::{InHeader, OutHeader, RingPlace};
use crate::reply::Reply;
use sluice_vfs::Errno;
use std::mem::size_of;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Where the fixed layout of a request stands, and how long it may be.
const OP: usize = 128;
const OP_MAX: usize = 128;
/// Where the kernel says which request this is.
const PLACE: usize = OP + OP_MAX;
/// The end of what the kernel takes for the header.
const HEADER_END: usize = PLACE + size_of::<RingPlace>();
/// Where the payload begins.
const PAYLOAD: usize = HEADER_END + size_of::<InHeader>() + OP_MAX;

/// One request at a time.
pub(super) struct RingEntry(Vec<u8>);

impl RingEntry {
    /// An entry whose requests and answers have a payload of at most `payload_len` bytes.
    pub(super) fn new(payload_len: usize) -> RingEntry {
        RingEntry(vec![0; PAYLOAD + payload_len])
    }

    /// The kernel's target buffers: the header and the payload.
    pub(super) fn segments(&mut self) -> [&mut [u8]; 2] {
        let (header, rest) = self.0.split_at_mut(HEADER_END);
        [header, &mut rest[PAYLOAD - HEADER_END..]]
    }

    /// The number of the request.
    pub(super) fn unique(&self) -> u64 {
        self.header().unique
    }

    /// By which number the kernel knows the request when it is answered.
    pub(super) fn commit_id(&self) -> u64 {
        self.place().commit_id
    }

    /// The request as one message.
    ///
    /// # Errors
    /// `EIO` when its lengths do not fit together.
    pub(super) fn message(&mut self) -> Result<&[u8], Errno> {
        let range = self.gather().ok_or(Errno::EIO)?;
        Ok(&self.0[range])
    }

    /// Answers with `message`, header and body.
    pub(super) fn answer(&mut self, message: &[u8]) {
        let (header, body) = message.split_at(size_of::<OutHeader>());
        if body.len() > self.0.len() - PAYLOAD {
            // The answer exceeds the kernel's buffer, so the kernel cannot have asked for so much.
            return self.fail(Errno::EIO);
        }
        self.0[..header.len()].copy_from_slice(header);
        self.0[PAYLOAD..PAYLOAD + body.len()].copy_from_slice(body);
        let place = RingPlace { payload_len: body.len() as u32, ..self.place() };
        self.0[PLACE..HEADER_END].copy_from_slice(place.as_bytes());
    }

    /// Answers with `errno`.
    pub(super) fn fail(&mut self, errno: Errno) {
        self.answer(Reply::new().failure(self.unique(), errno));
    }

    /// Copies header and fixed layout before the payload.
    fn gather(&mut self) -> Option<Range<usize>> {
        let payload_len = self.place().payload_len as usize;
        if payload_len > self.0.len() - PAYLOAD {
            return None;
        }
        let header_len = size_of::<InHeader>();
        let op_len = (self.header().len as usize).checked_sub(header_len + payload_len)?;
        if op_len > OP_MAX {
            return None;
        }
        let (op_start, start) = (PAYLOAD - op_len, PAYLOAD - op_len - header_len);
        self.0.copy_within(..header_len, start);
        self.0.copy_within(OP..OP + op_len, op_start);
        Some(start..PAYLOAD + payload_len)
    }

    fn header(&self) -> InHeader {
        InHeader::read_from_prefix(&self.0).expect("the block is longer than a header").0
    }

    fn place(&self) -> RingPlace {
        RingPlace::read_from_prefix(&self.0[PLACE..]).expect("the block is longer than this").0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::message;

    const NUMBER: u64 = 77;

    /// An entry that the kernel has put a request of these parts into, whatever its header says of its length.
    fn filled(len: usize, op: &[u8], payload: &[u8], payload_len: u32) -> RingEntry {
        let mut entry = RingEntry::new(8192);
        let mut header = message(1, 1, &[op, payload]);
        header.truncate(size_of::<InHeader>());
        header[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        header[8..16].copy_from_slice(&NUMBER.to_ne_bytes());
        let place = RingPlace { flags: 0, commit_id: NUMBER, payload_len, padding: 0, reserved: 0 };
        let [head, body] = entry.segments();
        head[..header.len()].copy_from_slice(&header);
        head[OP..OP + op.len()].copy_from_slice(op);
        head[PLACE..].copy_from_slice(place.as_bytes());
        body[..payload.len()].copy_from_slice(payload);
        entry
    }

    fn error(entry: &mut RingEntry) -> i32 {
        let [head, _] = entry.segments();
        i32::from_ne_bytes(head[4..8].try_into().expect("four bytes"))
    }

    #[test]
    fn a_request_becomes_one_message_and_its_answer_takes_its_place() {
        for (op, payload) in [(&[7; 16][..], &b"name\0"[..]), (&[], b"name\0"), (&[9; 128], b""), (&[], b"")]
        {
            let len = 40 + op.len() + payload.len();
            let mut entry = filled(len, op, payload, payload.len() as u32);
            let message = entry.message().expect("it is whole");
            assert_eq!((message.len(), &message[40..40 + op.len()]), (len, op));
            assert_eq!(&message[40 + op.len()..], payload);
            let mut reply = Reply::new();
            reply.put_bytes(b"the answer");
            entry.answer(reply.success(NUMBER));
            assert_eq!((entry.commit_id(), entry.place().payload_len, error(&mut entry)), (NUMBER, 10, 0));
            assert_eq!(entry.segments()[1][..10], *b"the answer");
        }
    }

    #[test]
    fn lengths_that_do_not_fit_together_are_refused() {
        for (len, payload_len) in [(0, 0), (39, 0), (44, 5), (40 + 129, 0), (9000, 8193), (100, u32::MAX)] {
            let mut entry = filled(len, &[], b"", payload_len);
            assert_eq!(entry.message(), Err(Errno::EIO), "{len} {payload_len}");
            entry.fail(Errno::EIO);
            assert_eq!((error(&mut entry), entry.place().payload_len), (-5, 0));
        }
    }

    #[test]
    fn an_answer_longer_than_the_kernel_has_room_for_is_an_error() {
        let mut entry = filled(40, &[], b"", 0);
        let mut reply = Reply::new();
        reply.put_bytes(&[1; 8193]);
        entry.answer(reply.success(NUMBER));
        assert_eq!((error(&mut entry), entry.place().payload_len), (-5, 0));
    }
}
