//! On the machine: the models of designs that run on both, on simulated CPUs.

#[path = "commit_list.rs"]
pub mod commit_list;
#[path = "readdir_2016.rs"]
pub mod readdir_2016;
#[path = "rwsem_2016.rs"]
pub mod rwsem_2016;
#[path = "vfs_2009.rs"]
pub mod vfs_2009;

use sluice_machine::Cpu;
use sluice_machine::cell::{touch_read, touch_write};
use sluice_sync_sim as sync;
use sluice_sync_sim::CachePadded;

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
