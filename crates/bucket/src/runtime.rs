//! Runtime: the threads that SlateDB and the object store's client run on, one pair for the whole process.

use crate::error::failed;
use crate::line::StoreLine;
use sluice_store::StoreError;
use sluice_sync::time::Duration;
use sluice_sync::{Arc, OnceLock};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Threads: what they do is mostly waiting.
const THREADS: usize = 2;
/// How long a store waits for one thing while nothing at all is heard of the object store, beside what the line takes for the bytes on their way.
const PATIENCE: Duration = Duration::from_secs(60);

static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();

/// Ends all waiting for one store, once it is raised.
pub(crate) struct Stop {
    raised: watch::Sender<bool>,
    /// How long nothing may be heard. *immutable*
    patience: Duration,
    line: Arc<StoreLine>,
}

impl Default for Stop {
    fn default() -> Self {
        Stop::over(Arc::default())
    }
}

impl Stop {
    /// For a store that is reached by way of `line`.
    pub(crate) fn over(line: Arc<StoreLine>) -> Stop {
        Stop::of(line, PATIENCE)
    }

    pub(crate) fn of(line: Arc<StoreLine>, patience: Duration) -> Stop {
        Stop { raised: watch::Sender::default(), patience, line }
    }

    /// Ends current waits with an error, and refuses later ones.
    pub(crate) fn raise(&self) {
        self.raised.send_replace(true);
    }

    pub(crate) fn is_raised(&self) -> bool {
        *self.raised.borrow()
    }

    /// Waits for `work`, at most until the stop is raised. Requests that were sent to the object store by then may still
    /// take effect.
    ///
    /// # Errors
    /// Errors of [`wait`]; [`StoreError::Failed`] when the stop is raised, and when no answer comes for a minute.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let mut raised = self.raised.subscribe();
        wait(async {
            let (mut raised, mut work) = (pin!(raised.wait_for(|is_raised| *is_raised)), pin!(work));
            let until = poll_fn(|context| match raised.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(Err(failed("the object store was given up"))),
                Poll::Pending => work.as_mut().poll(context),
            });
            let mut until = pin!(until);
            loop {
                let heard = self.line.heard();
                match timeout(self.patience + self.line.more_patience(), until.as_mut()).await {
                    Ok(done) => return done,
                    Err(_) if self.line.heard() == heard => {
                        return Err(failed("the object store does not answer"));
                    }
                    Err(_) => {}
                }
            }
        })
    }
}

/// Has all stores of this process use `runtime`, for tests with a played clock. To be called before the first store is used.
#[doc(hidden)]
pub fn run_on(runtime: Runtime) {
    // A second call changes nothing.
    let _ = RUNTIME.set(Ok(runtime));
}

/// Waits for `work` on the runtime of all stores, for tests.
#[doc(hidden)]
pub fn wait_for<T>(work: impl Future<Output = T>) -> T {
    wait(async { Ok(work.await) }).unwrap_or_else(|error| panic!("{error}"))
}

/// Has `work` done by the threads of the runtime.
///
/// # Errors
/// Errors of [`wait`].
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    wait(async { Ok(tokio::spawn(work)) })
}

/// Spawns `work`, for which no caller waits.
pub(crate) fn apart(work: impl Future<Output = ()> + Send + 'static) {
    // Without a runtime there is nothing that could be open.
    let _ = spawn(work);
}

/// Waits for `work`. A panic of the library that does it is an error here. Not to be called from within such work.
///
/// # Errors
/// The error of `work`; [`StoreError::Failed`] when no threads can be started.
pub(crate) fn wait<T>(work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let runtime = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("sluice-bucket").enable_all();
        builder.build().map_err(|error| error.to_string())
    });
    let runtime = runtime.as_ref().map_err(|why| StoreError::Failed(why.clone()))?;
    catch_unwind(AssertUnwindSafe(|| runtime.block_on(work)))
        .unwrap_or_else(|_| Err(StoreError::Damaged("the library that keeps the records gave up".into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_answered_fails_when_the_patience_is_over() {
        let stop = Stop::of(Arc::default(), Duration::from_millis(20));
        let silent = stop.wait(std::future::pending::<Result<(), StoreError>>());
        assert!(silent.is_err_and(|error| error.to_string().contains("does not answer")));
        assert_eq!(stop.wait(async { Ok(7) }).expect("it answers"), 7);
        stop.raise();
        let given_up = stop.wait(std::future::pending::<Result<(), StoreError>>());
        assert!(given_up.is_err_and(|error| error.to_string().contains("the object store was given up")));
    }

    #[test]
    fn a_panic_of_the_library_is_an_error() {
        let panics = wait(async { if true { panic!("planned") } else { Ok(()) } });
        let why = panics.expect_err("it panics").to_string();
        assert!(why.contains("the library that keeps the records gave up"), "{why}");
    }
}
