//! Owner lock: a lock that belongs to one thread, which takes it with two plain stores. Others may, at a price.
//!
//! # Theory
//! For data that one thread uses all the time and others hardly ever. The owner announces itself and looks for a
//! visitor; a visitor announces itself and looks for the owner. An owner that finds a visitor steps back.
//!
//! ```text
//!   owner                          visitor
//!   inside := 1                    visited := 1      one visitor at a time
//!   light barrier        <---->    heavy barrier
//!   visited = 1: step back         inside = 1: wait
//! ```
//!
//! *Holding.* An owner that wants to be let alone for a while, and to use the lock meanwhile, *holds* it: that keeps visitors
//! out and excludes nothing of its own. It is a count beside `inside`, so that the lock is taken within as ever, by two
//! plain stores, and a call that holds it again within need not know. Should a visitor be waiting, a call that takes the lock
//! within finds it announced, and is let in all the same: the visitor waits until nothing is held.
//!
//! # Clients must
//! Keep visits, stays and holds short: the other side spins. And not wait, within a hold, for a thread that may visit.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | announce | light barrier after the store of `inside` or `held` | heavy barrier before the loads of both | the owner |
//! | left | owner: Release store of `inside` or `held` | visitor: Acquire loads of both | what the owner did |
//! | gone | visitor: Release store of `visited` | owner: Acquire load; visitor: exchange | what the visitor did |
//!
//! *announce*, both interleavings: if the heavy barrier takes effect in the owner's thread before its store of
//! `inside` or `held`, its later load finds the visitor; if after, the visitor's load finds the owner.
//! *left*: a visitor looks at `inside` first. An owner that was inside and stays to hold it stores `held` before it leaves, so
//! a visitor that finds it outside finds it holding; and one that finds it no longer holding has seen all that it did inside.
//!
//! # Cost
//! Owner: two stores and a load of its own line, to hold it two more loads. Visitor: a heavy barrier, for several locks at once.
//!
//! # Sources
//! Kawachiya, Koseki and Onodera, "Lock Reservation" (OOPSLA 2002); the barrier of `readers.rs`.

use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::cell::UnsafeCell;
use crate::face::hint::spin_until;
use crate::face::{Mutant, const_new, light_barrier, registered_barrier, seeded};
use crate::readers::heavy_barrier;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A value that one thread uses, and others at times.
pub struct OwnerLock<T> {
    /// 1 while the owner is there. *owner only; visitors read it (announce, left)*
    inside: AtomicU32,
    /// How many times the owner holds it. *owner only; visitors read it (announce, left)*
    held: AtomicU32,
    /// 1 while a visitor is there, or waits. *atomic (gone)*
    visited: AtomicU32,
    /// *protected by both*
    value: UnsafeCell<T>,
}

// SAFETY: the value goes to the thread that is inside, one at a time.
unsafe impl<T: Send> Send for OwnerLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for OwnerLock<T> {}

/// The right to the value, until it is dropped.
#[must_use = "the lock is free again at once when the guard is dropped"]
pub struct Inside<'a, T> {
    lock: &'a OwnerLock<T>,
    /// The word that says that somebody is there.
    word: &'a AtomicU32,
    marker: PhantomData<*const ()>,
}

/// No visitor comes until it is dropped.
#[must_use = "visitors come again at once when it is dropped"]
pub struct Held<'a, T> {
    lock: &'a OwnerLock<T>,
    marker: PhantomData<*const ()>,
}

impl<T> OwnerLock<T> {
    const_new! {
        /// A lock with nobody inside.
        pub fn new(value: T) -> Self {
            OwnerLock {
                inside: AtomicU32::new(0),
                held: AtomicU32::new(0),
                visited: AtomicU32::new(0),
                value: UnsafeCell::new(value),
            }
        }
    }

    /// Takes the lock for its owner.
    ///
    /// # Safety
    /// The caller is the owner: no other thread calls this until the caller is gone for good, and then not without
    /// having synchronized with it; and the caller is not inside, though it may hold the lock.
    #[inline]
    pub unsafe fn lock(&self) -> Inside<'_, T> {
        if !self.enter(light_barrier) {
            self.step_back();
        }
        Inside { lock: self, word: &self.inside, marker: PhantomData }
    }

    /// Takes the lock for its owner, unless there is a visitor.
    ///
    /// # Safety
    /// The contract of [`lock`](Self::lock); and membarrier(2) works, as a thread with a ready slot knows.
    #[inline]
    pub(crate) unsafe fn try_lock(&self) -> Option<Inside<'_, T>> {
        if self.enter(registered_barrier) {
            return Some(Inside { lock: self, word: &self.inside, marker: PhantomData });
        }
        // Release(left): pairs with Acquire(left) in visit_all().
        self.inside.store(0, Ordering::Release);
        None
    }

    /// Holds the lock, unless there is a visitor.
    ///
    /// # Safety
    /// The caller is the owner, as for [`lock`](Self::lock), and not inside; what it takes of this lock until the result
    /// is dropped, it drops before. And membarrier(2) works, as a thread with a ready slot knows.
    #[inline]
    pub(crate) unsafe fn try_hold(&self) -> Option<Held<'_, T>> {
        let held = Held::begin(self);
        // Barrier(announce): pairs with heavy_barrier() in announce_visits().
        registered_barrier();
        // Acquire(gone): pairs with Release(gone) in Drop.
        (self.visited.load(Ordering::Acquire) == 0).then_some(held)
    }

    /// Holds the lock, when the caller is inside: it may leave then.
    ///
    /// # Safety
    /// The caller is the owner, and inside; what it takes of this lock once it has left, and until the result is dropped,
    /// it drops before.
    pub unsafe fn hold(&self) -> Held<'_, T> {
        // No visitor is inside now, and a visitor that waits for us to leave will see the count.
        Held::begin(self)
    }

    /// Whether the owner, the caller, holds the lock.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        // Relaxed: our own.
        self.held.load(Ordering::Relaxed) != 0
    }

    /// Announces the owner; false if there is a visitor.
    #[inline]
    fn enter(&self, barrier: impl FnOnce()) -> bool {
        // Relaxed: the barrier orders it (announce).
        self.inside.store(1, Ordering::Relaxed);
        if !seeded(Mutant::OwnerWithoutBarrier) {
            // Barrier(announce): pairs with heavy_barrier() in visit_all().
            barrier();
        }
        // Acquire(gone): pairs with Release(gone) in Drop.
        self.visited.load(Ordering::Acquire) == 0
    }

    #[cold]
    fn step_back(&self) {
        // The holder has seen that there was no visitor, and a visitor that has come since waits for its end.
        while !self.is_held() {
            // Release(left): pairs with Acquire(left) in visit_all(). It publishes what was done before.
            self.inside.store(0, Ordering::Release);
            // Relaxed: enter() looks again.
            spin_until(&self.visited, Ordering::Relaxed, |visited| visited == 0);
            if self.enter(light_barrier) {
                return;
            }
        }
    }

    /// Takes all of `locks` for another thread, at the price of one barrier. All callers take them in one order.
    pub fn visit_all<'a>(locks: impl Iterator<Item = &'a Self> + Clone) -> Vec<Inside<'a, T>> {
        Self::announce_visits(locks.clone());
        locks.map(Self::await_owner).collect()
    }

    /// Takes the free locks among `locks` for another thread: `None` for a lock whose owner is inside. All callers take them in
    /// one order.
    pub fn visit_free<'a>(locks: impl Iterator<Item = &'a Self> + Clone) -> Vec<Option<Inside<'a, T>>> {
        Self::announce_visits(locks.clone());
        locks.map(Self::unless_owned).collect()
    }

    /// After this an owner that is not inside waits for the visitor.
    fn announce_visits<'a>(locks: impl Iterator<Item = &'a Self>)
    where
        T: 'a,
    {
        locks.for_each(Self::announce_visit);
        // Barrier(announce): pairs with light_barrier() in enter().
        heavy_barrier();
    }

    fn announce_visit(&self) {
        // Acquire(gone): what the visitor before did; pairs with Release(gone) in Drop.
        while self.visited.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Relaxed: the exchange looks again.
            spin_until(&self.visited, Ordering::Relaxed, |visited| visited == 0);
        }
    }

    fn await_owner(&self) -> Inside<'_, T> {
        // Acquire(left), both: pairs with Release(left) where `Inside` and `Held` are dropped, and in step_back(). In this order.
        spin_until(&self.inside, Ordering::Acquire, |inside| inside == 0);
        if !seeded(Mutant::VisitedWhileHeld) {
            spin_until(&self.held, Ordering::Acquire, |held| held == 0);
        }
        self.visit()
    }

    fn unless_owned(&self) -> Option<Inside<'_, T>> {
        // Acquire(left), both: as in await_owner(), and in this order.
        if self.inside.load(Ordering::Acquire) == 0 && self.held.load(Ordering::Acquire) == 0 {
            return Some(self.visit());
        }
        // Release(gone): pairs with Acquire(gone) in enter() and announce_visit(). Hands on what the visitors before did.
        self.visited.store(0, Ordering::Release);
        None
    }

    /// The visitor's right, once the owner was seen outside.
    fn visit(&self) -> Inside<'_, T> {
        Inside { lock: self, word: &self.visited, marker: PhantomData }
    }
}

impl<T> std::fmt::Debug for OwnerLock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnerLock(..)")
    }
}

impl<T: Default> Default for OwnerLock<T> {
    fn default() -> Self {
        OwnerLock::new(T::default())
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a visitor is inside only after it saw the owner outside and not holding, and an owner only after it
        // saw no visitor (announce), before it was inside or before it held the lock, in which it is inside; visitors
        // exclude each other by exchange, and there is one owner, by the contract of lock(). So this guard
        // excludes every other thread.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Inside<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release(left, gone): what was done to the value; pairs with Acquire(left) in await_owner() and with
        // Acquire(gone) in enter() and announce_visit().
        self.word.store(0, Ordering::Release);
    }
}

impl<'a, T> Held<'a, T> {
    /// Counts one more hold; the lock is held once no visitor is inside.
    #[inline]
    fn begin(lock: &'a OwnerLock<T>) -> Self {
        // Relaxed, both: our own; the barrier orders the store (announce), or that we leave (left).
        lock.held.store(lock.held.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Held { lock, marker: PhantomData }
    }

    /// The value.
    ///
    /// # Safety
    /// The owner is not inside, and uses no reference that it got here before.
    #[inline]
    pub(crate) unsafe fn value(&mut self) -> &mut T {
        // SAFETY: no visitor is inside while the lock is held, see `Inside`; the rest is the caller's.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Relaxed: our own.
        let held = self.lock.held.load(Ordering::Relaxed);
        // Release(left): what was done meanwhile; pairs with Acquire(left) in await_owner() and unless_owned().
        self.lock.held.store(held - 1, Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn an_owner_and_its_visitors_are_never_inside_together() {
        let rounds = if crate::face::SHRUNK { 50 } else { 20_000 };
        let locks = [OwnerLock::new(0u64), OwnerLock::new(0)];
        thread::scope(|scope| {
            for lock in &locks {
                // SAFETY: the only thread that calls it for this lock, never twice at once.
                scope.spawn(move || (0..50 * rounds).for_each(|_| *unsafe { lock.lock() } += 1));
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        OwnerLock::visit_all(locks.iter()).iter_mut().for_each(|value| **value += 1);
                    }
                });
            }
        });
        OwnerLock::visit_all(locks.iter()).iter().for_each(|value| assert_eq!(**value, 52 * rounds));
    }
}
