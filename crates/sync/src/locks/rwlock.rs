//! RwLock: many readers or one writer for one value, without poisoning. See [`crate::rwsem`] for the theory.

use crate::face::cell::UnsafeCell;
use crate::face::const_new;
use crate::lock_debug::{Ask, Held, LockClass, Watch};
use crate::rwsem::{Current, RawRwsem, RwsemPolicy};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};

/// A sleeping lock that many readers share or one writer holds alone. It does not poison.
pub struct RwLock<T: ?Sized, P: RwsemPolicy = Current> {
    raw: RawRwsem<P>,
    /// *immutable*
    watch: Watch,
    /// *protected by `raw`*
    value: UnsafeCell<T>,
}

// SAFETY: the value may be reached, moved out and dropped by whichever thread has the lock.
unsafe impl<T: ?Sized + Send, P: RwsemPolicy> Send for RwLock<T, P> {}
// SAFETY: writers get `&mut T` one at a time (`T: Send`), readers `&T` together (`T: Sync`); `raw` keeps the
// two apart (loom models `rwsem`).
unsafe impl<T: ?Sized + Send + Sync, P: RwsemPolicy> Sync for RwLock<T, P> {}

// No poisoning: what a panic left behind is visible to everybody, as it is to the next owner.
impl<T: ?Sized, P: RwsemPolicy> UnwindSafe for RwLock<T, P> {}
impl<T: ?Sized, P: RwsemPolicy> RefUnwindSafe for RwLock<T, P> {}

/// Shared access to the value of an [`RwLock`]; unlocks it when dropped.
#[must_use = "the lock unlocks at once when the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized, P: RwsemPolicy = Current> {
    lock: &'a RwLock<T, P>,
    _held: Held,
    marker: PhantomData<*const ()>,
}

/// Exclusive access to the value of an [`RwLock`]; unlocks it when dropped.
#[must_use = "the lock unlocks at once when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized, P: RwsemPolicy = Current> {
    lock: &'a RwLock<T, P>,
    held: Held,
    marker: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives only `&T`.
unsafe impl<T: ?Sized + Sync, P: RwsemPolicy> Sync for RwLockReadGuard<'_, T, P> {}
// SAFETY: a shared guard gives only `&T`.
unsafe impl<T: ?Sized + Sync, P: RwsemPolicy> Sync for RwLockWriteGuard<'_, T, P> {}

impl<T> RwLock<T> {
    const_new! {
        /// A new, unlocked lock around `value`. Its class is the place of this call.
        #[track_caller]
        pub fn new(value: T) -> Self {
            RwLock::watched(Watch::here(), value)
        }
    }

    const_new! {
        /// A lock of class `class` with this value.
        pub fn with_class(class: &'static LockClass, value: T) -> Self {
            RwLock::watched(Watch::class(class), value)
        }
    }

    const_new! {
        /// A new, unlocked lock that is a part of another lock, which is watched instead.
        pub(crate) fn part(value: T) -> Self {
            RwLock::watched(Watch::none(), value)
        }
    }
}

impl<T, P: RwsemPolicy> RwLock<T, P> {
    const_new! {
        /// A new, unlocked lock around `value` that follows policy `P`.
        #[track_caller]
        pub fn with_policy(value: T) -> Self {
            RwLock::watched(Watch::here(), value)
        }
    }

    const_new! {
        fn watched(watch: Watch, value: T) -> Self {
            RwLock { raw: RawRwsem::new(), watch, value: UnsafeCell::new(value) }
        }
    }

    /// Takes the value out; no lock is needed, nobody else can hold one.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized, P: RwsemPolicy> RwLock<T, P> {
    /// Locks for reading, sleeping while a writer holds the lock or stands before us.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T, P> {
        self.read_nested(0)
    }

    /// Locks for reading, for a thread that may hold locks of the same class at lower levels: see
    /// [`lock_debug`](crate::lock_debug).
    #[inline]
    #[track_caller]
    pub fn read_nested(&self, level: u8) -> RwLockReadGuard<'_, T, P> {
        let uncontended = || self.raw.read_uncontended().then_some(());
        let ((), held) = self.watch.lock(Ask::READ.at(level), uncontended, || self.raw.read());
        RwLockReadGuard { lock: self, _held: held, marker: PhantomData }
    }

    /// Locks for reading if no writer holds the lock or has been promised it.
    #[inline]
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, P>> {
        if !self.raw.try_read() {
            return None;
        }
        Some(RwLockReadGuard { lock: self, _held: self.watch.tried(Ask::READ), marker: PhantomData })
    }

    /// Locks for writing, sleeping while anybody else holds the lock.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, P> {
        self.write_nested(0)
    }

    /// Locks for writing, for a thread that may hold locks of the same class at lower levels: see
    /// [`lock_debug`](crate::lock_debug).
    #[inline]
    #[track_caller]
    pub fn write_nested(&self, level: u8) -> RwLockWriteGuard<'_, T, P> {
        let uncontended = || self.raw.write_uncontended().then_some(());
        let ((), held) = self.watch.lock(Ask::WRITE.at(level), uncontended, || self.raw.write());
        RwLockWriteGuard { lock: self, held, marker: PhantomData }
    }

    /// Locks for writing if the lock is free now.
    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, P>> {
        if !self.raw.try_write() {
            return None;
        }
        Some(RwLockWriteGuard { lock: self, held: self.watch.tried(Ask::WRITE), marker: PhantomData })
    }

    /// The value, by exclusive reference: no lock is needed.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` proves that no guard exists.
        self.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<'a, T: ?Sized, P: RwsemPolicy> RwLockWriteGuard<'a, T, P> {
    /// Lets readers in, keeping shared access: no writer comes between.
    pub fn downgrade(mut self) -> RwLockReadGuard<'a, T, P> {
        let (lock, held) = (self.lock, self.held.downgrade());
        std::mem::forget(self);
        lock.raw.downgrade();
        RwLockReadGuard { lock, _held: held, marker: PhantomData }
    }
}

impl<T: ?Sized, P: RwsemPolicy> Drop for RwLockReadGuard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.unlock_read();
    }
}

impl<T: ?Sized, P: RwsemPolicy> Drop for RwLockWriteGuard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.unlock_write();
    }
}

impl<T: ?Sized, P: RwsemPolicy> Deref for RwLockReadGuard<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard shares the lock, so nobody has a `&mut T` until it is dropped.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T: ?Sized, P: RwsemPolicy> Deref for RwLockWriteGuard<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock alone, and is borrowed, so nobody has a `&mut T` meanwhile.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T: ?Sized, P: RwsemPolicy> DerefMut for RwLockWriteGuard<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock alone and is borrowed exclusively.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T: Default> Default for RwLock<T> {
    #[track_caller]
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, P: RwsemPolicy> fmt::Debug for RwLock<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_read() {
            Some(guard) => f.debug_tuple("RwLock").field(&&*guard).finish(),
            None => f.write_str("RwLock(locked)"),
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn readers_share_the_lock() {
        let lock = RwLock::new(5);
        let one = lock.read();
        let two = lock.try_read().expect("no writer");
        assert_eq!(*one + *two, 10);
        assert!(lock.try_write().is_none());
    }

    #[test]
    fn a_writer_changes_the_value() {
        let mut lock = RwLock::new(5);
        *lock.write() += 1;
        assert_eq!(*lock.get_mut(), 6);
    }

    #[test]
    fn a_writer_keeps_everybody_out_until_it_downgrades() {
        let lock = RwLock::new(5);
        let writer = lock.write();
        assert!(lock.try_read().is_none());
        assert!(lock.try_write().is_none());
        let reader = writer.downgrade();
        assert_eq!(lock.try_read().as_deref(), Some(&5));
        assert!(lock.try_write().is_none());
        drop(reader);
        assert!(lock.try_write().is_some());
    }

    #[test]
    fn readers_and_writers_mix_without_tearing_or_loss() {
        let lock = RwLock::new((0u64, 0u64));
        let rounds = if crate::face::SHRUNK { 20 } else { 10_000 };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..rounds {
                        let mut pair = lock.write();
                        pair.0 += 1;
                        pair.1 += 1;
                        if round % 4 == 0 {
                            let pair = pair.downgrade();
                            assert_eq!(pair.0, pair.1);
                        }
                    }
                });
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let pair = lock.read();
                        assert_eq!(pair.0, pair.1);
                    }
                });
            }
        });
        assert_eq!(lock.into_inner(), (3 * rounds, 3 * rounds));
    }
}
