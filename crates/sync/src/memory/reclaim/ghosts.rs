//! Ghosts: a memory of what was let go lately, so that what comes again is known to be wanted.
//!
//! # Theory
//! A table of fingerprints in which each newcomer takes the place that its key's hash says, whatever was there: so it forgets
//! at random, and about what was let go longest ago. A false friend is possible and does no harm.
//!
//! # Cost
//! To ask: one load. To note: one store to a line that all keys of its 16 places share: two CPUs meet there as those do
//! whose names are in one bucket. Memory: 4 bytes for each [`BYTES_EACH`] of the limit, 4 MiB at most.

use crate::face::atomic::{AtomicU32, Ordering};
use crate::fibonacci;

/// As many bytes of the limit for each ghost: about what an inode with its name takes.
const BYTES_EACH: u64 = 512;
/// The fewest and the most places, powers of two.
const PLACES: [u64; 2] = [16, 1 << 20];

#[derive(Debug)]
pub(super) struct Ghosts {
    /// The fingerprint of the key that last took the place; 0: none. *atomic*
    places: Box<[AtomicU32]>,
}

impl Ghosts {
    pub(super) fn new(limit: u64) -> Ghosts {
        let [min, max] = PLACES;
        let places = (limit / BYTES_EACH).clamp(min, max).next_power_of_two();
        Ghosts { places: (0..places).map(|_| AtomicU32::new(0)).collect() }
    }

    /// The place of `key` and the fingerprint for it.
    fn of(&self, key: u64) -> (&AtomicU32, u32) {
        let hash = fibonacci(key);
        let at = hash >> (64 - self.places.len().trailing_zeros());
        // Bits of their own: at most 20 are above these, and the lowest are good for nothing.
        let fingerprint = (hash >> 12) as u32;
        (&self.places[at as usize], fingerprint.max(1))
    }

    pub(super) fn note(&self, key: u64) {
        let (place, fingerprint) = self.of(key);
        // Relaxed: a hint.
        place.store(fingerprint, Ordering::Relaxed);
    }

    /// Whether `key` was noted and not forgotten.
    pub(super) fn know(&self, key: u64) -> bool {
        let (place, fingerprint) = self.of(key);
        // Relaxed: a hint.
        place.load(Ordering::Relaxed) == fingerprint
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_known_until_about_as_many_others_were() {
        let ghosts = Ghosts::new(1_024 * BYTES_EACH);
        (0..512).for_each(|key| ghosts.note(key));
        assert!((0..512).filter(|key| ghosts.know(*key)).count() > 400);
        assert!((512..1_024).all(|key| !ghosts.know(key)));
        (10_000..13_000).for_each(|key| ghosts.note(key));
        assert!((0..512).all(|key| !ghosts.know(key)));
    }
}
