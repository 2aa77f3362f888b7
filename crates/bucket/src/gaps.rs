//! Gaps: pushes that are missing between others. SlateDB takes the first gap for the end of its log, and the next push fills it.

use crate::engine::RECORDS;
use crate::error::{of_objects, of_records};
use crate::objects::Objects;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};
use slatedb::admin::Admin;
use sluice_store::StoreError;
use std::collections::BTreeSet;

/// Fails if a push is missing that the sorted objects do not have, and a later one is there.
///
/// # Errors
/// [`StoreError::Damaged`], and the object store's.
pub(crate) async fn check(objects: &Objects) -> Result<(), StoreError> {
    let place = Path::from(format!("{RECORDS}/wal"));
    let found = objects.list_with_delimiter(Some(&place)).await.map_err(of_objects("list the pushes"))?;
    let names = found.objects.iter().filter_map(|one| one.location.filename()?.strip_suffix(".sst"));
    let numbers: BTreeSet<u64> = names.filter_map(|name| name.parse().ok()).collect();
    let Some(last) = numbers.last() else { return Ok(()) };
    let manifest = Admin::builder(RECORDS, objects.clone()).build().read_manifest(None).await;
    let manifest = manifest.map_err(of_records("open the records"))?;
    // The sorted objects have the pushes before, which SlateDB deletes some time later.
    let Some(first) = manifest.map(|manifest| manifest.replay_after_wal_id() + 1) else { return Ok(()) };
    let Some(missing) = (first..*last).find(|number| !numbers.contains(number)) else { return Ok(()) };
    // A list that was made while an owner pushed may lack it.
    match objects.head(&place.join(format!("{missing:020}.sst"))).await {
        Err(Error::NotFound { .. }) => {
            Err(StoreError::Damaged(format!("push {missing} of the log is missing")))
        }
        found => found.map(drop).map_err(of_objects("look for a push")),
    }
}
