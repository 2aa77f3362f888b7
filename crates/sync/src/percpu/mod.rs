//! Per-CPU data: a value on a line of its own for each CPU, so that counting and listing do not meet.
//!
//! # Theory
//! The CPU's number is a hint: a thread may be moved after reading it. So two threads may use one CPU's value
//! at once, and every structure here must be correct then; what it gains is that they hardly ever do. Atomics
//! and locks do the first, the line of its own does the second.
//!
//! # Cost
//! [`PerCpu::here`]: the CPU's number (one load where restartable sequences are there) and an index. Memory: at
//! least one line for each CPU that the machine could have.

pub mod budget;
pub mod counter;
pub mod ida;
pub mod list;
pub mod pool;
pub mod tally;

pub use budget::Budget;
pub use counter::Counter;
pub use ida::Ida;
pub use list::PerCpuList;
pub use pool::Pool;
pub use tally::Tally;

use crate::face::{CachePadded, cpu};

/// A value for each CPU.
#[derive(Debug)]
pub struct PerCpu<T> {
    /// A power of two of them. *immutable; each value looks after itself*
    values: Box<[CachePadded<T>]>,
}

impl<T> PerCpu<T> {
    /// A value for each CPU, made by `init` from the CPU's number.
    pub fn new(init: impl FnMut(usize) -> T) -> Self {
        // Under loom two are enough: three threads then share one, as threads do that are moved.
        PerCpu::with_cpus(if cfg!(feature = "loom") { 2 } else { cpu::possible() }, init)
    }

    /// Values for `cpus` CPUs only, rounded up to a power of two, made by `init` from the CPU's number; other CPUs share them.
    pub fn with_cpus(cpus: usize, init: impl FnMut(usize) -> T) -> Self {
        let cpus = cpus.max(1).next_power_of_two();
        PerCpu { values: (0..cpus).map(init).map(CachePadded::new).collect() }
    }

    /// The number of the value that belongs to the calling thread's CPU, now.
    #[inline]
    pub fn here_at(&self) -> usize {
        cpu::current() & (self.values.len() - 1)
    }

    /// The value of the calling thread's CPU, and perhaps by now of another thread's.
    #[inline]
    pub fn here(&self) -> &T {
        &self.values[self.here_at()]
    }

    /// The value numbered `at`, if there is one.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.values.get(at).map(|value| &**value)
    }

    /// All values, in the order of their CPUs.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter().map(|value| &**value)
    }

    /// How many values there are.
    #[allow(clippy::len_without_is_empty)] // there is always one
    pub fn len(&self) -> usize {
        self.values.len()
    }
}

impl<T: Default> Default for PerCpu<T> {
    fn default() -> Self {
        PerCpu::new(|_| T::default())
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_has_a_value_on_a_line_of_its_own() {
        let values = PerCpu::with_cpus(3, |cpu| cpu);
        assert_eq!(values.len(), 4);
        assert!(values.iter().copied().eq(0..4));
        let at = |n| std::ptr::from_ref(values.get(n).expect("there are four")).addr();
        assert!((1..4).all(|n| at(n) - at(n - 1) >= crate::CACHE_LINE));
        assert_eq!(Some(values.here()), values.get(values.here_at()));
    }
}
