//! Looking: the records of a store that is only looked at. Applied batches reach no object.

use crate::cache;
use crate::engine::{Opening, POSITION, RECORDS, get, pushes, record, scan};
use crate::error::of_records;
use crate::gaps;
use crate::objects::Objects;
use crate::runtime::Stop;
use slatedb::config::DbReaderOptions;
use slatedb::{DbReader, DbReaderMode};
use sluice_store::engine::{Engine, Visit};
use sluice_store::{Batch, StoreError};

/// An engine that reads what the owner of the store has written.
pub(crate) struct Looking(DbReader, Stop);

impl Looking {
    /// Opens the records; nobody is told.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and the object store's.
    pub(crate) fn open(objects: &Objects, opening: &Opening) -> Result<Looking, StoreError> {
        let options = DbReaderOptions {
            object_store_max_retries: Some(opening.retries),
            object_store_cache_options: cache::options(opening.disk_cache.as_ref()),
            ..DbReaderOptions::default()
        };
        let stop = Stop::over(opening.line.clone());
        let reader = stop.wait(async {
            gaps::check(objects).await?;
            let reader = DbReader::builder(RECORDS, objects.clone())
                .with_reader_mode(DbReaderMode::FollowLatest)
                .with_options(options)
                .build()
                .await;
            reader.map_err(of_records("open the records"))
        })?;
        pushes(&reader, &stop)?;
        Ok(Looking(reader, stop))
    }
}

impl Engine for Looking {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        get(&self.0, &record(key), &self.1)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        scan(&self.0, from, to, visit, &self.1)
    }

    fn position(&self) -> Result<Option<Vec<u8>>, StoreError> {
        get(&self.0, POSITION, &self.1)
    }

    fn close(&self) {
        // Nothing was written.
        let _ = self.1.wait(async { self.0.close().await.map_err(of_records("close the records")) });
    }

    fn apply(&self, _batch: &Batch, _position: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }
}
