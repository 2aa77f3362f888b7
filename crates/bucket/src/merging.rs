//! Merging: the thread that merges sorted objects while the records are open.
//!
//! SlateDB would begin it before the records are open, with a dozen requests one after the other, for which a takeover would wait. So it
//! begins here, behind the opening. A merge changes how records are kept and no record, so two nodes that merge do no harm: SlateDB ends
//! the older thread. The thread of the newest owner begins again, and any other thread does not.

use crate::clock::StoreClock;
use crate::layout::{BLOCK, RECORDS};
use crate::objects::Objects;
use crate::owner;
use crate::runtime::spawn;
use futures_util::future::{Either, select};
use slatedb::CompactorBuilder;
use slatedb::config::{CompactionWorkerOptions, CompactorOptions};
use slatedb_common::metrics::DefaultMetricsRecorder;
use sluice_store::StoreError;
use sluice_sync::Arc;
use sluice_sync::time::Duration;
use std::pin::pin;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How often SlateDB looks for objects to merge, and the thread that merges for what it is to do: each look is some requests, also of
/// a store that is idle.
const MERGE_POLL: Duration = Duration::from_secs(5);
/// How often a merge says that it goes on; one that is silent for [`MERGE_SILENT`] is begun again, as its node may be dead.
const MERGE_BEAT: Duration = Duration::from_secs(2);
const MERGE_SILENT: Duration = Duration::from_secs(8);

/// Merges sorted objects, until it is dropped.
pub(crate) struct Merging {
    end: watch::Sender<()>,
    task: JoinHandle<()>,
}

impl Merging {
    /// Begins to merge the `records`, for the owner in `epoch`, whose claim is in `objects`.
    ///
    /// # Errors
    /// When there can be no threads.
    pub(crate) fn begin(
        records: &Objects,
        objects: &Objects,
        epoch: u64,
        retries: u32,
        (clock, recorder): (&Arc<StoreClock>, &Arc<DefaultMetricsRecorder>),
    ) -> Result<Merging, StoreError> {
        let (end, ended) = watch::channel(());
        let (clock, recorder) = (clock.clone(), recorder.clone());
        let merging = merge(records.clone(), objects.clone(), epoch, retries, (clock, recorder), ended);
        Ok(Merging { end, task: spawn(merging)? })
    }

    /// Ends it: nothing is merged any more.
    pub(crate) async fn end(self) {
        drop(self.end);
        let _ = self.task.await;
    }
}

async fn merge(
    records: Objects,
    objects: Objects,
    epoch: u64,
    retries: u32,
    (clock, recorder): (Arc<StoreClock>, Arc<DefaultMetricsRecorder>),
    mut ended: watch::Receiver<()>,
) {
    let worker = CompactionWorkerOptions {
        compactions_poll_interval: MERGE_POLL,
        heartbeat_interval: MERGE_BEAT,
        ..CompactionWorkerOptions::default()
    };
    let options = CompactorOptions {
        poll_interval: MERGE_POLL,
        worker_heartbeat_timeout: MERGE_SILENT,
        worker: Some(worker),
        object_store_max_retries: Some(retries),
        ..CompactorOptions::default()
    };
    loop {
        let merger = CompactorBuilder::new(RECORDS, records.clone())
            .with_options(options.clone())
            .with_sst_block_size(BLOCK)
            .with_system_clock(clock.clone())
            .with_metrics_recorder(recorder.clone())
            .build();
        let is_over = match select(pin!(merger.run()), pin!(ended.changed())).await {
            Either::Left((Err(error), _)) => {
                log::debug!("merging ended: {error}");
                false
            }
            Either::Left((Ok(()), _)) => false,
            Either::Right(_) => true,
        };
        // A thread that has ended can be stopped, too.
        let _ = merger.stop().await;
        // An older owner that was late ended it, or the object store did not answer.
        if is_over
            || timeout(MERGE_POLL, ended.changed()).await.is_ok()
            || owner::newest(&objects).await.is_ok_and(|newest| newest > epoch)
        {
            return;
        }
    }
}
