//! Again: a request that a server before this one executed, durably, and did not answer, or whose answer was lost.
//!
//! # Theory
//! A relay gives each request that changes something a *slot* among those that it has under way, in a field of the header that kernels
//! leave at 0. The file system notes it with what the request changes ([`RequestId`]). A relay that is attached to another
//! server sends again what was not answered; of what is noted as executed the answer is found without doing it twice (`fuse/src/handler/again.rs`).

use sluice_fuse::internal::abi::InHeader;
use sluice_fuse::internal::{NO_ATIME, SYNCHRONOUS, is_noted};
use sluice_vfs::RequestId;
use std::mem::offset_of;
use zerocopy::FromBytes;

/// The offset of the slot in a request, as slot number plus 1: 2 bytes in machine order.
const SLOT: usize = offset_of!(InHeader, padding);
/// Mark of a request whose kernel has the answer already.
const BEHIND: u16 = 1 << 15;
/// The bits that are no part of a slot.
const MARKS: u16 = BEHIND | SYNCHRONOUS | NO_ATIME;

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
