//! SpinLock: a value behind any of the spin locks.
//!
//! Here, and only here, mutual exclusion turns into `&mut`. That each lock excludes is stated by
//! [`MutualExclusion`], one argument per lock, each checked by a loom model of the same name.

use super::{Cna, Mcs, Queued, QueuedMode, RawSpinLock, Tas, Ticket, Ttas};
use crate::MutexGuard;
use crate::face::cell::UnsafeCell;
use crate::face::const_new;
use crate::lock_debug::{Ask, Held, LockClass, Watch};
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
unsafe impl MutualExclusion for Tas {}
// SAFETY: an acquisition is an exchange of 0 for 1, and the word is 1 until the owner stores 0 with release.
unsafe impl MutualExclusion for Ttas {}
// SAFETY: each number is taken once, and `serving` reaches it by the release store of the owner before. (The
// numbers wrap after 2^32 waiters at once, more than there can be threads.)
unsafe impl MutualExclusion for Ticket {}
// SAFETY: an acquisition found no tail, or was told to go by the owner in front, which tells one waiter once.
unsafe impl MutualExclusion for Mcs {}
// SAFETY: as for MCS. The order of waiters differs, but each owner passes the lock to one of them, once.
unsafe impl MutualExclusion for Cna {}
// SAFETY: every path ends with one step that sets LOCKED on a word that had it clear: by exchange of 0 (or, for
// the one head of a paravirtual queue, of its own PENDING bit), or in wait_as_pending by the only thread whose
// PENDING bit it is, while all others refuse a word with PENDING.
unsafe impl<M: QueuedMode> MutualExclusion for Queued<M> {}

/// A value that one thread at a time may touch, after spinning for it.
pub struct SpinLock<T: ?Sized, R: MutualExclusion = Queued> {
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
        /// A lock around `value` that uses `raw`, which must be free: `SpinLock::with_raw(Ticket::new(), 0)`.
        /// Its class is the place of this call.
        #[track_caller]
        pub fn with_raw(raw: R, value: T) -> Self {
            SpinLock { raw, watch: Watch::here(), value: UnsafeCell::new(value) }
        }
    }

    const_new! {
        /// As [`with_raw`](Self::with_raw), of `class`.
        pub fn with_raw_and_class(class: &'static LockClass, raw: R, value: T) -> Self {
            SpinLock { raw, watch: Watch::class(class), value: UnsafeCell::new(value) }
        }
    }

    /// A free lock around `value`. Its class is the place of this call.
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self::with_raw(R::default(), value)
    }

    /// As [`new`](Self::new), of `class`.
    pub fn with_class(class: &'static LockClass, value: T) -> Self {
        Self::with_raw_and_class(class, R::default(), value)
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
        self.lock_nested(0)
    }

    /// As [`lock`](Self::lock), by a thread that may hold locks of the same class at lower levels: see
    /// [`lock_debug`](crate::lock_debug).
    #[inline]
    #[track_caller]
    pub fn lock_nested(&self, level: u8) -> SpinGuard<'_, T, R> {
        self.lock_as(Ask::SPIN.at(level))
    }

    /// As [`lock`](Self::lock), by a thread that takes several locks of one class, which only the owner of `outer`
    /// does.
    #[inline]
    #[track_caller]
    pub fn lock_under<U: ?Sized>(&self, _outer: &MutexGuard<'_, U>) -> SpinGuard<'_, T, R> {
        self.lock_as(Ask::SPIN.any_number())
    }

    #[inline]
    #[track_caller]
    fn lock_as(&self, ask: Ask) -> SpinGuard<'_, T, R> {
        let (token, held) = self.watch.lock(ask, || self.raw.try_lock(), || self.raw.lock());
        SpinGuard { lock: self, _held: held, token: Some(token), marker: PhantomData }
    }

    /// Locks if the lock is free now.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T, R>> {
        let token = Some(self.raw.try_lock()?);
        Some(SpinGuard { lock: self, _held: self.watch.tried(Ask::SPIN), token, marker: PhantomData })
    }

    /// The value, by exclusive reference: no lock is needed.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` proves that no guard exists.
        self.value.with_mut(|value| unsafe { &mut *value })
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

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::super::{BareMetal, Paravirtual, VirtualTestAndSet};
    use super::*;
    use crate::thread;

    /// The same body over every lock.
    macro_rules! with_locks {
        ($($name:ident: $raw:ty,)*) => {$(
            mod $name {
                use super::*;

                #[test]
                fn many_threads_count_without_losing_one() {
                    let lock: SpinLock<u32, $raw> = SpinLock::new(0);
                    let rounds = if crate::face::SHRUNK { 20 } else { 2_000 };
                    thread::scope(|scope| {
                        for _ in 0..4 {
                            scope.spawn(|| (0..rounds).for_each(|_| *lock.lock() += 1));
                        }
                    });
                    assert_eq!(lock.into_inner(), 4 * rounds);
                }

                #[test]
                fn try_lock_refuses_a_held_lock() {
                    let lock: SpinLock<u32, $raw> = SpinLock::new(0);
                    let guard = lock.lock();
                    assert!(lock.try_lock().is_none());
                    drop(guard);
                    assert_eq!(lock.try_lock().map(|guard| *guard), Some(0));
                }
            }
        )*};
    }

    with_locks! {
        tas: Tas,
        ttas: Ttas,
        ticket: Ticket,
        mcs: Mcs,
        cna: Cna,
        queued: Queued<BareMetal>,
        queued_pv: Queued<Paravirtual>,
        queued_virt_tas: Queued<VirtualTestAndSet>,
    }

    #[test]
    fn queue_locks_nest_and_let_go_in_any_order() {
        let (one, two, three) = (Mcs::new(), Cna::new(), Mcs::new());
        let (a, b, c) = (one.lock(), two.lock(), three.lock());
        one.unlock(a);
        let d = one.try_lock().expect("free again");
        three.unlock(c);
        two.unlock(b);
        one.unlock(d);
    }
}
