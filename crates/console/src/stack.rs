//! Stack: a program whose first thread may have little stack (`ulimit -s`) runs on another thread.

use crate::program::exit_status;
use rustix::process::{Resource, getrlimit};
use sluice_sync::thread;
use std::process::ExitCode;

/// Bytes of stack that are enough for every command: as many as Linux gives by default.
const ENOUGH: usize = 8 << 20;

/// Calls `main`, on a thread with enough stack if this one may have less.
pub fn with_enough(main: impl FnOnce() -> ExitCode + Send) -> ExitCode {
    if getrlimit(Resource::Stack).current.is_none_or(|limit| limit >= ENOUGH as u64) {
        return main();
    }
    thread::scope(|scope| {
        let started = thread::Builder::new().stack_size(ENOUGH).spawn_scoped(scope, main);
        match started.map(|thread| thread.join()) {
            Ok(Ok(status)) => status,
            Ok(Err(_)) => ExitCode::FAILURE,
            Err(error) => exit_status(Err(error.into())),
        }
    })
}
