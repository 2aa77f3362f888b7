//! Second looks: lock requests that are refused only when everything read before them is served; see `turns`.

use super::turns::Earlier;
use crate::lock_class::SECOND_LOOKS;
use crate::request::LockRequest;
use sluice_sync::Mutex;
use sluice_sync::atomic::{AtomicUsize, Ordering};
use std::mem;

/// The requests of one mount that wait for earlier ones. They occupy no thread.
pub(crate) struct SecondLooks {
    /// How many. *atomic (no label: SeqCst, see `turns`)*
    count: AtomicUsize,
    waiting: Mutex<Vec<(LockRequest, Earlier)>>,
}

impl Default for SecondLooks {
    fn default() -> Self {
        SecondLooks { count: AtomicUsize::new(0), waiting: Mutex::with_class(&SECOND_LOOKS, Vec::new()) }
    }
}

impl SecondLooks {
    /// Has `request` wait until `earlier` is served. The caller must ask for what is [`due`](Self::due) afterwards.
    pub(crate) fn postpone(&self, request: LockRequest, earlier: Earlier) {
        let mut waiting = self.waiting.lock();
        waiting.push((request, earlier));
        self.count.store(waiting.len(), Ordering::SeqCst);
    }

    /// Takes out what need not wait any more. To be asked for after each request served.
    pub(crate) fn due(&self) -> Vec<LockRequest> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut waiting = self.waiting.lock();
        let (due, rest) = mem::take(&mut *waiting).into_iter().partition(|(_, earlier)| earlier.is_served());
        *waiting = rest;
        self.count.store(waiting.len(), Ordering::SeqCst);
        due.into_iter().map(|(request, _)| request).collect()
    }

    /// Drops them all: the kernel is gone.
    pub(crate) fn clear(&self) {
        let mut waiting = self.waiting.lock();
        waiting.clear();
        self.count.store(0, Ordering::SeqCst);
    }
}
