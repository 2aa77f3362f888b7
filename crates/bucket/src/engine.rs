//! Records: the engine kept by the library SlateDB in objects, whose own log makes each batch durable.
//!
//! Keys of the store have a byte before them, so that the position, which changes with each batch, stands beside them:
//! ```text
//!   p          the position that came with the last batch
//!   q NUMBER   a push, of the last KEPT
//!   r KEY      a record
//! ```
//! Checksums are SlateDB's: of each object's parts, looked at whenever they are read. It takes an empty object for an empty push,
//! and would pass over one that lost its bytes: so pushes are numbered, and one that is missing is damage.

use crate::blocks::BlockCache;
use crate::cache;
use crate::clock::StoreClock;
use crate::error::{failed, of_records};
use crate::gaps;
use crate::line::StoreLine;
use crate::objects::Objects;
use crate::owner::{ClaimKeeper, ClaimPace, Owner};
use crate::runtime::{Stop, apart};
use crate::traffic;
use futures_util::StreamExt;
use futures_util::stream;
use slatedb::SstBlockSize;
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, FlushOptions, FlushType, ScanOptions, Settings,
};
use slatedb::{Db, DbReadOps, WriteBatch};
use slatedb_common::metrics::DefaultMetricsRecorder;
use sluice_store::engine::{Engine, InOrder, Traffic, Visit};
use sluice_store::{Batch, DiskCache, StoreError};
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, LockClass, RwLock};
use std::mem;
use std::ops::Range;
use tokio::time::sleep;

static ENGINE: LockClass = LockClass::new("bucket.engine");

/// Where SlateDB keeps its objects.
pub(crate) const RECORDS: &str = "records";
pub(crate) const POSITION: &[u8] = b"p";
const PUSH: u8 = b'q';
const RECORD: u8 = b'r';

/// After so many pushes they are brought into a sorted object: a node that takes over has few more to read.
const PUSHES: u64 = 256;
/// Numbers of pushes that are kept: more than SlateDB reads from its log.
const KEPT: u64 = 4 * PUSHES;
/// Bytes of records that SlateDB keeps in memory before it makes a sorted object of them.
const MEMTABLE: usize = 16 << 20;
/// How often SlateDB looks for results of its compaction. Fencing does not wait for it: a push finds its number taken.
const POLL: Duration = Duration::from_secs(5);
/// Sorted objects that are not merged yet, at most. With so many, what is in memory stays there, and once that is
/// `max_unflushed_bytes` writes wait. So many memtables are half a gigabyte of changes: merging begins long before.
const UNMERGED_MAX: usize = 32;
/// How often SlateDB looks for objects to merge, and the thread that merges for what it is to do: each look is some requests, also of
/// a store that is idle.
const MERGE_POLL: Duration = Duration::from_secs(5);
/// How often a merge says that it goes on; one that is silent for [`MERGE_SILENT`] is begun again, as its node may be dead.
const MERGE_BEAT: Duration = Duration::from_secs(2);
const MERGE_SILENT: Duration = Duration::from_secs(8);

/// Bytes of a sorted object that are fetched together: a request takes longer than its bytes.
const BLOCK: SstBlockSize = SstBlockSize::Block32Kib;
/// Ranges whose first records are fetched side by side.
const WARMED_AT_ONCE: usize = 16;

/// An older node that is late opens the records at most so often, and opens them again after so long.
const FENCED_MAX: u32 = 20;
const FENCED_PAUSE: Duration = Duration::from_millis(50);
/// A clock that is further behind is told of.
const BEHIND: Duration = Duration::from_secs(10);

/// Makes a sorted object of what is in memory.
const SORTED: FlushOptions = FlushOptions { flush_type: FlushType::MemTable };

/// The records of a store, as its owner has them.
pub(crate) struct Records {
    objects: Objects,
    owner: Owner,
    /// None once it was closed. *protected by its lock*
    db: RwLock<Option<OpenRecords>>,
    /// The number of the next push. *written by one thread at a time; atomic (stands alone)*
    next: AtomicU64,
    opening: Opening,
    /// SlateDB's counters.
    recorder: Arc<DefaultMetricsRecorder>,
    stop: Arc<Stop>,
}

/// The records while they are open.
struct OpenRecords {
    db: Db,
    keeper: ClaimKeeper,
}

/// How a store is opened.
#[derive(Clone)]
pub(crate) struct Opening {
    /// The way to the object store.
    pub line: Arc<StoreLine>,
    /// So often an operation that failed is tried again.
    pub retries: u32,
    /// How often the claim is renewed.
    pub pace: ClaimPace,
    /// Where copies of objects with records are kept.
    pub disk_cache: Option<DiskCache>,
    /// Where copies of data are kept.
    pub data_cache: Option<DiskCache>,
    /// Counts what is asked of the object store for data.
    pub data_recorder: Arc<DefaultMetricsRecorder>,
}

impl Records {
    /// Opens the records as `owner`; a node that had them open can write no more.
    ///
    /// # Errors
    /// [`StoreError::Fenced`], [`StoreError::Damaged`], and the object store's.
    pub(crate) fn open(objects: &Objects, owner: Owner, opening: Opening) -> Result<Records, StoreError> {
        let recorder = Arc::new(DefaultMetricsRecorder::new());
        let stop = Arc::new(Stop::over(opening.line.clone()));
        let db = stop.wait(open(objects, &owner, &opening, &recorder))?;
        stop.wait(async {
            owner.forget_others(objects).await;
            Ok(())
        })?;
        let keeper = owner.keep(objects, opening.pace)?;
        let db = RwLock::with_class(&ENGINE, Some(OpenRecords { db, keeper }));
        let next = AtomicU64::new(0);
        let records = Records { objects: objects.clone(), owner, db, next, opening, recorder, stop };
        let next = records.again(|db| pushes(db, &records.stop))?;
        // Relaxed: nobody else has it.
        records.next.store(next, Ordering::Relaxed);
        Ok(records)
    }

    /// The epoch in which the store was claimed.
    pub(crate) fn epoch(&self) -> u64 {
        self.owner.epoch
    }

    /// The switch that ends all waiting for the store.
    pub(crate) fn stop(&self) -> Arc<Stop> {
        self.stop.clone()
    }

    fn with<T>(&self, work: impl FnOnce(&Db) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let open = self.db.read();
        let OpenRecords { db, keeper } = open.as_ref().ok_or_else(|| failed("it was closed"))?;
        if keeper.is_lost() { Err(StoreError::Fenced) } else { work(db) }
    }

    /// Does `work`, and once more if the records were opened by an older node in between.
    fn again<T>(&self, mut work: impl FnMut(&Db) -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.with(&mut work) {
            Err(StoreError::Fenced) => self.reopen().and_then(|()| self.with(work)),
            done => done,
        }
    }

    /// A node that claimed the store before this one may have opened the records after it: it goes away when it sees the newer
    /// claim, and this one opens them once more.
    #[cold]
    fn reopen(&self) -> Result<(), StoreError> {
        let mut open_records = self.db.write();
        let Some(records) = open_records.as_mut() else { return Err(failed("it was closed")) };
        let newer = self.stop.wait(open(&self.objects, &self.owner, &self.opening, &self.recorder))?;
        let older = mem::replace(&mut records.db, newer);
        // The older handle cannot write, so an error loses nothing.
        let _ = self.stop.wait(async { older.close().await.map_err(of_records("close the records")) });
        Ok(())
    }
}

/// Opens the records, unless `owner` is no longer the newest.
async fn open(
    objects: &Objects,
    owner: &Owner,
    opening: &Opening,
    recorder: &Arc<DefaultMetricsRecorder>,
) -> Result<Db, StoreError> {
    gaps::check(objects).await?;
    // Right before the records are opened, which fences others.
    if !owner.is_newest(objects).await? {
        return Err(StoreError::Fenced);
    }
    let settings = Settings {
        flush_interval: None,
        manifest_poll_interval: POLL,
        l0_sst_size_bytes: MEMTABLE,
        max_unflushed_bytes: 4 * MEMTABLE,
        l0_max_ssts: UNMERGED_MAX,
        l0_max_ssts_per_key: UNMERGED_MAX,
        compactor_options: Some(merging()),
        object_store_max_retries: Some(opening.retries),
        object_store_cache_options: cache::options(opening.disk_cache.as_ref()),
        ..Settings::default()
    };
    let clock = Arc::new(StoreClock::default());
    let mut tries = 0;
    let db = loop {
        let builder =
            Db::builder(RECORDS, objects.clone()).with_settings(settings.clone()).with_sst_block_size(BLOCK);
        let builder = builder.with_system_clock(clock.clone());
        let blocks = Arc::new(BlockCache::default());
        let db = builder.with_db_cache(blocks, 0).with_metrics_recorder(recorder.clone()).build().await;
        match db.map_err(of_records("open the records")) {
            // By one that claimed earlier and is late: that goes away.
            Err(StoreError::Fenced) if owner.is_newest(objects).await? => {
                tries += 1;
                if tries == FENCED_MAX {
                    let text = "the records name an owner that has not claimed the store";
                    return Err(StoreError::Damaged(text.into()));
                }
                sleep(FENCED_PAUSE).await;
            }
            opened => break opened?,
        }
    };
    // An owner that slept here while a newer owner claimed and opened has fenced the newer one: it sees that now and
    // stops, and the newer owner opens again.
    if !owner.is_newest(objects).await? {
        let _ = db.close().await;
        return Err(StoreError::Fenced);
    }
    // Each push writes the position.
    let last = db.get_key_value(POSITION).await.map_err(of_records("read the records"))?;
    let behind = last.map_or(Duration::ZERO, |last| clock.follow(last.create_ts));
    if behind > BEHIND {
        log::warn!(
            "this machine's clock is {} s behind that of the machine that wrote last",
            behind.as_secs()
        );
    }
    Ok(db)
}

/// How sorted objects are merged.
fn merging() -> CompactorOptions {
    let worker = CompactionWorkerOptions {
        compactions_poll_interval: MERGE_POLL,
        heartbeat_interval: MERGE_BEAT,
        ..CompactionWorkerOptions::default()
    };
    CompactorOptions {
        poll_interval: MERGE_POLL,
        worker_heartbeat_timeout: MERGE_SILENT,
        worker: Some(worker),
        ..CompactorOptions::default()
    }
}

impl Engine for Records {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.again(|db| get(db, &record(key), &self.stop))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        let mut is_begun = false;
        self.again(|db| {
            // No record is visited twice.
            if is_begun {
                return Err(StoreError::Fenced);
            }
            let mut visit = |key: &[u8], value: &[u8]| {
                is_begun = true;
                visit(key, value)
            };
            scan(db, from, to, &mut visit, &self.stop)
        })
    }

    fn warm(&self, ranges: &[Range<Vec<u8>>]) {
        // A scan that fails later says so.
        let _ = self.with(|db| {
            let first = |range: &Range<Vec<u8>>| {
                let range = record(&range.start)..record(&range.end);
                let db = db.clone();
                async move {
                    if let Ok(mut found) = db.scan_with_options(range, &scanning()).await {
                        let _ = found.next().await;
                    }
                }
            };
            let all =
                stream::iter(ranges.iter().map(first).collect::<Vec<_>>()).buffer_unordered(WARMED_AT_ONCE);
            self.stop.wait(async {
                all.collect::<()>().await;
                Ok(())
            })
        });
    }

    fn position(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.again(|db| get(db, POSITION, &self.stop))
    }

    fn traffic(&self) -> Traffic {
        traffic::of([&self.recorder, &self.opening.data_recorder])
    }

    fn abandon(&self) {
        self.stop.raise();
    }

    fn close(&self) {
        if let Some(OpenRecords { db, keeper }) = self.db.write().take() {
            if self.stop.is_raised() {
                // It ends its threads when the object store answers, or has not for long enough.
                return apart(async move { drop(db.close().await) });
            }
            let close = async {
                // The next node that opens the store has no pushes to read then.
                let _ = db.flush_with_options(SORTED).await;
                let closed = db.close().await.map_err(of_records("close the records"));
                keeper.end().await;
                self.owner.close(&self.objects).await;
                closed
            };
            // All synchronised records are in the object store.
            let _ = self.stop.wait(close);
        }
    }

    fn apply(&self, batch: &Batch, position: &[u8]) -> Result<(), StoreError> {
        let write = |db: &Db| {
            let mut all = WriteBatch::new();
            for (key, value) in batch.iter() {
                match value {
                    Some(value) => all.put(record(key), value),
                    None => all.delete(record(key)),
                }
            }
            all.put(POSITION, position);
            // Relaxed: written by this thread, or by one before it under the lock of pushes.
            let number = self.next.load(Ordering::Relaxed);
            all.put(push(number), []);
            if let Some(old) = number.checked_sub(KEPT) {
                all.delete(push(old));
            }
            self.stop.wait(async {
                db.write(all).await.map_err(of_records("write the records"))?;
                db.flush().await.map_err(of_records("make the records durable"))?;
                self.next.store(number + 1, Ordering::Relaxed);
                if number % PUSHES == PUSHES - 1 {
                    let db = db.clone();
                    // Behind the push. A failure shows at a later push.
                    tokio::spawn(async move { db.flush_with_options(SORTED).await });
                }
                Ok(())
            })
        };
        // The same batch once more has the same effect.
        self.again(write)
    }
}

/// The key under which SlateDB has the record `key`.
pub(crate) fn record(key: &[u8]) -> Vec<u8> {
    [&[RECORD], key].concat()
}

/// The key that says that there was the push `number`.
fn push(number: u64) -> Vec<u8> {
    [&[PUSH], number.to_be_bytes().as_slice()].concat()
}

/// The number of the next push.
///
/// # Errors
/// [`StoreError::Damaged`] when one is missing; the object store's.
pub(crate) fn pushes(db: &(impl DbReadOps + Sync), stop: &Stop) -> Result<u64, StoreError> {
    let (mut next, mut missing) = (None, None);
    visit(db, &[PUSH], &[PUSH + 1], stop, &mut |key, _| {
        let number = key[1..].try_into().map_or(u64::MAX - 1, u64::from_be_bytes);
        missing = missing.or(next.filter(|next| *next != number));
        next = Some(number + 1);
        true
    })?;
    match missing {
        Some(number) => Err(StoreError::Damaged(format!("push {number} is missing"))),
        None => Ok(next.unwrap_or(0)),
    }
}

/// The value of `key`, as SlateDB has it.
///
/// # Errors
/// [`StoreError::Damaged`], and the object store's.
pub(crate) fn get(
    db: &(impl DbReadOps + Sync),
    key: &[u8],
    stop: &Stop,
) -> Result<Option<Vec<u8>>, StoreError> {
    let found = stop.wait(async { db.get(key).await.map_err(of_records("read the records")) })?;
    Ok(found.map(|value| value.to_vec()))
}

/// Visits the records from `from` to `to` in order; see [`Engine::scan`]. The visitor may itself read: so records are
/// fetched a few at a time.
///
/// # Errors
/// [`StoreError::Damaged`], and the object store's.
pub(crate) fn scan(
    db: &(impl DbReadOps + Sync),
    from: &[u8],
    to: &[u8],
    visitor: &mut Visit<'_>,
    stop: &Stop,
) -> Result<(), StoreError> {
    if from >= to {
        return Ok(());
    }
    let (mut order, mut wrong) = (InOrder::new(from, to), None);
    visit(db, &record(from), &record(to), stop, &mut |key, value| match order.check(&key[1..]) {
        Ok(()) => visitor(&key[1..], value),
        Err(error) => {
            wrong = Some(error);
            false
        }
    })?;
    wrong.map_or(Ok(()), Err)
}

fn scanning() -> ScanOptions {
    ScanOptions { read_ahead_bytes: 1 << 20, cache_blocks: true, ..ScanOptions::default() }
}

/// Visits keys as SlateDB has them.
fn visit(
    db: &(impl DbReadOps + Sync),
    from: &[u8],
    to: &[u8],
    stop: &Stop,
    visit: &mut Visit<'_>,
) -> Result<(), StoreError> {
    /// Records that are fetched at a time.
    const FETCH: usize = 256;
    let options = scanning();
    let range = from..to;
    let mut found = stop.wait(async {
        db.scan_with_options(range, &options).await.map_err(of_records("read the records"))
    })?;
    loop {
        let mut some = Vec::with_capacity(FETCH);
        stop.wait(async {
            while some.len() < FETCH {
                match found.next().await.map_err(of_records("read the records"))? {
                    Some(one) => some.push(one),
                    None => break,
                }
            }
            Ok(())
        })?;
        for one in &some {
            if !visit(&one.key, &one.value) {
                return Ok(());
            }
        }
        if some.len() < FETCH {
            return Ok(());
        }
    }
}
