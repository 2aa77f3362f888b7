//! Owner: which processes have opened the store, as objects `owners/EPOCH`.
//!
//! # Theory
//! An object is made once, by the process that claims the epoch, and only that process writes it again:
//! ```text
//!   open                      or: closed
//!   BOOT                      which start of which machine
//!   PID
//!   NONCE                     what tells this claim from all others
//!   SPACE                     the pid namespace in which PID counts
//!   STARTED                   when the process began, in ticks since the machine's start
//!   HOST                      the machine's name, for people
//!   alone                     or: cluster
//!   BEAT                      grows while the store is open
//! ```
//! The first four lines are those of older programs; a claim without the others is one of them.
//!
//! *Does the claimant live?* A process of this pid namespace is looked at, and its start time tells it from a later one with its
//! number. This process knows which claims it holds, so it takes no other claim for its own. Any other claimant is
//! watched: it writes its object anew every [`ClaimPace::beat`], so a claim that does not move for [`ClaimPace::silence`], by the clock
//! of the watching process, is a dead one's. Clocks of two machines are never compared.
//!
//! A claim that turns out to be wrong costs no data: the process that lost the store can push nothing there.

use crate::bucket::Claim;
use crate::claimant::{Claimant, Sight};
use crate::error::of_objects;
use crate::objects::{self, Objects};
use crate::runtime::spawn;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use sluice_store::StoreError;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, LockClass, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

static CLAIMS: LockClass = LockClass::new("bucket.claims");

const PREFIX: &str = "owners";
/// How often a claim is looked at that is watched.
const LOOK: Duration = Duration::from_secs(1);

/// The claims that this process holds, and claims of other processes with the time since which they stand still. *protected by
/// its mutex, a leaf*
static KNOWN: Mutex<KnownClaims> =
    Mutex::with_class(&CLAIMS, KnownClaims { held: BTreeSet::new(), seen: BTreeMap::new() });

struct KnownClaims {
    held: BTreeSet<String>,
    seen: BTreeMap<String, (u64, Instant)>,
}

/// How often a claim is renewed, and how long it may stand still before its process counts as dead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimPace {
    pub(crate) beat: Duration,
    pub(crate) silence: Duration,
}

impl ClaimPace {
    pub(crate) fn of(beat: Duration) -> ClaimPace {
        ClaimPace { beat, silence: 4 * beat }
    }
}

impl Default for ClaimPace {
    fn default() -> ClaimPace {
        ClaimPace::of(Duration::from_secs(10))
    }
}

/// A claim that was made.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) epoch: u64,
    claimant: Claimant,
}

/// Claims the store.
///
/// # Errors
/// [`StoreError::InUse`], [`StoreError::Claimed`], [`StoreError::Fenced`], and the object store's.
pub(crate) async fn claim(objects: &Objects, claim: Claim, pace: ClaimPace) -> Result<Owner, StoreError> {
    let claimant = Claimant::here(matches!(claim, Claim::Epoch(_)))?;
    loop {
        let newest = newest(objects).await?;
        let epoch = match claim {
            Claim::Alone => {
                await_end(objects, newest, pace).await?;
                newest + 1
            }
            Claim::Takeover => newest + 1,
            Claim::Epoch(epoch) if epoch > newest => {
                // A membership says which node of its cluster is dead. It knows nothing of a mount without a cluster.
                match holder(objects, newest, pace).await? {
                    Some((other, _)) if !other.is_of_cluster => return Err(other.in_the_way()),
                    _ => epoch,
                }
            }
            Claim::Epoch(_) => return Err(StoreError::Fenced),
        };
        // Before others can see it.
        KNOWN.lock().held.insert(claimant.nonce.clone());
        let owner = Owner { epoch, claimant: claimant.clone() };
        if objects::create(objects, &path(epoch), &claimant.encode("open", 0)).await? {
            return Ok(owner);
        }
        // Another node has claimed it since: that is the newest now.
    }
}

/// Waits until it is known whether the claimant of `epoch` lives.
///
/// # Errors
/// That it does; the object store's.
async fn await_end(objects: &Objects, epoch: u64, pace: ClaimPace) -> Result<(), StoreError> {
    let mut first = None;
    loop {
        let Some((holder, beat)) = holder(objects, epoch, pace).await? else { return Ok(()) };
        if holder.sight() == Sight::Here || *first.get_or_insert(beat) != beat {
            return Err(holder.in_the_way());
        }
        sleep(LOOK.min(pace.beat)).await;
    }
}

/// The process that may have the store open in `epoch`, and the beat of its claim; none if it closed the store or died.
///
/// # Errors
/// The object store's.
async fn holder(
    objects: &Objects,
    epoch: u64,
    pace: ClaimPace,
) -> Result<Option<(Claimant, u64)>, StoreError> {
    let Some(bytes) = objects::get(objects, &path(epoch)).await? else { return Ok(None) };
    let Some((holder, beat)) = Claimant::decode_open(&bytes) else { return Ok(None) };
    let is_dead = match holder.sight() {
        Sight::Here => false,
        Sight::This => !KNOWN.lock().held.contains(&holder.nonce),
        Sight::Dead => true,
        Sight::Elsewhere => {
            let mut known = KNOWN.lock();
            let seen = known.seen.entry(holder.nonce.clone()).or_insert_with(|| (beat, Instant::now()));
            if seen.0 != beat {
                *seen = (beat, Instant::now());
            }
            seen.1.elapsed() >= pace.silence
        }
    };
    Ok((!is_dead).then_some((holder, beat)))
}

/// The greatest epoch that was claimed; 0 before the first.
///
/// # Errors
/// The object store's.
pub(crate) async fn newest(objects: &Objects) -> Result<u64, StoreError> {
    Ok(epochs(objects).await?.into_iter().max().unwrap_or(0))
}

/// Who has the store open, as far as that can be told without waiting, as what it is to one that wants it:
/// [`StoreError::InUse`] a process of this machine, [`StoreError::Claimed`] one elsewhere, which may have died.
///
/// # Errors
/// The object store's.
pub(crate) async fn user(objects: &Objects) -> Result<Option<StoreError>, StoreError> {
    let newest = newest(objects).await?;
    let holder = holder(objects, newest, ClaimPace::default()).await?;
    Ok(holder.map(|(holder, _)| match holder.sight() {
        Sight::Elsewhere => holder.in_the_way(),
        _ => StoreError::InUse(Some(holder.pid)),
    }))
}

impl Owner {
    /// The object of the claim.
    pub(crate) fn path(&self) -> Path {
        path(self.epoch)
    }

    /// Whether no newer claim was made.
    ///
    /// # Errors
    /// The object store's.
    pub(crate) async fn is_newest(&self, objects: &Objects) -> Result<bool, StoreError> {
        Ok(newest(objects).await? == self.epoch)
    }

    /// Forgets older claims. Claims that cannot be removed stay, which does no harm.
    pub(crate) async fn forget_others(&self, objects: &Objects) {
        for epoch in epochs(objects).await.unwrap_or_default() {
            if epoch < self.epoch {
                let _ = objects.delete(&path(epoch)).await;
            }
        }
    }

    /// Records that the store was closed. Other processes may take the store for open until the record is written.
    pub(crate) async fn close(&self, objects: &Objects) {
        let _ = objects::put(objects, &path(self.epoch), self.claimant.encode("closed", 0)).await;
    }

    /// Renews the claim from here on.
    ///
    /// # Errors
    /// When there can be no threads.
    pub(crate) fn keep(&self, objects: &Objects, pace: ClaimPace) -> Result<ClaimKeeper, StoreError> {
        let (end, ended) = watch::channel(());
        let is_lost = Arc::new(AtomicBool::new(false));
        let renewing =
            renew(objects.clone(), self.epoch, self.claimant.clone(), pace, ended, is_lost.clone());
        Ok(ClaimKeeper { end, task: spawn(renewing)?, is_lost })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        KNOWN.lock().held.remove(&self.claimant.nonce);
    }
}

/// Renews a claim, until it is dropped.
pub(crate) struct ClaimKeeper {
    end: watch::Sender<()>,
    task: JoinHandle<()>,
    /// A newer claim was seen. *atomic (stands alone)*
    is_lost: Arc<AtomicBool>,
}

impl ClaimKeeper {
    /// Whether another process has the store now.
    pub(crate) fn is_lost(&self) -> bool {
        // Relaxed: a hint; a push finds out by itself.
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Ends it: the claim is written no more.
    pub(crate) async fn end(self) {
        drop(self.end);
        let _ = self.task.await;
    }
}

/// Two requests a beat: a newer owner removes older claims, so one that is not there says that the store may be lost.
async fn renew(
    objects: Objects,
    epoch: u64,
    claimant: Claimant,
    pace: ClaimPace,
    mut ended: watch::Receiver<()>,
    is_lost: Arc<AtomicBool>,
) {
    let mut beat = 0;
    // Until its sender is gone.
    while timeout(pace.beat, ended.changed()).await.is_err() {
        let is_there = objects::get(&objects, &path(epoch)).await;
        if is_there.is_ok_and(|found| found.is_none())
            && newest(&objects).await.is_ok_and(|newest| newest > epoch)
        {
            is_lost.store(true, Ordering::Relaxed);
            return;
        }
        beat += 1;
        // A claim that cannot be renewed now is renewed later.
        let _ = objects::put(&objects, &path(epoch), claimant.encode("open", beat)).await;
    }
}

/// All epochs that have a claim. Other objects are passed over.
async fn epochs(objects: &Objects) -> Result<Vec<u64>, StoreError> {
    let listed = objects.list_with_delimiter(Some(&Path::from(PREFIX))).await;
    let listed = listed.map_err(of_objects("list who has opened the store"))?;
    Ok(listed.objects.iter().filter_map(|one| one.location.filename()?.parse().ok()).collect())
}

fn path(epoch: u64) -> Path {
    Path::from(format!("{PREFIX}/{epoch:020}"))
}
