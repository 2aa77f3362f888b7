//! `sluice upgrade DIR`: this program takes the place of the one that serves a mount.

use crate::watch::no_server;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::output::Output;
use sluice_fuse::control;
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;

/// How long a server is waited for that is being replaced already.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub(crate) fn upgrade(dir: &Path) -> Result<()> {
    let place = || dir.display().to_string();
    // Also if its file was replaced or removed.
    let program = File::open("/proc/self/exe").context(|| "/proc/self/exe")?;
    let end = Instant::now() + PATIENCE;
    loop {
        match control::upgrade(dir, program.as_fd()) {
            Ok(Some(done)) => return Output::plain().give(format!("{}: {done}\n", place()).as_bytes()),
            // Between two servers of a mount nobody listens, or the first one ends with the question.
            Ok(None) if sluice_fuse::is_within(dir).unwrap_or(false) && Instant::now() < end => {}
            Err(error) if is_of_change(error.kind()) && Instant::now() < end => {}
            Ok(None) => return Err(no_server(dir)),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let text = "the server or the holder of the mount ended before it answered: see `sluice stat`, and try again";
                return Err(Failure::Failed(format!("{}: {text}", place())));
            }
            Err(error) => return Err(error).context(place),
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Whether a question fails like that when the server that gets it is being replaced.
fn is_of_change(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}
