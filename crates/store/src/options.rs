//! Options: how to make and run a store.

use sluice_sync::time::Duration;
use std::path::PathBuf;

/// How to make and run a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the log; whole blocks of 4 KiB, at least 16. Only for [`Store::create`](crate::Store::create).
    pub log_size: u64,
    /// Bytes of a file of data; whole blocks of 4 KiB. Only for [`Store::create`](crate::Store::create).
    pub segment_size: u64,
    /// How many files of data are written at a time; by default one for each CPU.
    pub open_segments: usize,
    /// How old a change may get before it is made durable unasked.
    pub age: Duration,
    /// Bytes of the tree that the engine may keep in memory.
    pub cache: usize,
    /// Bytes of memory that what is in the log and not in the tree may take, at least a megabyte. A quarter of it may wait for a push
    /// beside that; while that is formed there is another copy of it.
    pub memory: u64,
    /// Whether a thread of the store pushes by age and checkpoints. Without the thread, calls do the necessary work,
    /// and the rest is left.
    pub background: bool,
    /// Nothing is flushed before the store is closed: what is written only makes room in memory. After a crash, of the process or the
    /// machine, the store is [lost](crate::StoreError::Lost).
    pub volatile: bool,
    /// For a store in an object store: this machine's cache of objects that were read or written.
    pub disk_cache: Option<DiskCache>,
    /// For a store in an object store: the store is taken from any process that has it open.
    pub takeover: bool,
}

/// A directory on this machine's disk in which copies of objects are kept. Copies are checked before use, so the cache
/// may be lost, damaged, or shared by processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    /// The directory; it is made if need be. Each store has a subdirectory.
    pub dir: PathBuf,
    /// Bytes that the copies of one store may take.
    pub bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            log_size: 64 << 20,
            segment_size: 256 << 20,
            open_segments: sluice_sync::cpu::count(),
            age: Duration::from_secs(5),
            cache: 64 << 20,
            memory: u64::MAX,
            background: true,
            volatile: false,
            disk_cache: None,
            takeover: false,
        }
    }
}
