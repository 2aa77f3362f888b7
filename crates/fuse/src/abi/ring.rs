//! Ring: the layouts of requests and answers over io_uring, beside those of their messages.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct fuse_uring_ent_in_out`: which request is in an entry, and how much payload it or its answer has.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct RingPlace {
    pub(crate) flags: u64,
    pub(crate) commit_id: u64,
    pub(crate) payload_len: u32,
    pub(crate) padding: u32,
    pub(crate) reserved: u64,
}

/// `struct fuse_uring_cmd_req`: what a command is about.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct RingCommand {
    pub(crate) flags: u64,
    pub(crate) commit_id: u64,
    pub(crate) queue: u16,
    pub(crate) padding: [u16; 3],
}
