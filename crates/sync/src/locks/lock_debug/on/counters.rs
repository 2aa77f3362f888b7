//! Lock counters: how often and how long, for each thread and class apart, added up when somebody asks.
//!
//! # Theory
//! Every counter is written by the thread of its slot alone, with plain loads and stores: counting takes no line
//! away from another CPU. (Counters per CPU would need locked instructions, since a thread may be moved between
//! load and store; see `readers.rs`.) A reader may miss what is being added.
//!
//! Nobody can set another thread's counters to zero. A reset begins a new *era*: counters of an older one are
//! ignored, and emptied by their thread at its next use.
//!
//! Times fall into log-linear buckets, four to each doubling.

use super::registry::{self, CLASSES_MAX};
use super::{ClassStats, SiteStats, Times};
use crate::face::{CachePadded, SlotTable, thread};
use crate::time::{Duration, nanoseconds};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets for each doubling of a time.
const PER_DOUBLING: usize = 4;
/// Buckets: the last one has all times from two hours up.
const BUCKETS: usize = 172;
/// Places that a thread counts apart for each class.
const SITES: usize = 16;

/// Times of one kind. *owner only; others read*
struct Histogram {
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Where a class was taken. *owner only; others read*
#[derive(Default)]
struct Site {
    /// *set once; a reset keeps it*
    place: OnceLock<&'static Location<'static>>,
    acquisitions: AtomicU64,
    contentions: AtomicU64,
    wait_ns: AtomicU64,
}

/// The counts of one class by one thread. *owner only; others read*
struct Counters {
    era: AtomicU64,
    acquisitions: AtomicU64,
    contentions: AtomicU64,
    wait: Histogram,
    hold: Histogram,
    sites: [Site; SITES],
}

/// One thread's counters, by class.
#[derive(Default)]
struct Thread {
    classes: OnceLock<Box<[OnceLock<Box<Counters>>]>>,
}

static THREADS: SlotTable<CachePadded<Thread>> = SlotTable::new();

/// Which era counts now. *atomic, read-mostly*
static ERA: AtomicU64 = AtomicU64::new(0);

// Relaxed throughout: counters publish nothing, and each is written by one thread.

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn set(counter: &AtomicU64, value: u64) {
    counter.store(value, Ordering::Relaxed);
}

/// Adds, as the only writer.
fn add(counter: &AtomicU64, n: u64) {
    set(counter, get(counter).wrapping_add(n));
}

fn bucket_of(ns: u64) -> usize {
    let doubling = ns.max(1).ilog2() as usize;
    if doubling < 2 {
        return ns as usize;
    }
    let quarter = (ns >> (doubling - 2)) as usize % PER_DOUBLING;
    ((doubling - 1) * PER_DOUBLING + quarter).min(BUCKETS - 1)
}

/// The shortest time of a bucket.
fn bucket_begin(bucket: usize) -> u64 {
    if bucket < PER_DOUBLING {
        return bucket as u64;
    }
    ((PER_DOUBLING + bucket % PER_DOUBLING) as u64) << (bucket / PER_DOUBLING - 1)
}

impl Histogram {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Histogram { total_ns: zero(), max_ns: zero(), buckets: std::array::from_fn(|_| zero()) }
    }

    fn count(&self, time: Duration) {
        let ns = nanoseconds(time);
        add(&self.total_ns, ns);
        set(&self.max_ns, get(&self.max_ns).max(ns));
        add(&self.buckets[bucket_of(ns)], 1);
    }

    fn empty(&self) {
        for counter in self.buckets.iter().chain([&self.total_ns, &self.max_ns]) {
            set(counter, 0);
        }
    }
}

impl Counters {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Counters {
            era: AtomicU64::new(get(&ERA)),
            acquisitions: zero(),
            contentions: zero(),
            wait: Histogram::new(),
            hold: Histogram::new(),
            sites: Default::default(),
        }
    }

    fn empty(&self) {
        self.wait.empty();
        self.hold.empty();
        for counter in [&self.acquisitions, &self.contentions] {
            set(counter, 0);
        }
        for site in &self.sites {
            for counter in [&site.acquisitions, &site.contentions, &site.wait_ns] {
                set(counter, 0);
            }
        }
    }

    /// The counters of `place`, or those of the place that came last when there are too many.
    fn site(&self, place: &'static Location<'static>) -> &Site {
        let known = |site: &&Site| registry::same_place(site.place.get_or_init(|| place), place);
        self.sites.iter().find(known).unwrap_or(&self.sites[SITES - 1])
    }
}

/// The calling thread's counters of `class`, of this era.
fn own(class: u32) -> &'static Counters {
    let classes = &THREADS.get(thread::slot()).classes;
    let classes = classes.get_or_init(|| (0..CLASSES_MAX).map(|_| OnceLock::new()).collect());
    let counters = classes[class as usize].get_or_init(|| Box::new(Counters::new()));
    let era = get(&ERA);
    if get(&counters.era) != era {
        counters.empty();
        set(&counters.era, era);
    }
    counters
}

/// Counts an acquisition, and how long it waited if it did.
pub(super) fn taken(class: u32, place: &'static Location<'static>, waited: Option<Duration>) {
    let own = own(class);
    let site = own.site(place);
    add(&own.acquisitions, 1);
    add(&site.acquisitions, 1);
    if let Some(waited) = waited {
        add(&own.contentions, 1);
        add(&site.contentions, 1);
        add(&site.wait_ns, nanoseconds(waited));
        own.wait.count(waited);
    }
}

/// Counts how long a lock was held.
pub(super) fn held(class: u32, time: Duration) {
    own(class).hold.count(time);
}

/// Resets the statistics of all threads.
pub fn reset_lock_stats() {
    ERA.fetch_add(1, Ordering::Relaxed);
}

/// Statistics since the last reset, by class; classes that were never taken are left out.
pub fn lock_stats() -> Vec<ClassStats> {
    let names = registry::names();
    let classes = names.into_iter().enumerate().map(|(class, name)| merge(class, name));
    classes.filter(|stats| stats.acquisitions > 0).collect()
}

fn merge(class: usize, name: String) -> ClassStats {
    let era = get(&ERA);
    let threads = THREADS.iter().filter_map(|thread| thread.classes.get()?[class].get());
    let mut stats = ClassStats { class: name, ..ClassStats::default() };
    let mut sites: HashMap<String, SiteStats> = HashMap::new();
    let (mut waits, mut holds) = ([0; BUCKETS], [0; BUCKETS]);
    for own in threads.filter(|own| get(&own.era) == era) {
        stats.acquisitions += get(&own.acquisitions);
        stats.contentions += get(&own.contentions);
        merge_times(&mut stats.wait, &mut waits, &own.wait);
        merge_times(&mut stats.hold, &mut holds, &own.hold);
        for site in own.sites.iter().filter(|site| get(&site.acquisitions) > 0) {
            let Some(place) = site.place.get() else { continue };
            let place = format!("{}:{}", place.file(), place.line());
            let into = sites.entry(place).or_default();
            into.acquisitions += get(&site.acquisitions);
            into.contentions += get(&site.contentions);
            into.wait_ns += get(&site.wait_ns);
        }
    }
    for (times, buckets) in [(&mut stats.wait, waits), (&mut stats.hold, holds)] {
        let filled = buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        times.buckets = filled.map(|(bucket, count)| (bucket_begin(bucket), *count)).collect();
        times.count = buckets.iter().sum();
    }
    stats.sites = sites.into_iter().map(|(site, stats)| SiteStats { site, ..stats }).collect();
    stats.sites.sort_by_key(|site| std::cmp::Reverse((site.wait_ns, site.acquisitions)));
    stats
}

fn merge_times(times: &mut Times, buckets: &mut [u64; BUCKETS], own: &Histogram) {
    times.total_ns += get(&own.total_ns);
    times.max_ns = times.max_ns.max(get(&own.max_ns));
    for (sum, bucket) in buckets.iter_mut().zip(&own.buckets) {
        *sum += get(bucket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_its_bucket_and_buckets_are_narrow() {
        for bucket in 1..BUCKETS {
            let begin = bucket_begin(bucket);
            assert_eq!((bucket_of(begin - 1), bucket_of(begin)), (bucket - 1, bucket), "at {begin} ns");
            assert!(begin < 8 || bucket_begin(bucket + 1) - begin <= begin / 4);
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }
}
