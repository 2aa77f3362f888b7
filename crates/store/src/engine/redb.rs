//! RedbEngine: the engine kept by the library redb in one file of the store.
//!
//! Every commit is in two phases, and records what redb needs to open quickly after a crash: one phase trusts checksums
//! of a state that a second crash may have left. It reads only pages with the bytes that it wrote there (`sums.rs`). A
//! forged file, or a file of an earlier version, may make redb panic; the engine catches the panic and returns
//! [`StoreError::Damaged`].

use super::sums::SummedFile;
use super::{Engine, InOrder, Visit};
use crate::StoreError;
use crate::disk::DiskFile;
use crate::record::Batch;
use redb::{Builder, Database, ReadableDatabase, StorageBackend, TableDefinition, TableError};
use sluice_sync::{Arc, LockClass, RwLock};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

static DATABASE: LockClass = LockClass::new("store.engine.redb");

const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
const POSITION: TableDefinition<'_, (), &[u8]> = TableDefinition::new("position");

/// An engine in one file.
pub struct RedbEngine {
    /// None once it was closed. *protected by its lock*
    database: RwLock<Option<Database>>,
}

#[derive(Debug)]
struct Backend(SummedFile);

impl RedbEngine {
    /// The engine in `file`, which is empty or a tree of this engine, with up to `cache` bytes of it in memory.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and the disk's.
    pub fn open(file: Arc<dyn DiskFile>, cache: usize) -> Result<RedbEngine, StoreError> {
        let file = guarded("open the tree", || SummedFile::new(file).map_err(redb::Error::Io))?;
        RedbEngine::of(file, cache)
    }

    fn of(file: SummedFile, cache: usize) -> Result<RedbEngine, StoreError> {
        let database = guarded("open the tree", || {
            Builder::new().set_cache_size(cache).create_with_backend(Backend(file)).map_err(redb::Error::from)
        })?;
        Ok(RedbEngine { database: RwLock::with_class(&DATABASE, Some(database)) })
    }

    /// Looks at the checksums of the whole tree, and says what is wrong with it.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and the disk's.
    pub fn check(&mut self) -> Result<(), StoreError> {
        let check = || {
            let database = self.database.get_mut().as_mut().ok_or(redb::Error::PreviousIo)?;
            Ok(database.check_integrity()?)
        };
        match guarded("check the tree", check)? {
            true => Ok(()),
            false => Err(StoreError::Damaged("the tree has a damaged part".into())),
        }
    }
}

impl RedbEngine {
    /// Calls `work` with the database.
    fn with<R>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Database) -> Result<R, redb::Error>,
    ) -> Result<R, StoreError> {
        let database = self.database.read();
        guarded(what, || work(database.as_ref().ok_or(redb::Error::PreviousIo)?))
    }
}

impl Engine for RedbEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.with("read the tree", |database| {
            let read = database.begin_read()?;
            let objects = match read.open_table(OBJECTS) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                objects => objects?,
            };
            Ok(objects.get(key)?.map(|value| value.value().to_vec()))
        })?
        .map(|stored| checked(key, &stored).map(<[u8]>::to_vec))
        .transpose()
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        if from >= to {
            return Ok(());
        }
        self.with("read the tree", |database| {
            let read = database.begin_read()?;
            let objects = match read.open_table(OBJECTS) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(Ok(())),
                objects => objects?,
            };
            let mut order = InOrder::new(from, to);
            for item in objects.range(from..to)? {
                let (key, stored) = item?;
                let value = order.check(key.value()).and_then(|()| checked(key.value(), stored.value()));
                match value {
                    Ok(value) if visit(key.value(), value) => {}
                    Ok(_) => break,
                    Err(error) => return Ok(Err(error)),
                }
            }
            Ok(Ok(()))
        })?
    }

    fn position(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.with("read the tree", |database| {
            let read = database.begin_read()?;
            let position = match read.open_table(POSITION) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                position => position?,
            };
            Ok(position.get(())?.map(|bytes| bytes.value().to_vec()))
        })?
        .map(|stored| checked(&[], &stored).map(<[u8]>::to_vec))
        .transpose()
    }

    fn close(&self) {
        end(self.database.write().take());
    }

    fn apply(&self, batch: &Batch, position: &[u8]) -> Result<(), StoreError> {
        self.with("write the tree", |database| {
            let mut write = database.begin_write()?;
            write.set_quick_repair(true);
            {
                let mut objects = write.open_table(OBJECTS)?;
                for (key, value) in batch.iter() {
                    match value {
                        Some(value) => drop(objects.insert(key, &*sealed(key, value))?),
                        None => drop(objects.remove(key)?),
                    }
                }
                write.open_table(POSITION)?.insert((), &*sealed(&[], position))?;
            }
            write.commit()?;
            Ok(())
        })
    }
}

impl Drop for RedbEngine {
    /// redb's destructor writes, and panics after an earlier panic.
    fn drop(&mut self) {
        // Without the lock: whoever drops the last reference may hold what is taken under it.
        end(self.database.get_mut().take());
    }
}

/// Closes the database. Closing may write, and may fail on damaged pages.
fn end(database: Option<Database>) {
    let _ = guarded("close the tree", || {
        drop(database);
        Ok(())
    });
}

/// `value` as it is stored: its checksum, with that of its key, before it. redb looks at its own checksums only in a check.
fn sealed(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut stored = sum(key, value).to_le_bytes().to_vec();
    stored.extend_from_slice(value);
    stored
}

/// The value that was [`sealed`].
///
/// # Errors
/// [`StoreError::Damaged`] if the checksum differs.
fn checked<'s>(key: &[u8], stored: &'s [u8]) -> Result<&'s [u8], StoreError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, crash::CrashDisk};
    use sluice_sync::Mutex;

    static OUTER: LockClass = LockClass::new("test.engine.outer");

    #[test]
    fn a_tree_of_an_earlier_version_has_no_sums_and_is_used() {
        let file = CrashDisk::new().create("tree", 0).expect("an empty disk");
        let plain = SummedFile::plain(file.clone());
        let engine = RedbEngine::of(plain, 1 << 20).expect("an empty file");
        engine.apply(&Batch::default(), b"first").expect("memory");
        drop(engine);
        for (is, next) in [(b"first", b"later"), (b"later", b"third")] {
            let engine = RedbEngine::open(file.clone(), 1 << 20).expect("a tree");
            assert_eq!(engine.position().expect("whole").as_deref(), Some(is.as_slice()));
            engine.apply(&Batch::default(), next).expect("memory");
        }
        let mut begin = [0; 4];
        file.read_at(&mut begin, 0).expect("memory");
        assert_eq!(&begin, b"redb", "it stays so");
    }

    #[test]
    fn an_engine_may_go_under_a_lock_that_is_taken_while_one_is_read() {
        let file = CrashDisk::new().create("tree", 0).expect("an empty disk");
        let engine = RedbEngine::open(file, 1 << 20).expect("an empty file");
        let outer = Mutex::with_class(&OUTER, ());
        let reading = engine.database.read();
        drop(outer.lock());
        drop(reading);
        let _held = outer.lock();
        drop(engine);
    }
}
