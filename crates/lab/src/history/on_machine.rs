//! On the machine: the models of designs that run on both, on simulated CPUs.

#[path = "commit_list.rs"]
pub mod commit_list;
#[path = "dlm_hash.rs"]
pub mod dlm_hash;
#[path = "file_locks_2012.rs"]
pub mod file_locks_2012;
#[path = "file_locks_2013.rs"]
pub mod file_locks_2013;
#[path = "readdir_2016.rs"]
pub mod readdir_2016;
#[path = "rwsem_2016.rs"]
pub mod rwsem_2016;
#[path = "vfs_2009.rs"]
pub mod vfs_2009;

use super::file_lock_tasks::{Design, Form, Tasks};
use sluice_lock_zoo_sim as zoo;
use sluice_lock_zoo_sim::{SpinLock, TicketLock};
use sluice_machine::cell::{touch_read, touch_write};
use sluice_machine::{Cpu, work};
use sluice_store_sim as store;
use sluice_sync_sim as sync;
use sluice_sync_sim::CachePadded;

/// A spin lock of the kernel's.
type Lock<T> = SpinLock<T, TicketLock>;

/// A word of plain data, protected by a lock of the model.
#[derive(Default)]
struct Word(u64);

/// One with a line of its own.
type Line = CachePadded<Word>;

impl Word {
    fn read(&self) {
        touch_read(&raw const self.0, size_of::<u64>());
    }

    fn write(&self) {
        touch_write(&raw const self.0, size_of::<u64>());
    }
}
