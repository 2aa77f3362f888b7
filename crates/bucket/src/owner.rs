//! Owner: which processes have opened the store, as objects `owners/EPOCH`.
//!
//! An object is made once, by the node that claims the epoch, and only that node writes it again, when it has closed the store:
//! ```text
//!   open                      or: closed
//!   BOOT                      which start of which machine
//!   PID
//!   NONCE                     what tells this claim from all others
//! ```

use crate::bucket::Claim;
use crate::error::of_objects;
use crate::objects::{self, Objects};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use sluice_store::StoreError;
use std::fs;

const PREFIX: &str = "owners";

/// A claim that was made.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) epoch: u64,
    bytes: Vec<u8>,
}

/// Claims the store.
///
/// # Errors
/// [`StoreError::InUse`], [`StoreError::Fenced`], and the object store's.
pub(crate) async fn claim(objects: &Objects, claim: Claim) -> Result<Owner, StoreError> {
    let (boot, pid) = here();
    let bytes = format!("open\n{boot}\n{pid}\n{}\n", nonce()?).into_bytes();
    loop {
        let newest = newest(objects).await?;
        let epoch = match claim {
            Claim::Alone => {
                if let Some(user) = user(objects, newest).await? {
                    return Err(StoreError::InUse(Some(user)));
                }
                newest + 1
            }
            Claim::Epoch(epoch) if epoch > newest => epoch,
            Claim::Epoch(_) => return Err(StoreError::Fenced),
        };
        if objects::create(objects, &path(epoch), &bytes).await? {
            return Ok(Owner { epoch, bytes });
        }
        // Another node has claimed it since: that is the newest now.
    }
}

/// The greatest epoch that was claimed; 0 before the first.
///
/// # Errors
/// The object store's.
pub(crate) async fn newest(objects: &Objects) -> Result<u64, StoreError> {
    Ok(epochs(objects).await?.into_iter().max().unwrap_or(0))
}

/// The process of this machine that has the store open, if the claim of `epoch` says so and it has not ended.
///
/// # Errors
/// The object store's.
pub(crate) async fn user(objects: &Objects, epoch: u64) -> Result<Option<u32>, StoreError> {
    let Some(bytes) = objects::get(objects, &path(epoch)).await? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    let (state, boot, pid) = (lines.next(), lines.next(), lines.next());
    let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
    let is_here = state == Some("open") && boot == Some(&here().0);
    Ok(pid.filter(|pid| is_here && process_runs(*pid)))
}

/// Whether process `pid` of this machine has not ended. One that has may wait for its parent to ask how.
///
/// ```
/// assert!(sluice_bucket::process_runs(std::process::id()));
/// ```
pub fn process_runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

impl Owner {
    /// Whether no newer claim was made.
    ///
    /// # Errors
    /// The object store's.
    pub(crate) async fn is_newest(&self, objects: &Objects) -> Result<bool, StoreError> {
        Ok(newest(objects).await? == self.epoch)
    }

    /// Forgets older claims. What cannot be removed stays, and nothing is wrong.
    pub(crate) async fn forget_others(&self, objects: &Objects) {
        for epoch in epochs(objects).await.unwrap_or_default() {
            if epoch < self.epoch {
                let _ = objects.delete(&path(epoch)).await;
            }
        }
    }

    /// Says that the store was closed. Until that succeeds others may think that it is open.
    pub(crate) async fn close(&self, objects: &Objects) {
        let closed = [b"closed".as_slice(), self.bytes.strip_prefix(b"open").unwrap_or_default()].concat();
        let _ = objects::put(objects, &path(self.epoch), closed).await;
    }
}

/// All epochs that have a claim. What is none is passed over.
async fn epochs(objects: &Objects) -> Result<Vec<u64>, StoreError> {
    let listed = objects.list_with_delimiter(Some(&Path::from(PREFIX))).await;
    let listed = listed.map_err(of_objects("list who has opened the store"))?;
    Ok(listed.objects.iter().filter_map(|one| one.location.filename()?.parse().ok()).collect())
}

fn path(epoch: u64) -> Path {
    Path::from(format!("{PREFIX}/{epoch:020}"))
}

/// Which start of this machine it is, and which process this is.
fn here() -> (String, u32) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    (boot.trim().to_owned(), std::process::id())
}

fn nonce() -> Result<String, StoreError> {
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid");
    text.map(|text| text.trim().to_owned()).map_err(|error| StoreError::Io("make a number of its own", error))
}
