//! Requests of a kernel, for the unit tests of a relay.

use sluice_fuse::internal::abi::InHeader;
use zerocopy::FromZeros;

/// A whole request with this opcode, node and body.
pub(crate) fn message(opcode: u32, nodeid: u64, body: &[&[u8]]) -> Vec<u8> {
    let header = InHeader { opcode, unique: 7, nodeid, pid: 1, ..InHeader::new_zeroed() };
    sluice_fuse::internal::request_bytes(header, body)
}
