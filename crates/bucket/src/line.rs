//! StoreLine: the way to an object store. The line may be slow, and a request is given up only when no answers come.
//!
//! A request is given up when for some time no request at all was answered. That time is longer the more bytes are on their way: on a slow
//! line they take as long, and what waits behind them waits too. The speed that counts is a fraction of what the line has shown,
//! and a smaller fraction after each request that was given up, down to that of the slowest line. So on a fast line one lost request holds up a
//! push for seconds.

use crate::objects::Objects;
use crate::reason::is_full;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use slatedb_common::retry::NonRetryable;
use sluice_sync::Arc;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::time::Duration;
use std::fmt;
use tokio::time::{Instant, timeout};

/// How long a request without many bytes may stay without an answer.
const REQUEST: Duration = Duration::from_secs(10);
/// Bytes a second of the slowest line that is waited for.
const SLOWEST: u64 = 50_000;
/// Bytes a second that a line is expected to have of which nothing is known.
const UNKNOWN: u64 = 1_000_000;
/// A line is expected to have such a part of the bytes a second that it had, and after a request that was given up such a part of that.
const SLOWER: u64 = 8;
/// Bytes of a request from which on its time shows how fast the line is.
const TELLING: u64 = 64 << 10;
/// How often the time of one request begins anew because others are answered.
const ROUNDS: usize = 4;

/// The observed state of the line to one object store.
#[derive(Debug)]
pub(crate) struct StoreLine {
    /// Bytes that are being sent. *atomic (stands alone)*
    sending: AtomicU64,
    /// Answers, and parts of answers. *atomic (stands alone)*
    heard: AtomicU64,
    /// *immutable*
    request: Duration,
    /// *immutable*
    slowest: u64,
    /// Bytes a second that a request is expected to have. *atomic (stands alone)*
    expected: AtomicU64,
}

impl Default for StoreLine {
    fn default() -> Self {
        StoreLine { expected: AtomicU64::new(UNKNOWN), ..StoreLine::of(REQUEST, SLOWEST) }
    }
}

impl StoreLine {
    /// A line on which a request may take so long, and that has at least so many bytes a second.
    pub(crate) fn of(request: Duration, slowest: u64) -> StoreLine {
        let [sending, heard] = [0; 2].map(AtomicU64::new);
        StoreLine { sending, heard, request, slowest, expected: AtomicU64::new(slowest) }
    }

    /// How often something was heard.
    pub(crate) fn heard(&self) -> u64 {
        // Relaxed: a number that stands alone.
        self.heard.load(Ordering::Relaxed)
    }

    /// How much longer than usual to wait for what is on its way, on the slowest line.
    pub(crate) fn more_patience(&self) -> Duration {
        self.time_at(self.slowest)
    }

    /// How long a request may take now.
    fn patience(&self) -> Duration {
        // Relaxed: a number that stands alone.
        self.request + self.time_at(self.expected.load(Ordering::Relaxed))
    }

    /// How long a line with so many bytes a second takes for what is on its way.
    fn time_at(&self, bytes_per_second: u64) -> Duration {
        // Relaxed: a number that stands alone.
        Duration::from_millis(self.sending.load(Ordering::Relaxed) * 1000 / bytes_per_second)
    }

    /// A request with so many bytes was answered after so long.
    fn learn(&self, bytes: u64, took: Duration) {
        if bytes >= TELLING {
            let shown = bytes * 1000 / (took.as_millis() as u64).max(1);
            // Relaxed: a number that stands alone.
            self.expected.fetch_max(shown / SLOWER, Ordering::Relaxed);
        }
    }

    /// A request with so many bytes is given up.
    fn give_up(&self, bytes: u64) -> Error {
        if bytes >= TELLING {
            // Relaxed: a number that stands alone; of two changes at a time one may count.
            let slower = (self.expected.load(Ordering::Relaxed) / SLOWER).max(self.slowest);
            self.expected.store(slower, Ordering::Relaxed);
        }
        Error::Generic { store: "object store", source: "no answer came in time".into() }
    }

    fn hear(&self) {
        // Relaxed: a number that stands alone.
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// The answer to `request`, which sends so many `bytes`.
    async fn answer<T>(&self, bytes: usize, request: impl Future<Output = Result<T>>) -> Result<T> {
        let _sending = Sending::of(self, bytes as u64);
        let began = Instant::now();
        let mut request = std::pin::pin!(request);
        for _ in 0..ROUNDS {
            let before = self.heard();
            if let Ok(done) = timeout(self.patience(), request.as_mut()).await {
                self.hear();
                if done.is_ok() {
                    self.learn(bytes as u64, began.elapsed());
                }
                return done.map_err(not_again);
            }
            if self.heard() == before {
                break;
            }
        }
        Err(self.give_up(bytes as u64))
    }

    /// `items`, each of which may take as long as a request.
    fn items<T: Send + 'static>(
        self: &Arc<StoreLine>,
        items: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let next = |(line, items): (Arc<StoreLine>, Option<BoxStream<'static, Result<T>>>)| async move {
            let mut items = items?;
            match timeout(line.patience(), items.next()).await {
                Ok(item) => {
                    line.hear();
                    Some((item?, (line, Some(items))))
                }
                Err(_) => Some((Err(line.give_up(0)), (line, None))),
            }
        };
        stream::unfold((self.clone(), Some(items)), next).boxed()
    }
}

/// Bytes that count as being sent as long as this lives.
struct Sending<'l>(&'l StoreLine, u64);

impl Sending<'_> {
    fn of(line: &StoreLine, bytes: u64) -> Sending<'_> {
        // Relaxed: a number that stands alone.
        line.sending.fetch_add(bytes, Ordering::Relaxed);
        Sending(line, bytes)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        // Relaxed: a number that stands alone.
        self.0.sending.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Marks `error` as final if the store is full: a retry would find no more room.
fn not_again(error: Error) -> Error {
    match error {
        Error::Generic { store, source } if is_full(&*source) => {
            Error::Generic { store, source: Box::new(NonRetryable(source)) }
        }
        other => other,
    }
}

/// An object store that is reached by way of a line.
#[derive(Debug)]
pub(crate) struct LineObjects {
    pub(crate) objects: Objects,
    pub(crate) line: Arc<StoreLine>,
}

impl fmt::Display for LineObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

#[async_trait::async_trait]
impl ObjectStore for LineObjects {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.line.answer(payload.content_length(), self.objects.put_opts(at, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.line.answer(0, self.objects.put_multipart_opts(at, options)).await?;
        Ok(Box::new(LineUpload { upload, line: self.line.clone() }))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let mut found = self.line.answer(0, self.objects.get_opts(at, options)).await?;
        found.payload = match found.payload {
            GetResultPayload::Stream(parts) => GetResultPayload::Stream(self.line.items(parts)),
            file => file,
        };
        Ok(found)
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.line.items(self.objects.delete_stream(at))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.line.items(self.objects.list(prefix))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.line.answer(0, self.objects.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.line.answer(0, self.objects.copy_opts(from, to, options)).await
    }
}

/// An object that is sent in parts.
#[derive(Debug)]
struct LineUpload {
    upload: Box<dyn MultipartUpload>,
    line: Arc<StoreLine>,
}

#[async_trait::async_trait]
impl MultipartUpload for LineUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (line, bytes) = (self.line.clone(), data.content_length());
        let part = self.upload.put_part(data);
        Box::pin(async move { line.answer(bytes, part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.line.answer(0, self.upload.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.line.answer(0, self.upload.abort()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Stop, wait};
    use sluice_store::StoreError;

    const REQUEST: Duration = Duration::from_millis(40);

    /// A request that is answered after so many milliseconds; 0: never.
    async fn answered_after(ms: u64) -> Result<u64> {
        match ms {
            0 => std::future::pending().await,
            ms => tokio::time::sleep(Duration::from_millis(ms)).await,
        }
        Ok(ms)
    }

    fn done<T>(work: impl Future<Output = T>) -> T {
        wait(async { Ok::<_, StoreError>(work.await) }).expect("threads")
    }

    #[test]
    fn a_request_with_many_bytes_may_take_as_long_as_a_slow_line_takes_for_them() {
        let line = StoreLine::of(REQUEST, 1000);
        assert!(done(line.answer(100, answered_after(0))).is_err(), "nothing comes");
        assert_eq!(done(line.answer(60_000, answered_after(400))).expect("60 s of patience"), 400);
        assert_eq!(line.more_patience(), Duration::ZERO, "nothing is on its way");
    }

    #[test]
    fn a_request_that_waits_behind_others_is_not_given_up_while_these_are_answered_but_at_some_time() {
        let line = StoreLine::of(Duration::from_millis(300), 1000);
        let others = async {
            for _ in 0..100 {
                line.answer(0, answered_after(20)).await.expect("in time");
            }
        };
        let late = line.answer(0, answered_after(500));
        let (late, ()) = done(async { futures_util::join!(late, others) });
        assert_eq!(late.expect("the line is alive"), 500);
        let others = async {
            for _ in 0..200 {
                line.answer(0, answered_after(20)).await.expect("in time");
            }
        };
        let lost = line.answer(0, answered_after(0));
        let (lost, ()) = done(async { futures_util::join!(lost, others) });
        assert!(lost.is_err(), "its answer was lost");
    }

    #[test]
    fn on_a_line_that_was_fast_a_lost_request_is_given_up_soon_and_on_one_that_became_slow_later() {
        const BYTES: usize = 1 << 20;
        let line = StoreLine::of(Duration::from_millis(20), 1000);
        let patience = |line: &StoreLine| {
            let _sending = Sending::of(line, BYTES as u64);
            line.patience()
        };
        assert!(patience(&line) > Duration::from_secs(1000), "nothing is known of the line");
        done(line.answer(BYTES, answered_after(5))).expect("in time");
        assert!(patience(&line) < Duration::from_secs(1));
        done(line.answer(BYTES, std::future::pending::<Result<()>>())).expect_err("it is lost");
        let slower = patience(&line);
        done(line.answer(BYTES, std::future::pending::<Result<()>>())).expect_err("it is lost");
        assert!(patience(&line) > slower, "{slower:?}");
    }

    #[test]
    fn a_store_waits_as_long_as_something_is_heard() {
        let line = Arc::new(StoreLine::of(REQUEST, 1000));
        let stop = Stop::of(line.clone(), Duration::from_millis(300));
        let slow = stop.wait(async {
            for _ in 0..60 {
                line.answer(0, answered_after(20)).await.map_err(crate::error::of_objects("try"))?;
            }
            Ok(7)
        });
        assert_eq!(slow.expect("it took more than the patience, and was heard of"), 7);
        assert!(stop.wait(std::future::pending::<std::result::Result<(), StoreError>>()).is_err());
    }

    #[test]
    fn no_room_is_told_and_not_tried_again() {
        let full = || std::io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let error = not_again(Error::Generic { store: "files", source: Box::new(full()) });
        assert!(!slatedb_common::retry::should_retry(&error));
        assert_eq!(
            crate::error::of_objects("write data")(error).errno(),
            rustix::io::Errno::NOSPC.raw_os_error()
        );
    }
}
