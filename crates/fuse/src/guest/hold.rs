//! Hold: an answer that waits until the guests concerned have been told of the change.
//!
//! A notice has a reference to the hold of the request that made the change. The answer goes out when the last reference is
//! dropped: by the thread that served the request, if nobody had to be told or all have been, or by the one that hears so later.

use crate::connection::Connection;
use crate::lock_class::HOLDS;
use sluice_sync::atomic::{AtomicUsize, Ordering};
use sluice_sync::{Arc, Mutex, OnceLock, thread};
use std::collections::HashMap;

/// An answer that waits. Dropping the last reference sends it.
#[derive(Default)]
pub struct Hold(OnceLock<(Arc<Connection>, Vec<u8>)>);

impl Hold {
    /// Has `answer` sent to the guest of `connection`.
    pub(super) fn answer(&self, connection: Arc<Connection>, answer: &[u8]) {
        // Once for each request.
        let _ = self.0.set((connection, answer.to_vec()));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((connection, answer)) = self.0.take() {
            connection.send(&answer);
        }
    }
}

/// The holds of the requests that are being served, by thread.
pub(super) struct Holds {
    by_thread: Mutex<HashMap<thread::ThreadId, Arc<Hold>>>,
    /// How many: a thread that finds none has no need to look. *atomic (stands alone: a thread sees its own)*
    count: AtomicUsize,
}

impl Default for Holds {
    fn default() -> Self {
        Holds { by_thread: Mutex::with_class(&HOLDS, HashMap::new()), count: AtomicUsize::new(0) }
    }
}

impl Holds {
    /// The hold of what this thread serves.
    pub(super) fn of_this_thread(&self) -> Arc<Hold> {
        let mut by_thread = self.by_thread.lock();
        let hold = by_thread.entry(thread::current().id()).or_default().clone();
        // Relaxed: see `count`.
        self.count.store(by_thread.len(), Ordering::Relaxed);
        hold
    }

    /// Takes it away, if there is one.
    pub(super) fn take(&self) -> Option<Arc<Hold>> {
        // Relaxed: see `count`. A thread that has a hold has counted it, and only it takes that away.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut by_thread = self.by_thread.lock();
        let hold = by_thread.remove(&thread::current().id());
        self.count.store(by_thread.len(), Ordering::Relaxed);
        hold
    }
}
