//! Growth: a guest's kernel learns that a file has become longer.
//!
//! # Theory
//! A kernel does not keep attributes that it asked for before a notice of their inode. The program that asked gets them all the same, and
//! the kernel goes on with the size that it had: a program that then maps the file at the new size dies of SIGBUS behind the old one. Nobody
//! can tell when a program asks, or has its answer, and nothing in the protocol sets a size. But bytes that a kernel is given to keep
//! (NOTIFY_STORE) are within its file from then on. So a kernel that is told of growth is given the last bytes, too. An answer that tells
//! of the new size waits for that, as for any announcement.
//!
//! A kernel takes the rest of its last page for zeros, and writes them back with what a program has stored there through a mapping. So it is
//! given the new bytes of that page, too.
//!
//! # Invariants
//! - I1 A kernel is given no byte but those of the change: what a program stored elsewhere in these pages stays.

use sluice_fuse::internal::abi::flags::NOTIFY_STORE;
use sluice_fuse::internal::abi::{CopyFileRangeIn, InHeader, NotifyStoreOut};
use sluice_fuse::internal::{Connection, Reply};
use sluice_fuse::opcode;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::{SlotTable, thread};
use std::ops::Range;
use zerocopy::FromBytes;

/// The least page of a kernel: of larger ones it is a part.
const PAGE: u64 = 4096;

/// The new bytes for a kernel after a change of `len` bytes from `offset` on (0: to the end), by which a file of
/// `before` bytes has grown to `size`.
fn given(before: u64, offset: u64, len: u64, size: u64) -> Vec<Range<u64>> {
    let offset = offset.max(before);
    // Else the end of the file is of another change, which is announced, too.
    let has_grown = offset < size && (len == 0 || offset.saturating_add(len) >= size);
    let Some(last) = size.checked_sub(1).filter(|_| has_grown) else { return Vec::new() };
    // Not from its first byte on: the kernel would take the page for whole.
    let of_page = |at: u64| {
        let start = at - at % PAGE;
        (start + 1).max(offset)..(start + PAGE).min(size)
    };
    let (first, tail) = (of_page(offset), of_page(last));
    let mut given = vec![first];
    if given[0] != tail {
        given.push(tail);
    }
    given.retain(|bytes| !bytes.is_empty());
    if given.last().is_none_or(|bytes| bytes.end != size) {
        // A page of one byte.
        given.push(last..size);
    }
    given
}

/// By thread slot: the file that the request which the thread executes may make longer. *Owner only.*
static BEFORE: SlotTable<Before> = SlotTable::new();

#[derive(Default)]
struct Before {
    /// Its number, or 0.
    ino: AtomicU64,
    /// Its size before.
    size: AtomicU64,
}

/// The node whose file a request may make longer.
fn grown_by(request: &[u8]) -> Option<u64> {
    let (header, body) = InHeader::read_from_prefix(request).ok()?;
    match header.opcode {
        opcode::WRITE | opcode::SETATTR | opcode::FALLOCATE => Some(header.nodeid),
        opcode::COPY_FILE_RANGE => {
            CopyFileRangeIn::read_from_prefix(body).ok().map(|(arg, _)| arg.nodeid_out)
        }
        _ => None,
    }
}

/// Notes the size of the file that `request`, which the thread is about to execute, may make longer.
pub(super) fn note_size(connection: &Connection, request: &[u8]) {
    let inode = grown_by(request).and_then(|nodeid| connection.nodes.get_known(nodeid));
    let (ino, size) = inode.map_or((0, 0), |inode| (inode.ino(), inode.stat().size));
    let before = BEFORE.get(thread::slot());
    // Relaxed, here and below: the thread's own.
    before.ino.store(ino, Ordering::Relaxed);
    before.size.store(size, Ordering::Relaxed);
}

/// The notices of growth for the kernel after a change of file `ino`, if it knows the file.
pub(super) fn growth(connection: &Connection, ino: u64, offset: u64, len: u64) -> Vec<u8> {
    let nodeid = connection.nodes.nodeid(ino);
    let mut messages = Vec::new();
    let before = BEFORE.get(thread::slot());
    if before.ino.load(Ordering::Relaxed) != ino {
        return messages;
    }
    let before = before.size.load(Ordering::Relaxed);
    let Some(inode) = connection.nodes.get_known(nodeid).filter(|_| connection.nodes.knows(ino)) else {
        return messages;
    };
    for bytes in given(before, offset, len, inode.stat().size) {
        let mut data = vec![0; (bytes.end - bytes.start) as usize];
        // It may have been cut off again.
        if inode.read_at(bytes.start, &mut data, false) != Ok(data.len()) {
            continue;
        }
        let mut message = Reply::new();
        let size = data.len() as u32;
        message.put(&NotifyStoreOut { nodeid, offset: bytes.start, size, padding: 0 });
        message.put_bytes(&data);
        messages.extend_from_slice(message.notification(NOTIFY_STORE));
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_given_the_last_bytes_of_a_file_that_grew_and_no_others_than_were_changed() {
        let given_of = |before, offset, len, size| {
            let given = given(before, offset, len, size);
            given.into_iter().map(|bytes| (bytes.start, bytes.end)).collect::<Vec<_>>()
        };
        assert_eq!(given_of(20, 0, 10, 20), []);
        assert_eq!(given_of(30, 0, 0, 20), [], "it was cut off");
        assert_eq!(given_of(4096, 0, 4096, 4096), [], "a page was written back");
        assert_eq!(given_of(0, 0, 10, 30), [], "another change tells of the end");
        assert_eq!(given_of(0, 0, 10, 10), [(1, 10)]);
        assert_eq!(given_of(8, 4, 10, 14), [(8, 14)]);
        assert_eq!(given_of(100, 100, 10_000, 10_100), [(100, 4096), (8193, 10_100)]);
        assert_eq!(given_of(4096, 4096, 4096, 8192), [(4097, 8192)]);
        assert_eq!(given_of(0, 0, 4097, 4097), [(1, 4096), (4096, 4097)]);
        assert_eq!(given_of(4096, 4096, 1, 4097), [(4096, 4097)]);
        assert_eq!(given_of(10, 0, 0, 9000), [(10, 4096), (8193, 9000)], "it was made longer");
    }
}
