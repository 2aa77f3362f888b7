//! Small mutex: a mutex of one word, for values of which there are very many and which two threads hardly ever want at once.
//!
//! # Theory
//! The word is 0 for free, 1 for locked, and 2 for locked with possible sleepers. A thread that finds the lock taken
//! sets the word to 2 and sleeps. An unlock of 2 wakes one thread, which makes it 2 again, since others may sleep too.
//!
//! It is not fair: a thread that comes by takes it ahead of those that sleep. A [`Mutex`](crate::Mutex) has a queue and a line of
//! spinners for that, which are 20 bytes.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | small | the exchange to 0 | the exchange from 0 | the protected value |
//!
//! # Cost
//! Uncontended, lock and unlock write the line once each.
//!
//! # Used by
//! `dlm`: what a node knows of each lock, and a master of each resource; all but listings have the shard's mutex too. And the
//! wait queue of [`Mutex`](crate::Mutex), for itself.
//!
//! # Sources
//! Drepper, "Futexes Are Tricky" (2011): its second mutex.

use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::cell::UnsafeCell;
use crate::face::{SHRUNK, const_new, futex, hint};
use crate::lock_debug::{Ask, Held, LockClass, Watch};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Turns that a thread spins before it sleeps.
const SPIN: u32 = if SHRUNK { 1 } else { 100 };

const FREE: u32 = 0;
const HELD: u32 = 1;
const SLEPT_FOR: u32 = 2;

/// A small mutex that protects nothing by itself.
pub(crate) struct RawSmallMutex {
    /// See the theory. *atomic (small)*
    word: AtomicU32,
}

impl RawSmallMutex {
    const_new! {
        /// A free one.
        pub(crate) fn new() -> Self {
            RawSmallMutex { word: AtomicU32::new(FREE) }
        }
    }

    #[inline]
    pub(crate) fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        // Acquire(small): pairs with Release(small) in unlock(). A failure publishes nothing.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_slow(&self) {
        // Relaxed: only to see whether trying is worth it.
        let free = hint::spin_until_for(&self.word, SPIN, Ordering::Relaxed, |word| word == FREE);
        if free.is_some() && self.try_lock() {
            return;
        }
        // Acquire(small): as in try_lock(). From here on a thread may be asleep, until proven otherwise.
        while self.word.swap(SLEPT_FOR, Ordering::Acquire) != FREE {
            futex::wait(&self.word, SLEPT_FOR, None);
        }
    }

    #[inline]
    pub(crate) fn unlock(&self) {
        // Release(small): the protected value; pairs with Acquire(small) in try_lock() and lock_slow().
        if self.word.swap(FREE, Ordering::Release) == SLEPT_FOR {
            futex::wake(&self.word, 1);
        }
    }
}

/// A sleeping lock that takes one word.
///
/// ```
/// use sluice_sync::{LockClass, SmallMutex};
///
/// static COUNT: LockClass = LockClass::new("example.count");
/// let counts: Vec<_> = (0..1000).map(|n| SmallMutex::with_class(&COUNT, n)).collect();
/// *counts[7].lock() += 1;
/// assert_eq!(*counts[7].lock(), 8);
/// ```
pub struct SmallMutex<T> {
    raw: RawSmallMutex,
    /// *immutable*
    watch: Watch,
    /// *protected by `raw`*
    value: UnsafeCell<T>,
}

// SAFETY: the value goes to whichever thread holds the lock, one at a time, so `T: Send` is enough.
unsafe impl<T: Send> Send for SmallMutex<T> {}
// SAFETY: as above; `raw` makes the holders exclude each other (loom model `small_mutex`).
unsafe impl<T: Send> Sync for SmallMutex<T> {}

/// The right to the value of a [`SmallMutex`]; unlocks it when dropped.
#[must_use = "the mutex unlocks at once when the guard is dropped"]
pub struct SmallMutexGuard<'a, T> {
    mutex: &'a SmallMutex<T>,
    /// Dropped after the lock is free: only this thread's memory.
    _held: Held,
    marker: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives only `&T`.
unsafe impl<T: Sync> Sync for SmallMutexGuard<'_, T> {}

impl<T> SmallMutex<T> {
    const_new! {
        /// A new, unlocked mutex of `class` around `value`.
        pub fn with_class(class: &'static LockClass, value: T) -> Self {
            SmallMutex { raw: RawSmallMutex::new(), watch: Watch::class(class), value: UnsafeCell::new(value) }
        }
    }

    /// Locks, sleeping until the lock is free.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> SmallMutexGuard<'_, T> {
        let uncontended = || self.raw.try_lock().then_some(());
        let ((), held) = self.watch.lock(Ask::WRITE, uncontended, || self.raw.lock());
        SmallMutexGuard { mutex: self, _held: held, marker: PhantomData }
    }
}

impl<T> Drop for SmallMutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.raw.unlock();
    }
}

impl<T> Deref for SmallMutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so nobody has a `&mut T` until it is dropped.
        self.mutex.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for SmallMutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed exclusively, so this is the only reference.
        self.mutex.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> fmt::Debug for SmallMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SmallMutex(..)")
    }
}
