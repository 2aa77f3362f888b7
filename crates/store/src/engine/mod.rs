//! Engine: the tree of keys behind the log.
//!
//! # Clients must
//! - call [`Engine::apply`] from one thread at a time.
//!
//! # Then
//! After `apply` returned, the records and the position are durable together; after a crash in it, both or neither.

mod memory;
mod redb;
mod sums;

pub use self::memory::MemoryEngine;
pub use self::redb::RedbEngine;

use crate::StoreError;
use crate::record::Batch;
use std::ops::Range;

/// Takes a key and its value; false ends the scan.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> bool + 'v;

/// Requests of an engine to the server that keeps its records, and hits in a cache on this machine's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// By kind; none of an engine that needs no server.
    pub requests: Vec<RequestCounts>,
    /// How often a part of an object was looked for in the cache.
    pub cache_lookups: u64,
    /// The number of hits.
    pub cache_hits: u64,
    /// Bytes in the cache.
    pub cache_bytes: u64,
    /// How often a write waited until records in memory had become objects.
    pub write_stalls: u64,
}

/// RequestCounts of one kind to the server that keeps an engine's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    /// `get`, `put` or `delete`.
    pub kind: &'static str,
    /// Requests that failed, and may have been repeated, or that found no such object, as a search for newer objects
    /// does.
    pub failed: u64,
    /// How long all took together, in nanoseconds.
    pub ns_total: u64,
    /// At most so many nanoseconds, and more than the bound before: so many requests. In the order of the bounds.
    pub buckets: Vec<(u64, u64)>,
}

/// Sees that a scan gives what it was asked for.
#[derive(Debug)]
pub struct InOrder<'k> {
    from: &'k [u8],
    to: &'k [u8],
    last: Option<Vec<u8>>,
}

impl<'k> InOrder<'k> {
    /// The check for a scan of the keys that are at least `from` and below `to`.
    pub fn new(from: &'k [u8], to: &'k [u8]) -> InOrder<'k> {
        InOrder { from, to, last: None }
    }

    /// Takes the next `key`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the key is out of order or out of range.
    pub fn check(&mut self, key: &[u8]) -> Result<(), StoreError> {
        if key < self.from || key >= self.to || self.last.as_ref().is_some_and(|last| key <= last.as_slice())
        {
            return Err(StoreError::Damaged("a record of the tree is not where it belongs".into()));
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        Ok(())
    }
}

/// A durable map from keys to values, sorted by key, that knows up to where in the log it has got.
pub trait Engine: Send + Sync {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and the disk's.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Visits the keys that are at least `from` and below `to`, in their order.
    ///
    /// # Errors
    /// Errors of [`get`](Self::get).
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError>;

    /// Fetches the first records of each of `ranges` side by side, as a scan of the range comes soon. For an engine that fetches from far away.
    fn warm(&self, _ranges: &[Range<Vec<u8>>]) {}

    /// The position that was given to the last [`apply`](Self::apply); none before the first.
    ///
    /// # Errors
    /// Errors of [`get`](Self::get).
    fn position(&self) -> Result<Option<Vec<u8>>, StoreError>;

    /// Requests to a server since it was opened.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// Stops waiting for the storage, which may never answer: current and later calls fail.
    fn abandon(&self) {}

    /// Releases the storage; the engine gets no more calls.
    fn close(&self) {}

    /// Applies `batch`, and remembers `position`.
    ///
    /// # Errors
    /// The disk's: then nothing more can be applied before the engine is opened again.
    fn apply(&self, batch: &Batch, position: &[u8]) -> Result<(), StoreError>;
}
