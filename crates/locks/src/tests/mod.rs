//! Tests of the whole crate, with a look inside where the outside cannot tell (nothing left behind).

mod blocking;
mod fairness;
mod leases;
mod model;
mod rules;
mod threads;

use crate::{Done, LockError, Owner, Range, RangeRequest};
use sluice_sync::{Arc, Mutex, time};

/// Splitmix64: small, and good enough to choose test operations.
pub(crate) struct Random(u64);

impl Random {
    /// Seeded by `SLUICE_SEED`, or else by the clock. Prints the seed, for a failure to be repeated.
    pub(crate) fn new(test: &str) -> Self {
        let (seconds, nanos) = time::realtime();
        let seed = std::env::var("SLUICE_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(seconds.cast_unsigned() << 30 | u64::from(nanos));
        println!("{test}: SLUICE_SEED={seed}");
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A completion that has run: which request, and its outcome.
type Event = (usize, Result<(), LockError>);

/// All completions that have run.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Event>>>);

impl Log {
    /// A completion that notes the outcome of the request `key`.
    fn done(&self, key: usize) -> Done {
        let log = self.0.clone();
        Box::new(move |outcome| log.lock().push((key, outcome)))
    }

    /// What has run since the last call.
    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock())
    }
}

pub(crate) fn range(start: u64, end: u64) -> Range {
    Range::new(start, end).expect("a range")
}

/// A request by process `process` for `start..=end`; the pid is the process number.
fn posix(process: u64, kind: crate::Kind, start: u64, end: u64) -> RangeRequest {
    RangeRequest { owner: Owner::Process(process), pid: process as i32, kind, range: range(start, end) }
}

/// A request by the open file description `description` for `start..=end`.
fn ofd(description: u64, kind: crate::Kind, start: u64, end: u64) -> RangeRequest {
    RangeRequest { owner: Owner::Description(description), pid: -1, kind, range: range(start, end) }
}
