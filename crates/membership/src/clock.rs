//! Clock: nanoseconds that go on while the machine sleeps, the same for all processes of a machine.

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine was started, in nanoseconds. It goes on while the machine sleeps, as leases do.
#[inline]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
