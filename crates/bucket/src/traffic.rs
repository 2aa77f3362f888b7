//! Traffic: what was asked of the object store, and found in the cache on this machine's disk: as SlateDB counts it for the records,
//! and likewise for data.

use slatedb::cached_object_store_stats::{CACHE_BYTES, PART_ACCESS_COUNT, PART_HIT_COUNT};
use slatedb::db_stats::BACKPRESSURE_COUNT;
use slatedb::instrumented_object_store_stats::{ERROR_COUNT, REQUEST_DURATION_SECONDS};
use slatedb_common::metrics::{DefaultMetricsRecorder, Metric, MetricValue, Metrics};
use sluice_sync::Arc;
use std::fmt;

/// By which label SlateDB tells the kinds apart.
pub(crate) const KIND: &str = "op";
pub(crate) const GET: &str = "get";
pub(crate) const PUT: &str = "put";
const KINDS: [&str; 3] = [GET, PUT, "delete"];

/// Requests to the object store, and hits in the cache on this machine's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// By kind.
    pub requests: Vec<RequestCounts>,
    /// Lookups in the cache.
    pub cache_lookups: u64,
    /// The number of hits.
    pub cache_hits: u64,
    /// Bytes in the cache.
    pub cache_bytes: u64,
    /// Writes that waited until records in memory had become objects.
    pub write_stalls: u64,
}

/// Requests of one kind to the object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    /// `get`, `put` or `delete`.
    pub kind: &'static str,
    /// Requests that failed, and may have been repeated, or that found nothing, as a search for newer records
    /// does.
    pub failed: u64,
    /// How long all took together, in nanoseconds.
    pub ns_total: u64,
    /// At most so many nanoseconds, and more than the bound before: so many requests. In the order of the bounds.
    pub buckets: Vec<(u64, u64)>,
}

/// The counters of an open store.
#[derive(Clone, Default)]
pub(crate) struct TrafficRecorders {
    /// SlateDB's own, of the records.
    pub(crate) records: Arc<DefaultMetricsRecorder>,
    /// For data.
    pub(crate) data: Arc<DefaultMetricsRecorder>,
}

impl TrafficRecorders {
    /// The sums since the store was opened.
    pub(crate) fn sum(&self) -> Traffic {
        let metrics = [&self.records, &self.data].map(|recorder| recorder.snapshot());
        let sum = |name| metrics.iter().flat_map(|metrics| metrics.by_name(name)).map(number).sum();
        Traffic {
            requests: KINDS.map(|kind| requests(&metrics, kind)).into(),
            cache_lookups: sum(PART_ACCESS_COUNT),
            cache_hits: sum(PART_HIT_COUNT),
            cache_bytes: sum(CACHE_BYTES),
            write_stalls: sum(BACKPRESSURE_COUNT),
        }
    }
}

/// The requests of `kind`.
fn requests(metrics: &[Metrics; 2], kind: &'static str) -> RequestCounts {
    let of_kind = |name| {
        let is_of_kind =
            move |metric: &&Metric| metric.labels.iter().any(|(name, value)| name == KIND && value == kind);
        metrics.iter().flat_map(move |metrics| metrics.by_name(name)).filter(is_of_kind)
    };
    let mut all = RequestCounts {
        kind,
        failed: of_kind(ERROR_COUNT).map(number).sum(),
        ns_total: 0,
        buckets: Vec::new(),
    };
    for metric in of_kind(REQUEST_DURATION_SECONDS) {
        let MetricValue::Histogram { sum, boundaries, bucket_counts, .. } = &metric.value else { continue };
        all.ns_total += nanoseconds(*sum);
        let bounds = boundaries.iter().map(|bound| nanoseconds(*bound)).chain([u64::MAX]);
        for (bound, &count) in bounds.zip(bucket_counts).filter(|(_, count)| **count > 0) {
            match all.buckets.binary_search_by_key(&bound, |bucket| bucket.0) {
                Ok(at) => all.buckets[at].1 += count,
                Err(at) => all.buckets.insert(at, (bound, count)),
            }
        }
    }
    all
}

fn number(metric: &Metric) -> u64 {
    match metric.value {
        MetricValue::Counter(count) => count,
        MetricValue::Gauge(now) | MetricValue::UpDownCounter(now) => now.max(0).cast_unsigned(),
        MetricValue::Histogram { count, .. } => count,
    }
}

/// Converts a sum, which is never negative.
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl fmt::Debug for TrafficRecorders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sum().fmt(f)
    }
}
