//! A set of simulated CPUs, as a bit mask.

/// The most CPUs that a simulated machine can have.
pub const CPUS_MAX: usize = 256;

const WORDS: usize = CPUS_MAX / 64;

/// A set of CPU numbers below [`CPUS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// The set of `cpu` alone.
    pub fn only(cpu: usize) -> CpuSet {
        let mut set = CpuSet::default();
        set.insert(cpu);
        set
    }

    /// Adds `cpu`.
    #[inline]
    pub fn insert(&mut self, cpu: usize) {
        self.0[(cpu / 64) % WORDS] |= 1 << (cpu % 64);
    }

    /// Takes `cpu` out.
    #[inline]
    pub fn remove(&mut self, cpu: usize) {
        self.0[(cpu / 64) % WORDS] &= !(1 << (cpu % 64));
    }

    /// Whether `cpu` is in the set.
    #[inline]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0[(cpu / 64) % WORDS] >> (cpu % 64) & 1 != 0
    }

    /// Whether the two sets have a member in common.
    #[inline]
    pub fn intersects(&self, other: &CpuSet) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// The members of both sets together.
    pub fn union(mut self, other: &CpuSet) -> CpuSet {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
        self
    }

    /// Whether no CPU is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The members, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let set = *self;
        (0..CPUS_MAX).filter(move |&cpu| set.contains(cpu))
    }

    /// The least member.
    pub fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|&word| word != 0)?;
        Some(word * 64 + self.0[word].trailing_zeros() as usize)
    }
}

/// Ranges are written short: `0-3,8`.
impl std::fmt::Display for CpuSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut separator = "";
        let mut cpu = 0;
        while cpu < CPUS_MAX {
            if !self.contains(cpu) {
                cpu += 1;
                continue;
            }
            let first = cpu;
            while cpu < CPUS_MAX && self.contains(cpu) {
                cpu += 1;
            }
            match cpu - 1 - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{}", cpu - 1)?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_shown_as_ranges() {
        let mut set = CpuSet::default();
        assert_eq!(set.to_string(), "");
        for cpu in [0, 1, 2, 3, 8, 254, 255] {
            set.insert(cpu);
        }
        assert_eq!(set.to_string(), "0-3,8,254-255");
        assert_eq!(set.len(), 7);
        assert_eq!(set.first(), Some(0));
        set.remove(0);
        assert_eq!(set.iter().collect::<Vec<_>>(), [1, 2, 3, 8, 254, 255]);
    }

    #[test]
    fn sets_meet_only_in_a_common_member() {
        assert!(CpuSet::only(200).intersects(&CpuSet::only(200)));
        assert!(!CpuSet::only(200).intersects(&CpuSet::only(201)));
        assert_eq!(CpuSet::only(64).union(&CpuSet::only(3)).first(), Some(3));
        assert_eq!(CpuSet::default().first(), None);
    }
}
