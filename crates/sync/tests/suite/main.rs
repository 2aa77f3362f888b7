//! Structures of `sync` as others use them, as one program.

mod inode_cache;
mod pinning;
