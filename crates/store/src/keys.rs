//! Keys: an encrypted store is unlocked, and keys that open it come and go.

use crate::disk::Disk;
use crate::encryption::{KeySlot, StoreKey, keys_of, replace, unlocked};
use crate::open::read_any_super;
use crate::{Store, StoreError};
use sluice_sync::Arc;

impl Store {
    /// The disk with the encrypted store on it, which `key` opens.
    ///
    /// # Errors
    /// [`StoreError::WrongKey`]; [`StoreError::NotEncrypted`]; errors of [`info`](Self::info).
    pub fn unlock(disk: Arc<dyn Disk>, key: &StoreKey) -> Result<Arc<dyn Disk>, StoreError> {
        let found = read_any_super(&*disk)?;
        unlocked(disk, &found, key)
    }

    /// The slots of the encrypted store on `disk` that are used.
    ///
    /// # Errors
    /// [`StoreError::NotEncrypted`]; errors of [`info`](Self::info).
    pub fn keys(disk: &dyn Disk) -> Result<Vec<KeySlot>, StoreError> {
        keys_of(disk, &read_any_super(disk)?).map(|keys| keys.slots())
    }

    /// Lets `new` open the store on `disk`, which `key` opens: its slot.
    ///
    /// # Errors
    /// Errors of [`unlock`](Self::unlock); [`StoreError::BadKey`] when no slot is free; the disk's.
    pub fn add_key(disk: &dyn Disk, key: &StoreKey, new: &StoreKey) -> Result<usize, StoreError> {
        let mut keys = keys_of(disk, &read_any_super(disk)?)?;
        let slot = keys.add(key, new)?;
        replace(disk, &keys)?;
        Ok(slot)
    }

    /// Takes from the key of `slot` that it opens the store on `disk`. `key` opens the store, and goes on to do so.
    ///
    /// # Errors
    /// Errors of [`unlock`](Self::unlock); [`StoreError::BadKey`] for the slot of `key`, and for an empty one; the disk's.
    pub fn remove_key(disk: &dyn Disk, key: &StoreKey, slot: usize) -> Result<(), StoreError> {
        let mut keys = keys_of(disk, &read_any_super(disk)?)?;
        keys.remove(key, slot)?;
        replace(disk, &keys)
    }
}
