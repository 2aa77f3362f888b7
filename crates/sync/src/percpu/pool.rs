//! Per-CPU pool: things that are made and dropped all the time, kept for the next caller that needs one.
//!
//! # Theory
//! A large thing costs more to allocate and to clear than to fill. Each CPU keeps some that were dropped there, on a
//! shelf with a lock of its own, and gives the last one out first: its lines are in the cache.
//!
//! # Then
//! no shelf exceeds its capacity; further objects are dropped.
//!
//! # Cost
//! The own CPU's lock: one exchange. On simulated machines nothing is kept: there allocation costs nothing, and a run
//! must not depend on the one before it.

use super::PerCpu;
use crate::drain::Kept;
use crate::face::DETERMINISTIC;
use crate::spin::{SpinLock, Ttas};

/// Things to be used again.
#[derive(Debug)]
pub struct Pool<T> {
    shelves: PerCpu<SpinLock<Shelf<T>, Ttas>>,
    /// How many things a shelf holds at most. *immutable*
    max: usize,
    /// How many bytes a thing has. *immutable*
    thing_bytes: u64,
}

/// The things of one CPU.
#[derive(Debug)]
struct Shelf<T> {
    things: Vec<T>,
    /// How many did not fit, since all were given back.
    dropped: u64,
}

impl<T> Pool<T> {
    /// An empty pool that keeps up to `max` things for each CPU, of `thing_bytes` bytes each.
    pub fn new(max: usize, thing_bytes: usize) -> Self {
        let shelf = |_| SpinLock::new(Shelf { things: Vec::new(), dropped: 0 });
        let max = if DETERMINISTIC { 0 } else { max };
        Pool { shelves: PerCpu::new(shelf), max, thing_bytes: thing_bytes as u64 }
    }

    /// The thing that was put on this CPU's shelf last.
    #[inline]
    pub fn take(&self) -> Option<T> {
        if self.max == 0 { None } else { self.shelves.here().lock().things.pop() }
    }

    /// Keeps `thing`, or drops it if the shelf is full.
    pub fn put(&self, thing: T) {
        if self.max == 0 {
            return;
        }
        let mut shelf = self.shelves.here().lock();
        if shelf.things.len() < self.max {
            shelf.things.push(thing);
        } else {
            shelf.dropped += 1;
            drop(shelf);
            drop(thing);
        }
    }

    fn sum(&self, of_shelf: impl Fn(&Shelf<T>) -> u64) -> u64 {
        self.shelves.iter().map(|shelf| of_shelf(&shelf.lock())).sum()
    }
}

impl<T: Send> Kept for Pool<T> {
    fn kept_bytes(&self) -> u64 {
        self.sum(|shelf| shelf.things.len() as u64) * self.thing_bytes
    }

    fn freed_bytes(&self) -> u64 {
        self.sum(|shelf| shelf.dropped) * self.thing_bytes
    }

    fn give_back(&self) {
        for shelf in self.shelves.iter() {
            let things = {
                let mut shelf = shelf.lock();
                shelf.dropped = 0;
                std::mem::take(&mut shelf.things)
            };
            // With the shelf unlocked.
            drop(things);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_given_out_again_and_what_is_too_much_is_not_kept() {
        let shelf = |_| SpinLock::new(Shelf { things: Vec::new(), dropped: 0 });
        let pool = Pool { shelves: PerCpu::with_cpus(1, shelf), max: 2, thing_bytes: 10 };
        assert_eq!(pool.take(), None);
        let fill = || (1..=3).for_each(|thing| pool.put(thing));
        fill();
        assert_eq!((pool.kept_bytes(), pool.freed_bytes()), (20, 10));
        assert_eq!([pool.take(), pool.take(), pool.take()], [Some(2), Some(1), None]);
        fill();
        pool.give_back();
        assert_eq!((pool.kept_bytes(), pool.freed_bytes(), pool.take()), (0, 0, None));
    }
}
