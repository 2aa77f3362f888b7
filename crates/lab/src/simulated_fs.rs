//! SimulatedFs: a file system on the simulated machine, in memory or over a store.
//!
//! The store's commit path is the real one: sections, the CPUs' buffers, the cut, the log. Its disk and its tree are maps in memory
//! that cost nothing but their own lines. No thread of the store pushes: a call does that finds too much waiting. The log is larger
//! than usual: the CPUs' shares of its room, which they count for themselves, are as large for 256 of them as elsewhere for a few.

use sluice_store_sim::{Options as StoreOptions, Store, StoreError};
use sluice_sync_sim::Arc;
use sluice_vfs_sim::{Options, Superblock};

/// Bytes of a log.
const LOG_SIZE: u64 = 1 << 30;

/// The storage below a file system of the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum On {
    /// Memory alone.
    #[default]
    Ram,
    /// A store.
    Store,
}

impl On {
    /// The target on `machine`, as it is written.
    pub(crate) fn target(self, machine: &str) -> String {
        match self {
            On::Ram => format!("sim:{machine}"),
            On::Store => format!("sim:{machine}:store"),
        }
    }

    /// A new file system. Called on the machine.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn superblock(self, options: Options) -> Result<Arc<Superblock>, StoreError> {
        match self {
            On::Ram => Ok(Superblock::new(options)),
            On::Store => {
                let store = StoreOptions::default().background(false).log_size(LOG_SIZE);
                Superblock::create_in(Store::in_memory(store)?, options)
            }
        }
    }
}
