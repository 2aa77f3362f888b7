//! HeldState: the knowledge that the server of a held mount has beside that of other mounts.

use super::changes::ChangeFile;
use super::lost::ToldLosses;
use sluice_sync::OnceLock;
use sluice_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Gives an order to replace the server to the holder: the program of the next one, and the client that waits for the outcome.
pub(super) type PassOn = Box<dyn Fn(OwnedFd, UnixStream) -> io::Result<()> + Send + Sync>;

/// A held mount, as its server has it.
pub(crate) struct HeldState {
    /// A number that no other mount has. *immutable*
    pub(super) mount: u64,
    pub(super) file: ChangeFile,
    /// Name changes that an earlier server executed, durably, with the inodes that have got names. *immutable*
    pub(super) executed: BTreeMap<u64, u64>,
    /// How often requests that came again were begun by earlier servers. *immutable*
    pub(super) attempts: HashMap<u64, u64>,
    pub(super) lost: ToldLosses,
    /// *immutable*
    pub(crate) restarts: Restarts,
    /// The process that keeps it. *immutable*
    pub(super) holder: Option<rustix::process::Pid>,
    /// The number of the next worker. *atomic (stands alone)*
    pub(super) next_worker: AtomicU64,
    /// Workers begin with no request: the server leaves. *atomic (no label: SeqCst)*
    pub(super) leaves: AtomicBool,
    /// Workers that keep a request because of that. *atomic (no label: SeqCst)*
    pub(super) kept: AtomicUsize,
    /// Where orders to replace the server go. *immutable once set*
    pub(crate) pass_on: OnceLock<PassOn>,
}

/// How often the server of a mount was started again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restarts {
    /// How often.
    pub count: u64,
    /// How the last one ended.
    pub cause: Option<String>,
}

impl HeldState {
    /// The number of the process that keeps the mount, if that lives.
    pub(crate) fn holder(&self) -> Option<u32> {
        let parent = rustix::process::getppid();
        self.holder
            .filter(|holder| Some(*holder) == parent)
            .map(|holder| holder.as_raw_nonzero().get().cast_unsigned())
    }
}
