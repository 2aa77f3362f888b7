//! ProcStat: `/proc/PID/stat`, of a process or a thread.
//!
//! # Limits
//! On some kernels (Linux 6.18) the file cannot be read while the process executes another program. An exec closes files, and waits for
//! the answer to a FLUSH of each: who serves a mount must not wait for its client, and reads [`stat_of_client`].

use sluice_sync::time::Duration;
use sluice_sync::{mpsc, thread};
use std::{fs, io};

/// How long the exec of a client may take before it counts as one that waits for the mount.
const PATIENCE: Duration = Duration::from_millis(250);

/// The text of the file for the process or thread `id`. None if there is no such process.
pub(crate) fn stat_of(id: impl std::fmt::Display) -> Option<String> {
    fs::read_to_string(format!("/proc/{id}/stat")).ok()
}

/// The text of the file for process `id`, which may be a client of this process.
///
/// # Errors
/// TimedOut while the process executes another program; those of the file.
pub(crate) fn stat_of_client(id: u32) -> io::Result<String> {
    within(PATIENCE, move || fs::read_to_string(format!("/proc/{id}/stat")))
}

/// The outcome of `read`, which goes on by a thread of its own if it takes longer than `patience`.
fn within(
    patience: Duration,
    read: impl FnOnce() -> io::Result<String> + Send + 'static,
) -> io::Result<String> {
    let (tell, told) = mpsc::channel();
    let read = move || {
        // Nobody waits any more if this fails.
        let _ = tell.send(read());
    };
    thread::Builder::new().name("sluice-look".into()).spawn(read)?;
    told.recv_timeout(patience).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The fields of `stat` behind the name, which may have anything in it: state, parent, group, session, ...
pub(crate) fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    stat.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_executes_a_program_is_not_waited_for() {
        let own = stat_of_client(std::process::id()).expect("this process is there");
        assert!(fields(&own).is_some());
        let gone = stat_of_client(u32::MAX).expect_err("no process has this number");
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        let (goes_on, waits) = mpsc::channel::<()>();
        let read = move || {
            let _ = waits.recv();
            Ok(String::new())
        };
        let error = within(Duration::from_millis(1), read).expect_err("it waits");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(goes_on);
    }
}
