//! Mutex: mutual exclusion for one value. Threads spin while that may pay, then sleep; nobody starves.
//!
//! # Theory
//! One word says everything that a fast path must know:
//!
//! | bits | name | meaning |
//! |---|---|---|
//! | 3..32 | owner | the owner's [`signature`](thread::signature); 0: nobody has the lock |
//! | 1 | `HANDOFF` | only the first waiter may take the lock |
//! | 0 | `WAITERS` | the unlocking thread must wake the first waiter |
//!
//! Lock: 0 -> owner, by one exchange. Unlock: one subtraction, which tells of waiters. A thread that finds the lock
//! taken first spins, after a while in line ([`SpinnerQueue`]) so that only one spinner looks at the word; when the
//! owner is known to sleep, or a bound is reached, it goes to sleep in the [`WaitQueue`]. A thread that comes by while the
//! lock is free takes it, ahead of sleepers: waking one takes longer than most critical sections. A first waiter that
//! was bypassed too often ([`Pace`]) sets `HANDOFF`.
//!
//! # Invariants
//! - M1 if the wait queue is not empty, `WAITERS` is set, or the first waiter was signalled and has not yet
//!   tried, or a thread that unlocked is on its way to signal it. So no wake-up is lost.
//! - M2 `WAITERS` and `HANDOFF` are set only under the queue's lock; `HANDOFF` is cleared only by the first waiter.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | unlock | the exchange to owner 0 | the exchange from owner 0 | the protected value |
//!
//! # Cost
//! Uncontended, lock and unlock write one line each; both stay on it.
//!
//! # Sources
//! The kernel's kernel/locking/mutex.c (owner word, optimistic spinning, hand-off), parking_lot (names of the
//! slow paths), Go's sync.Mutex (one woken waiter at a time).

use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::cell::UnsafeCell;
use crate::face::{Mutant, const_new, seeded, thread};
use crate::lock_debug::{Ask, Held, LockClass, Watch};
use crate::spin_policy::{Pace, SpinPatience, SpinVerdict};
use crate::spinner::{Look, SpinnerQueue};
use crate::wait_queue::{LockedQueue, WaitQueue, Want, park};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};

const WAITERS: u32 = 1 << 0;
const HANDOFF: u32 = 1 << 1;
const FLAGS: u32 = WAITERS | HANDOFF;
const OWNER_SHIFT: u32 = 3;
const PACE: Pace = Pace::MEASURED;

/// A mutex that protects nothing by itself.
pub(crate) struct RawMutex {
    /// See the table above. *atomic (unlock)*
    word: AtomicU32,
    spinners: SpinnerQueue,
    waiters: WaitQueue,
}

impl RawMutex {
    const_new! {
        /// An unlocked mutex.
        pub(crate) fn new() -> Self {
            RawMutex { word: AtomicU32::new(0), spinners: SpinnerQueue::new(), waiters: WaitQueue::new() }
        }
    }

    #[inline]
    pub(crate) fn lock(&self) {
        if !self.lock_uncontended() {
            self.lock_slow();
        }
    }

    /// Locks in one step, if the lock is free and has no waiters.
    #[inline]
    fn lock_uncontended(&self) -> bool {
        // Acquire(unlock): pairs with Release(unlock) in unlock(). A failure publishes nothing.
        self.word.compare_exchange(0, own_bits(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        self.take().is_ok()
    }

    #[inline]
    pub(crate) fn unlock(&self) {
        // Release(unlock): pairs with Acquire(unlock) in lock() and take().
        let order = if seeded(Mutant::UnlockWithoutRelease) { Ordering::Relaxed } else { Ordering::Release };
        if self.word.fetch_sub(own_bits(), order) & WAITERS != 0 {
            self.wake_first();
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        // Acquire(unlock): what the last owner stored, if it is gone; pairs with Release(unlock) in unlock().
        owner_of(self.word.load(Ordering::Acquire)).is_some()
    }

    /// Takes the lock if it is free and not promised to a waiter; else the word that says so.
    fn take(&self) -> Result<(), u32> {
        // Relaxed: only to see whether trying is worth it.
        let mut word = self.word.load(Ordering::Relaxed);
        while word & !WAITERS == 0 {
            // Acquire(unlock): pairs with Release(unlock) in unlock().
            match self.word.compare_exchange_weak(
                word,
                word | own_bits(),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
        Err(word)
    }

    #[cold]
    fn lock_slow(&self) {
        if self.spinners.spin(PACE, |patience, _| self.look(patience)) {
            return;
        }
        let slot = thread::slot();
        let mut queue = self.waiters.lock();
        // Relaxed: looked at again in the exchange.
        let mut word = self.word.load(Ordering::Relaxed);
        // Last chance before sleeping, and the promise that somebody will wake us (M1).
        loop {
            if word & !WAITERS == 0 {
                // Acquire(unlock): pairs with Release(unlock) in unlock().
                match self.word.compare_exchange(
                    word,
                    word | own_bits(),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return,
                    Err(now) => word = now,
                }
                continue;
            }
            // A first waiter that stands before us has taken care of WAITERS.
            if queue.first().is_some() || word & WAITERS != 0 {
                break;
            }
            // Relaxed: the flag publishes nothing but itself.
            match self.word.compare_exchange(word, word | WAITERS, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        queue.enqueue(slot, Want::Write);
        loop {
            drop(queue);
            park(slot, PACE.turns_queued);
            // Signalled, so first. The owner of the moment may be about to go.
            // Relaxed: a hint.
            SpinPatience::new(PACE).outlast(|| owner_of(self.word.load(Ordering::Relaxed)));
            queue = self.waiters.lock();
            if self.take_as_first(&mut queue) {
                return;
            }
            queue.wait_again(slot);
        }
    }

    /// The first waiter takes the lock, or sets `WAITERS` on its owner's word.
    fn take_as_first(&self, queue: &mut LockedQueue<'_>) -> bool {
        let mut bypassed = None;
        // Relaxed: looked at again in the exchange.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let free = word & !FLAGS == 0;
            let new = if free {
                // HANDOFF was for us. WAITERS for those behind us (M1).
                let waiters = queue.more_than_one() && !seeded(Mutant::WaitersForgotten);
                own_bits() | if waiters { WAITERS } else { 0 }
            } else if *bypassed.get_or_insert_with(|| queue.bypass(PACE.bypass_max)) {
                word | WAITERS | HANDOFF
            } else {
                word | WAITERS
            };
            // Acquire(unlock): pairs with Release(unlock) in unlock().
            match self.word.compare_exchange(word, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if free => {
                    queue.dequeue();
                    return true;
                }
                Ok(_) => return false,
                Err(now) => word = now,
            }
        }
    }

    /// Looks at the lock for a thread that spins for it.
    fn look(&self, patience: &mut SpinPatience) -> Look {
        match self.take() {
            Ok(()) => Look::Taken,
            Err(word) if word & HANDOFF != 0 => Look::GiveUp,
            Err(word) => {
                // Relaxed: a hint.
                let unchanged = || self.word.load(Ordering::Relaxed) == word;
                match patience.spin(owner_of(word), unchanged) {
                    SpinVerdict::Again => Look::Again,
                    SpinVerdict::Sleep => Look::GiveUp,
                }
            }
        }
    }

    /// Signals the first waiter, unless another thread took the lock meanwhile: then that one signals (M1).
    #[cold]
    fn wake_first(&self) {
        let mut queue = self.waiters.lock();
        let mut bypassed = None;
        // Relaxed: looked at again in the exchange.
        let mut word = self.word.load(Ordering::Relaxed);
        while word & WAITERS != 0 {
            let free = word & !FLAGS == 0;
            let new = if free {
                word & !WAITERS
            } else if *bypassed.get_or_insert_with(|| queue.bypass(PACE.bypass_max)) {
                word | HANDOFF
            } else {
                return;
            };
            // Relaxed: flags publish nothing but themselves.
            match self.word.compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if free => return queue.signal(),
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
}

fn own_bits() -> u32 {
    thread::signature() << OWNER_SHIFT
}

fn owner_of(word: u32) -> Option<u32> {
    (word >> OWNER_SHIFT).checked_sub(1)
}

/// A sleeping lock that one thread holds at a time. It does not poison.
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
    /// *immutable*
    watch: Watch,
    /// *protected by `raw`*
    value: UnsafeCell<T>,
}

// SAFETY: the value goes to whichever thread holds the lock, one at a time, so `T: Send` is enough.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above; `raw` makes the holders exclude each other (loom model `mutex`).
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

// No poisoning: what a panic left behind is visible to everybody, as it is to the next owner.
impl<T: ?Sized> UnwindSafe for Mutex<T> {}
impl<T: ?Sized> RefUnwindSafe for Mutex<T> {}

/// The right to the value of a [`Mutex`]; unlocks it when dropped.
#[must_use = "the mutex unlocks at once when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    held: Held,
    /// The owner is named by thread, so a guard stays on its thread.
    marker: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives only `&T`.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    const_new! {
        /// A new, unlocked mutex around `value`. Its class is the place of this call.
        #[track_caller]
        pub fn new(value: T) -> Self {
            Mutex::watched(Watch::here(), value)
        }
    }

    const_new! {
        /// A mutex of class `class` with this value.
        pub fn with_class(class: &'static LockClass, value: T) -> Self {
            Mutex::watched(Watch::class(class), value)
        }
    }

    const_new! {
        /// A new, unlocked mutex of the class that `watch` names.
        pub(crate) fn watched(watch: Watch, value: T) -> Self {
            Mutex { raw: RawMutex::new(), watch, value: UnsafeCell::new(value) }
        }
    }

    /// Takes the value out; no lock is needed, nobody else can hold one.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks, sleeping until the lock is free.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.lock_nested(0)
    }

    /// Locks, for a thread that may hold locks of the same class at lower levels: see [`lock_debug`](crate::lock_debug).
    #[inline]
    #[track_caller]
    pub fn lock_nested(&self, level: u8) -> MutexGuard<'_, T> {
        self.lock_as(Ask::WRITE.at(level))
    }

    /// Locks, for a thread that takes several locks of one class, which only the owner of `outer` does.
    #[inline]
    #[track_caller]
    pub fn lock_under<U: ?Sized>(&self, _outer: &MutexGuard<'_, U>) -> MutexGuard<'_, T> {
        self.lock_as(Ask::WRITE.any_number())
    }

    /// Locks, for a thread that takes any number of locks of the class in one order of theirs.
    #[inline]
    #[track_caller]
    pub fn lock_in_order(&self) -> MutexGuard<'_, T> {
        self.lock_as(Ask::WRITE.any_number())
    }

    #[inline]
    #[track_caller]
    fn lock_as(&self, ask: Ask) -> MutexGuard<'_, T> {
        let uncontended = || self.raw.lock_uncontended().then_some(());
        let ((), held) = self.watch.lock(ask, uncontended, || self.raw.lock());
        MutexGuard { mutex: self, held, marker: PhantomData }
    }

    /// Locks if the lock is free now.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if !self.raw.try_lock() {
            return None;
        }
        Some(MutexGuard { mutex: self, held: self.watch.tried(Ask::WRITE), marker: PhantomData })
    }

    /// Whether somebody held it when we looked. Stores nothing.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// The value, by exclusive reference: no lock is needed.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` proves that no guard exists.
        self.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Unlocks and locks again around `f`, for the condition variable.
    #[track_caller]
    pub(crate) fn unlocked(&mut self, f: impl FnOnce()) {
        self.held.release();
        // While we still hold it: a finding may panic, and then the guard unlocks.
        self.mutex.watch.about_to_lock(Ask::WRITE);
        self.mutex.raw.unlock();
        f();
        self.mutex.raw.lock();
        self.held = self.mutex.watch.tried(Ask::WRITE);
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.raw.unlock();
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so nobody has a `&mut T` until it is dropped.
        self.mutex.value.with(|value| unsafe { &*value })
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed exclusively, so this is the only reference.
        self.mutex.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T: Default> Default for Mutex<T> {
    #[track_caller]
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_tuple("Mutex").field(&&*guard).finish(),
            None => f.write_str("Mutex(locked)"),
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::thread;
    use std::sync::Arc;

    #[test]
    fn a_panic_under_the_lock_does_not_lock_others_out() {
        let mutex = Arc::new(Mutex::new(1));
        let inner = mutex.clone();
        let panicked = thread::spawn(move || {
            let _guard = inner.lock();
            panic!("on purpose, under the lock");
        })
        .join();
        assert!(panicked.is_err());
        assert_eq!(*mutex.lock(), 1);
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn try_lock_refuses_a_held_lock() {
        let mutex = Mutex::new(());
        let guard = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(guard);
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn many_threads_count_without_losing_one() {
        let mutex = Mutex::new(0u64);
        let rounds = if crate::face::SHRUNK { 20 } else { 20_000 };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..rounds).for_each(|_| *mutex.lock() += 1));
            }
        });
        assert_eq!(mutex.into_inner(), 8 * rounds);
    }

    #[test]
    fn a_sleeper_gets_the_lock_however_busy_it_is() {
        use crate::atomic::AtomicBool;
        let (mutex, done) = (Mutex::new(()), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    // Relaxed: a flag that publishes nothing.
                    while !done.load(Ordering::Relaxed) {
                        drop(mutex.lock());
                    }
                });
            }
            for _ in 0..if crate::face::SHRUNK { 3 } else { 300 } {
                drop(mutex.lock());
                thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn the_value_may_be_unsized_and_moved_out() {
        let mutex: Box<Mutex<[u8]>> = Box::new(Mutex::new([1, 2, 3]));
        mutex.lock()[1] = 5;
        assert_eq!(*mutex.lock(), [1, 5, 3]);
        assert_eq!(Mutex::new(7).into_inner(), 7);
    }
}
