//! Faults: one node's way to an object store in memory that other nodes use too: requests fail, answers are lost, the node dies.

#![allow(dead_code, reason = "the tests of bucket and of cluster use each a part")]

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use sluice_bucket::Bucket;
use sluice_sync::Mutex;
use sluice_sync::random::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The faults of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    /// In a thousand writes so many fail, and for so many the answer alone is lost.
    pub failing: u64,
    /// The node dies at this write, counted from 0.
    pub dies_at: Option<u64>,
    /// The write at which it dies is done.
    pub dies_after: bool,
    /// `PutMode::Create` is taken for `PutMode::Overwrite`.
    pub careless: bool,
}

/// Requests of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestsMade {
    pub(crate) puts: u64,
    pub(crate) gets: u64,
    pub(crate) deletes: u64,
    pub(crate) lists: u64,
}

impl RequestsMade {
    fn of(counts: &[AtomicU64; 4]) -> RequestsMade {
        let [puts, gets, deletes, lists] =
            [0, 1, 2, 3].map(|kind: usize| counts[kind].load(Ordering::SeqCst));
        RequestsMade { puts, gets, deletes, lists }
    }

    /// The requests since `before`.
    pub(crate) fn since(self, before: RequestsMade) -> RequestsMade {
        RequestsMade {
            puts: self.puts - before.puts,
            gets: self.gets - before.gets,
            deletes: self.deletes - before.deletes,
            lists: self.lists - before.lists,
        }
    }
}

/// One node's way to the objects.
#[derive(Debug)]
pub(crate) struct Node {
    objects: Arc<InMemory>,
    plan: Plan,
    writes: AtomicU64,
    /// Requests of all kinds, and those for data, by kind.
    requests: AtomicU64,
    all: [AtomicU64; 4],
    contents: [AtomicU64; 4],
    data: [AtomicU64; 4],
    /// How often it read an object of sorted records.
    sorted_reads: AtomicU64,
    /// How often it read an object with data.
    data_reads: AtomicU64,
    random: Mutex<Random>,
    /// The object store does not answer any more.
    is_silent: AtomicBool,
    /// Requests that it did not answer.
    unheard: AtomicU64,
    /// It takes in no write any more.
    is_full: AtomicBool,
    /// Writes do not fail by chance any more.
    is_healed: AtomicBool,
    /// GETs that are under way, and the most that ever were.
    getting: [AtomicU64; 2],
    /// So many milliseconds each request takes.
    delay_ms: AtomicU64,
}

impl Node {
    pub(crate) fn new(objects: &Arc<InMemory>, plan: Plan, seed: u64) -> Arc<Node> {
        let [writes, requests, sorted_reads, data_reads, unheard, delay_ms] = [0; 6].map(AtomicU64::new);
        Arc::new(Node {
            objects: objects.clone(),
            plan,
            writes,
            requests,
            all: Default::default(),
            contents: Default::default(),
            data: Default::default(),
            sorted_reads,
            data_reads,
            random: Mutex::new(Random::new(seed)),
            is_silent: AtomicBool::new(false),
            unheard,
            is_full: AtomicBool::new(false),
            is_healed: AtomicBool::new(false),
            getting: Default::default(),
            delay_ms,
        })
    }

    /// No request is answered from here on.
    pub(crate) fn cut_off(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    /// Requests are answered again.
    pub(crate) fn reach_again(&self) {
        self.is_silent.store(false, Ordering::SeqCst);
    }

    /// Writes are refused from here on, or are not.
    pub(crate) fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    /// No write fails by chance from here on.
    pub(crate) fn heal(&self) {
        self.is_healed.store(true, Ordering::SeqCst);
    }

    /// Each request takes so many milliseconds from here on.
    pub(crate) fn slow_down(&self, delay_ms: u64) {
        self.delay_ms.store(delay_ms, Ordering::SeqCst);
    }

    /// Requests that were not answered.
    pub(crate) fn unheard(&self) -> u64 {
        self.unheard.load(Ordering::SeqCst)
    }

    /// Requests for objects with data that it made.
    pub(crate) fn of_data(&self) -> RequestsMade {
        RequestsMade::of(&self.data)
    }

    /// The most GETs that were ever under way at a time.
    pub(crate) fn gets_at_once(&self) -> u64 {
        self.getting[1].load(Ordering::SeqCst)
    }

    /// Requests for all objects that it made.
    pub(crate) fn of_all(&self) -> RequestsMade {
        RequestsMade::of(&self.all)
    }

    /// Requests for objects with data or records that it made: without those that SlateDB's tasks send by the clock, for its
    /// manifest, its list of compactions and the bounds of its garbage.
    pub(crate) fn of_contents(&self) -> RequestsMade {
        RequestsMade::of(&self.contents)
    }

    fn count(&self, kind: usize, at: &Path) {
        self.all[kind].fetch_add(1, Ordering::SeqCst);
        if !["/manifest/", "/compactions/", "/gc/"].iter().any(|polled| at.as_ref().contains(polled)) {
            self.contents[kind].fetch_add(1, Ordering::SeqCst);
        }
        if at.as_ref().starts_with("data") {
            self.data[kind].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Requests that it made.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Counts a request. While the node is silent, it waits, and then fails unexecuted.
    async fn reach(&self) -> Result<()> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let delay_ms = self.delay_ms.load(Ordering::SeqCst);
        if delay_ms > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(delay_ms)).await;
        }
        if !self.is_silent.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.unheard.fetch_add(1, Ordering::SeqCst);
        while self.is_silent.load(Ordering::SeqCst) {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        Err(self.lost())
    }

    pub(crate) fn bucket(self: &Arc<Node>) -> Bucket {
        Bucket::over(self.clone())
    }

    /// Writes that it asked for.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// How often it read an object of sorted records: the objects that a cache on disk is for.
    pub(crate) fn sorted_reads(&self) -> u64 {
        self.sorted_reads.load(Ordering::SeqCst)
    }

    /// How often it read an object with data.
    pub(crate) fn data_reads(&self) -> u64 {
        self.data_reads.load(Ordering::SeqCst)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.plan.dies_at.is_some_and(|at| self.writes() > at)
    }

    fn lives(&self) -> Result<()> {
        // Not to be tried again: a dead node does not wait.
        let dead = || Error::NotSupported { source: "the node is dead".into() };
        if self.is_dead() { Err(dead()) } else { Ok(()) }
    }

    /// Whether a write is done, and whether its answer arrives.
    fn befalls(&self) -> Result<(bool, bool)> {
        self.lives()?;
        let number = self.writes.fetch_add(1, Ordering::SeqCst);
        if self.plan.dies_at == Some(number) {
            return Ok((self.plan.dies_after, false));
        }
        let drawn = if self.is_healed.load(Ordering::SeqCst) { 1000 } else { self.random.lock().below(1000) };
        Ok((drawn >= self.plan.failing, drawn >= 2 * self.plan.failing))
    }

    fn lost(&self) -> Error {
        self.lives().err().unwrap_or_else(|| Error::Generic { store: "faulty", source: "timed out".into() })
    }
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Node {
    async fn put_opts(&self, at: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        if self.plan.careless && options.mode == PutMode::Create {
            options.mode = PutMode::Overwrite;
        }
        self.count(0, at);
        self.reach().await?;
        if self.is_full.load(Ordering::SeqCst) {
            // Not to be tried again: nobody waits for room.
            return Err(Error::NotSupported { source: "there is no room".into() });
        }
        let (is_done, is_told) = self.befalls()?;
        if !is_done {
            return Err(self.lost());
        }
        let done = self.objects.put_opts(at, payload, options).await;
        if is_told { done } else { Err(self.lost()) }
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.lives()?;
        self.objects.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.count(1, at);
        let now = self.getting[0].fetch_add(1, Ordering::SeqCst) + 1;
        self.getting[1].fetch_max(now, Ordering::SeqCst);
        let reached = self.reach().await;
        self.getting[0].fetch_sub(1, Ordering::SeqCst);
        reached?;
        self.lives()?;
        if at.as_ref().contains("/compacted/") {
            self.sorted_reads.fetch_add(1, Ordering::SeqCst);
        }
        if at.as_ref().starts_with("data/") {
            self.data_reads.fetch_add(1, Ordering::SeqCst);
        }
        self.objects.get_opts(at, options).await
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        match self.lives() {
            Ok(()) => {
                // Counts the paths at once: the stream outlives this call.
                let at = futures_util::FutureExt::now_or_never(at.collect::<Vec<_>>()).unwrap_or_default();
                at.iter().flatten().for_each(|path| self.count(2, path));
                self.objects.delete_stream(stream::iter(at).boxed())
            }
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.count(3, prefix.unwrap_or(&Path::default()));
        self.requests.fetch_add(1, Ordering::SeqCst);
        let delay_ms = self.delay_ms.load(Ordering::SeqCst);
        match self.lives() {
            Ok(()) if delay_ms > 0 => {
                let listed = self.objects.list(prefix);
                let late = async move {
                    tokio::time::sleep(std::time::Duration::from_millis(delay_ms)).await;
                    listed
                };
                stream::once(late).flatten().boxed()
            }
            Ok(()) => self.objects.list(prefix),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.count(3, prefix.unwrap_or(&Path::default()));
        self.reach().await?;
        self.lives()?;
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.lives()?;
        self.objects.copy_opts(from, to, options).await
    }
}

/// Waits for what a test does with the objects itself.
pub(crate) fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

/// The store of these objects, without those that `is_lost` names.
pub(crate) fn copy_without(objects: &InMemory, is_lost: impl Fn(&str) -> bool) -> Bucket {
    let copy = InMemory::new();
    let kept: Vec<_> = contents(objects).into_iter().filter(|(path, _)| !is_lost(path.as_ref())).collect();
    wait(async {
        for (path, bytes) in kept {
            copy.put(&path, PutPayload::from(bytes)).await.expect("memory");
        }
    });
    Bucket::over(Arc::new(copy))
}

pub(crate) fn is_push(path: &str) -> bool {
    path.contains("/wal/")
}

/// All objects and what they hold.
pub(crate) fn contents(objects: &InMemory) -> Vec<(Path, Vec<u8>)> {
    wait(async {
        let mut all = Vec::new();
        for meta in objects.list(None).collect::<Vec<_>>().await {
            let path = meta.expect("memory").location;
            let found = match objects.get(&path).await {
                // It was deleted since the list.
                Err(object_store::Error::NotFound { .. }) => continue,
                found => found.expect("memory"),
            };
            let bytes = found.bytes().await.expect("memory");
            all.push((path, bytes.to_vec()));
        }
        all
    })
}
