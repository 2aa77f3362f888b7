//! Marks: what a request says beside what kernels put into it, in a field of the header that kernels leave at 0.

use crate::abi::{InHeader, opcode};

/// Mark of a request that is to be durable when it is answered: its mount is synchronous.
pub const SYNCHRONOUS: u16 = 1 << 14;
/// Mark of a request that is to move no access time: its mount has `noatime`, or `nodiratime`.
pub const NO_ATIME: u16 = 1 << 13;

/// Whether a request is to be durable when it is answered.
pub(crate) fn is_marked_synchronous(header: &InHeader) -> bool {
    header.padding & SYNCHRONOUS != 0
}

/// Whether a request is to move no access time.
pub(crate) fn is_marked_no_atime(header: &InHeader) -> bool {
    header.padding & NO_ATIME != 0
}

/// Whether requests of this kind change something, and may not be executed twice.
pub fn is_noted(code: u32) -> bool {
    matches!(
        code,
        opcode::MKNOD
            | opcode::MKDIR
            | opcode::SYMLINK
            | opcode::LINK
            | opcode::CREATE
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::WRITE
            | opcode::SETATTR
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
            | opcode::FALLOCATE
    )
}
