//! Looking: the records of a store that is only looked at. Applied batches reach no object.

use crate::engine::Opening;
use crate::error::of_records;
use crate::gaps;
use crate::layout::{POSITION, RECORDS, get, pushes, record, refuse_lost, scan};
use crate::objects::Objects;
use crate::owner;
use crate::runtime::Stop;
use futures_util::future::try_join;
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
    /// [`StoreError::DamagedLog`], [`StoreError::Damaged`], and the object store's.
    pub(crate) fn open(objects: &Objects, opening: &Opening) -> Result<Looking, StoreError> {
        let (looking, lost) = Looking::open_damaged(objects, opening)?;
        lost.map_or(Ok(looking), Err)
    }

    /// Opens the records before the first lost push; returns the error for that push too, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and the object store's.
    pub(crate) fn open_damaged(
        objects: &Objects,
        opening: &Opening,
    ) -> Result<(Looking, Option<StoreError>), StoreError> {
        let options =
            DbReaderOptions { object_store_max_retries: Some(opening.retries), ..DbReaderOptions::default() };
        let stop = Stop::over(opening.line.clone());
        let opened = stop.wait(async {
            // Before the records are read: a living owner may add to both.
            let (told, gap) = try_join(owner::pushes(objects), gaps::find(objects)).await?;
            let reader = DbReader::builder(RECORDS, opening.records.clone())
                .with_reader_mode(DbReaderMode::FollowLatest)
                .with_options(options)
                .build()
                .await;
            Ok((reader.map_err(of_records("open the records"))?, told, gap))
        });
        let (reader, told, gap) = opened?;
        let lost = match gap {
            Some(missing) => Some(gaps::lost(missing)),
            None => refuse_lost(pushes(&reader, &stop)?, told).err(),
        };
        Ok((Looking(reader, stop), lost))
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
