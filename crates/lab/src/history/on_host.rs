//! On the host: the same models, from the same source, on this computer's CPUs.

#[path = "commit_list.rs"]
#[allow(clippy::duplicate_mod, reason = "the same source on another ground")]
pub mod commit_list;
#[path = "dlm_hash.rs"]
#[allow(clippy::duplicate_mod, reason = "the same source on another ground")]
pub mod dlm_hash;
#[path = "file_locks_2012.rs"]
#[allow(clippy::duplicate_mod, reason = "the same source on another ground")]
pub mod file_locks_2012;
#[path = "file_locks_2013.rs"]
#[allow(clippy::duplicate_mod, reason = "the same source on another ground")]
pub mod file_locks_2013;
#[path = "readdir_2016.rs"]
#[allow(clippy::duplicate_mod, reason = "the same source on another ground")]
pub mod readdir_2016;
#[path = "rwsem_2016.rs"]
#[allow(clippy::duplicate_mod, reason = "the same source on another ground")]
pub mod rwsem_2016;
#[path = "vfs_2009.rs"]
#[allow(clippy::duplicate_mod, reason = "the same source on another ground")]
pub mod vfs_2009;

use super::file_lock_tasks::{Design, Form};
use super::file_lock_threads::Tasks;
use crate::experiment::native::{compute, compute as work};
use sluice_lock_zoo as zoo;
use sluice_store as store;
use sluice_sync as sync;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::{CachePadded, Mutex as Lock};

// `Lock`: for the kernel's spin locks. The owner of one of those keeps its CPU. Threads here do not, so waiting ones sleep.

/// The CPU that the calling thread is pinned to.
pub struct Cpu;

impl Cpu {
    fn id(&self) -> usize {
        sluice_sync::cpu::current()
    }

    fn work(&self, cycles: u64) {
        compute(cycles);
    }

    /// The mean: what a simulated machine takes chance for, this computer has of its own.
    fn random(&self, below: u64) -> u64 {
        below / 2
    }
}

/// A word of data, protected by a lock of the model. *atomic (without an order: the lock has it)*
#[derive(Default)]
struct Word(AtomicU64);

/// One with a line of its own.
type Line = CachePadded<Word>;

impl Word {
    fn read(&self) {
        // Relaxed: as above.
        std::hint::black_box(self.0.load(Ordering::Relaxed));
    }

    fn write(&self) {
        // Relaxed: as above.
        self.0.store(1, Ordering::Relaxed);
    }
}
