//! Random numbers from a seed: for tests, planted faults and statistics. A seed gives the same numbers on each machine.

use std::hash::{BuildHasher, Hasher, RandomState};

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): one word of state, and each seed is good. The crate `machine`, below
/// this one, has its own.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator, of which all numbers follow from `seed`.
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when nothing is. The bias of the remainder does not matter to its users.
    pub fn below<N: TryFrom<u64> + TryInto<u64>>(&mut self, bound: N) -> N {
        let number = self.bits() % bound.try_into().unwrap_or(0).max(1);
        N::try_from(number).unwrap_or_else(|_| unreachable!("it is 0 or less than the bound"))
    }

    /// A number from `low` to `high`, which is not less.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `values`, which is not empty.
    pub fn pick<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }
}

/// A seed that nobody has used.
pub fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        let mut random = Random::new(1234567);
        let expected = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        assert_eq!(expected, [random.bits(), random.bits(), random.bits()]);
    }

    #[test]
    fn a_bound_is_kept_whatever_its_type() {
        let mut random = Random::new(7);
        assert!((0..1000).all(|_| random.below(10_u8) < 10 && (3..=5).contains(&random.between(3, 5))));
        assert_eq!((random.below(0_usize), random.below(-3), random.below(1_u64)), (0, 0, 0));
        assert!(!random.chance(0) && random.chance(100));
    }

    #[test]
    fn fresh_seeds_differ() {
        assert_ne!(fresh_seed(), fresh_seed());
    }
}
