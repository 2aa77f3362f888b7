//! Leave: how the server of a held mount hands everything to the next one, and loses nothing.
//!
//! # Theory
//! A server that dies loses changes that are not durable. A server that is replaced on purpose brings them to the store first:
//!
//! 1. From one moment on a worker that has read a request keeps it and does not begin with it. The kernel gives such requests to the next server.
//! 2. The requests that were begun before are answered. A request that does not come to its end within [`QUIET_MAX`] ends the attempt: the workers
//!    go on with what they have read.
//! 3. Everything goes to the store, contents of files without a name, too, and the notes of answered changes are thrown away: nothing is lost,
//!    and nobody is to be told of a loss.
//! 4. The store is closed, so that the next server opens it sooner.
//!
//! # Ordering
//! All SeqCst. A worker says that it serves, then looks whether the server leaves; the leaving server says so, then looks at the workers.
//! One of the two sees the other.

use super::state::HeldState;
use crate::connection::Connection;
use sluice_sync::atomic::Ordering;
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Weak, mpsc, thread};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// How long requests that were begun may take.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// How long the store may take for the changes since it had nearly all of them.
const PUSH_MAX: Duration = Duration::from_secs(15);
/// How often a thread looks whether what it waits for has come.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The server of a held mount, for its holder.
#[derive(Clone)]
pub struct HeldServer(Weak<Connection>);

impl std::fmt::Debug for HeldServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeldServer")
    }
}

impl HeldServer {
    pub(crate) fn new(connection: Weak<Connection>) -> HeldServer {
        HeldServer(connection)
    }

    /// Gives orders to replace the server to `pass_on`: the program of the next one, and the client that waits for the outcome.
    pub fn pass_upgrades_on(
        &self,
        pass_on: impl Fn(OwnedFd, UnixStream) -> io::Result<()> + Send + Sync + 'static,
    ) {
        if let Some(connection) = self.0.upgrade()
            && let Some(held) = connection.held.get()
        {
            // The first call counts.
            let _ = held.pass_on.set(Box::new(pass_on));
        }
    }

    /// Brings to the store what calls have changed, while requests are served, so that little is left to do in [`leave`](Self::leave).
    pub fn push(&self) {
        if let Some(connection) = self.0.upgrade() {
            // An error shows again.
            let _ = connection.superblock.checkpoint();
        }
    }

    /// Serves no request from here on, brings everything to the store and closes it. The caller ends the process then.
    ///
    /// # Errors
    /// The reason why the server stays, and serves on, as a line.
    pub fn leave(&self) -> Result<(), String> {
        let connection = self.0.upgrade().ok_or("the mount is gone")?;
        let held = connection.held.get().ok_or("the mount is gone")?;
        if connection.transfers.load(Ordering::SeqCst) > 0 {
            return Err("a stream is sent or received (sluice send, receive, export or diff): try again when it has ended".into());
        }
        held.leaves.store(true, Ordering::SeqCst);
        let left = connection.leave(held);
        if left.is_err() {
            held.leaves.store(false, Ordering::SeqCst);
        }
        left
    }

    /// A number that grows with each request that is served, and how many are being served.
    pub fn counts(&self) -> (u64, u64) {
        let counts = |connection: sluice_sync::Arc<Connection>| {
            (connection.turns.served(), connection.turns.serving() as u64)
        };
        self.0.upgrade().map_or((0, 0), counts)
    }
}

impl Connection {
    fn leave(&self, held: &HeldState) -> Result<(), String> {
        let end = Instant::now() + QUIET_MAX;
        while self.turns.serving() > held.kept.load(Ordering::SeqCst) {
            if Instant::now() >= end {
                return Err("a call in the mount does not come to its end: try again".into());
            }
            thread::sleep(LOOK_AGAIN);
        }
        let (tell, told) = mpsc::channel();
        let superblock = self.superblock.clone();
        let push = move || _ = tell.send(superblock.sync_nameless());
        let pushes = thread::Builder::new().name("sluice-leave".into()).spawn(push);
        let pushed = pushes.map_err(|error| error.to_string()).and_then(|_| {
            told.recv_timeout(PUSH_MAX).map_err(|_| "the store's disk takes too long: try again".into())
        });
        pushed?.map_err(|errno| format!("the store cannot be written ({errno}): see sluice stat"))?;
        held.file.set_whole().map_err(|error| error.to_string())?;
        // Everything is durable: after an error the next server reads the log.
        let _ = self.superblock.close();
        Ok(())
    }

    /// Keeps a request that was read and not begun, as long as the server is about to leave.
    #[cold]
    pub(super) fn keep_request(&self, held: &HeldState) {
        held.kept.fetch_add(1, Ordering::SeqCst);
        while held.leaves.load(Ordering::SeqCst) {
            thread::sleep(LOOK_AGAIN);
        }
        held.kept.fetch_sub(1, Ordering::SeqCst);
    }
}
