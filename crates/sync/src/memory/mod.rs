//! Memory: how much of the computer's this process has, and what holds it.

mod asking;
#[allow(unsafe_code)]
pub(crate) mod blocks;
mod gap;
#[cfg(not(any(feature = "loom", feature = "sim")))]
pub mod machine;
pub mod reclaim;
#[cfg(not(any(feature = "loom", feature = "sim")))]
pub mod reserve;
#[cfg(not(any(feature = "loom", feature = "sim")))]
#[allow(unsafe_code)]
mod trim;

#[cfg(not(any(feature = "loom", feature = "sim")))]
pub use asking::bound_by;
pub use asking::{Short, is_short, left, make_room, take, total_bytes};
pub use gap::Gap;
#[cfg(not(any(feature = "loom", feature = "sim")))]
pub use trim::keep_little;
#[cfg(not(any(feature = "loom", feature = "sim")))]
pub(crate) use trim::trim;

use crate::{drain, rcu, refcache};

/// Resident memory of this process in bytes, including shared pages; `None` if the system does not tell.
pub fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Memory that is unreachable but not yet freed, or kept for reuse. All of it is freed when the threads that left it
/// idle for some seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Pieces of work, mostly to free a directory entry or pages, that wait until no reader can see what they free.
    pub deferred_calls: u64,
    /// The bytes of pages among that.
    pub deferred_bytes: u64,
    /// Inodes, open files and the like that seem to have lost their last reference, and are looked at once more.
    pub objects_in_review: u64,
    /// Bytes of pages without a file, kept for the next file that grows.
    pub spare_page_bytes: u64,
    /// Bytes of blocks for inodes, open files and entries that threads have freed for each other.
    pub spare_block_bytes: u64,
}

/// Notes that so many bytes went back to the allocator, in large pieces.
pub fn note_freed(bytes: u64) {
    drain::note_freed(bytes as usize);
}

/// The memory that is held now. Stops all counting of references for a moment: meant for a report, not for every call.
pub fn held() -> Held {
    let domain = rcu::domain();
    Held {
        deferred_calls: domain.deferred() as u64,
        deferred_bytes: domain.deferred_bytes() as u64,
        objects_in_review: refcache::in_review() as u64,
        spare_page_bytes: drain::kept_bytes(),
        spare_block_bytes: blocks::boxed_bytes() as u64,
    }
}
