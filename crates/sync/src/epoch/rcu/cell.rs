//! RCU cell: one pointer that readers follow without a lock and writers replace as a whole.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | publish | [`RcuCell::swap`] | [`RcuCell::load`] | the new value |
//!
//! # Cost
//! `load`: the read section, one load of the pointer's line. `replace`: one read-modify-write, one deferral.

use super::{Domain, Guard};
use crate::face::atomic::{AtomicPtr, Ordering};
use std::fmt;

/// A value that is read without a lock and replaced as a whole.
pub struct RcuCell<T: Send + Sync + 'static> {
    /// From `Box::into_raw`, never null. *atomic (publish)*
    value: AtomicPtr<T>,
    /// *immutable*
    domain: &'static Domain,
}

/// A pointer to a value that has been unlinked, on its way to be freed.
struct Unlinked<T>(*mut T);

// SAFETY: it owns the value, so sending it is sending a `T`.
unsafe impl<T: Send> Send for Unlinked<T> {}

/// The old value of a cell; dropping it waits for a grace period and frees the value.
pub struct Replaced<T: Send + 'static> {
    old: Option<Unlinked<T>>,
    domain: &'static Domain,
}

impl<T: Send + 'static> Drop for Replaced<T> {
    fn drop(&mut self) {
        if let Some(old) = self.old.take() {
            self.domain.defer(move || {
                // The closure takes the whole `Unlinked`, not its field, so that it is `Send`.
                let old = old;
                // SAFETY: runs after a grace period that began after the swap.
                unsafe { old.free() }
            });
        }
    }
}

impl<T> Unlinked<T> {
    /// # Safety
    /// No reader may be left that could have found the value.
    unsafe fn free(self) {
        // SAFETY: the pointer came from `Box::into_raw`; the thread that unlinked it made the only `Unlinked` of it;
        // readers are excluded by the caller.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl<T: Send + Sync + 'static> RcuCell<T> {
    /// A cell whose readers are those of `domain`.
    pub fn new(domain: &'static Domain, value: T) -> Self {
        RcuCell { value: AtomicPtr::new(Box::into_raw(Box::new(value))), domain }
    }

    /// Begins a read section of the cell's domain.
    #[inline]
    pub fn read(&self) -> Guard<'_> {
        self.domain.read()
    }

    /// The value now; it stays valid for as long as the section is open.
    ///
    /// # Panics
    /// If `guard` is a section of another domain.
    #[inline]
    pub fn load<'g>(&'g self, guard: &'g Guard<'_>) -> &'g T {
        assert!(guard.is_of(self.domain), "the read section belongs to another domain");
        // Acquire(publish): the value's contents; pairs with Release(publish) in swap().
        let value = self.value.load(Ordering::Acquire);
        // SAFETY: the pointer was the cell's during the section, so the value is freed a grace period after
        // it was replaced, which is after the section and after the borrow of `guard`. Nobody makes a `&mut`.
        unsafe { &*value }
    }

    /// Puts `value` in the place of the present one, which is dropped after a grace period.
    pub fn replace(&self, value: T) {
        drop(self.swap(value));
    }

    /// Puts `value` in the place of the present one, which the result holds. Dropping the result does what [`Domain::defer`]
    /// does: a caller with a lock under which nothing may be freed keeps it until it has unlocked.
    pub fn swap(&self, value: T) -> Replaced<T> {
        let new = Box::into_raw(Box::new(value));
        // Release(publish): pairs with Acquire(publish) in load(). Acquire: the old value's contents, to drop.
        Replaced { old: Some(Unlinked(self.value.swap(new, Ordering::AcqRel))), domain: self.domain }
    }
}

impl<T: Send + Sync + 'static> Drop for RcuCell<T> {
    fn drop(&mut self) {
        // Relaxed: `&mut self`.
        let value = self.value.load(Ordering::Relaxed);
        // SAFETY: readers borrow the cell, so none is left.
        unsafe { Unlinked(value).free() }
    }
}

impl<T: fmt::Debug + Send + Sync> fmt::Debug for RcuCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RcuCell").field(self.load(&self.read())).finish()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::rcu::domain;
    use crate::thread;

    #[test]
    fn a_reader_keeps_the_value_that_it_found() {
        let cell = RcuCell::new(domain(), String::from("old"));
        let guard = cell.read();
        let found = cell.load(&guard);
        cell.replace(String::from("new"));
        assert_eq!((found.as_str(), cell.load(&guard).as_str()), ("old", "new"));
    }

    #[test]
    #[should_panic(expected = "another domain")]
    fn a_section_of_another_domain_is_refused() {
        let cell = RcuCell::new(domain(), 1);
        let other = Domain::new();
        cell.load(&other.read());
    }

    #[test]
    fn readers_never_see_a_freed_value_while_writers_replace_it() {
        let cell = RcuCell::new(domain(), vec![0u64; 4]);
        let rounds: u64 = if crate::face::SHRUNK { 20 } else { 20_000 };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let guard = cell.read();
                        let value = cell.load(&guard);
                        assert!(value.iter().all(|word| *word == value[0]));
                    }
                });
            }
            scope.spawn(|| (1..=rounds).for_each(|round| cell.replace(vec![round; 4])));
        });
        assert_eq!(cell.load(&cell.read())[0], rounds);
    }
}
