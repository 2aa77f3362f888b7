//! Tests of the whole crate, with a look inside where the outside cannot tell (nothing left behind).

mod blocking;
mod fairness;
mod leases;
mod model;
mod rules;
mod threads;

use crate::{Done, LockError, Owner, Range, RangeRequest};
use sluice_sync::random::{Random, fresh_seed};
use sluice_sync::{Arc, Mutex};

/// Seeded by `SLUICE_SEED`, if it is set. Prints the seed, for a failure to be repeated.
pub(crate) fn seeded(test: &str) -> Random {
    let given = std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(fresh_seed);
    println!("{test}: SLUICE_SEED={seed}");
    Random::new(seed)
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

    /// Takes the events since the last call.
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
