//! SpinLock: a value behind any of the spin locks.
//!
//! Here, and only here, mutual exclusion turns into `&mut`. That a lock excludes is stated by [`MutualExclusion`], with an
//! argument, which a loom model of the same name checks (`lock-zoo-loom`).

use super::{RawSpinLock, Ttas};
use crate::face::cell::UnsafeCell;
use crate::face::const_new;
use crate::lock_debug::{Ask, Held, Watch};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A raw lock of which at most one acquisition is outstanding at any time.
///
/// # Safety
/// Between the return of `lock` (or a successful `try_lock`) and the `unlock` with its token no other
/// acquisition may succeed, provided that tokens are given back once, to the lock and on the thread they
/// came from; and the `unlock` must happen before the next acquisition returns.
pub unsafe trait MutualExclusion: RawSpinLock {}

// SAFETY: an acquisition is an exchange of 0 for 1, and the word is 1 until the owner stores 0 with release.
unsafe impl MutualExclusion for Ttas {}

/// A value that one thread at a time may touch, after spinning for it.
pub struct SpinLock<T: ?Sized, R: MutualExclusion = Ttas> {
    /// Private: nobody else can unlock it.
    raw: R,
    /// *immutable*
    watch: Watch,
    /// *protected by `raw`*
    value: UnsafeCell<T>,
}

// SAFETY: the value goes to whichever thread holds the lock, one at a time.
unsafe impl<T: ?Sized + Send, R: MutualExclusion> Send for SpinLock<T, R> {}
// SAFETY: as above; the holders exclude each other by the contract of `MutualExclusion`.
unsafe impl<T: ?Sized + Send, R: MutualExclusion> Sync for SpinLock<T, R> {}

/// The right to the value of a [`SpinLock`]; unlocks it when dropped.
#[must_use = "the lock unlocks at once when the guard is dropped"]
pub struct SpinGuard<'a, T: ?Sized, R: MutualExclusion> {
    lock: &'a SpinLock<T, R>,
    /// Dropped after the lock is free: only this thread's memory.
    _held: Held,
    /// Taken out when the guard is dropped.
    token: Option<R::Token>,
    /// Queue nodes belong to threads, so a guard stays on its thread.
    marker: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives only `&T`; its token is not reachable.
unsafe impl<T: ?Sized + Sync, R: MutualExclusion> Sync for SpinGuard<'_, T, R> {}

impl<T, R: MutualExclusion> SpinLock<T, R> {
    const_new! {
        /// A lock around `value` that uses `raw`, which must be free.
        /// Its class is the place of this call.
        #[track_caller]
        pub fn with_raw(raw: R, value: T) -> Self {
            SpinLock { raw, watch: Watch::here(), value: UnsafeCell::new(value) }
        }
    }

    /// A free lock around `value`. Its class is the place of this call.
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self::with_raw(R::default(), value)
    }

    /// Takes the value out; no lock is needed, nobody else can hold one.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: Default, R: MutualExclusion> Default for SpinLock<T, R> {
    fn default() -> Self {
        SpinLock::new(T::default())
    }
}

impl<T: ?Sized, R: MutualExclusion> SpinLock<T, R> {
    /// Spins until the lock is free, and locks it.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> SpinGuard<'_, T, R> {
        let (token, held) = self.watch.lock(Ask::SPIN, || self.raw.try_lock(), || self.raw.lock());
        SpinGuard { lock: self, _held: held, token: Some(token), marker: PhantomData }
    }

    /// Locks if the lock is free now.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T, R>> {
        let token = Some(self.raw.try_lock()?);
        Some(SpinGuard { lock: self, _held: self.watch.tried(Ask::SPIN), token, marker: PhantomData })
    }
}

impl<T: ?Sized, R: MutualExclusion> Drop for SpinGuard<'_, T, R> {
    #[inline]
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.lock.raw.unlock(token);
        }
    }
}

impl<T: ?Sized, R: MutualExclusion> Deref for SpinGuard<'_, T, R> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so nobody has a `&mut T` until it is dropped.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T: ?Sized, R: MutualExclusion> DerefMut for SpinGuard<'_, T, R> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed exclusively, so this is the only reference.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T: ?Sized + fmt::Debug, R: MutualExclusion> fmt::Debug for SpinLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_tuple(R::NAME).field(&&*guard).finish(),
            None => write!(f, "{}(locked)", R::NAME),
        }
    }
}
