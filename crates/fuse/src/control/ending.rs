//! Ending: how the process that serves a mount ended, told to the one that unmounts it.
//!
//! A client asks `end` before it unmounts. The server keeps the connection, and writes one line to it when everything is durable, or when it
//! is known that something is lost. A connection that ends without a line is that of a process that died.

use super::OK;
use super::client::{ask_and_keep, is_mounted, serves};
use super::process_wait::ProcessWait;
use crate::lock_class::ENDING;
use crate::mount::{device_of, is_mounted_here};
use crate::mountinfo::{self, is_seen_by_others};
use sluice_sync::Mutex;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::time::{Duration, Instant};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The longest line that a server says in the end.
const LINE_MAX: u64 = 4096;

/// How often a client looks whether a server that has not ended does something.
const LOOK: Duration = Duration::from_secs(1);

/// A mount that is in another mount namespace for so long goes on there: a command that had the namespace for a moment has ended.
const ELSEWHERE_MIN: Duration = Duration::from_secs(15);

/// Clients that wait for the end of this process. *protected by its mutex*
static WAITING: Mutex<Vec<UnixStream>> = Mutex::with_class(&ENDING, Vec::new());
/// This process will tell how it ended. *atomic (stands alone)*
static TELLS: AtomicBool = AtomicBool::new(false);

/// From here on clients may wait until this process [tells](tell_end) how its mount ended.
pub fn will_tell_end() {
    // Relaxed: see the field.
    TELLS.store(true, Ordering::Relaxed);
}

/// Tells all clients that wait how this process ends: with `failure`, or well.
pub fn tell_end(failure: Option<&str>) {
    let waiting = std::mem::take(&mut *WAITING.lock());
    for mut client in waiting {
        // It may have gone.
        let _ = client.write_all(failure.map_or(OK.into(), |line| format!("{line}\n")).as_bytes());
    }
}

/// Keeps a client until the end. False if this process will not tell.
pub(super) fn keep(client: &UnixStream) -> io::Result<bool> {
    // Relaxed: see the field.
    if !TELLS.load(Ordering::Relaxed) {
        return Ok(false);
    }
    let mut client = client.try_clone()?;
    client.write_all(OK.as_bytes())?;
    WAITING.lock().push(client);
    Ok(true)
}

/// How the wait for a server's end went.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerOutcome {
    /// The server has ended, and everything is durable.
    Ended,
    /// The mount goes on in another mount namespace, and the server with it.
    GoesOn,
    /// Not everything is durable, or it is not known: the reason.
    Failed(String),
}

/// The end of a server, which is awaited.
pub struct ServerEnd {
    stream: UnixStream,
    device: (u32, u32),
    /// The file system is mounted at another place of this mount namespace, too.
    has_others: bool,
}

/// The end of the server of the mount that holds `dir`. `None` if no server answers, or if the server does not tell how it ended.
///
/// # Errors
/// When `dir` cannot be reached.
pub fn end_of(dir: &Path) -> io::Result<Option<ServerEnd>> {
    let device = device_of(dir)?;
    let has_others = mountinfo::read()?.iter().filter(|one| one.device == device).count() > 1;
    let Some(mut stream) = ask_and_keep(device, b"end\n")? else { return Ok(None) };
    let mut first = [0; OK.len()];
    stream.read_exact(&mut first)?;
    Ok((first == OK.as_bytes()).then_some(ServerEnd { stream, device, has_others }))
}

impl ServerEnd {
    /// Whether the mount goes on in another place, or in the mount namespace of its server.
    pub fn is_mounted_elsewhere(&self) -> bool {
        // When a mount has ended, the next one gets its device number.
        self.has_others && is_mounted_here(self.device) || is_mounted(self.device, &self.stream)
    }

    /// Waits until the server has ended, or has done nothing for as long as `patience`, but not for a server whose mount is in another mount
    /// namespace.
    pub fn wait(self, patience: Duration) -> ServerOutcome {
        let mut line = Vec::new();
        let began = Instant::now();
        let mut wait = ProcessWait::for_peer(&self.stream, patience);
        // No time at all would be no limit.
        let look = LOOK.min(patience).max(Duration::from_millis(1));
        // Without a limit it waits longer.
        let _ = self.stream.set_read_timeout(Some(look));
        let mut stream = self.stream.take(LINE_MAX);
        while let Err(error) = stream.read_to_end(&mut line) {
            match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut if wait.is_over() => {
                    let why = "its server has not brought everything to the store yet";
                    return ServerOutcome::Failed(why.into());
                }
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    // When a mount has ended, the next one gets its device number.
                    if began.elapsed() >= ELSEWHERE_MIN
                        && is_seen_by_others(self.device)
                        && serves(self.device, stream.get_ref())
                    {
                        return ServerOutcome::GoesOn;
                    }
                }
                _ => break,
            }
        }
        if line == OK.as_bytes() {
            return ServerOutcome::Ended;
        }
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        let died = || "its server died before everything was durable".into();
        ServerOutcome::Failed(if line.is_empty() { died() } else { line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome that a client hears from a server that says `told` in the end.
    fn told(told: &[u8]) -> ServerOutcome {
        let (stream, mut server) = UnixStream::pair().expect("descriptors");
        server.write_all(told).expect("room");
        drop(server);
        ServerEnd { stream, device: (0, 0), has_others: false }.wait(Duration::from_secs(60))
    }

    #[test]
    fn an_end_that_was_not_well_is_told_in_the_words_of_the_server_and_a_death_is_no_success() {
        let failed = |why: &str| ServerOutcome::Failed(why.into());
        assert_eq!(told(b"ok\n"), ServerOutcome::Ended);
        assert_eq!(told(b"st: not all is durable\n"), failed("st: not all is durable"));
        assert_eq!(told(b""), failed("its server died before everything was durable"));
        let (stream, _server) = UnixStream::pair().expect("descriptors");
        let late = ServerEnd { stream, device: (0, 0), has_others: false }.wait(Duration::ZERO);
        assert_eq!(late, failed("its server has not brought everything to the store yet"));
    }
}
