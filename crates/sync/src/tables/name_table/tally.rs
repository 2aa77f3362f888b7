//! Tally: how many entries a table has: what a bucket or a CPU counted, and what all that adds up to.
//!
//! # Theory
//! Additions and removals are counted apart: an entry may come on one CPU and go on another, so that a single
//! difference may be negative and only the sum has a meaning. And neither count ever falls. So a sum that looks twice
//! and finds all the same has seen what all counted at the moment between the two looks, and not a count that came back
//! meanwhile.
//!
//! A CPU's count is added to by read-modify-writes: a thread may be moved to another CPU before it has counted. The holder of a
//! bucket is alone with its count.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | tally | [`Count::add`], [`Count::remove`] | [`EntryCounts::add`] | what was counted before: that the move was claimed which counts an entry elsewhere; that an entry came which goes |

use crate::chains::{Array, Bucket, Node, is_locked};
use crate::face::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::fibonacci;

/// Counts of entries that came and went, in a bucket or in its array on one CPU.
#[derive(Default)]
pub(super) struct Count {
    /// How many entries came. *atomic (tally)*
    added: AtomicU64,
    /// How many went. *atomic (tally)*
    removed: AtomicU64,
    /// The sum of the weights of those that came, less those that went. *atomic (tally)*
    weight: AtomicI64,
    /// For a CPU: the count of arrivals at which it next sums all counts; 0 before its first sum. *atomic*
    looks_at: AtomicU64,
}

/// Which thread adds to a count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Adder {
    /// The holder of the lock of the bucket that it is a count of.
    Holder,
    /// A thread that runs on the CPU that it is a count of, or did a moment ago; or either.
    Anybody,
}

impl Adder {
    /// To the counts of `array`, by the holder of a bucket there.
    pub(super) fn to<N: Node>(array: &Array<N>) -> Adder {
        if array.cpus().is_none() { Adder::Holder } else { Adder::Anybody }
    }
}

impl Count {
    /// Counts an entry of `weight` that came.
    pub(super) fn add(&self, weight: u8, by: Adder) {
        self.reweigh(0, weight, by);
        raise(&self.added, by);
    }

    /// Counts an entry of `weight` that went.
    pub(super) fn remove(&self, weight: u8, by: Adder) {
        self.reweigh(weight, 0, by);
        raise(&self.removed, by);
    }

    /// Counts an entry with weight `to` that had the weight `from`.
    pub(super) fn reweigh(&self, from: u8, to: u8, by: Adder) {
        if from == to {
            return;
        }
        let change = i64::from(to) - i64::from(from);
        // Relaxed and Release(tally): as in raise().
        match by {
            Adder::Holder => {
                self.weight.store(self.weight.load(Ordering::Relaxed) + change, Ordering::Release);
            }
            Adder::Anybody => _ = self.weight.fetch_add(change, Ordering::Release),
        }
    }

    /// Whether it is time for the CPU to look at the counts of all: if it never did, when it has added `at_first`.
    pub(super) fn should_look(&self, at_first: usize) -> bool {
        // Relaxed, both: a look too early or too late does no harm.
        let looks_at = match self.looks_at.load(Ordering::Relaxed) {
            0 => at_first as u64,
            number => number,
        };
        self.added.load(Ordering::Relaxed) >= looks_at
    }

    /// Says that the CPU need not look before it has added so many more.
    pub(super) fn look_after(&self, names: usize) {
        // Relaxed: as in should_look().
        self.looks_at.store(self.added.load(Ordering::Relaxed) + names as u64, Ordering::Relaxed);
    }

    /// Whether the number of entries that went is a multiple of `names`.
    pub(super) fn has_removed_multiple_of(&self, names: usize) -> bool {
        // Relaxed: only for when the array is made smaller.
        self.removed.load(Ordering::Relaxed).is_multiple_of(names as u64)
    }

    /// How many more came than went, about.
    pub(super) fn entries(&self) -> i64 {
        // Relaxed, both: only for when the array is grown; in a bucket, under its lock.
        difference(self.added.load(Ordering::Relaxed), self.removed.load(Ordering::Relaxed))
    }
}

/// Adds 1 to `count`.
fn raise(count: &AtomicU64, by: Adder) {
    match by {
        // Relaxed: nobody else adds. Release(tally): pairs with Acquire(tally) in Tally::add_one().
        Adder::Holder => count.store(count.load(Ordering::Relaxed) + 1, Ordering::Release),
        // Release(tally): as above.
        Adder::Anybody => _ = count.fetch_add(1, Ordering::Release),
    }
}

fn difference(added: u64, removed: u64) -> i64 {
    added.wrapping_sub(removed).cast_signed()
}

/// The sums of counts, and a check of whether they are of one moment.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct EntryCounts {
    pub(super) entries: i64,
    pub(super) weight: i64,
    /// A number that tells apart counts which add up to the same.
    print: u64,
    /// Nobody was moving an entry from one bucket to another, as far as can be told.
    pub(super) is_settled: bool,
}

impl EntryCounts {
    /// Counts of nothing yet.
    pub(super) fn new() -> Self {
        // Not 0, or it would not tell how many counts of 0 came first.
        EntryCounts { is_settled: true, print: 1, ..EntryCounts::default() }
    }

    /// Adds what is counted in `array`. If its buckets count, their locks say whether somebody is at work there.
    pub(super) fn add<N: Node<Count = Count>>(&mut self, array: &Array<N>) {
        match array.cpus() {
            Some(cpus) => cpus.iter().for_each(|count| self.add_one(count)),
            None => array.used_buckets().for_each(|bucket| {
                self.add_one(bucket.count());
                self.is_settled &= !is_locked::<N>(bucket);
            }),
        }
    }

    fn add_one(&mut self, count: &Count) {
        // Acquire(tally): see the header; pairs with Release(tally) in Count.
        let [removed, added] = [&count.removed, &count.added].map(|count| count.load(Ordering::Acquire));
        let weight = count.weight.load(Ordering::Acquire);
        self.entries += difference(added, removed);
        self.weight += weight;
        for number in [added, removed, weight.cast_unsigned()] {
            self.print = fibonacci(self.print.rotate_left(5).wrapping_add(number));
        }
    }

    /// The sums of the counts.
    pub(super) fn sums(&self) -> super::Sums {
        super::Sums {
            entries: u64::try_from(self.entries).unwrap_or(0),
            weight: u64::try_from(self.weight).unwrap_or(0),
        }
    }
}
