//! Events: changes to be announced to a kernel, and the threads that must leave that to others (see `notify`).

use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::{SlotTable, thread};
use std::marker::PhantomData;

/// A change to announce.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // `dir`, `child` and `ino` are numbers of inodes
pub enum Event {
    /// A name in a directory changed its meaning; `child` had it before.
    Entry { dir: u64, name: Vec<u8>, child: Option<u64> },
    /// Attributes changed.
    Attributes { ino: u64 },
    /// Contents changed, to the end of the file if `len` is 0.
    Data { ino: u64, offset: u64, len: u64 },
    /// Memory is short: these inodes are to be forgotten where no program uses them.
    Unwanted { inos: Vec<u64> },
}

/// By thread slot: the thread serves some mount's requests. *Owner only.*
static SERVES: SlotTable<AtomicBool> = SlotTable::new();

/// True on a thread that serves some mount's requests.
pub fn is_worker() -> bool {
    // Relaxed, here and below: the thread's own.
    SERVES.get(thread::slot()).load(Ordering::Relaxed)
}

/// The calling thread serves requests for as long as this is there.
pub struct Serving {
    /// Whether the thread was serving before.
    served: bool,
    not_send: PhantomData<*const ()>,
}

impl Serving {
    /// From now on, until it is dropped.
    pub fn begin() -> Serving {
        let served = is_worker();
        SERVES.get(thread::slot()).store(true, Ordering::Relaxed);
        Serving { served, not_send: PhantomData }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // When the thread ends, another gets its slot.
        SERVES.get(thread::slot()).store(self.served, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_a_worker_while_it_serves_whatever_its_name() {
        let named = thread::Builder::new().name("sluice-fuse-0".into()).spawn(is_worker);
        assert!(!named.expect("a thread starts").join().expect("it ends"), "a name is anybody's");
        let serving = Serving::begin();
        drop(Serving::begin());
        assert!(is_worker());
        assert!(!thread::spawn(is_worker).join().expect("it ends"), "another thread");
        drop(serving);
        assert!(!is_worker(), "the next thread with this slot serves nothing");
    }
}
