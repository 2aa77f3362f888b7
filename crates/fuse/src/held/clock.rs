//! The clock of held mounts.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine was started: one clock for a server and the next.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
