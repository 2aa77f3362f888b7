//! Again: the answer to a request that a server before this one executed, durably, and did not answer, or whose answer was lost.
//!
//! # Limits
//! The answer tells of the file as it is now: others may have changed it meanwhile.

use crate::abi::{CreateIn, InHeader, LinkIn, MkdirIn, MknodIn, WriteIn, WriteOut, opcode};
use crate::connection::Connection;
use crate::reply::Reply;
use crate::request::request_bytes;
use zerocopy::FromBytes;

/// Bytes of GETATTR behind the header: zeros, which name no open file.
const GETATTR_LEN: usize = 16;

/// The treatment of a request that was executed.
pub enum Again<'r> {
    /// The request gets this answer.
    Answer(&'r [u8]),
    /// This one is served in its place.
    Instead(Vec<u8>),
}

/// Decides the treatment of `message`, which was executed. `named` is the number of the inode that has got a name by
/// it, or 0. An answer is built in `reply`.
pub fn again<'r>(
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
