//! Locks: `flock` and byte ranges. A wait ends when Python has a signal to handle.

use crate::errors::{on, os_error};
use crate::process::PyProcess;
use pyo3::prelude::*;
use sluice_vfs::{Cancel, Errno, Fd, FileLock, FlockOperation, LockType};
use std::time::{Duration, Instant};

/// How long a wait lasts before Python's signals are looked at.
const SLICE: Duration = Duration::from_millis(200);

/// Calls `wait` until it has the lock, `timeout` seconds are over (`TimeoutError`), or a signal handler raises.
fn wait(
    py: Python<'_>,
    timeout: Option<f64>,
    mut wait: impl FnMut(&Cancel) -> Result<(), Errno> + Send,
) -> PyResult<()> {
    let end = match timeout.map(Duration::try_from_secs_f64) {
        Some(Ok(timeout)) => Instant::now().checked_add(timeout),
        Some(Err(_)) => return Err(os_error(Errno::EINVAL)),
        None => None,
    };
    loop {
        let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE));
        match py.detach(|| wait(&Cancel::with_timeout(left))) {
            Err(Errno::ETIMEDOUT | Errno::EINTR) => py.check_signals()?,
            done => return done.map_err(os_error),
        }
        if end.is_some_and(|end| end <= Instant::now()) {
            return Err(os_error(Errno::ETIMEDOUT));
        }
    }
}

#[pymethods]
impl PyProcess {
    /// `flock`: `kind` is "read", "write" or "unlock".
    #[pyo3(signature = (fd, kind, block, timeout=None))]
    fn flock(&self, py: Python<'_>, fd: i32, kind: &str, block: bool, timeout: Option<f64>) -> PyResult<()> {
        let operation = match lock_type(kind)? {
            LockType::Read => FlockOperation::Shared,
            LockType::Write => FlockOperation::Exclusive,
            LockType::Unlock => FlockOperation::Unlock,
        };
        if block && operation != FlockOperation::Unlock {
            return wait(py, timeout, |cancel| self.calls().flock_wait(Fd(fd), operation, cancel));
        }
        on(py, || self.calls().flock(Fd(fd), operation))
    }

    /// `fcntl`'s lock of the `len` bytes from `start`; 0 is to the end.
    #[expect(clippy::too_many_arguments, reason = "as lockf has them")]
    #[pyo3(signature = (fd, kind, start, len, block, timeout=None))]
    fn lock_range(
        &self,
        py: Python<'_>,
        fd: i32,
        kind: &str,
        start: i64,
        len: i64,
        block: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let lock = FileLock::range(lock_type(kind)?, start, len);
        if block && lock.kind != LockType::Unlock {
            return wait(py, timeout, |cancel| self.calls().fcntl_setlkw(Fd(fd), &lock, cancel));
        }
        on(py, || self.calls().fcntl_setlk(Fd(fd), &lock))
    }
}

fn lock_type(kind: &str) -> PyResult<LockType> {
    match kind {
        "read" => Ok(LockType::Read),
        "write" => Ok(LockType::Write),
        "unlock" => Ok(LockType::Unlock),
        _ => Err(os_error(Errno::EINVAL)),
    }
}
