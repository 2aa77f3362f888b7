//! RedbEngine: the engine kept by the library redb in one file of the store.
//!
//! Every commit is in two phases, and records what redb needs to open quickly after a crash: one phase trusts checksums
//! of a state that a second crash may have left. It reads only pages with the bytes that it wrote there (`sums.rs`). A
//! forged file, or a file of an earlier version, may make redb panic; the engine catches the panic and returns
//! [`StoreError::Damaged`].

use super::compaction::{Compaction, CompactionLimits, CompactionStep, remove_copy};
use super::redb_tree::{
    BYTES, OBJECTS, POSITION, RedbTree, bytes_of, change, checked, guarded, note_bytes, sealed,
};
use super::{Engine, InOrder, Visit};
use crate::StoreError;
use crate::disk::{Disk, DiskFile};
use crate::encryption::Cipher;
use crate::record::Batch;
use redb::{Database, ReadableDatabase, TableError};
use sluice_sync::{Arc, LockClass, Mutex, RwLock};
use std::fmt;

static DATABASE: LockClass = LockClass::new("store.engine.redb");
static COMPACTION: LockClass = LockClass::new("store.engine.compaction");

/// An engine in one file.
pub struct RedbEngine {
    /// None once it was closed. *protected by its lock*
    tree: RwLock<Option<RedbTree>>,
    /// Where the file may be replaced. *immutable*
    disk: Option<Arc<dyn Disk>>,
    /// *protected by its mutex*
    compaction: Mutex<Compaction>,
}

impl fmt::Debug for RedbEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbEngine").finish_non_exhaustive()
    }
}

impl RedbEngine {
    /// The engine in `file`, which is empty or a tree of this engine, encrypted if there is a cipher, with up to `cache` bytes of it in memory.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and the disk's.
    pub fn open(
        file: Arc<dyn DiskFile>,
        cipher: Option<Arc<Cipher>>,
        cache: usize,
    ) -> Result<RedbEngine, StoreError> {
        RedbTree::open(file, cipher, cache).map(RedbEngine::of)
    }

    fn of(tree: RedbTree) -> RedbEngine {
        RedbEngine {
            tree: RwLock::with_class(&DATABASE, Some(tree)),
            disk: None,
            compaction: Mutex::with_class(&COMPACTION, Compaction::default()),
        }
    }

    /// Lets it replace its file on `disk`, the file of the tree there, by a smaller one.
    pub(crate) fn compacts(mut self, disk: Arc<dyn Disk>) -> RedbEngine {
        // A copy that stays takes space until the next attempt.
        let _ = remove_copy(&*disk);
        self.disk = Some(disk);
        self
    }

    /// Looks at the checksums of the whole tree, and says what is wrong with it.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and the disk's.
    pub fn check(&mut self) -> Result<(), StoreError> {
        let check = || {
            let tree = self.tree.get_mut().as_mut().ok_or(redb::Error::PreviousIo)?;
            Ok(tree.database.check_integrity()?)
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
        let tree = self.tree.read();
        guarded(what, || work(&tree.as_ref().ok_or(redb::Error::PreviousIo)?.database))
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
        self.compaction.lock().end();
        if let Some(tree) = self.tree.write().take() {
            tree.end();
        }
    }

    fn is_spacious(&self) -> bool {
        let compaction = self.compaction.lock();
        self.disk.is_some() && self.tree.read().as_ref().is_some_and(|tree| compaction.is_due(tree))
    }

    fn compact(&self, limits: CompactionLimits) -> Result<bool, StoreError> {
        let Some(disk) = &self.disk else { return Ok(false) };
        let mut compaction = self.compaction.lock();
        let done = match &*self.tree.read() {
            Some(tree) => compaction.step(disk, tree, limits)?,
            None => CompactionStep::Nothing,
        };
        let made = match done {
            CompactionStep::Nothing => return Ok(false),
            CompactionStep::More => return Ok(true),
            CompactionStep::Done(made) => made,
        };
        let former = self.tree.write().replace(made);
        if let Some(former) = former {
            former.end();
        }
        Ok(false)
    }

    fn apply(&self, batch: &Batch, position: &[u8]) -> Result<(), StoreError> {
        let applied = self.with("write the tree", |database| {
            let mut write = database.begin_write()?;
            write.set_quick_repair(true);
            let before = bytes_of(&write.open_table(OBJECTS)?, &write.open_table(BYTES)?)?;
            let bytes = change(&write, batch, |_| true, before)?;
            note_bytes(&write, bytes)?;
            write.open_table(POSITION)?.insert((), &*sealed(&[], position))?;
            write.commit()?;
            Ok(())
        });
        if applied.as_ref().is_err_and(StoreError::is_full_disk) {
            let mut tree = self.tree.write();
            let reopened = tree.take().map(RedbTree::reopened).transpose();
            *tree = reopened.map_err(|error| StoreError::Failed(error.to_string()))?;
        }
        applied?;
        self.compaction.lock().follow(batch);
        Ok(())
    }
}

impl Drop for RedbEngine {
    /// redb's destructor writes, and panics after an earlier panic.
    fn drop(&mut self) {
        // Without the locks: the thread that drops the last reference may hold locks that are taken under them.
        self.compaction.get_mut().end();
        if let Some(tree) = self.tree.get_mut().take() {
            tree.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sums::SummedFile;
    use super::*;
    use crate::disk::{Disk, crash::CrashDisk};
    use sluice_sync::Mutex;

    static OUTER: LockClass = LockClass::new("test.engine.outer");

    #[test]
    fn a_tree_of_an_earlier_version_has_no_sums_and_is_used() {
        let file = CrashDisk::new().create("tree", 0).expect("an empty disk");
        let plain = SummedFile::plain(file.clone());
        let engine = RedbEngine::of(RedbTree::of(file.clone(), plain, 1 << 20).expect("an empty file"));
        engine.apply(&Batch::default(), b"first").expect("memory");
        drop(engine);
        for (is, next) in [(b"first", b"later"), (b"later", b"third")] {
            let engine = RedbEngine::open(file.clone(), None, 1 << 20).expect("a tree");
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
        let engine = RedbEngine::open(file, None, 1 << 20).expect("an empty file");
        let outer = Mutex::with_class(&OUTER, ());
        let reading = engine.tree.read();
        drop(outer.lock());
        drop(reading);
        let _held = outer.lock();
        drop(engine);
    }

    #[test]
    fn a_panic_of_the_library_is_damage() {
        let said = guarded("look at the tree", || -> Result<(), redb::Error> { panic!("planned") });
        let said = said.expect_err("it panics").to_string();
        assert!(said.contains("could not look at the tree: the library that keeps it gave up"), "{said}");
    }
}
