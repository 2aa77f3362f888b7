//! Counted: the object store by way of which data are read and written, with how often that was and how long it took.

use crate::objects::Objects;
use crate::traffic::{GET, KIND, PUT};
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use slatedb::instrumented_object_store_stats::{ERROR_COUNT, REQUEST_DURATION_SECONDS};
use slatedb_common::metrics::{CounterFn, DefaultMetricsRecorder, HistogramFn, MetricsRecorder};
use sluice_sync::Arc;
use sluice_sync::time::Instant;
use std::fmt;

/// The bounds between which requests are counted, in seconds.
const BOUNDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// An object store whose requests are counted as SlateDB counts its own.
pub(crate) struct CountedObjects {
    objects: Objects,
    get: RequestMeter,
    put: RequestMeter,
}

/// Requests of one kind.
struct RequestMeter {
    took: Arc<dyn HistogramFn>,
    failed: Arc<dyn CounterFn>,
}

impl RequestMeter {
    fn new(kind: &str, recorder: &DefaultMetricsRecorder) -> RequestMeter {
        let labels = [(KIND, kind)];
        RequestMeter {
            took: recorder.register_histogram(REQUEST_DURATION_SECONDS, "", &labels, &BOUNDS),
            failed: recorder.register_counter(ERROR_COUNT, "", &labels),
        }
    }

    async fn count<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let began = Instant::now();
        let done = request.await;
        self.took.record(began.elapsed().as_secs_f64());
        if done.is_err() {
            self.failed.increment(1);
        }
        done
    }
}

impl CountedObjects {
    /// Counts the requests to `objects` in `recorder`.
    pub(crate) fn new(objects: Objects, recorder: &DefaultMetricsRecorder) -> CountedObjects {
        CountedObjects {
            objects,
            get: RequestMeter::new(GET, recorder),
            put: RequestMeter::new(PUT, recorder),
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for CountedObjects {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.put.count(self.objects.put_opts(at, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.get.count(self.objects.get_opts(at, options)).await
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

impl fmt::Debug for CountedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

impl fmt::Display for CountedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}
