//! Per-CPU pool: things that are made and dropped all the time, kept for the next caller that needs one.
//!
//! # Theory
//! A large thing costs more to allocate and to clear than to fill. Each CPU keeps some that were dropped there, on a
//! shelf with a lock of its own, and gives the last one out first: its lines are in the cache.
//!
//! # Then
//! no shelf holds more than it was made for; what does not fit is dropped.
//!
//! # Cost
//! The own CPU's lock: one exchange. On simulated machines nothing is kept: there allocation costs nothing, and a run
//! must not depend on the one before it.

use super::PerCpu;
use crate::face::DETERMINISTIC;
use crate::spin::{SpinLock, Ttas};

/// Things to be used again.
#[derive(Debug)]
pub struct Pool<T> {
    shelves: PerCpu<SpinLock<Vec<T>, Ttas>>,
    /// How many things a shelf holds at most. *immutable*
    max: usize,
}

impl<T> Pool<T> {
    /// An empty pool that keeps up to `max` things for each CPU.
    pub fn new(max: usize) -> Self {
        Pool { shelves: PerCpu::new(|_| SpinLock::new(Vec::new())), max: if DETERMINISTIC { 0 } else { max } }
    }

    /// The thing that was put on this CPU's shelf last.
    #[inline]
    pub fn take(&self) -> Option<T> {
        if self.max == 0 { None } else { self.shelves.here().lock().pop() }
    }

    /// Keeps `thing`, or drops it if the shelf is full.
    pub fn put(&self, thing: T) {
        if self.max == 0 {
            return;
        }
        let mut shelf = self.shelves.here().lock();
        if shelf.len() < self.max {
            shelf.push(thing);
        } else {
            drop(shelf);
            drop(thing);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_given_out_again_and_what_is_too_much_is_not_kept() {
        let pool = Pool { shelves: PerCpu::with_cpus(1, |_| SpinLock::new(Vec::new())), max: 2 };
        assert_eq!(pool.take(), None);
        (1..=3).for_each(|thing| pool.put(thing));
        assert_eq!([pool.take(), pool.take(), pool.take()], [Some(2), Some(1), None]);
    }
}
