//! Rng: a small pseudo-random generator whose sequence depends on the seed alone, on every machine.

/// SplitMix64 (Steele, Lea and Flood, 2014): one word of state, every seed is good.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose whole future follows from `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0. The bias of the remainder does not matter here.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// True `percent` times of a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of `values`, which is not empty.
    pub fn pick<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    /// The index of one of `weights`, each as likely as its weight.
    pub fn weighted(&mut self, weights: impl Iterator<Item = usize> + Clone) -> usize {
        let mut point = self.below(weights.clone().sum());
        for (index, weight) in weights.enumerate() {
            if point < weight {
                return index;
            }
            point -= weight;
        }
        unreachable!("the point lies below the sum of the weights")
    }
}

/// A seed that nobody has used: from the clock and the process number.
pub fn fresh_seed() -> u64 {
    let (sec, nsec) = sluice_sync::time::realtime();
    Rng::new((sec as u64) << 30 ^ u64::from(nsec) ^ u64::from(std::process::id()) << 50).bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let draw = |seed| (0..100).scan(Rng::new(seed), |rng, _| Some(rng.bits())).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn weights_of_zero_are_never_drawn() {
        let mut rng = Rng::new(1);
        assert!((0..1000).all(|_| rng.weighted([0, 3, 0, 1].into_iter()) % 2 == 1));
    }
}
