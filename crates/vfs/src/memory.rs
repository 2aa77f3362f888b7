//! Memory: how much this process uses, and for which purpose.

use crate::Superblock;
pub use sluice_sync::memory::Held;

/// How much memory the process has, and why. File systems share most of what is kept, so all but the first two is of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Bytes of files, extended attributes and the like, as far as [`Options::size_limit`](crate::Options::size_limit) limits them.
    pub file_bytes: u64,
    /// Inodes, those of a durable file system that are not in memory included.
    pub inodes: u64,
    /// Resident memory of the process, in bytes; 0 where the system does not tell.
    pub resident_bytes: u64,
    /// Sum of the size limits of all file systems, in bytes.
    pub promised_bytes: u64,
    /// Bytes that the machine, the control groups around the process and its limits leave for the process.
    pub left_bytes: u64,
    /// Memory that is unreachable but not yet freed, or cached for reuse.
    pub held: Held,
}

/// How much of a durable file system is in memory; the rest is in its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// So many bytes there may be ([`Options::memory_limit`](crate::Options::memory_limit)).
    pub limit: u64,
    /// So many bytes count.
    pub used: u64,
    /// Inodes.
    pub inodes: u64,
    /// The subset whose name is not in memory, or was not looked up since the name was loaded again.
    pub inodes_apart: u64,
    /// Directories whose names are in memory.
    pub directories: u64,
    /// How often the names of a directory have left memory.
    pub departures: u64,
}

/// How a durable file system keeps contents in its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreUse {
    /// The store is encrypted.
    pub is_encrypted: bool,
    /// Its contents are compressed where that saves room.
    pub is_compressed: bool,
    /// Bytes of its segments that contents take, as of the last checkpoint.
    pub stored: u64,
    /// Bytes of contents that were written to segments since the store was opened, also of those that were freed since.
    pub written: u64,
    /// Bytes of segments that these took.
    pub written_stored: u64,
}

/// The memory of the process, of which `superblocks` have a part.
pub(crate) fn memory_of<'s>(superblocks: impl Iterator<Item = &'s Superblock>) -> Memory {
    // First, as the next look frees what can be.
    let held = sluice_sync::memory::held();
    let mut memory = Memory {
        resident_bytes: sluice_sync::memory::resident_bytes().unwrap_or(0),
        promised_bytes: Superblock::promised_bytes(),
        left_bytes: sluice_sync::memory::left(),
        held,
        ..Memory::default()
    };
    for superblock in superblocks {
        memory.file_bytes += superblock.bytes_used();
        memory.inodes += superblock.live_inodes();
    }
    memory
}

impl Superblock {
    /// The memory that this file system and the process use. Stops all counting of references for a moment.
    pub fn memory(&self) -> Memory {
        memory_of(std::iter::once(self))
    }
}
