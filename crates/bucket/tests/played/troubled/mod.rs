//! Troubled: one node's way to an object store in memory, which is in trouble from one request on, for some time of a played clock.

pub(crate) mod work;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use sluice_bucket::Bucket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// The threads of all stores of this process: one, whose clock is played.
pub(crate) fn play() -> &'static tokio::runtime::Handle {
    static HANDLE: OnceLock<tokio::runtime::Handle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let handle = runtime.handle().clone();
        sluice_bucket::run_on(runtime);
        handle
    })
}

/// Bytes a second of a slow line.
const SLOW: u64 = 100_000;

/// The behaviour of an object store that is in trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All requests together have 100 kB/s.
    Slow,
    /// It answers each request with this status.
    Status(u16),
    /// It executes each request, and the answer is lost.
    LostAnswer,
    /// It executes each request and does not answer.
    NoAnswer,
    /// It neither executes a request nor answers.
    Silent,
    /// It executes each request when the trouble is over, whether or not the caller waits still.
    Late,
}

pub(crate) const KINDS: [Kind; 8] = [
    Kind::Slow,
    Kind::Status(400),
    Kind::Status(403),
    Kind::Status(503),
    Kind::LostAnswer,
    Kind::NoAnswer,
    Kind::Silent,
    Kind::Late,
];

/// The trouble of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: Kind,
    /// The request with which it begins.
    pub(crate) from: u64,
    pub(crate) lasts: Duration,
}

/// One node's way to the objects.
#[derive(Clone, Debug)]
pub(crate) struct Troubled(Arc<TroubledState>);

#[derive(Debug)]
struct TroubledState {
    objects: Arc<InMemory>,
    trouble: Option<Trouble>,
    requests: AtomicU64,
    /// When the trouble ends, once it has begun; and when the slow line has sent what it was given.
    times: Mutex<(Option<Instant>, Option<Instant>)>,
}

/// The fate of a request.
enum Fate {
    Executed,
    /// It is executed, and its answer is lost after so long.
    Lost(Duration),
}

/// No answer comes in the time of any caller.
const NEVER: Duration = Duration::from_secs(24 * 3600);

impl Troubled {
    pub(crate) fn new(objects: &Arc<InMemory>, trouble: Option<Trouble>) -> Troubled {
        Troubled(Arc::new(TroubledState {
            objects: objects.clone(),
            trouble,
            requests: AtomicU64::new(0),
            times: Mutex::default(),
        }))
    }

    /// As patient as a bucket that a URL names.
    pub(crate) fn bucket(&self) -> Bucket {
        Bucket::over_patiently(Arc::new(self.clone()))
    }

    pub(crate) fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::SeqCst)
    }

    /// How long the trouble goes on after `now`; none if it has not begun.
    pub(crate) fn is_left(&self, now: Instant) -> Option<Duration> {
        self.0.times.lock().expect("no panic").0.map(|end| end.saturating_duration_since(now))
    }
}

fn lost() -> Error {
    Error::Generic { store: "troubled", source: "the connection was closed".into() }
}

fn refused(status: u16, at: &Path) -> Error {
    let source = format!("Server returned non-2xx status code: {status} X: <Error></Error>").into();
    match status {
        403 => Error::PermissionDenied { path: at.to_string(), source },
        _ => Error::Generic { store: "S3", source },
    }
}

impl TroubledState {
    /// Waits as long as a request takes that sends so many `bytes`.
    async fn send(&self, bytes: u64) {
        let until = {
            let mut times = self.times.lock().expect("no panic");
            let begin = times.1.unwrap_or_else(Instant::now).max(Instant::now());
            let until = begin + Duration::from_millis((200 + bytes) * 1000 / SLOW);
            times.1 = Some(until);
            until
        };
        sleep_until(until).await;
    }

    /// The trouble in which request `number` is, and its end.
    fn end(&self, number: u64) -> Option<(Kind, Instant)> {
        let trouble = self.trouble?;
        let mut times = self.times.lock().expect("no panic");
        if number < trouble.from {
            return None;
        }
        let end = *times.0.get_or_insert_with(|| Instant::now() + trouble.lasts);
        (Instant::now() < end).then_some((trouble.kind, end))
    }

    /// The fate of a request for `at` with so many `bytes`.
    async fn meet(&self, at: &Path, bytes: u64) -> Result<Fate> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let Some((kind, end)) = self.end(number) else { return Ok(Fate::Executed) };
        match kind {
            Kind::Slow => {
                self.send(bytes).await;
                Ok(Fate::Executed)
            }
            Kind::Status(status) => {
                sleep(Duration::from_millis(5)).await;
                Err(refused(status, at))
            }
            Kind::LostAnswer => Ok(Fate::Lost(Duration::from_millis(5))),
            Kind::NoAnswer => Ok(Fate::Lost(NEVER)),
            Kind::Silent => {
                sleep_until(end + NEVER).await;
                Err(lost())
            }
            Kind::Late => {
                sleep_until(end).await;
                Ok(Fate::Executed)
            }
        }
    }
}

impl Troubled {
    /// Has `request` executed, if it is, also when the caller waits no more.
    async fn ask<T: Send + 'static, R: Future<Output = Result<T>> + Send + 'static>(
        &self,
        at: &Path,
        bytes: u64,
        request: impl FnOnce(Arc<InMemory>) -> R + Send + 'static,
    ) -> Result<T> {
        let (state, at) = (self.0.clone(), at.clone());
        let executed = tokio::spawn(async move {
            let fate = state.meet(&at, bytes).await?;
            let done = request(state.objects.clone()).await;
            match fate {
                Fate::Executed => done,
                Fate::Lost(after) => {
                    sleep(after).await;
                    Err(lost())
                }
            }
        });
        executed.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Makes a request that has a row of answers, as [`ask`](Self::ask) does with a single one.
    fn row<T: Send + 'static, R: Future<Output = Vec<Result<T>>> + Send + 'static>(
        &self,
        request: impl FnOnce(Arc<InMemory>) -> R + Send + 'static,
    ) -> BoxStream<'static, Result<T>> {
        let node = self.clone();
        let row = async move {
            let place = Path::default();
            let asked = node.ask(&place, 0, |objects| async move { Ok(request(objects).await) });
            asked.await.unwrap_or_else(|error| vec![Err(error)])
        };
        stream::once(row).flat_map(stream::iter).boxed()
    }
}

impl std::fmt::Display for Troubled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("troubled")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Troubled {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let (path, bytes) = (at.clone(), payload.content_length() as u64);
        self.ask(at, bytes, move |objects| async move { objects.put_opts(&path, payload, options).await })
            .await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.objects.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let path = at.clone();
        let found =
            self.ask(at, 0, move |objects| async move { objects.get_opts(&path, options).await }).await?;
        if let Some((Kind::Slow, _)) = self.0.end(self.requests()) {
            self.0.send(found.range.end - found.range.start).await;
        }
        Ok(found)
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let node = self.clone();
        at.then(move |path| {
            let node = node.clone();
            async move {
                let path = path?;
                let asked = path.clone();
                node.ask(&path.clone(), 0, |objects| async move { objects.delete(&asked).await }).await?;
                Ok(path)
            }
        })
        .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned();
        self.row(|objects| async move { objects.list(prefix.as_ref()).collect().await })
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned();
        let list = |objects: Arc<InMemory>| async move { objects.list_with_delimiter(prefix.as_ref()).await };
        self.ask(&Path::default(), 0, list).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.objects.copy_opts(from, to, options).await
    }
}
