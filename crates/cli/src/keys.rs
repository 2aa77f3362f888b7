//! Keys: `sluice key`, by which keys of an encrypted store come and go.

use crate::args::{KeyAction, KeyFiles};
use crate::bucket::Bucket;
use crate::failures::failure;
use crate::key_source::{KeySource, key_for, new_key};
use crate::store::refuse_mount;
use serde_json::json;
use sluice_console::failure::{Failure, Result};
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
    if Bucket::is_url(store) {
        let text = "a store in an object store is not encrypted yet";
        return Err(Failure::Unsupported(format!("{}: {text}", store.display())));
    }
    refuse_mount(store)?;
    let text = match action {
        KeyAction::List { store, json } => {
            let disk = HostDisk::unlocked(store).map_err(failure(store))?;
            listed(&Store::keys(&disk).map_err(failure(store))?, *json)
        }
        KeyAction::Add { store, files, new_key_file, new_passphrase_file } => {
            let (disk, key) = changed(store, files)?;
            // Says that it is a wrong one before a new one is asked for.
            Store::unlock(disk.clone(), &key).map_err(failure(store))?;
            let new = new_key(store, KeySource::of(new_key_file.as_ref(), new_passphrase_file.as_ref()))?;
            let slot = Store::add_key(&*disk, &key, &new).map_err(failure(store))?;
            format!("slot {slot}\n")
        }
        KeyAction::Remove { store, slot, files } => {
            let (disk, key) = changed(store, files)?;
            Store::remove_key(&*disk, &key, *slot).map_err(failure(store))?;
            String::new()
        }
    };
    Output::plain().give(text.as_bytes())
}

/// The disk of `store`, whose keys are to change, and a key that opens it.
fn changed(store: &Path, files: &KeyFiles) -> Result<(Arc<HostDisk>, StoreKey)> {
    let disk = Arc::new(HostDisk::lock(store).map_err(failure(store))?);
    disk.refuse_unfinished().map_err(failure(store))?;
    // Says what is wrong before a person is asked.
    Store::keys(&*disk).map_err(failure(store))?;
    let key = key_for(store, files.source(), "A passphrase")?;
    let key = key.ok_or_else(|| failure(store)(StoreError::Locked))?;
    Ok((disk, key))
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
