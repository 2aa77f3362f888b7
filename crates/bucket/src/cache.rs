//! Cache: copies of objects on this machine's disk, as SlateDB keeps them, of the records and of data.

use crate::error::of_records;
use crate::objects::Objects;
use object_store::Extensions;
use slatedb::object_store_tag::{ObjectStoreCallTag, RetryReason, SstType, TableStoreKind};
use slatedb_common::metrics::DefaultMetricsRecorder;
use sluice_store::StoreError;
use sluice_sync::Arc;
use std::path::PathBuf;

/// Bytes of an object that are kept as one file, and fetched together.
const PART: usize = 1 << 20;

/// A directory on this machine's disk in which copies of objects are kept that were read or written. Copies are checked before use,
/// so the cache may be lost, damaged, or shared by processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    /// The directory; it is made if need be. Each store has a subdirectory.
    pub dir: PathBuf,
    /// Bytes that the copies of one store may take.
    pub bytes: u64,
}

fn size_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// `objects` by way of a `cache` on this machine's disk, whose hits and size `recorder` has. It contains written objects before they are
/// read.
///
/// # Errors
/// If it cannot be used.
#[allow(deprecated, reason = "its successor keeps whole objects, and SlateDB uses it still")]
pub(crate) async fn cached(
    objects: Objects,
    cache: &DiskCache,
    recorder: &Arc<DefaultMetricsRecorder>,
) -> Result<Objects, StoreError> {
    let builder = slatedb::cached_object_store::CachedObjectStore::builder(&cache.dir, objects)
        .with_max_cache_size_bytes(Some(size_of(cache.bytes)))
        .with_part_size_bytes(PART)
        .with_cache_on_flush(true)
        .with_cache_on_compaction(true)
        .with_metrics_recorder(recorder.clone());
    Ok(builder.build().await.map_err(of_records("use the cache on disk"))?)
}

/// The tag for the cache on this machine's disk: the cache keeps objects that SlateDB marks so, and fetches damaged
/// ones `anew`.
pub(crate) fn tag(anew: bool) -> Extensions {
    let mut tag = ObjectStoreCallTag::new(TableStoreKind::Main, SstType::Compacted);
    tag.retry = anew.then_some(RetryReason::CrcMismatch);
    tag.into()
}
