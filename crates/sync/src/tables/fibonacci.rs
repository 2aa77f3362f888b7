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
    fn keys_in_a_row_fill_a_table_evenly() {
        let mut filled = [0u32; 64];
        (1_000..7_400u64).for_each(|key| filled[(fibonacci(key) >> 58) as usize] += 1);
        assert!(filled.iter().all(|count| (98..=102).contains(count)), "{filled:?}");
    }
}
