//! Keys: `sluice key`, by which keys of an encrypted store come and go.

use crate::args::{KeyAction, KeyFiles};
use crate::bucket::{self, Bucket};
use crate::failures::failure;
use crate::key_source::{KeySource, key_for, new_key};
use crate::store::refuse_mount;
use serde_json::json;
use sluice_console::failure::Result;
use sluice_console::output::Output;
use sluice_store::disk::HostDisk;
use sluice_store::{KeyKind, KeySlot, Store, StoreError, StoreKey};
use sluice_sync::Arc;
use std::fmt::Write as _;
use std::path::Path;

/// Carries out `sluice key`.
pub(crate) fn perform(action: &KeyAction) -> Result<()> {
    let (KeyAction::Add { store, .. } | KeyAction::Remove { store, .. } | KeyAction::List { store, .. }) =
        action;
    let bucket = bucket::given(store)?;
    refuse_mount(store)?;
    let text = match action {
        KeyAction::List { json, .. } => {
            let slots = match &bucket {
                Some(bucket) => bucket::keys(bucket),
                None => HostDisk::unlocked(store).and_then(|disk| Store::keys(&disk)),
            };
            listed(&slots.map_err(failure(store))?, *json)
        }
        KeyAction::Add { files, new_key_file, new_passphrase_file, .. } => {
            let (place, key) = KeyPlace::changed(store, bucket, files)?;
            let new = new_key(store, KeySource::of(new_key_file.as_ref(), new_passphrase_file.as_ref()))?;
            format!("slot {}\n", place.add(&key, &new).map_err(failure(store))?)
        }
        KeyAction::Remove { slot, files, .. } => {
            let (place, key) = KeyPlace::changed(store, bucket, files)?;
            place.remove(&key, *slot).map_err(failure(store))?;
            String::new()
        }
    };
    Output::plain().give(text.as_bytes())
}

/// The place of the keys of a store that nobody has open.
enum KeyPlace {
    /// A directory, which is locked.
    Directory(Arc<HostDisk>),
    /// An object store. Each change claims the store.
    Objects(Bucket),
}

impl KeyPlace {
    /// The place of `store`, which is in `bucket` if there is one, and a key that opens the store. A wrong key is refused
    /// before a new one is asked for.
    fn changed(store: &Path, bucket: Option<Bucket>, files: &KeyFiles) -> Result<(KeyPlace, StoreKey)> {
        let place = KeyPlace::free(store, bucket).map_err(failure(store))?;
        let key = key_for(store, files.source(), "A passphrase")?;
        let key = key.ok_or_else(|| failure(store)(StoreError::Locked))?;
        place.unlock(&key).map_err(failure(store))?;
        Ok((place, key))
    }

    fn free(store: &Path, bucket: Option<Bucket>) -> std::result::Result<KeyPlace, StoreError> {
        if let Some(bucket) = bucket {
            bucket::keys(&bucket)?;
            return match bucket.user()? {
                // A process elsewhere that may have died is waited for when the store is claimed.
                Some(user @ StoreError::InUse(_)) => Err(user),
                _ => Ok(KeyPlace::Objects(bucket)),
            };
        }
        let disk = HostDisk::lock(store)?;
        disk.refuse_unfinished()?;
        Store::keys(&disk)?;
        Ok(KeyPlace::Directory(Arc::new(disk)))
    }

    fn unlock(&self, key: &StoreKey) -> std::result::Result<(), StoreError> {
        match self {
            KeyPlace::Directory(disk) => Store::unlock(disk.clone(), key).map(drop),
            KeyPlace::Objects(bucket) => bucket::unlocked(bucket, key).map(drop),
        }
    }

    fn add(&self, key: &StoreKey, new: &StoreKey) -> std::result::Result<usize, StoreError> {
        match self {
            KeyPlace::Directory(disk) => Store::add_key(&**disk, key, new),
            KeyPlace::Objects(bucket) => bucket::add_key(bucket, key, new),
        }
    }

    fn remove(&self, key: &StoreKey, slot: usize) -> std::result::Result<(), StoreError> {
        match self {
            KeyPlace::Directory(disk) => Store::remove_key(&**disk, key, slot),
            KeyPlace::Objects(bucket) => bucket::remove_key(bucket, key, slot),
        }
    }
}

fn listed(slots: &[KeySlot], json: bool) -> String {
    let kind = |slot: &KeySlot| match slot.kind {
        KeyKind::Passphrase => "passphrase",
        KeyKind::File => "key file",
    };
    let mut text = String::new();
    for slot in slots {
        // Writing to a String cannot fail.
        let _ = match json {
            true => writeln!(text, "{}", json!({"slot": slot.number, "kind": kind(slot)})),
            false => writeln!(text, "{}\t{}", slot.number, kind(slot)),
        };
    }
    text
}
