//! InTime: commands that ask a server answer within two seconds, whatever the server does, and say what they saw.
//!
//! A question may wait for the server at many places: on its socket, and in the kernel if the path leads through directories that the
//! kernel does not know. So the question is asked on a thread of its own, which is left behind when the time is over: the process ends soon.

use sluice_console::failure::{Failure, Result};
use sluice_fuse::control;
use sluice_sync::time::Duration;
use sluice_sync::{mpsc, thread};
use std::path::{Path, PathBuf};

/// The time for an answer; the rest of the two seconds is for the start of a command.
const PATIENCE: Duration = Duration::from_millis(1800);

/// The result of `ask`.
///
/// # Errors
/// Its own; that there was no answer in time, and what is known of the server of the mount at `dir`.
pub(crate) fn in_time<T: Send + 'static>(
    dir: &Path,
    ask: impl FnOnce(&Path) -> Result<T> + Send + 'static,
) -> Result<T> {
    in_time_of(PATIENCE, dir, ask)
}

/// The result of `ask`, if it comes within `patience`; for errors see [`in_time`].
pub(crate) fn in_time_of<T: Send + 'static>(
    patience: Duration,
    dir: &Path,
    ask: impl FnOnce(&Path) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (tell, told) = mpsc::channel();
    let path: PathBuf = dir.to_owned();
    thread::Builder::new().name("sluice-question".into()).spawn(move || _ = tell.send(ask(&path)))?;
    told.recv_timeout(patience).unwrap_or_else(|_| Err(silent(dir)))
}

/// That the server of the mount at `dir` is silent, and what is known of it.
pub(crate) fn silent(dir: &Path) -> Failure {
    let seen = control::silent_server(dir).map_or_else(String::new, |seen| format!(" ({seen})"));
    Failure::Failed(format!("{}: the server of this mount has not answered within 2 s{seen}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_nobody_answers_ends_in_time() {
        let dir = Path::new("/no/such/mount");
        let late = in_time_of(Duration::from_millis(20), dir, |_| {
            thread::sleep(Duration::from_secs(600));
            Ok(())
        });
        let late = late.expect_err("nobody answers").to_string();
        assert_eq!(late, "/no/such/mount: the server of this mount has not answered within 2 s");
        assert_eq!(in_time(dir, |_| Ok(7)), Ok(7));
    }
}
