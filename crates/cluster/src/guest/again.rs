//! Again: a request that a server before this one executed, durably, and did not answer, or whose answer was lost.
//!
//! # Theory
//! A relay gives each request that changes something a *slot* among those that it has under way, in a field of the header that kernels
//! leave at 0. The file system notes it with what the request changes ([`RequestId`]). A relay that is attached to another
//! server sends again what was not answered; of what is noted as executed the answer is found without doing it twice.
//!
//! # Limits
//! The answer tells of the file as it is now: others may have changed it meanwhile.

use sluice_fuse::internal::abi::{CreateIn, InHeader, LinkIn, MkdirIn, MknodIn, WriteIn, WriteOut};
use sluice_fuse::internal::{Connection, NO_ATIME, Reply, SYNCHRONOUS, is_noted, request_bytes};
use sluice_fuse::opcode;
use sluice_vfs::RequestId;
use std::mem::offset_of;
use zerocopy::FromBytes;

/// The offset of the slot in a request, as slot number plus 1: 2 bytes in machine order.
const SLOT: usize = offset_of!(InHeader, padding);
/// Mark of a request whose kernel has the answer already.
const BEHIND: u16 = 1 << 15;
/// The bits that are no part of a slot.
const MARKS: u16 = BEHIND | SYNCHRONOUS | NO_ATIME;
/// Bytes of GETATTR behind the header: zeros, which name no open file.
const GETATTR_LEN: usize = 16;

/// Sets a mark of a request.
pub(crate) fn mark(message: &mut [u8], mark: u16) {
    if let Some(field) = message.get_mut(SLOT..SLOT + 2) {
        let marked = u16::from_ne_bytes([field[0], field[1]]) | mark;
        field.copy_from_slice(&marked.to_ne_bytes());
    }
}

/// Gives the request the number `slot` among those of its mount that are under way. `is_behind`: its kernel has the answer already.
pub(crate) fn set_slot(message: &mut [u8], slot: u16, is_behind: bool) {
    if let Some(field) = message.get_mut(SLOT..SLOT + 2) {
        let mark = if is_behind { BEHIND } else { 0 };
        field.copy_from_slice(&(slot.saturating_add(1) & !MARKS | mark).to_ne_bytes());
    }
}

/// Whether the kernel has had its answer to a request.
pub(super) fn is_behind(message: &[u8]) -> bool {
    InHeader::read_from_prefix(message).is_ok_and(|(header, _)| header.padding & BEHIND != 0)
}

/// The file system's id for the request of `mount`, if the request has a slot.
pub(super) fn id_of(mount: u64, message: &[u8]) -> Option<RequestId> {
    let (header, _) = InHeader::read_from_prefix(message).ok()?;
    let slot = (header.padding & !MARKS).checked_sub(1)?;
    is_noted(header.opcode).then_some(RequestId { mount, slot, number: header.unique })
}

/// The treatment of a request that was executed.
pub(super) enum Again<'r> {
    /// The request gets this answer.
    Answer(&'r [u8]),
    /// This one is served in its place.
    Instead(Vec<u8>),
}

/// Decides the treatment of `message`, which was executed. `named` is the number of the inode that has got a name by
/// it, or 0. An answer is built in `reply`.
pub(super) fn again<'r>(
    connection: &Connection,
    message: &[u8],
    named: u64,
    reply: &'r mut Reply,
) -> Option<Again<'r>> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    let unique = header.unique;
    reply.clear();
    // The length of the argument before the name that it made, and how it has opened the file.
    let made = match header.opcode {
        opcode::MKNOD => Some((size_of::<MknodIn>(), None)),
        opcode::MKDIR => Some((size_of::<MkdirIn>(), None)),
        opcode::SYMLINK => Some((0, None)),
        opcode::LINK => Some((size_of::<LinkIn>(), None)),
        opcode::CREATE => Some((size_of::<CreateIn>(), Some(CreateIn::read_from_prefix(body).ok()?.0.flags))),
        _ => None,
    };
    if let Some((before, flags)) = made {
        let name = body.get(before..)?.split(|byte| *byte == 0).next()?;
        let answer = match connection.made_before(&header, name, named, flags, reply) {
            Ok(()) => reply.success(unique),
            Err(errno) => reply.failure(unique, errno),
        };
        return Some(Again::Answer(answer));
    }
    match header.opcode {
        opcode::SETATTR => {
            let header = InHeader { opcode: opcode::GETATTR, padding: 0, total_extlen: 0, ..header };
            return Some(Again::Instead(request_bytes(header, &[&[0; GETATTR_LEN]])));
        }
        // It wrote all: a part is written only where something is injected, or the disk is full.
        opcode::WRITE => {
            let (arg, _) = WriteIn::read_from_prefix(body).ok()?;
            reply.put(&WriteOut { size: arg.size, padding: 0 });
        }
        _ => {}
    }
    Some(Again::Answer(reply.success(unique)))
}
