//! Gaps: pushes that are missing between others. SlateDB takes the first gap for the end of its log, and the next push fills it.

use crate::error::{of_objects, of_records};
use crate::layout::RECORDS;
use crate::objects::{self, Objects};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStoreExt};
use slatedb::admin::Admin;
use sluice_store::StoreError;
use std::collections::BTreeSet;

/// Fails if a push is missing that the sorted objects do not have, and a later one is there.
///
/// # Errors
/// [`StoreError::DamagedLog`], and the object store's.
pub(crate) async fn check(objects: &Objects) -> Result<(), StoreError> {
    find(objects).await?.map_or(Ok(()), |missing| Err(lost(missing)))
}

/// The loss of push `missing` as an error.
pub(crate) fn lost(missing: u64) -> StoreError {
    StoreError::DamagedLog(format!("push {missing} is missing"))
}

/// Removes all pushes behind the first missing one, the newest first: until the last is gone, the gap stays and is found.
///
/// # Errors
/// The object store's.
pub(crate) async fn cut_off(objects: &Objects) -> Result<(), StoreError> {
    let Some(missing) = find(objects).await? else { return Ok(()) };
    let found = list(objects).await?;
    let mut behind: Vec<_> = found.iter().filter_map(|one| Some((number(one)?, &one.location))).collect();
    behind.retain(|(number, _)| *number > missing);
    behind.sort_unstable_by(|one, other| other.cmp(one));
    for (_, at) in behind {
        objects::delete(objects, at).await?;
    }
    Ok(())
}

/// The first push that is missing between others.
///
/// # Errors
/// The object store's.
pub(crate) async fn find(objects: &Objects) -> Result<Option<u64>, StoreError> {
    let numbers: BTreeSet<u64> = list(objects).await?.iter().filter_map(number).collect();
    let Some(last) = numbers.last() else { return Ok(None) };
    let manifest = Admin::builder(RECORDS, objects.clone()).build().read_manifest(None).await;
    let manifest = manifest.map_err(of_records("open the records"))?;
    // The sorted objects have the pushes before, which SlateDB deletes some time later.
    let Some(first) = manifest.map(|manifest| manifest.replay_after_wal_id() + 1) else { return Ok(None) };
    let Some(missing) = (first..*last).find(|number| !numbers.contains(number)) else { return Ok(None) };
    // A list that was made while an owner pushed may lack it.
    match objects.head(&place().join(format!("{missing:020}.sst"))).await {
        Err(Error::NotFound { .. }) => Ok(Some(missing)),
        found => found.map(|_| None).map_err(of_objects("look for a push")),
    }
}

/// The number of a push.
fn number(push: &ObjectMeta) -> Option<u64> {
    push.location.filename()?.strip_suffix(".sst")?.parse().ok()
}

/// All pushes that are there.
///
/// # Errors
/// The object store's.
pub(crate) async fn list(objects: &Objects) -> Result<Vec<ObjectMeta>, StoreError> {
    let listed = objects.list_with_delimiter(Some(&place())).await;
    Ok(listed.map_err(of_objects("list the pushes"))?.objects)
}

/// Whether the object `at` is a push.
pub(crate) fn is_push(at: &Path) -> bool {
    at.prefix_matches(&place())
}

fn place() -> Path {
    Path::from(format!("{RECORDS}/wal"))
}
