//! RedbEngine: the engine kept by the library redb in one file of the store.
//!
//! Every commit is in two phases, and records what redb needs to open quickly after a crash: one phase trusts checksums of a
//! state that a second crash may have left. A file that is not what redb wrote may make it panic; that is caught here and is
//! [`StoreError::Damaged`].

use super::{Engine, Visit};
use crate::StoreError;
use crate::disk::DiskFile;
use crate::record::Batch;
use redb::{Builder, Database, ReadableDatabase, StorageBackend, TableDefinition, TableError};
use sluice_sync::Arc;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
const POSITION: TableDefinition<'_, (), &[u8]> = TableDefinition::new("position");

/// An engine in one file.
pub struct RedbEngine {
    database: Database,
}

#[derive(Debug)]
struct Backend(Arc<dyn DiskFile>);

impl RedbEngine {
    /// The engine in `file`, which is empty or one of these, with up to `cache` bytes of it in memory.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and the disk's.
    pub fn open(file: Arc<dyn DiskFile>, cache: usize) -> Result<RedbEngine, StoreError> {
        let database = guarded("open the tree", || {
            Builder::new().set_cache_size(cache).create_with_backend(Backend(file)).map_err(redb::Error::from)
        })?;
        Ok(RedbEngine { database })
    }
}

impl Engine for RedbEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        guarded("read the tree", || {
            let read = self.database.begin_read()?;
            let objects = match read.open_table(OBJECTS) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                objects => objects?,
            };
            Ok(objects.get(key)?.map(|value| value.value().to_vec()))
        })
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        if from >= to {
            return Ok(());
        }
        guarded("read the tree", || {
            let read = self.database.begin_read()?;
            let objects = match read.open_table(OBJECTS) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(()),
                objects => objects?,
            };
            for item in objects.range(from..to)? {
                let (key, value) = item?;
                if !visit(key.value(), value.value()) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn position(&self) -> Result<Option<Vec<u8>>, StoreError> {
        guarded("read the tree", || {
            let read = self.database.begin_read()?;
            let position = match read.open_table(POSITION) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                position => position?,
            };
            Ok(position.get(())?.map(|bytes| bytes.value().to_vec()))
        })
    }

    fn apply(&self, batch: &Batch, position: &[u8]) -> Result<(), StoreError> {
        guarded("write the tree", || {
            let mut write = self.database.begin_write()?;
            write.set_quick_repair(true);
            {
                let mut objects = write.open_table(OBJECTS)?;
                for (key, value) in batch.iter() {
                    match value {
                        Some(value) => drop(objects.insert(key, value)?),
                        None => drop(objects.remove(key)?),
                    }
                }
                write.open_table(POSITION)?.insert((), position)?;
            }
            write.commit()?;
            Ok(())
        })
    }
}

/// Calls `work`, and makes of redb's errors and panics ours.
fn guarded<R>(what: &'static str, work: impl FnOnce() -> Result<R, redb::Error>) -> Result<R, StoreError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(redb::Error::Io(error)))
            if !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            Err(StoreError::Io(what, error))
        }
        Ok(Err(error @ (redb::Error::PreviousIo | redb::Error::DatabaseAlreadyOpen))) => {
            Err(StoreError::Failed(format!("could not {what}: {error}")))
        }
        Ok(Err(error)) => Err(StoreError::Damaged(format!("could not {what}: {error}"))),
        Err(_) => Err(StoreError::Damaged(format!("could not {what}: the library that keeps it gave up"))),
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_size(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(data, offset)
    }
}
