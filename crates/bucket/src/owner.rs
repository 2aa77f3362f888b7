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
//!   PUSHES                    so many pushes are durable, at least
//! ```
//! The first four lines are those of older programs; a claim without the others is one of them.
//!
//! *Lost pushes.* A push proves that there were those before it, and nothing in the log proves the newest. So a claim says how many
//! there were when it was renewed or closed. An owner that finds fewer refuses the store.
//!
//! *Does the claimant live?* A process of this pid namespace is looked at, and its start time tells it from a later one with its
//! number. This process knows which claims it holds, so it takes no other claim for its own. Any other claimant is
//! watched: it writes its object anew every [`ClaimPace::beat`], so a claim that does not move for [`ClaimPace::silence`], by the clock
//! of the watching process, is a dead one's. Clocks of two machines are never compared.
//!
//! A claim that turns out to be wrong costs no data: the process that lost the store can push nothing there.

use crate::claimant::{Claimant, Sight};
use crate::error::of_objects;
use crate::objects::{self, Objects};
use crate::runtime::spawn;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use sluice_store::StoreError;
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// With which right a node opens a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// As the only one: the next epoch. A living process that has the store open, here or elsewhere, is in the way; one that died
    /// loses the store. Whether a process elsewhere lives shows after some time, for which this waits.
    Alone,
    /// As the only owner: takes the store from any process that has it open.
    Takeover,
    /// As the owner in this epoch, which a membership gave out. Nodes that opened the store in an earlier one lose it. A process that
    /// opened it alone, and may live, is in the way.
    Epoch(u64),
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
    /// So many pushes are durable, said the newest claim before.
    pub(crate) pushes: u64,
}

/// Claims the store. `waits` is called once with the claimant for which it has to wait.
///
/// # Errors
/// [`StoreError::InUse`], [`StoreError::Claimed`], [`StoreError::Superseded`], and the object store's.
pub(crate) async fn claim(
    objects: &Objects,
    claim: Claim,
    pace: ClaimPace,
    waits: &dyn Fn(&StoreError),
) -> Result<Owner, StoreError> {
    let claimant = Claimant::here(matches!(claim, Claim::Epoch(_)))?;
    loop {
        let newest = newest(objects).await?;
        if matches!(claim, Claim::Epoch(epoch) if epoch <= newest) {
            return Err(StoreError::Superseded);
        }
        let mut last = read(objects, newest).await?;
        let epoch = match claim {
            Claim::Alone => {
                last = await_end(objects, newest, last, pace, waits).await?;
                newest + 1
            }
            Claim::Takeover => newest + 1,
            // A membership says which node of its cluster is dead. It knows nothing of a mount without a cluster.
            Claim::Epoch(epoch) => match holder(last.as_deref(), pace) {
                Some((other, _)) if !other.is_of_cluster => return Err(other.in_the_way()),
                _ => epoch,
            },
        };
        let pushes = last.as_deref().map_or(0, Claimant::decode_pushes);
        // Before others can see it.
        KNOWN.lock().held.insert(claimant.nonce.clone());
        let owner = Owner { epoch, claimant: claimant.clone(), pushes };
        if objects::create(objects, &path(epoch), &claimant.encode("open", 0, pushes)).await? {
            return Ok(owner);
        }
        // Another node has claimed it since: that is the newest now.
    }
}

/// Waits until it is known whether the claimant of `epoch` lives, whose claim was `last`. Returns the claim as it is then.
///
/// # Errors
/// That it does; the object store's.
async fn await_end(
    objects: &Objects,
    epoch: u64,
    mut last: Option<Vec<u8>>,
    pace: ClaimPace,
    waits: &dyn Fn(&StoreError),
) -> Result<Option<Vec<u8>>, StoreError> {
    let mut first = None;
    loop {
        let Some((holder, beat)) = holder(last.as_deref(), pace) else { return Ok(last) };
        if holder.sight() == Sight::Here || first.is_some_and(|first| first != beat) {
            return Err(holder.in_the_way());
        }
        if first.replace(beat).is_none() {
            waits(&holder.in_the_way());
        }
        sleep(LOOK.min(pace.beat)).await;
        last = read(objects, epoch).await?;
    }
}

/// The claim of `epoch`, if there is one.
///
/// # Errors
/// The object store's.
async fn read(objects: &Objects, epoch: u64) -> Result<Option<Vec<u8>>, StoreError> {
    if epoch == 0 { Ok(None) } else { objects::get(objects, &path(epoch)).await }
}

/// The process that may have the store open, says the claim `bytes`, and its beat; none if it closed the store or died.
fn holder(bytes: Option<&[u8]>, pace: ClaimPace) -> Option<(Claimant, u64)> {
    let (holder, beat) = Claimant::decode_open(bytes?)?;
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
    (!is_dead).then_some((holder, beat))
}

/// The greatest epoch that was claimed; 0 before the first.
///
/// # Errors
/// The object store's.
pub(crate) async fn newest(objects: &Objects) -> Result<u64, StoreError> {
    Ok(epochs(objects).await?.into_iter().max().unwrap_or(0))
}

/// How many pushes are durable at least, says the newest claim.
///
/// # Errors
/// The object store's.
pub(crate) async fn pushes(objects: &Objects) -> Result<u64, StoreError> {
    let claim = read(objects, newest(objects).await?).await?;
    Ok(claim.as_deref().map_or(0, Claimant::decode_pushes))
}

/// Who has the store open, as far as that can be told without waiting, as what it is to one that wants it:
/// [`StoreError::InUse`] a process of this machine, [`StoreError::Claimed`] one elsewhere, which may have died.
///
/// # Errors
/// The object store's.
pub(crate) async fn user(objects: &Objects) -> Result<Option<StoreError>, StoreError> {
    let newest = newest(objects).await?;
    let holder = holder(read(objects, newest).await?.as_deref(), ClaimPace::default());
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

    /// Older claims.
    ///
    /// # Errors
    /// [`StoreError::Superseded`] if a newer claim was made; the object store's.
    pub(crate) async fn older(&self, objects: &Objects) -> Result<Vec<u64>, StoreError> {
        let mut epochs = epochs(objects).await?;
        if epochs.iter().max() != Some(&self.epoch) {
            return Err(StoreError::Superseded);
        }
        epochs.retain(|epoch| *epoch < self.epoch);
        Ok(epochs)
    }

    /// Records that the store was closed after so many `pushes`. Other processes may take the store for open until the record is
    /// written.
    pub(crate) async fn close(&self, objects: &Objects, pushes: u64) {
        let claim = self.claimant.encode("closed", 0, pushes.max(self.pushes));
        let _ = objects::put(objects, &path(self.epoch), claim).await;
    }

    /// Removes the `older` claims, and renews this one from here on, with the number of `pushes`.
    ///
    /// # Errors
    /// When there can be no threads.
    pub(crate) fn keep(
        &self,
        objects: &Objects,
        pace: ClaimPace,
        older: Vec<u64>,
        pushes: &Arc<AtomicU64>,
    ) -> Result<ClaimKeeper, StoreError> {
        let (end, ended) = watch::channel(());
        let is_lost = Arc::new(AtomicBool::new(false));
        let (objects, pushes) = (objects.clone(), pushes.clone());
        let (epoch, claimant, before) = (self.epoch, self.claimant.clone(), self.pushes);
        let claim = move |beat| claimant.encode("open", beat, before.max(pushes.load(Ordering::Relaxed)));
        let lost = is_lost.clone();
        let renewing = async move {
            // Claims that cannot be removed stay, which does no harm.
            for older in older {
                let _ = objects.delete(&path(older)).await;
            }
            renew(objects, epoch, claim, pace, ended, lost).await;
        };
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
    claim: impl Fn(u64) -> Vec<u8>,
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
        let _ = objects::put(&objects, &path(epoch), claim(beat)).await;
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
