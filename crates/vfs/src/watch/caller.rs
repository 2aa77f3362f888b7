//! Caller: the process for which a thread makes a call, for a server of other processes.

use sluice_sync::atomic::{AtomicU32, Ordering};
use sluice_sync::{SlotTable, thread};
use std::marker::PhantomData;

/// By thread slot: the process for which the thread makes a call, 0 if none is known. *Owner only.*
static CALLERS: SlotTable<AtomicU32> = SlotTable::new();

/// The calling thread makes a call for another process as long as this exists; see [`crate::Superblock::called_by`].
#[derive(Debug)]
pub struct CalledBy {
    not_send: PhantomData<*const ()>,
}

impl CalledBy {
    /// From now on, until it is dropped.
    pub(super) fn begin(process: u32) -> CalledBy {
        // Relaxed, here and below: the thread's own.
        CALLERS.get(thread::slot()).store(process, Ordering::Relaxed);
        CalledBy { not_send: PhantomData }
    }

    /// The process for which this thread makes a call; 0 if none is known.
    pub(super) fn here() -> u32 {
        CALLERS.get(thread::slot()).load(Ordering::Relaxed)
    }
}

impl Drop for CalledBy {
    fn drop(&mut self) {
        CALLERS.get(thread::slot()).store(0, Ordering::Relaxed);
    }
}
