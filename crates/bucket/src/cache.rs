//! Cache: copies of objects on this machine's disk, as SlateDB keeps them, of the records and of data.

use crate::error::of_records;
use crate::objects::Objects;
use crate::runtime::wait;
use object_store::Extensions;
use slatedb::config::ObjectStoreCacheOptions;
use slatedb::object_store_tag::{ObjectStoreCallTag, RetryReason, SstType, TableStoreKind};
use slatedb_common::metrics::DefaultMetricsRecorder;
use sluice_store::{DiskCache, StoreError};
use sluice_sync::Arc;

/// Bytes of an object that are kept as one file, and fetched together.
const PART: usize = 1 << 20;

fn size_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// SlateDB's cache of objects: it contains written objects before they are read.
pub(crate) fn options(cache: Option<&DiskCache>) -> ObjectStoreCacheOptions {
    let Some(DiskCache { dir, bytes }) = cache else {
        return ObjectStoreCacheOptions::default();
    };
    ObjectStoreCacheOptions {
        root_folder: Some(dir.clone()),
        max_cache_size_bytes: Some(size_of(*bytes)),
        part_size_bytes: PART,
        cache_on_flush: true,
        cache_on_compaction: true,
        ..ObjectStoreCacheOptions::default()
    }
}

/// `objects` by way of a `cache` on this machine's disk, whose hits and size `recorder` has.
///
/// # Errors
/// If it cannot be used.
#[allow(deprecated, reason = "its successor keeps whole objects, and SlateDB uses it still")]
pub(crate) fn cached(
    objects: Objects,
    cache: &DiskCache,
    recorder: &Arc<DefaultMetricsRecorder>,
) -> Result<Objects, StoreError> {
    let builder = slatedb::cached_object_store::CachedObjectStore::builder(&cache.dir, objects)
        .with_max_cache_size_bytes(Some(size_of(cache.bytes)))
        .with_part_size_bytes(PART)
        .with_cache_on_flush(true)
        .with_metrics_recorder(recorder.clone());
    let cached = wait(async { builder.build().await.map_err(of_records("use the cache on disk")) })?;
    Ok(cached)
}

/// The tag for the cache on this machine's disk: the cache keeps objects that SlateDB marks so, and fetches damaged
/// ones `anew`.
pub(crate) fn tag(anew: bool) -> Extensions {
    let mut tag = ObjectStoreCallTag::new(TableStoreKind::Main, SstType::Compacted);
    tag.retry = anew.then_some(RetryReason::CrcMismatch);
    tag.into()
}
