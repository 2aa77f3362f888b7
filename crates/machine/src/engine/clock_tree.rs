//! The clocks of all CPUs as a tournament, so that the least is known at once.
//!
//! # Theory
//! A complete binary tree over the CPUs; each inner place holds the least of its two children, so the root
//! is the CPU that runs next. A change replays one path: log2(CPUs) comparisons without a branch on the
//! outcome. An entry packs `clock << 16 | tie << 8 | cpu`; `tie` is random (seeded), so that equal clocks are
//! not always won by the same CPU. 48 bits of clock are a day of cycles at 3 GHz.

/// The entry of a CPU that waits for somebody else.
pub(crate) const NEVER: u64 = u64::MAX;
/// The latest time that an entry can hold.
pub(crate) const TIME_MAX: u64 = (1 << 48) - 2;

pub(crate) struct ClockTree {
    places: Vec<u64>,
    leaves: usize,
}

impl ClockTree {
    pub(crate) fn new(cpus: usize) -> ClockTree {
        let leaves = cpus.next_power_of_two().max(2);
        ClockTree { places: vec![NEVER; 2 * leaves], leaves }
    }

    /// `cpu` is to run at `time`.
    #[inline]
    pub(crate) fn set(&mut self, cpu: usize, time: u64, tie: u64) {
        self.replay(cpu, time.min(TIME_MAX) << 16 | (tie & 0xff) << 8 | cpu as u64);
    }

    /// `cpu` waits for somebody else, or is running.
    #[inline]
    pub(crate) fn clear(&mut self, cpu: usize) {
        self.replay(cpu, NEVER);
    }

    #[inline]
    fn replay(&mut self, cpu: usize, entry: u64) {
        let mut place = self.leaves + cpu;
        self.places[place] = entry;
        while place > 1 {
            let least = self.places[place].min(self.places[place ^ 1]);
            place /= 2;
            if self.places[place] == least {
                break;
            }
            self.places[place] = least;
        }
    }

    /// The CPU that runs next and its time.
    #[inline]
    pub(crate) fn least(&self) -> Option<(usize, u64)> {
        let entry = self.places[1];
        (entry != NEVER).then_some(((entry & 0xff) as usize, entry >> 16))
    }

    /// The time of the CPU that runs next; `TIME_MAX` when all wait.
    #[inline]
    pub(crate) fn least_time(&self) -> u64 {
        (self.places[1] >> 16).min(TIME_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_clock_wins_and_ties_go_by_the_tie_breaker() {
        let mut tree = ClockTree::new(5);
        assert_eq!(tree.least(), None);
        tree.set(4, 100, 0);
        tree.set(1, 70, 9);
        tree.set(2, 70, 3);
        assert_eq!(tree.least(), Some((2, 70)));
        tree.clear(2);
        assert_eq!(tree.least(), Some((1, 70)));
        tree.set(1, 500, 0);
        assert_eq!(tree.least(), Some((4, 100)));
        tree.clear(4);
        tree.clear(1);
        assert_eq!((tree.least(), tree.least_time()), (None, TIME_MAX));
    }

    #[test]
    fn one_cpu_needs_no_rival() {
        let mut tree = ClockTree::new(1);
        tree.set(0, 3, 0);
        assert_eq!(tree.least(), Some((0, 3)));
    }
}
