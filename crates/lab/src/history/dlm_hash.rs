//! Resource tables of cluster lock managers: how long the lookup of a lock takes when many are cached.
//!
//! # Theory
//! | design | buckets | under | a bucket is |
//! |---|---|---|---|
//! | of 2006 | a page: 512 | one spin lock, and so is the hash | a list |
//! | as it was mended | 1 MiB: 131,072 | the same | a list |
//! | fs/dlm | 1,024 | a spin lock each | a tree |
//! | ours | as many as there are locks, twice as many when a chain is long | none | a list of about one |
//!
//! A lock's number chooses its bucket and its place there, so that nothing need be linked: the lookup reads the lines that are
//! before it.
//!
//! # Sources
//! S3: the resource table of ocfs2's lock manager in 2006, of one page, and the patches that followed; the kernel's fs/dlm.

use super::sync::{CachePadded, HashTable, rcu};
use super::zoo::{Queued, RawSpinLock};
use super::{Cpu, Line};

/// Computing the hash of a name, and comparing two.
const HASH: u64 = 60;
const COMPARE: u64 = 10;

/// How the table is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// One page of buckets, under one lock.
    Page,
    /// One MiB of buckets, under one lock.
    Mebibyte,
    /// Trees, under a lock each.
    FsDlm,
    /// The table of `sync`.
    Ours,
}

/// The designs with their names in reports.
pub const DESIGNS: [(Design, &str); 4] = [
    (Design::Page, "before"),
    (Design::Mebibyte, "source"),
    (Design::FsDlm, "fs-dlm"),
    (Design::Ours, "ours"),
];

/// A table in which a number of locks is cached.
pub struct Resources {
    design: Design,
    locks: Vec<CachePadded<Queued>>,
    buckets: u64,
    /// A line for each lock.
    nodes: Vec<Line>,
    /// The place of each lock in `nodes`; empty in the other designs.
    ours: HashTable<u64, u64>,
}

impl Resources {
    /// A table of so many locks.
    pub fn new(design: Design, count: u64) -> Resources {
        let (locks, buckets) = match design {
            Design::Page => (1, 512),
            Design::Mebibyte => (1, 131_072),
            Design::FsDlm => (1_024, 1_024),
            Design::Ours => (0, 1),
        };
        let ours = HashTable::new(rcu::domain());
        if design == Design::Ours {
            for key in 0..count {
                assert!(ours.insert(key, key).is_ok(), "each once");
            }
        }
        Resources {
            design,
            locks: (0..locks).map(|_| CachePadded::new(Queued::default())).collect(),
            buckets,
            nodes: (0..count).map(|_| Line::default()).collect(),
            ours,
        }
    }

    /// How many locks it has.
    pub fn count(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Looks up one of the locks.
    pub fn look_up(&self, cpu: &Cpu, key: u64) {
        let (bucket, place) = (key % self.buckets, key / self.buckets);
        let node = |place: u64| &self.nodes[(bucket + place * self.buckets) as usize];
        match self.design {
            Design::Page | Design::Mebibyte => {
                self.locks[0].lock();
                cpu.work(HASH);
                for before in 0..=place {
                    node(before).read();
                    cpu.work(COMPARE);
                }
                self.locks[0].unlock(());
            }
            Design::FsDlm => {
                cpu.work(HASH);
                let lock = &self.locks[bucket as usize];
                lock.lock();
                let (mut low, mut high) = (0, (self.count() - bucket).div_ceil(self.buckets));
                while low < high {
                    let middle = low + (high - low) / 2;
                    node(middle).read();
                    cpu.work(COMPARE);
                    match middle.cmp(&place) {
                        std::cmp::Ordering::Equal => break,
                        std::cmp::Ordering::Less => low = middle + 1,
                        std::cmp::Ordering::Greater => high = middle,
                    }
                }
                lock.unlock(());
            }
            Design::Ours => {
                cpu.work(HASH);
                let section = self.ours.read();
                let found = self.ours.get(&key, &section).copied();
                let found = found.expect("all locks are in the table");
                self.nodes[found as usize].read();
                cpu.work(COMPARE);
            }
        }
    }
}
