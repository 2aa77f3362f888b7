//! Engine: the tree of keys behind the log.
//!
//! # Clients must
//! - call [`Engine::apply`] from one thread at a time.
//!
//! # Then
//! After `apply` returned, the records and the position are durable together; after a crash in it, both or neither.

mod compaction;
mod memory;
mod redb;
mod redb_tree;
mod sums;

pub use self::compaction::CompactionLimits;
#[cfg(all(test, not(feature = "sim")))]
pub(crate) use self::compaction::{SIZE_MIN, TIMES};
pub use self::memory::MemoryEngine;
pub use self::redb::RedbEngine;

use crate::StoreError;
use crate::record::Batch;
use std::ops::Range;

/// Takes a key and its value; false ends the scan.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> bool + 'v;

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

    /// Stops waiting for the storage, which may never answer: current and later calls fail.
    fn abandon(&self) {}

    /// Releases the storage; the engine gets no more calls.
    fn close(&self) {}

    /// Whether [`compact`](Self::compact) has something to do.
    fn is_spacious(&self) -> bool {
        false
    }

    /// Does a part of what makes the engine's files smaller, if they take much more than the records do. Whether there is more to do.
    /// Called as [`apply`](Self::apply) is, by one thread at a time.
    ///
    /// # Errors
    /// The disk's: then nothing more can be applied before the engine is opened again.
    fn compact(&self, _within: CompactionLimits) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Applies `batch`, and remembers `position`.
    ///
    /// # Errors
    /// The disk's: `StorageFull` or `QuotaExceeded` if nothing was applied, and a later attempt may succeed; after any other nothing more can
    /// be applied before the engine is opened again.
    fn apply(&self, batch: &Batch, position: &[u8]) -> Result<(), StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_gives_ascending_keys_of_its_range_or_the_tree_is_damaged() {
        for (keys, are_right) in [("bcd", true), ("a", false), ("e", false), ("cb", false), ("bb", false)] {
            let mut order = InOrder::new(b"b", b"e");
            let checked = keys.as_bytes().chunks(1).try_for_each(|key| order.check(key));
            let said = checked.err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(
                !said.contains("a record of the tree is not where it belongs"),
                are_right,
                "{keys}: {said}"
            );
        }
    }
}
