//! Models of the hash table: what stays is found while it is resized, what is removed is freed after its readers.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread;
use sluice_sync_loom::HashTable;
use sluice_sync_loom::atomic::{AtomicUsize, Ordering};
use sluice_sync_loom::face::{Mutant, seed_mutant};
use std::hash::{BuildHasher, Hasher};

/// A key is its own hash, so that a model knows its bucket.
#[derive(Default)]
struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

impl BuildHasher for Itself {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        Itself(0)
    }
}

/// Notes its own end where a late reader would see it.
struct Canary(&'static AtomicUsize);

impl Canary {
    fn new() -> Self {
        Canary(Box::leak(Box::new(AtomicUsize::new(1))))
    }

    fn sing(&self) {
        assert_eq!(self.0.load(Ordering::Relaxed), 1, "freed under a reader");
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        assert_eq!(self.0.swap(0, Ordering::Relaxed), 1, "freed twice");
    }
}

type Table = HashTable<u64, Canary, Itself>;

/// A table of one bucket that holds `keys`.
fn table(keys: &[u64]) -> Table {
    let table = Table::with_buckets_and_hasher(Box::leak(Box::default()), 1, Itself(0));
    keys.iter().for_each(|key| assert!(table.insert(*key, Canary::new()).is_ok(), "a new key"));
    table
}

fn find(table: &Table, key: u64) -> bool {
    let guard = table.read();
    table.get(&key, &guard).inspect(|canary| canary.sing()).is_some()
}

#[test]
fn a_key_that_stays_is_found_while_its_bucket_is_moved() {
    explore(3, || {
        let table = Arc::new(table(&[0, 1]));
        let other = table.clone();
        let reader = thread::spawn(move || assert!(find(&other, 0) && find(&other, 1)));
        assert!(table.resize(2));
        // The write after which the one bucket that there is gets moved.
        assert!(table.insert(2, Canary::new()).is_ok());
        reader.join().expect("the reader ends");
        assert_eq!((table.buckets(), table.len()), (2, 3));
    });
}

#[test]
fn a_removed_value_is_freed_after_its_readers_although_its_bucket_was_moved() {
    explore(2, || {
        let table = Arc::new(table(&[0, 1, 2]));
        let other = table.clone();
        let reader = thread::spawn(move || {
            find(&other, 0);
            assert!(find(&other, 1));
        });
        assert!(table.resize(2));
        // The first moves the bucket after it; each second one starts a grace period.
        assert!(table.remove(&0) && table.remove(&2));
        assert!(table.insert(4, Canary::new()).is_ok() && table.remove(&4));
        reader.join().expect("the reader ends");
        assert!(!find(&table, 0) && find(&table, 1));
    });
}

#[test]
fn two_writers_agree_on_one_key_while_the_table_is_resized() {
    explore(2, || {
        let table = Arc::new(table(&[0]));
        assert!(table.resize(2));
        let other = table.clone();
        let thread = thread::spawn(move || other.insert(2, Canary::new()).is_ok());
        assert!(table.remove(&0));
        let mine = table.insert(2, Canary::new()).is_ok();
        let theirs = thread.join().expect("the thread ends");
        assert!(mine != theirs, "one of them was first");
        assert_eq!((table.len(), find(&table, 2)), (1, true));
    });
}

/// The second resize uses the links by which a reader may still walk the chain of the first.
fn two_resizes_beside_a_reader() {
    explore(3, || {
        let table = Arc::new(table(&[0, 1]));
        let other = table.clone();
        // The last of its chain.
        let reader = thread::spawn(move || find(&other, 1));
        for buckets in [2, 4] {
            table.resize(buckets);
            for key in [10, 11] {
                assert!(table.insert(key + buckets as u64, Canary::new()).is_ok());
            }
        }
        let found = reader.join().expect("the reader ends");
        // A failing assertion must not run destructors outside the execution.
        drop(table);
        assert!(found, "a key that stays was not found");
    });
}

#[test]
fn a_reader_of_the_old_chain_is_waited_for_before_the_next_resize() {
    seed_mutant(None);
    two_resizes_beside_a_reader();
}

#[test]
#[should_panic(expected = "was not found")]
fn a_resize_without_its_grace_period_is_found() {
    seed_mutant(Some(Mutant::ResizeWithoutGracePeriod));
    two_resizes_beside_a_reader();
}
