//! Clock: the time that records of a store bear, which never goes back.
//!
//! SlateDB refuses a write that is older than the last one. The machine of the last owner may have had a later time than this one: then its
//! time goes on here.

use chrono::{DateTime, TimeDelta, Utc};
use slatedb_common::clock::{DefaultSystemClock, SystemClock, SystemClockTicker};
use sluice_sync::atomic::{AtomicI64, Ordering};
use sluice_sync::time::Duration;
use std::pin::Pin;

/// This machine's clock, moved ahead if the last owner's was ahead.
#[derive(Debug, Default)]
pub(crate) struct StoreClock {
    machine: DefaultSystemClock,
    /// Milliseconds. *atomic (stands alone)*
    ahead_ms: AtomicI64,
}

impl StoreClock {
    /// The last write was made at `last_ms`: every later one is behind it. How far this machine's clock is behind.
    pub(crate) fn follow(&self, last_ms: i64) -> Duration {
        let behind_ms = last_ms.saturating_sub(self.machine.now().timestamp_millis()).max(0);
        // Relaxed: a number that stands alone.
        self.ahead_ms.fetch_max(behind_ms, Ordering::Relaxed);
        Duration::from_millis(behind_ms.cast_unsigned())
    }
}

impl SystemClock for StoreClock {
    fn now(&self) -> DateTime<Utc> {
        // Relaxed: a number that stands alone.
        self.machine.now() + TimeDelta::milliseconds(self.ahead_ms.load(Ordering::Relaxed))
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.machine.sleep(duration)
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}
