//! Counters: how many requests of each opcode a mount received, and how long they took.
//!
//! # Theory
//! Each CPU counts for itself, so that workers share no line that they write. How long a request took, from its arrival
//! to its answer, is counted in buckets, [`PER_OCTAVE`] of them for each power of two nanoseconds:
//! ```text
//!   256 ... 319 | 320 ... 383 | 384 ... 447 | 448 ... 511 | 512 ... 639 | ...        and one for all below 256
//! ```
//! The buckets of an opcode are made when its first request ends: most are never asked for.
//!
//! # Cost
//! Two looks at the clock and three additions on the own CPU's lines for each request.

use crate::abi::opcode;
use crate::mount_stat::Latency;
use sluice_sync::OnceLock;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::percpu::PerCpu;
use sluice_sync::time::{Duration, Instant, nanoseconds};
use std::collections::BTreeMap;

/// Buckets for each power of two: bounds are at most a quarter apart.
const PER_OCTAVE: u32 = 4;
/// The first power of two that is told from the one below it.
const FIRST_OCTAVE: u32 = 8;
/// The last: requests that took longer than 17 seconds are counted as if they had not.
const LAST_OCTAVE: u32 = 33;
const BUCKETS: usize = (1 + (LAST_OCTAVE - FIRST_OCTAVE + 1) * PER_OCTAVE) as usize;

/// Counts since the mount began.
#[derive(Debug)]
pub struct Counters {
    by_cpu: PerCpu<[OpcodeCount; opcode::COUNT]>,
    begun: Instant,
}

/// A CPU's counts of an opcode.
#[derive(Debug, Default)]
struct OpcodeCount {
    requests: AtomicU64, // atomic: a statistic, read on its own
    took: OnceLock<Box<Took>>,
}

/// How long requests took.
#[derive(Debug)]
struct Took {
    ns_total: AtomicU64,           // atomic: as above
    buckets: [AtomicU64; BUCKETS], // atomic: as above
}

impl Default for Took {
    fn default() -> Took {
        Took { ns_total: AtomicU64::new(0), buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

impl Default for Counters {
    fn default() -> Self {
        let by_cpu = PerCpu::new(|_| std::array::from_fn(|_| OpcodeCount::default()));
        Counters { by_cpu, begun: Instant::now() }
    }
}

impl Counters {
    /// Counts one request. Opcodes that this crate does not know count as 0.
    pub fn count(&self, opcode: u32) {
        // Relaxed: a statistic.
        slot(self.by_cpu.here(), opcode).requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts how long one request took.
    pub fn took(&self, opcode: u32, time: Duration) {
        let ns = nanoseconds(time);
        let took = slot(self.by_cpu.here(), opcode).took.get_or_init(Box::default);
        // Relaxed: statistics; a reader of several may miss a request in one of them.
        took.ns_total.fetch_add(ns, Ordering::Relaxed);
        took.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// The whole seconds since the mount began.
    pub(crate) fn uptime_seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    /// How many requests of `opcode` came.
    pub fn get(&self, opcode: u32) -> u64 {
        self.kinds(opcode).map(|kind| kind.requests.load(Ordering::Relaxed)).sum()
    }

    /// How many requests came.
    pub(crate) fn total(&self) -> u64 {
        // Opcodes that this crate does not know are counted in slot 0.
        self.get(0) + opcode::ALL.iter().map(|(number, _)| self.get(*number)).sum::<u64>()
    }

    /// The counts that are not 0, by name.
    pub(crate) fn requests(&self) -> BTreeMap<String, u64> {
        by_name(|number| Some(self.get(number)).filter(|count| *count > 0))
    }

    /// How long requests took, by name, without buckets that are empty.
    pub(crate) fn latency(&self) -> BTreeMap<String, Latency> {
        by_name(|number| {
            let all: Vec<&Took> =
                self.kinds(number).filter_map(|kind| kind.took.get()).map(|took| &**took).collect();
            let sum = |of: &dyn Fn(&Took) -> u64| all.iter().map(|took| of(took)).sum::<u64>();
            let buckets = (0..BUCKETS)
                .map(|at| (bound_of(at), sum(&|took| took.buckets[at].load(Ordering::Relaxed))))
                .filter(|(_, count)| *count > 0);
            let ns_total = sum(&|took| took.ns_total.load(Ordering::Relaxed));
            Some(Latency { ns_total, buckets: buckets.collect() }).filter(|told| !told.buckets.is_empty())
        })
    }

    fn kinds(&self, opcode: u32) -> impl Iterator<Item = &OpcodeCount> {
        self.by_cpu.iter().map(move |kinds| slot(kinds, opcode))
    }
}

fn slot(kinds: &[OpcodeCount; opcode::COUNT], opcode: u32) -> &OpcodeCount {
    kinds.get(opcode as usize).unwrap_or(&kinds[0])
}

/// The entries of `value` for each opcode, by name.
fn by_name<V>(value: impl Fn(u32) -> Option<V>) -> BTreeMap<String, V> {
    opcode::ALL.iter().filter_map(|(number, name)| Some(((*name).to_owned(), value(*number)?))).collect()
}

fn bucket_of(ns: u64) -> usize {
    let octave = ns.max(1).ilog2();
    if octave < FIRST_OCTAVE {
        return 0;
    }
    let quarter = (ns >> (octave - PER_OCTAVE.ilog2())) as usize % PER_OCTAVE as usize;
    (1 + ((octave - FIRST_OCTAVE) * PER_OCTAVE) as usize + quarter).min(BUCKETS - 1)
}

/// The largest number of nanoseconds in a bucket.
fn bound_of(bucket: usize) -> u64 {
    let Some(above) = (bucket as u64).checked_sub(1) else { return (1 << FIRST_OCTAVE) - 1 };
    let (octave, quarter) = (above / u64::from(PER_OCTAVE), above % u64::from(PER_OCTAVE));
    let width = 1 << (u64::from(FIRST_OCTAVE) + octave - u64::from(PER_OCTAVE.ilog2()));
    (u64::from(PER_OCTAVE) + quarter + 1) * width - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_by_opcode() {
        let counters = Counters::default();
        counters.count(opcode::LOOKUP);
        counters.count(opcode::READ);
        counters.count(opcode::READ);
        counters.count(u32::MAX);
        assert_eq!((counters.get(opcode::READ), counters.total()), (2, 4));
        assert_eq!(counters.requests(), BTreeMap::from([("LOOKUP".into(), 1), ("READ".into(), 2)]));
    }

    #[test]
    fn every_time_is_in_the_bucket_that_ends_at_or_above_it() {
        let mut ns: u64 = 1;
        while ns < 1 << LAST_OCTAVE {
            let bucket = bucket_of(ns);
            assert!(bound_of(bucket) >= ns && (bucket == 0 || bound_of(bucket - 1) < ns), "{ns}");
            ns += 1 + ns / 7;
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX), bound_of(0)), (0, BUCKETS - 1, 255));
    }

    #[test]
    fn how_long_requests_took_is_told_by_opcode() {
        let counters = Counters::default();
        for ns in [100, 300, 310, 5000] {
            counters.took(opcode::READ, Duration::from_nanos(ns));
        }
        let read = Latency { ns_total: 5710, buckets: vec![(255, 1), (319, 2), (5119, 1)] };
        assert_eq!(counters.latency(), BTreeMap::from([("READ".into(), read)]));
    }
}
