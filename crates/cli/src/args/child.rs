//! Work of processes that this program starts.

use super::WantedLock;
use clap::Subcommand;
use std::ffi::OsString;
use std::path::PathBuf;

/// Work of processes that this program starts.
#[derive(Subcommand)]
pub(crate) enum Child {
    /// Lock some bytes of FILE until standard input ends
    HoldLock { file: PathBuf },
    /// Lock and unlock them ROUNDS times
    LockRounds { file: PathBuf, rounds: u32 },
    /// Have a lock of a cluster until standard input ends, for `sluice lock`
    LockMember(WantedLock),
    /// Make calls in DIR by orders from standard input, for `sluice check-coherence`
    CoherenceWorker { dir: PathBuf },
    /// Become a command that ends when process PARENT does
    Locked {
        parent: i32,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}
