//! HolderState: the knowledge of a process that keeps a mount, and of an upgrade that is under way.

use crate::held_process::HeldProcess;
use crate::watchdog::Watchdog;
use log::LevelFilter;
use sluice_fuse::control::Unserved;
use sluice_fuse::{HeldMount, Restarts};
use sluice_sync::time::{Duration, Instant};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The mount that a holder is to keep.
pub(crate) struct Holding<'a> {
    pub(crate) dir: &'a Path,
    /// The arguments of the server.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) detach: bool,
    pub(crate) level: LevelFilter,
    /// After how long without an answer a server is replaced, if so.
    pub(crate) watchdog: Option<Duration>,
}

/// The process that keeps a mount.
pub(crate) struct MountHolder<'a> {
    pub(crate) asked: &'a Holding<'a>,
    /// The program of its servers; none: its own.
    pub(crate) program: Option<OwnedFd>,
    /// The working directory at the start: paths in options may be relative to it.
    pub(crate) place: PathBuf,
    pub(crate) mount: Option<HeldMount>,
    pub(crate) restarts: Restarts,
    /// Readable when a signal came that is to end the mount.
    pub(crate) stops: UnixStream,
    /// Readable when a server may have ended.
    pub(crate) ends: UnixStream,
    pub(crate) is_stopping: bool,
    /// Terminal and pipes are left.
    pub(crate) has_left: bool,
    /// The server is being replaced.
    pub(crate) upgrade: Option<Upgrade>,
    /// Servers that were killed before they served, and have not ended yet.
    pub(crate) killed: Vec<HeldProcess>,
    pub(crate) watchdog: Option<Watchdog>,
    /// Messages go to the log.
    pub(crate) logs: bool,
    /// No server can begin until the disk of the store has room, and questions are answered here; none where nothing can listen.
    pub(crate) waiting: Option<Option<Unserved>>,
}

/// How far an upgrade is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UpgradeStage {
    /// The next server prepares, and this one pushes.
    Prepares,
    /// The server leaves.
    Leaves,
    /// The next server is the server, and does not serve yet.
    TakesOver,
}

/// A server is being replaced.
pub(crate) struct Upgrade {
    pub(crate) program: OwnedFd,
    pub(crate) client: UnixStream,
    /// The next server, until it is the server.
    pub(crate) successor: Option<HeldProcess>,
    pub(crate) stage: UpgradeStage,
    pub(crate) began: Instant,
    pub(crate) deadline: Instant,
    /// The version of the next server, once it is prepared.
    pub(crate) version: Option<String>,
    pub(crate) has_pushed: bool,
}

impl Upgrade {
    pub(crate) fn successor(&self) -> Option<&HeldProcess> {
        self.successor.as_ref()
    }

    /// The time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}
