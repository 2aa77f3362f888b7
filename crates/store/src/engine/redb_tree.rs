//! RedbTree: a tree of the library redb in one file: its tables, the checksums of its values, and redb's errors and panics as ours.

use super::sums::SummedFile;
use crate::StoreError;
use crate::disk::DiskFile;
use crate::encryption::Cipher;
use crate::record::Batch;
use redb::{
    Builder, Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend,
    TableDefinition, TableError, WriteTransaction,
};
use sluice_sync::Arc;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(super) const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
pub(super) const POSITION: TableDefinition<'_, (), &[u8]> = TableDefinition::new("position");
/// The number of objects, and the bytes of their keys and values. A program that does not know this table leaves another number
/// of objects there: then the bytes count as unknown.
pub(super) const BYTES: TableDefinition<'_, (), (u64, u64)> = TableDefinition::new("bytes");

/// A database and its file.
pub(super) struct RedbTree {
    pub(super) database: Database,
    pub(super) file: Arc<dyn DiskFile>,
    /// The arguments of [`RedbTree::open`]. *immutable*
    cipher: Option<Arc<Cipher>>,
    cache: usize,
}

#[derive(Debug)]
struct Backend(SummedFile);

impl RedbTree {
    /// The tree in `file`, encrypted if there is a cipher, with up to `cache` bytes of it in memory.
    pub(super) fn open(
        file: Arc<dyn DiskFile>,
        cipher: Option<Arc<Cipher>>,
        cache: usize,
    ) -> Result<RedbTree, StoreError> {
        let opened = || SummedFile::new(file.clone(), cipher.clone()).map_err(redb::Error::Io);
        let summed = guarded("open the tree", opened)?;
        Ok(RedbTree { cipher, ..RedbTree::of(file, summed, cache)? })
    }

    /// The tree as its last commit left it. redb works no more with a database that met an error.
    pub(super) fn reopened(self) -> Result<RedbTree, StoreError> {
        let (file, cipher, cache) = (self.file.clone(), self.cipher.clone(), self.cache);
        self.end();
        RedbTree::open(file, cipher, cache)
    }

    pub(super) fn of(
        file: Arc<dyn DiskFile>,
        summed: SummedFile,
        cache: usize,
    ) -> Result<RedbTree, StoreError> {
        let database = guarded("open the tree", || {
            Builder::new()
                .set_cache_size(cache)
                .create_with_backend(Backend(summed))
                .map_err(redb::Error::from)
        })?;
        Ok(RedbTree { database, file, cipher: None, cache })
    }

    /// Closes it. Closing may write, and may fail on damaged pages.
    pub(super) fn end(self) {
        let _ = guarded("close the tree", || {
            drop(self);
            Ok(())
        });
    }
}

/// Applies the records of `batch` whose keys `takes`, and returns the bytes of all objects, `bytes` before, as far as they are known.
pub(super) fn change(
    write: &WriteTransaction,
    batch: &Batch,
    takes: impl Fn(&[u8]) -> bool,
    mut bytes: Option<u64>,
) -> Result<Option<u64>, redb::Error> {
    let mut objects = write.open_table(OBJECTS)?;
    for (key, value) in batch.iter().filter(|(key, _)| takes(key)) {
        let len = |stored: &[u8]| (key.len() + stored.len()) as u64;
        let (former, now) = match value {
            Some(value) => {
                let stored = sealed(key, value);
                (objects.insert(key, &*stored)?.map(|former| len(former.value())), len(&stored))
            }
            None => (objects.remove(key)?.map(|former| len(former.value())), 0),
        };
        bytes = bytes.map(|bytes| (bytes + now).saturating_sub(former.unwrap_or(0)));
    }
    Ok(bytes)
}

/// Records that all objects have these `bytes`.
pub(super) fn note_bytes(write: &WriteTransaction, bytes: Option<u64>) -> Result<(), redb::Error> {
    let records = write.open_table(OBJECTS)?.len()?;
    let mut all = write.open_table(BYTES)?;
    match bytes {
        Some(bytes) => drop(all.insert((), (records, bytes))?),
        None => drop(all.remove(())?),
    }
    Ok(())
}

/// The bytes of all `objects`, if `all` has the right number of objects.
pub(super) fn bytes_of(
    objects: &impl ReadableTable<&'static [u8], &'static [u8]>,
    all: &impl ReadableTable<(), (u64, u64)>,
) -> Result<Option<u64>, redb::Error> {
    let (records, bytes) = all.get(())?.map_or((0, 0), |all| all.value());
    Ok((records == objects.len()?).then_some(bytes))
}

/// The bytes of all objects, if they are known.
pub(super) fn record_bytes(database: &Database) -> Result<Option<u64>, redb::Error> {
    let read = database.begin_read()?;
    match (read.open_table(OBJECTS), read.open_table(BYTES)) {
        (Err(TableError::TableDoesNotExist(_)), _) => Ok(Some(0)),
        (objects, Err(TableError::TableDoesNotExist(_))) => Ok(objects?.is_empty()?.then_some(0)),
        (objects, all) => bytes_of(&objects?, &all?),
    }
}

/// `value` as it is stored: its checksum, with that of its key, before it. redb looks at its own checksums only in a check.
pub(super) fn sealed(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut stored = sum(key, value).to_le_bytes().to_vec();
    stored.extend_from_slice(value);
    stored
}

/// The value that was [`sealed`].
///
/// # Errors
/// [`StoreError::Damaged`] if the checksum differs.
pub(super) fn checked<'s>(key: &[u8], stored: &'s [u8]) -> Result<&'s [u8], StoreError> {
    let (expected, value) = stored.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    match u32::from_le_bytes(*expected) == sum(key, value) {
        true => Ok(value),
        false => Err(StoreError::Damaged("a record of the tree is not what was written".into())),
    }
}

fn sum(key: &[u8], value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), value)
}

/// Calls `work`, and makes of redb's errors and panics ours.
pub(super) fn guarded<R>(
    what: &'static str,
    work: impl FnOnce() -> Result<R, redb::Error>,
) -> Result<R, StoreError> {
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
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.write_sums()
    }
}
