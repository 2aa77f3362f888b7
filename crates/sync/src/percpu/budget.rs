//! Budget: how much of something is in use, counted per CPU, and never more than a limit allows.
//!
//! # Theory
//! While the use is farther from the limit than all CPUs' uncommitted counts together, a CPU counts on its own line
//! and asks nobody. Near the limit takers queue for a mutex and sum up, so that the last unit can be had and the
//! one after it cannot.
//!
//! # Then
//! - exact near the limit, as long as fewer takers than `SLACK` stand between their look at the use and their
//!   counting;
//! - without a limit, nobody asks;
//! - [`take_about`](Budget::take_about) asks only when a CPU passes on what it has counted, and may let as much more be used.
//!
//! # Cost
//! Take and give: one read-modify-write on the own CPU's line, one load of a line written once per batch. Near the
//! limit: a mutex and one load per CPU. `take_about`: the first of these, and the rest once per batch, without a mutex.

use super::Counter;
use crate::Mutex;
use crate::face::{CachePadded, SHRUNK, cpu};
use std::{error, fmt};

/// Room for takers that have looked and not yet counted.
const SLACK: u64 = if SHRUNK { 8 } else { 1024 };
/// How much a CPU counts at most before the others can see it.
const BATCH_MAX: u64 = 1024;

/// There are not as many units left as were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

/// A count of units in use.
#[derive(Debug)]
pub struct Budget {
    /// *per CPU*
    used: Counter,
    /// The most that may be in use. *immutable*
    limit: Option<u64>,
    /// Farther than this from the limit, nobody needs to be asked. *immutable*
    margin: u64,
    /// Held by takers near the limit.
    near: CachePadded<Mutex<()>>,
}

impl Budget {
    /// A budget of `limit` units, if that is given, of which `used` are in use.
    pub fn new(limit: Option<u64>, used: u64) -> Budget {
        Budget::with_grain(limit, used, 1)
    }

    /// A budget of `limit` units, if that is given, of which `used` are in use. Takers mostly take `grain` units at once, at
    /// least one.
    pub fn with_grain(limit: Option<u64>, used: u64, grain: u64) -> Budget {
        let cpus = cpu::possible().next_power_of_two() as u64;
        // A small part of the limit at most, or all takers would always be near it.
        let batch_max = BATCH_MAX * grain;
        let batch = limit.map_or(batch_max, |limit| (limit / cpus / 16).clamp(1, batch_max));
        Budget {
            used: Counter::with_batch(used.cast_signed(), batch.cast_signed()),
            limit,
            margin: batch * cpus + SLACK * grain,
            near: CachePadded::new(Mutex::new(())),
        }
    }

    /// Takes `units`, all or none. Returns how many more units were taken on this CPU than given back since it returned any
    /// here; mostly 0, which tells nothing: for a caller that does something once for many units.
    ///
    /// # Errors
    /// [`Exhausted`] when there are not that many.
    pub fn take(&self, units: u64) -> Result<u64, Exhausted> {
        match self.limit {
            Some(limit) => self.take_within(units, limit),
            None => Ok(self.count(units.cast_signed()).max(0).cast_unsigned()),
        }
    }

    /// Takes `units`, all or none, as [`take`](Self::take) does, of `limit`: for a limit that changes.
    ///
    /// # Errors
    /// [`Exhausted`] when there are not that many.
    #[inline]
    pub fn take_within(&self, units: u64, limit: u64) -> Result<u64, Exhausted> {
        let wanted = units.checked_add(self.margin).ok_or(Exhausted)?;
        let about = self.used.read().max(0).cast_unsigned();
        if about.saturating_add(wanted) > limit {
            return self.take_near(units, limit);
        }
        Ok(self.count(units.cast_signed()).max(0).cast_unsigned())
    }

    /// Takes `units`, all or none, and lets each CPU have a batch beyond the limit: for units of which many are taken by each call.
    ///
    /// # Errors
    /// [`Exhausted`] when the limit is reached.
    pub fn take_about(&self, units: u64) -> Result<(), Exhausted> {
        let limit = self.limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(i64::MAX);
        if self.used.add_about(units.cast_signed(), limit) { Ok(()) } else { Err(Exhausted) }
    }

    #[cold]
    fn take_near(&self, units: u64, limit: u64) -> Result<u64, Exhausted> {
        let _near = self.near.lock();
        if self.used().checked_add(units).is_none_or(|sum| sum > limit) {
            return Err(Exhausted);
        }
        Ok(self.count(units.cast_signed()).max(0).cast_unsigned())
    }

    /// Counts `units` that are in use already, whatever the limit.
    pub fn exceed(&self, units: u64) {
        self.count(units.cast_signed());
    }

    /// Gives `units` back.
    pub fn give(&self, units: u64) {
        self.count(-units.cast_signed());
    }

    fn count(&self, units: i64) -> i64 {
        if units != 0 { self.used.add(units) } else { 0 }
    }

    /// The units in use; exact when nobody takes or gives meanwhile.
    pub fn used(&self) -> u64 {
        self.used.sum().max(0).cast_unsigned()
    }

    /// The units that can still be taken; 0 without a limit.
    pub fn free(&self) -> u64 {
        self.limit.map_or(0, |limit| limit.saturating_sub(self.used()))
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the limit is reached")
    }
}

impl error::Error for Exhausted {}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn the_last_unit_can_be_taken_and_none_after_it() {
        for limit in [0, 1, 7, if SHRUNK { 60 } else { 5_000 }] {
            let budget = Budget::new(Some(limit), 0);
            (0..limit).for_each(|_| _ = budget.take(1).expect("below the limit"));
            assert_eq!(budget.take(1), Err(Exhausted));
            assert_eq!((budget.used(), budget.free()), (limit, 0));
            if limit > 0 {
                budget.give(1);
                assert!(budget.take(2).is_err() && budget.take(1).is_ok());
            }
        }
    }

    #[test]
    fn about_the_limit_each_cpu_may_have_a_batch_more() {
        let limit = if SHRUNK { 64 } else { 1 << 20 };
        let budget = Budget::new(Some(limit), 0);
        let taken = (0..2 * limit).filter(|_| budget.take_about(1).is_ok()).count() as u64;
        assert_eq!(budget.used(), taken);
        assert!((limit..=limit + budget.margin).contains(&taken), "{taken} of {limit}");
        assert_eq!(budget.take_about(2 * limit), Err(Exhausted));
        budget.give(taken);
        assert_eq!(budget.take_about(limit), Ok(()), "all at once");
        assert_eq!((budget.take_about(limit), budget.used()), (Err(Exhausted), limit));
    }

    #[test]
    fn absurd_demands_are_refused() {
        let budget = Budget::new(Some(1 << 40), 0);
        assert_eq!(budget.take(u64::MAX), Err(Exhausted));
        assert_eq!(budget.take((1 << 40) + 1), Err(Exhausted));
        assert_eq!(budget.take(1 << 40), Ok(1 << 40), "more than a batch");
    }

    #[test]
    fn threads_together_take_exactly_the_limit() {
        let (limit, takes) = if SHRUNK { (40, 20) } else { (3_000, 2_000) };
        let budget = Budget::new(Some(limit), 0);
        let taken: usize = thread::scope(|scope| {
            let takers =
                [(); 3].map(|()| scope.spawn(|| (0..takes).filter(|_| budget.take(1).is_ok()).count()));
            takers.map(|taker| taker.join().expect("takers do not panic")).iter().sum()
        });
        assert_eq!((taken as u64, budget.used()), (limit, limit));
    }
}
