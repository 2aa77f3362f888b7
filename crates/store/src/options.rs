//! Options: how to make and run a store.

use crate::StoreKey;
use crate::format::VERSION;
use sluice_sync::time::Duration;

/// How to make and run a store. Each field has a method that sets it.
///
/// ```
/// use sluice_store::Options;
///
/// let options = Options::default().log_size(16 << 20).background(false);
/// assert_eq!((options.log_size, options.background), (16 << 20, false));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    /// How long a push whose log is full waits for room on a full disk, before the store fails.
    pub room_patience: Duration,
    /// Whether a thread of the store pushes by age and checkpoints. Without the thread, calls do the necessary work,
    /// and the rest is left.
    pub background: bool,
    /// Nothing is flushed before the store is closed: what is written only makes room in memory. After a crash, of the process or the
    /// machine, the store is [lost](crate::StoreError::Lost).
    pub volatile: bool,
    /// Data are compressed where that saves room. Only for new stores: an existing store says so itself.
    pub compress: bool,
    /// The key of an encrypted store; with it [`Store::create`](crate::Store::create) makes one.
    pub key: Option<StoreKey>,
    /// The version of the format with which the store was made. Only for [`Store::over`](crate::Store::over): another store says so itself.
    pub format: u32,
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
            room_patience: Duration::from_secs(60),
            background: true,
            volatile: false,
            compress: false,
            key: None,
            format: VERSION,
        }
    }
}

sluice_sync::setters!(Options {
    log_size: u64 => log_size;
    segment_size: u64 => segment_size;
    open_segments: usize => open_segments;
    age: Duration => age;
    cache: usize => cache;
    memory: u64 => memory;
    room_patience: Duration => room_patience;
    background: bool => background;
    volatile: bool => volatile;
    compress: bool => compress;
    key: StoreKey => Some(key);
    format: u32 => format;
});
