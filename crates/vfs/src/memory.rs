//! Memory: what this process has, and what holds it.

use crate::Superblock;
pub use sluice_sync::memory::Held;

/// How much memory the process has, and why. File systems share most of what is kept, so all but the first two is of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of files, extended attributes and the like, as far as [`Options::size_limit`](crate::Options::size_limit) limits them.
    pub file_bytes: u64,
    /// Inodes, those of a durable file system that are not in memory included.
    pub inodes: u64,
    /// What the process has in memory, in bytes; 0 where the system does not tell.
    pub resident_bytes: u64,
    /// What was promised to file systems by their limits, in bytes.
    pub promised_bytes: u64,
    /// What the machine, the control groups around the process and its limits have left for it, in bytes.
    pub left_bytes: u64,
    /// What nobody can reach any more, or what is kept to be used again.
    pub held: Held,
}

/// How much of a durable file system is in memory; the rest is in its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// So many bytes there may be ([`Options::memory_limit`](crate::Options::memory_limit)).
    pub limit: u64,
    /// So many bytes count.
    pub used: u64,
    /// Inodes.
    pub inodes: u64,
    /// Of these, those whose name is not in memory, or that were not looked up since it came back.
    pub inodes_apart: u64,
    /// Directories whose names are in memory.
    pub directories: u64,
    /// How often the names of a directory have left memory.
    pub departures: u64,
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
    /// What this file system and the process have in memory. Stops all counting of references for a moment.
    pub fn memory(&self) -> Memory {
        memory_of(std::iter::once(self))
    }
}
