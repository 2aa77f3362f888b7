//! Big-reader lock: readers write only a line of their own, writers pay for all of them.
//!
//! # Theory
//! For data that is read by everybody and written hardly ever. A reader announces
//! itself on its thread's line and looks at the writers' flag. A writer raises the flag, makes every CPU
//! notice (membarrier), and waits for the lines to empty.
//!
//! ```text
//!   reader                     writer
//!   own line := inside         gate.write()          writers one by one; readers that lost sleep here
//!   light barrier              writer := 1
//!   writer == 0: in            heavy barrier
//!   writer == 1: step back,    wait for each line to be 0
//!                gate.read()   ... in ...
//! ```
//!
//! A reader that finds the flag steps back, sleeps at the gate, an ordinary reader-writer lock, and announces
//! itself while it holds the gate, when no writer can be inside. So the gate's fairness is the lock's, and all
//! blocked readers wake together.
//!
//! It does not matter where a thread is moved to between the steps: its line moves along (`readers.rs`).
//!
//! # Clients must
//! - not ask to write while they read: the writer would wait for itself (checked);
//! - expect a write to cost microseconds, more with many threads.
//!
//! # Then
//! A thread may read again while it reads, even when a writer waits: it goes a level deeper.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | announce, leave | see `readers.rs` | | readers inside |
//! | unlock | writer's guard dropped: `writer := 0` | `read`: load of `writer` | what the writer wrote |
//!
//! *unlock*, why a reader cannot take the 0 that an earlier writer left: a later writer either saw the
//! reader's line and waits for it, or its flag was stored before the barrier that came before the
//! reader's load, so the load sees the 1 or what followed it.
//!
//! # Cost
//! Read: two stores to the thread's own line, a load of `writer` (shared, written by writers only). Write: the
//! gate, one membarrier(2), one load per thread slot, and the readers' sections. Memory: 2 KiB and more.
//!
//! # Used by
//! `store/src/cil.rs`: a change of a durable file system reads, the thread that swaps the buffers writes.
//!
//! # Sources
//! The kernel's percpu-rwsem and the brlock before it; Corbet, "Big reader locks" (LWN, 2010).

use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::cell::UnsafeCell;
use crate::face::{CachePadded, const_new};
use crate::lock_debug::{Ask, Held, LockClass, Watch};
use crate::readers::{INSIDE, ReaderLine, Readers, heavy_barrier, is_inside};
use crate::{RwLock, RwLockWriteGuard};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A reader-writer lock for data that is hardly ever written.
pub struct BrLock<T: ?Sized> {
    readers: Readers,
    /// 1 while a writer is inside or waits for readers. *atomic (announce, unlock)*
    writer: CachePadded<AtomicU32>,
    /// Orders writers, and lets readers sleep until a writer is done.
    gate: RwLock<()>,
    /// *immutable*
    watch: Watch,
    /// *protected by `readers` and `writer`*
    value: UnsafeCell<T>,
}

// SAFETY: the value goes to one writer at a time, on whichever thread.
unsafe impl<T: ?Sized + Send> Send for BrLock<T> {}
// SAFETY: readers share `&T` between threads, a writer has the value alone (loom models `brlock`).
unsafe impl<T: ?Sized + Send + Sync> Sync for BrLock<T> {}

/// Shared access to the value of a [`BrLock`]. It stays on its thread.
#[must_use = "the lock is released at once when the guard is dropped"]
pub struct BrReadGuard<'a, T: ?Sized> {
    lock: &'a BrLock<T>,
    line: &'a ReaderLine,
    /// Dropped after we have left: only this thread's memory.
    _held: Held,
    marker: PhantomData<*const ()>,
}

/// Exclusive access to the value of a [`BrLock`].
#[must_use = "the lock is released at once when the guard is dropped"]
pub struct BrWriteGuard<'a, T: ?Sized> {
    lock: &'a BrLock<T>,
    _gate: RwLockWriteGuard<'a, ()>,
    _held: Held,
}

impl<T> BrLock<T> {
    const_new! {
        /// A lock that nobody holds. Its class is the place of this call.
        #[track_caller]
        pub fn new(value: T) -> Self {
            BrLock::watched(Watch::here(), value)
        }
    }

    const_new! {
        /// A lock of class `class` with this value.
        pub fn with_class(class: &'static LockClass, value: T) -> Self {
            BrLock::watched(Watch::class(class), value)
        }
    }

    const_new! {
        fn watched(watch: Watch, value: T) -> Self {
            BrLock {
                readers: Readers::new(),
                writer: CachePadded::new(AtomicU32::new(0)),
                gate: RwLock::part(()),
                watch,
                value: UnsafeCell::new(value),
            }
        }
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> BrLock<T> {
    /// Shares the value with other readers; sleeps while a writer is inside or about to be.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> BrReadGuard<'_, T> {
        let (line, held) = self.watch.lock(Ask::READ_AGAIN, || self.try_enter(), || self.enter());
        BrReadGuard { lock: self, line, _held: held, marker: PhantomData }
    }

    #[inline]
    fn enter(&self) -> &ReaderLine {
        let line = self.readers.enter(|| INSIDE);
        // Acquire(unlock): what the last writer wrote; pairs with Release(unlock) in Drop.
        if self.writer.load(Ordering::Acquire) != 0 {
            self.read_slow(line);
        }
        line
    }

    /// Enters, unless a writer is inside or about to be.
    fn try_enter(&self) -> Option<&ReaderLine> {
        let line = self.readers.enter(|| INSIDE);
        // Acquire(unlock): as in enter().
        if self.writer.load(Ordering::Acquire) == 0 {
            return Some(line);
        }
        line.leave();
        None
    }

    #[cold]
    fn read_slow(&self, line: &ReaderLine) {
        if line.own_depth() > 1 {
            // The writer waits for this thread, which was inside before.
            return;
        }
        // Wakes the writer if it already waits for us.
        line.leave();
        let gate = self.gate.read();
        // No writer is inside; the next one locks the gate after we unlock it, and so sees our line.
        line.enter_ordered();
        drop(gate);
    }

    /// Takes the value alone; sleeps until all readers and the writers before are gone.
    ///
    /// # Panics
    /// If the calling thread reads through this lock: it would wait for itself.
    #[track_caller]
    pub fn write(&self) -> BrWriteGuard<'_, T> {
        assert!(!self.readers.own_inside(), "a reader cannot wait for all readers: it would wait for itself");
        let (gate, held) = self.watch.lock(Ask::WRITE, || self.gate.try_write(), || self.gate.write());
        // Relaxed: the barrier orders it (announce).
        self.writer.store(1, Ordering::Relaxed);
        // Barrier(announce): pairs with the light barrier in Line::enter().
        heavy_barrier();
        self.readers.wait_for_all(|word| !is_inside(word));
        BrWriteGuard { lock: self, _gate: gate, _held: held }
    }

    /// Whether the calling thread reads through this lock, and so must not ask to write.
    pub fn is_read_here(&self) -> bool {
        self.readers.own_inside()
    }

    /// The value, by exclusive reference: no lock is needed.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` proves that no guard exists.
        self.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T: ?Sized> Drop for BrReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.line.leave();
    }
}

impl<T: ?Sized> Drop for BrWriteGuard<'_, T> {
    fn drop(&mut self) {
        // Release(unlock): what we wrote; pairs with Acquire(unlock) in read(). The gate opens after it.
        self.lock.writer.store(0, Ordering::Release);
    }
}

impl<T: ?Sized> Deref for BrReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: our line says that we are inside, so every writer waits until this guard is dropped.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T: ?Sized> Deref for BrWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T: ?Sized> DerefMut for BrWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the gate, readers saw the flag or have left, and this guard is borrowed exclusively.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

// SAFETY: a shared guard gives only `&T`.
unsafe impl<T: ?Sized + Sync> Sync for BrReadGuard<'_, T> {}
// SAFETY: a shared guard gives only `&T`.
unsafe impl<T: ?Sized + Sync> Sync for BrWriteGuard<'_, T> {}

impl<T: Default> Default for BrLock<T> {
    #[track_caller]
    fn default() -> Self {
        BrLock::new(T::default())
    }
}

impl<T: ?Sized> fmt::Debug for BrLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrLock(..)")
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::face::SHRUNK;
    use crate::thread;

    #[test]
    fn readers_and_writers_exclude_each_other() {
        let lock = BrLock::new((0u64, 0u64));
        let rounds = if SHRUNK { 10 } else { 3_000 };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let pair = lock.read();
                        assert_eq!(pair.0, pair.1);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let mut pair = lock.write();
                        pair.0 += 1;
                        pair.1 += 1;
                    }
                });
            }
        });
        assert_eq!(lock.into_inner(), (2 * rounds, 2 * rounds));
    }

    #[test]
    fn a_reader_may_read_again_while_a_writer_waits() {
        let lock = BrLock::new(1);
        thread::scope(|scope| {
            let outer = lock.read();
            let writer = scope.spawn(|| *lock.write() += 1);
            // Relaxed: only to see that the writer waits.
            while lock.writer.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            assert_eq!(*lock.read(), 1);
            assert_eq!(*outer, 1);
            drop(outer);
            writer.join().expect("the writer ends");
            assert_eq!(*lock.read(), 2);
        });
    }

    #[test]
    #[should_panic(expected = "wait for itself")]
    fn writing_while_reading_is_refused() {
        let lock = BrLock::new(());
        let _reader = lock.read();
        let _writer = lock.write();
    }
}
