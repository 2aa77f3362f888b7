//! Cursor: where the next read or write of an open file goes.
//!
//! # Theory
//! A call that moves the position holds the cursor from looking at it to moving it, so that calls of two processes on
//! one open file come one after the other. A call that would move it nowhere - `lseek` asking where it is, a read at the
//! end of the file - need not hold it, if nobody else does: it takes effect when it looks.
//!
//! Such a call must not look while another holds the cursor: that one may have read the file before an event that our
//! caller knows of, and move the position afterwards.

use crate::lock_class::OPEN_FILE_CURSOR;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::{Mutex, MutexGuard};

/// The position of an open file.
pub(crate) struct Cursor {
    /// Held by the call that may move it.
    moving: Mutex<()>,
    /// Byte offset in a file; position of the last entry read from a directory. *Written under `moving`; atomic
    /// (position).*
    position: AtomicU64,
}

/// The right to move a cursor.
pub(crate) struct HeldCursor<'c> {
    cursor: &'c Cursor,
    _moving: MutexGuard<'c, ()>,
}

impl Cursor {
    /// At the beginning.
    pub(crate) fn new() -> Cursor {
        Cursor { moving: Mutex::with_class(&OPEN_FILE_CURSOR, ()), position: AtomicU64::new(0) }
    }

    /// The position, unless somebody may be about to move it.
    #[inline]
    pub(crate) fn at_rest(&self) -> Option<u64> {
        // The lock was free after the load began: a call that takes it meanwhile finds the same position or has moved
        // it for good.
        // Acquire(position): what the call did that moved it; pairs with Release(position) in move_to().
        (!self.moving.is_locked()).then(|| self.position.load(Ordering::Acquire))
    }

    /// The position, though somebody may be about to move it.
    pub(crate) fn last(&self) -> u64 {
        // Relaxed: for callers that show it and draw no conclusion.
        self.position.load(Ordering::Relaxed)
    }

    /// Waits until nobody else may move it.
    #[inline]
    #[track_caller]
    pub(crate) fn hold(&self) -> HeldCursor<'_> {
        HeldCursor { _moving: self.moving.lock(), cursor: self }
    }

    /// The cursor, unless somebody else may move it.
    #[inline]
    #[track_caller]
    pub(crate) fn try_hold(&self) -> Option<HeldCursor<'_>> {
        Some(HeldCursor { _moving: self.moving.try_lock()?, cursor: self })
    }
}

impl HeldCursor<'_> {
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        // Relaxed: written under the lock that we hold.
        self.cursor.position.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn move_to(&self, position: u64) {
        // Release(position): pairs with Acquire(position) in at_rest().
        self.cursor.position.store(position, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_waits_for_a_thread_that_may_move_it() {
        let cursor = Cursor::new();
        let held = cursor.hold();
        assert_eq!(cursor.at_rest(), None);
        held.move_to(7);
        drop(held);
        assert_eq!((cursor.at_rest(), cursor.hold().position()), (Some(7), 7));
    }
}
