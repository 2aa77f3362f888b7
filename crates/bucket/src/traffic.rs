//! Traffic: what SlateDB has asked of the object store, and found in the cache on this machine's disk, as it counts it itself.

use slatedb::cached_object_store_stats::{CACHE_BYTES, PART_ACCESS_COUNT, PART_HIT_COUNT};
use slatedb::db_stats::BACKPRESSURE_COUNT;
use slatedb::instrumented_object_store_stats::{ERROR_COUNT, REQUEST_DURATION_SECONDS};
use slatedb_common::metrics::{DefaultMetricsRecorder, Metric, MetricValue, Metrics};
use sluice_store::engine::{RequestCounts, Traffic};

/// By which label SlateDB tells the kinds apart.
const KIND: &str = "op";
const KINDS: [&str; 3] = ["get", "put", "delete"];

/// What `recorder` has counted since the records were opened.
pub(crate) fn of(recorder: &DefaultMetricsRecorder) -> Traffic {
    let metrics = recorder.snapshot();
    let sum = |name| metrics.by_name(name).into_iter().map(number).sum();
    Traffic {
        requests: KINDS.map(|kind| requests(&metrics, kind)).into(),
        cache_lookups: sum(PART_ACCESS_COUNT),
        cache_hits: sum(PART_HIT_COUNT),
        cache_bytes: sum(CACHE_BYTES),
        write_stalls: sum(BACKPRESSURE_COUNT),
    }
}

/// The requests of `kind`, of all parts of SlateDB.
fn requests(metrics: &Metrics, kind: &'static str) -> RequestCounts {
    let of_kind = |name| {
        let is_of_kind =
            move |metric: &&Metric| metric.labels.iter().any(|(name, value)| name == KIND && value == kind);
        metrics.by_name(name).into_iter().filter(is_of_kind)
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

/// Of a sum that never is negative.
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
