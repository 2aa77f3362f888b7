//! Clocks, and times as numbers.

pub use crate::face::time::{Duration, Instant, SystemTime, UNIX_EPOCH, realtime_coarse};

/// `time` in nanoseconds, saturated at `u64::MAX`.
#[inline]
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The wall clock as whole seconds since 1970 and nanoseconds below one second.
pub fn realtime() -> (i64, u32) {
    match crate::face::time::wall().duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs().cast_signed(), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => (-before.as_secs().cast_signed(), 0),
                nanos => (-before.as_secs().cast_signed() - 1, 1_000_000_000 - nanos),
            }
        }
    }
}
