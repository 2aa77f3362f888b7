//! Fibonacci hashing: keys in a row, or at regular distances, spread over a table.
//!
//! # Sources
//! Knuth, The Art of Computer Programming, volume 3, section 6.4: to multiply by a word over the golden ratio sets
//! neighbours as far apart as can be.

/// The hash of `key`. Its high bits are good, its low ones are not: take some of the upper 32.
#[inline]
pub const fn fibonacci(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::fibonacci;

    #[test]
    fn keys_in_a_row_go_to_places_of_their_own() {
        let mut places: Vec<u64> = (0..40).map(|key| fibonacci(key) >> 58).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 40, "of 64");
    }
}
