//! Runtime: the threads that SlateDB and the object store's client run on, one pair for the whole process.

use crate::error::failed;
use sluice_store::StoreError;
use sluice_sync::OnceLock;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::runtime::{Builder, Runtime};

/// Threads: what they do is mostly waiting.
const THREADS: usize = 2;

static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();

/// Waits for `work`. A panic of the library that does it is an error here. Not to be called from within such work.
///
/// # Errors
/// That of `work`; [`StoreError::Failed`] when there can be no threads.
pub(crate) fn wait<T>(work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let runtime = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("sluice-bucket").enable_all();
        builder.build().map_err(|error| error.to_string())
    });
    let runtime = runtime.as_ref().map_err(|why| StoreError::Failed(why.clone()))?;
    catch_unwind(AssertUnwindSafe(|| runtime.block_on(work)))
        .unwrap_or_else(|_| Err(failed("the library that keeps the records gave up")))
}
