//! KeyedDisk: a disk with the cipher of its store, which the file `keys` there has for whoever has a key.

use super::cipher::Cipher;
use super::piece::KEY_ID;
use super::slots::{KeyFile, StoreKey};
use crate::StoreError;
use crate::disk::{Disk, DiskFile};
use crate::format::{KEYS, KEYS_COPY, KEYS_SIZE, Super};
use sluice_sync::Arc;
use std::io;

/// A disk with the cipher of its store.
#[derive(Debug)]
struct KeyedDisk {
    below: Arc<dyn Disk>,
    cipher: Arc<Cipher>,
}

/// A disk for a new encrypted store, which `key` opens.
///
/// # Errors
/// [`StoreError::Exists`]; the disk's.
pub(crate) fn make(disk: Arc<dyn Disk>, key: &StoreKey) -> Result<Arc<dyn Disk>, StoreError> {
    let (keys, cipher) = KeyFile::new(key)?;
    let written = disk.create(KEYS, KEYS_SIZE as u64).and_then(|file| {
        file.write_at(&keys.encode(), 0)?;
        file.sync()
    });
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => StoreError::Exists,
        _ => StoreError::Io("write the keys", error),
    })?;
    Ok(keyed(disk, Arc::new(cipher)))
}

fn keyed(below: Arc<dyn Disk>, cipher: Arc<Cipher>) -> Arc<dyn Disk> {
    Arc::from(Box::new(KeyedDisk { below, cipher }) as Box<dyn Disk>)
}

/// The disk with the encrypted store on it that says of itself `found`, which `key` opens.
///
/// # Errors
/// [`StoreError::WrongKey`], [`StoreError::NotEncrypted`], [`StoreError::Damaged`]; the disk's.
pub(crate) fn unlocked(
    disk: Arc<dyn Disk>,
    found: &Super,
    key: &StoreKey,
) -> Result<Arc<dyn Disk>, StoreError> {
    let cipher = Arc::new(keys_of(&*disk, found)?.unlock(key)?);
    Ok(keyed(disk, cipher))
}

/// The file `keys` of the store on `disk` that says of itself `found`.
///
/// # Errors
/// Errors of [`unlocked`].
pub(crate) fn keys_of(disk: &dyn Disk, found: &Super) -> Result<KeyFile, StoreError> {
    let id = found.key_id.ok_or(StoreError::NotEncrypted)?;
    let file = disk.open(KEYS).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::Damaged(format!("`{KEYS}` is missing")),
        _ => StoreError::io("open the keys")(error),
    })?;
    let read = || {
        let mut bytes = vec![0; file.size()?.min(2 * KEYS_SIZE as u64) as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    of_key(id, &read().map_err(StoreError::io("read the keys"))?)
}

/// The file `keys` with these `bytes`, of the store whose master key has the number `id`.
fn of_key(id: [u8; KEY_ID], bytes: &[u8]) -> Result<KeyFile, StoreError> {
    let keys = KeyFile::decode(bytes)?;
    if keys.id() == id {
        Ok(keys)
    } else {
        Err(StoreError::Damaged(format!("`{KEYS}` belongs to another store")))
    }
}

impl KeyFile {
    /// The keys of the store that names the key `key_id` ([`Info`](crate::Info)), from the bytes of its object `keys`; None: there is no
    /// such object.
    ///
    /// # Errors
    /// [`StoreError::NotEncrypted`], [`StoreError::Damaged`].
    pub fn of_store(key_id: Option<[u8; KEY_ID]>, bytes: Option<&[u8]>) -> Result<KeyFile, StoreError> {
        let id = key_id.ok_or(StoreError::NotEncrypted)?;
        let missing = || StoreError::Damaged(format!("`{KEYS}` is missing"));
        of_key(id, bytes.ok_or_else(missing)?)
    }
}

/// Puts `keys` in the place of those of the store on `disk`: after a crash one or the other is there.
///
/// # Errors
/// The disk's.
pub(crate) fn replace(disk: &dyn Disk, keys: &KeyFile) -> Result<(), StoreError> {
    let written = || {
        // A crash may have left one.
        match disk.remove(KEYS_COPY) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.create(KEYS_COPY, KEYS_SIZE as u64)?;
        file.write_at(&keys.encode(), 0)?;
        file.sync()?;
        disk.rename(KEYS_COPY, KEYS)?;
        disk.sync_names()
    };
    written().map_err(StoreError::io("write the keys"))
}

impl Disk for KeyedDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.below.open(name)
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.below.create(name, len)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.below.names()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.below.free_bytes()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.below.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.below.remove(name)
    }

    fn unlock(&self) {
        self.below.unlock();
    }

    fn sync_names(&self) -> io::Result<()> {
        self.below.sync_names()
    }

    fn cipher(&self) -> Option<Arc<Cipher>> {
        Some(self.cipher.clone())
    }
}
