//! Range: a non-empty run of byte offsets of a file, as `struct flock` describes it.

use std::{error, fmt};

/// The largest file offset; a range that ends here reaches to the end of the file, however long it gets.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// The bytes `start..=end` of a file. Never empty, never beyond `i64::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    start: u64,
    end: u64,
}

/// Why three numbers do not make a [`Range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RangeError {
    /// The range would begin before byte 0, or end before it begins (`EINVAL`).
    Invalid,
    /// The range would pass the largest file offset (`EOVERFLOW`).
    Overflow,
}

impl Range {
    /// All bytes a file can ever have.
    pub const WHOLE: Range = Range { start: 0, end: OFFSET_MAX };

    /// The bytes `start..=end`.
    ///
    /// # Errors
    /// [`RangeError::Overflow`] if either offset is above `i64::MAX`, else [`RangeError::Invalid`] if
    /// `end < start`.
    pub const fn new(start: u64, end: u64) -> Result<Range, RangeError> {
        if start > OFFSET_MAX || end > OFFSET_MAX {
            Err(RangeError::Overflow)
        } else if end < start {
            Err(RangeError::Invalid)
        } else {
            Ok(Range { start, end })
        }
    }

    /// The range that `l_start` and `l_len` of a `struct flock` name. `base` is what `l_whence` stands for:
    /// 0, the file position, or the file size.
    ///
    /// A positive `len` counts bytes from the start, a negative one the bytes before it, and 0 means all
    /// bytes from the start on.
    ///
    /// # Errors
    /// As Linux checks, in this order: [`RangeError::Overflow`] if the start passes `i64::MAX`,
    /// [`RangeError::Invalid`] if it is negative; then `Overflow` if the end passes `i64::MAX`, `Invalid` if a
    /// negative `len` reaches before byte 0.
    pub const fn from_flock(base: i64, start: i64, len: i64) -> Result<Range, RangeError> {
        let Some(at) = base.checked_add(start) else {
            return Err(if start > 0 { RangeError::Overflow } else { RangeError::Invalid });
        };
        if at < 0 {
            return Err(RangeError::Invalid);
        }
        let (first, last) = if len > 0 {
            match at.checked_add(len - 1) {
                Some(last) => (at, last),
                None => return Err(RangeError::Overflow),
            }
        } else if len < 0 {
            // `at` is not negative, so the sum cannot pass either end of i64.
            (at + len, at - 1)
        } else {
            (at, i64::MAX)
        };
        if first < 0 {
            return Err(RangeError::Invalid);
        }
        Ok(Range { start: first.cast_unsigned(), end: last.cast_unsigned() })
    }

    /// The first byte.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The last byte, inclusive.
    pub const fn end(self) -> u64 {
        self.end
    }

    /// True if the range reaches to the end of the file, however long the file gets.
    pub const fn to_eof(self) -> bool {
        self.end == OFFSET_MAX
    }

    /// The pair (`l_start`, `l_len`), relative to byte 0, that F_GETLK reports: length 0 for
    /// [`to_eof`](Self::to_eof).
    pub const fn to_flock(self) -> (i64, i64) {
        let len = if self.to_eof() { 0 } else { self.end - self.start + 1 };
        (self.start.cast_signed(), len.cast_signed())
    }

    /// True if the two ranges have a byte in common.
    pub const fn overlaps(self, other: Range) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// True if it has all bytes of `other`.
    pub(crate) const fn contains(self, other: Range) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The part before `other`'s first byte, if any.
    pub(crate) fn before(self, other: Range) -> Option<Range> {
        (self.start < other.start)
            .then(|| Range { start: self.start, end: self.end.min(other.start.saturating_sub(1)) })
    }

    /// The part after `other`'s last byte, if any.
    pub(crate) fn after(self, other: Range) -> Option<Range> {
        (self.end > other.end)
            .then(|| Range { start: self.start.max(other.end.saturating_add(1)), end: self.end })
    }

    /// The smallest range that holds both.
    pub(crate) fn hull(self, other: Range) -> Range {
        Range { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.to_eof() {
            write!(f, "{}..=EOF", self.start)
        } else {
            write!(f, "{}..={}", self.start, self.end)
        }
    }
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RangeError::Invalid => "the range begins before byte 0 or ends before it begins",
            RangeError::Overflow => "the range passes the largest file offset",
        })
    }
}

impl error::Error for RangeError {}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: i64 = i64::MAX;

    fn bounds(base: i64, start: i64, len: i64) -> Result<(u64, u64), RangeError> {
        Range::from_flock(base, start, len).map(|range| (range.start, range.end))
    }

    #[test]
    fn length_zero_reaches_to_the_end_of_the_file() {
        assert_eq!(bounds(0, 0, 0), Ok((0, OFFSET_MAX)));
        assert_eq!(bounds(10, -3, 0), Ok((7, OFFSET_MAX)));
        assert_eq!(bounds(MAX, 0, 0), Ok((OFFSET_MAX, OFFSET_MAX)));
        assert_eq!(Range::from_flock(0, 0, 0), Ok(Range::WHOLE));
    }

    #[test]
    fn a_negative_length_names_the_bytes_before_the_start() {
        assert_eq!(bounds(0, 10, -4), Ok((6, 9)));
        assert_eq!(bounds(0, 10, -10), Ok((0, 9)));
        assert_eq!(bounds(0, 10, -11), Err(RangeError::Invalid));
        assert_eq!(bounds(0, 0, -1), Err(RangeError::Invalid));
        assert_eq!(bounds(0, 0, i64::MIN), Err(RangeError::Invalid));
        assert_eq!(bounds(0, MAX, i64::MIN), Err(RangeError::Invalid));
        assert_eq!(bounds(0, MAX, -MAX), Ok((0, OFFSET_MAX - 1)));
    }

    #[test]
    fn a_range_past_the_largest_offset_overflows() {
        assert_eq!(bounds(0, MAX, 1), Ok((OFFSET_MAX, OFFSET_MAX)));
        assert_eq!(bounds(0, MAX, 2), Err(RangeError::Overflow));
        assert_eq!(bounds(0, 1, MAX), Ok((1, OFFSET_MAX)));
        assert_eq!(bounds(0, 2, MAX), Err(RangeError::Overflow));
        assert_eq!(bounds(1, MAX, 0), Err(RangeError::Overflow));
        assert_eq!(bounds(1, MAX, -1), Err(RangeError::Overflow));
    }

    #[test]
    fn a_start_before_byte_zero_is_invalid() {
        assert_eq!(bounds(0, -1, 1), Err(RangeError::Invalid));
        assert_eq!(bounds(5, -6, 0), Err(RangeError::Invalid));
        assert_eq!(bounds(-1, i64::MIN, 0), Err(RangeError::Invalid));
    }

    #[test]
    fn bounds_out_of_order_or_out_of_range_make_no_range() {
        assert_eq!(Range::new(4, 3), Err(RangeError::Invalid));
        assert_eq!(Range::new(0, u64::MAX), Err(RangeError::Overflow));
        assert_eq!(Range::new(u64::MAX, 0), Err(RangeError::Overflow));
        assert!(Range::new(3, 3).is_ok());
    }

    #[test]
    fn a_range_survives_the_way_to_struct_flock_and_back() {
        for range in [Range::WHOLE, Range { start: 0, end: 0 }, Range { start: 7, end: OFFSET_MAX - 1 }] {
            let (start, len) = range.to_flock();
            assert_eq!(Range::from_flock(0, start, len), Ok(range));
        }
    }
}
