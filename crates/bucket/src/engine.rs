//! Records: the engine kept by the library SlateDB in objects, whose own log makes each batch durable.
//!
//! Checksums are SlateDB's: of each object's parts, looked at whenever they are read. It takes an empty object for an empty push,
//! and would pass over one that lost its bytes: so pushes are numbered, and one that is missing is damage.

use crate::blocks::BlockCache;
use crate::cache::DiskCache;
use crate::clock::StoreClock;
use crate::error::{failed, of_records};
use crate::layout::{BLOCK, POSITION, RECORDS, get, push, pushes, record, refuse_lost, scan, scanning};
use crate::line::StoreLine;
use crate::listed::ListedObjects;
use crate::merging::Merging;
use crate::objects::Objects;
use crate::owner::{ClaimKeeper, ClaimPace, Owner};
use crate::runtime::{Stop, apart};
use crate::traffic::TrafficRecorders;
use futures_util::future::try_join;
use futures_util::{StreamExt, stream};
use slatedb::config::{FlushOptions, FlushType, Settings};
use slatedb::{Db, WriteBatch};
use sluice_store::engine::{Engine, Visit};
use sluice_store::{Batch, StoreError};
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, LockClass, RwLock};
use std::mem;
use std::ops::Range;
use tokio::time::sleep;

static ENGINE: LockClass = LockClass::new("bucket.engine");

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
/// Groups of ranges whose first records are fetched side by side.
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
    next: Arc<AtomicU64>,
    opening: Opening,
    clock: Arc<StoreClock>,
    stop: Arc<Stop>,
}

/// The records while they are open.
struct OpenRecords {
    db: Db,
    keeper: ClaimKeeper,
    merging: Merging,
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
    /// The object store by way of which the records are read and written.
    pub records: Objects,
    /// Counts requests to the object store.
    pub recorders: TrafficRecorders,
    /// Where copies of data are kept.
    pub data_cache: Option<DiskCache>,
}

impl Records {
    /// Opens the records as `owner`; a node that had them open can write no more.
    ///
    /// # Errors
    /// [`StoreError::Superseded`], [`StoreError::Damaged`], and the object store's.
    pub(crate) fn open(objects: &Objects, owner: Owner, opening: Opening) -> Result<Records, StoreError> {
        let stop = Arc::new(Stop::over(opening.line.clone()));
        let clock = Arc::default();
        let (db, older) = stop.wait(open(&owner, objects, &opening, &clock))?;
        let next = Arc::new(AtomicU64::new(0));
        let keeper = owner.keep(objects, opening.pace, older, &next)?;
        let Opening { records, retries, recorders, .. } = &opening;
        let merging = Merging::begin(records, objects, owner.epoch, *retries, (&clock, &recorders.records))?;
        let db = RwLock::with_class(&ENGINE, Some(OpenRecords { db, keeper, merging }));
        let records = Records { objects: objects.clone(), owner, db, next, clock, opening, stop };
        let next = records.again(|db| pushes(db, &records.stop))?;
        refuse_lost(next, records.owner.pushes)?;
        // Relaxed: the thread that renews the claim may see it late.
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
        let OpenRecords { db, keeper, .. } = open.as_ref().ok_or_else(|| failed("it was closed"))?;
        if keeper.is_lost() { Err(StoreError::Superseded) } else { work(db) }
    }

    /// Does `work`, and once more if the records were opened by an older node in between.
    fn again<T>(&self, mut work: impl FnMut(&Db) -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.with(&mut work) {
            Err(StoreError::Superseded) => self.reopen().and_then(|()| self.with(work)),
            done => done,
        }
    }

    /// A node that claimed the store before this one may have opened the records after it: it goes away when it sees the newer
    /// claim, and this one opens them once more.
    #[cold]
    fn reopen(&self) -> Result<(), StoreError> {
        let mut open_records = self.db.write();
        let Some(records) = open_records.as_mut() else { return Err(failed("it was closed")) };
        let opened = open(&self.owner, &self.objects, &self.opening, &self.clock);
        let (newer, _) = self.stop.wait(opened)?;
        let older = mem::replace(&mut records.db, newer);
        // The older handle cannot write, so an error loses nothing.
        let _ = self.stop.wait(async { older.close().await.map_err(of_records("close the records")) });
        Ok(())
    }
}

/// Opens the records, unless `owner` is no longer the newest. Returns the older claims, too.
async fn open(
    owner: &Owner,
    objects: &Objects,
    opening: &Opening,
    clock: &Arc<StoreClock>,
) -> Result<(Db, Vec<u64>), StoreError> {
    let settings = Settings {
        flush_interval: None,
        manifest_poll_interval: POLL,
        l0_sst_size_bytes: MEMTABLE,
        max_unflushed_bytes: 4 * MEMTABLE,
        l0_max_ssts: UNMERGED_MAX,
        l0_max_ssts_per_key: UNMERGED_MAX,
        // See `merging`.
        compactor_options: None,
        object_store_max_retries: Some(opening.retries),
        ..Settings::default()
    };
    let mut tries = 0;
    let db = loop {
        // Right before the records are opened, which fences others.
        let (_, listed) = try_join(owner.older(objects), ListedObjects::of(&opening.records)).await?;
        let db = Db::builder(RECORDS, listed.clone())
            .with_settings(settings.clone())
            .with_sst_block_size(BLOCK)
            .with_system_clock(clock.clone())
            .with_db_cache(Arc::new(BlockCache::default()), 0)
            .with_metrics_recorder(opening.recorders.records.clone())
            .build()
            .await;
        listed.forget();
        match db.map_err(of_records("open the records")) {
            // An owner that claimed earlier and is late opened them. It goes away when it sees the newer claim.
            Err(StoreError::Superseded) => {
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
    let older = match owner.older(objects).await {
        Ok(older) => older,
        Err(error) => {
            let _ = db.close().await;
            return Err(error);
        }
    };
    // Each push writes the position.
    let last = db.get_key_value(POSITION).await.map_err(of_records("read the records"))?;
    let behind = last.map_or(Duration::ZERO, |last| clock.follow(last.create_ts));
    if behind > BEHIND {
        log::warn!(
            "this machine's clock is {} s behind that of the machine that wrote last",
            behind.as_secs()
        );
    }
    Ok((db, older))
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
                return Err(StoreError::Superseded);
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
            let mut ranges: Vec<_> =
                ranges.iter().map(|range| record(&range.start)..record(&range.end)).collect();
            // Neighbours stand in one block, which each of them would fetch if they were fetched side by side.
            ranges.sort_by(|one, other| one.start.cmp(&other.start));
            let neighbours = ranges.chunks(ranges.len().div_ceil(WARMED_AT_ONCE).max(1));
            let warm = |neighbours: &[Range<Vec<u8>>]| {
                let (db, neighbours) = (db.clone(), neighbours.to_vec());
                async move {
                    for range in neighbours {
                        if let Ok(mut found) = db.scan_with_options(range, &scanning()).await {
                            let _ = found.next().await;
                        }
                    }
                }
            };
            let all = stream::iter(neighbours.map(warm).collect::<Vec<_>>()).buffer_unordered(WARMED_AT_ONCE);
            self.stop.wait(async {
                all.collect::<()>().await;
                Ok(())
            })
        });
    }

    fn position(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.again(|db| get(db, POSITION, &self.stop))
    }

    fn abandon(&self) {
        self.stop.raise();
    }

    fn close(&self) {
        if let Some(OpenRecords { db, keeper, merging }) = self.db.write().take() {
            if self.stop.is_raised() {
                // It ends its threads when the object store answers, or has not for long enough.
                return apart(async move {
                    merging.end().await;
                    drop(db.close().await);
                });
            }
            let close = async {
                // The next node that opens the store has no pushes to read then.
                let _ = db.flush_with_options(SORTED).await;
                merging.end().await;
                let closed = db.close().await.map_err(of_records("close the records"));
                keeper.end().await;
                // Relaxed: no push is under way.
                self.owner.close(&self.objects, self.next.load(Ordering::Relaxed)).await;
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
