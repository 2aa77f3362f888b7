//! The kernel's FUSE protocol: message layouts, opcodes and flags, as in `include/uapi/linux/fuse.h`.
//!
//! Names are the kernel's, in Rust's spelling: `struct fuse_setattr_in` is [`SetattrIn`]. All integers are
//! in host byte order. Every layout is plain old data without padding holes (`zerocopy` refuses to derive
//! otherwise), so reading one from untrusted bytes and writing one out need no `unsafe`.

#![allow(missing_docs)] // the kernel's header says what each field means

pub mod flags;
mod incoming;
pub mod opcode;
mod outgoing;
mod ring;

pub use flags::{Fattr, InitFlags, RING_COMMIT_AND_FETCH, RING_REGISTER};
pub use incoming::*;
pub use outgoing::*;
pub(crate) use ring::*;

/// Major version of the protocol.
pub const KERNEL_VERSION: u32 = 7;
/// The newest minor version that this crate speaks.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// The oldest minor version that this crate speaks (Linux 5.12).
pub const KERNEL_MINOR_VERSION_MIN: u32 = 33;
/// Node number of the root directory.
pub const ROOT_ID: u64 = 1;
/// Records in a directory buffer start at multiples of this many bytes.
pub const RECORD_ALIGN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    #[test]
    fn layouts_have_the_sizes_of_the_kernel_header() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<Attr>(), 88);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<Statx>(), 256);
        assert_eq!(size_of::<StatxOut>(), 288);
        assert_eq!(size_of::<InitIn>(), 64);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<SetattrIn>(), 88);
        assert_eq!(size_of::<ReadIn>(), 40);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!(size_of::<LkIn>(), 48);
        assert_eq!(size_of::<LkOut>(), 24);
        assert_eq!(size_of::<SetxattrIn>(), 16);
        assert_eq!(size_of::<Kstatfs>(), 80);
        assert_eq!(size_of::<CopyFileRangeIn>(), 56);
        assert_eq!(size_of::<FallocateIn>(), 32);
        assert_eq!(size_of::<LseekIn>(), 24);
        assert_eq!(size_of::<IoctlIn>(), 32);
        assert_eq!(size_of::<IoctlOut>(), 16);
        assert_eq!(size_of::<FsXattr>(), 28);
        assert_eq!(size_of::<OpenIn>(), 8);
        assert_eq!(size_of::<CreateIn>(), 16);
        assert_eq!(size_of::<ReleaseIn>(), 24);
        assert_eq!(size_of::<Dirent>(), 24);
        assert_eq!(size_of::<RingPlace>(), 32);
        assert_eq!(size_of::<RingCommand>(), 24);
        assert_eq!(size_of::<NotifyInvalInodeOut>(), 24);
        assert_eq!(size_of::<NotifyInvalEntryOut>(), 16);
        assert_eq!(size_of::<NotifyPruneOut>(), 16);
    }
}
