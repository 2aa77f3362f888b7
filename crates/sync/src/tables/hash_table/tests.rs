//! Tests of the hash table: an oracle for one thread, and readers and writers under resizing.

use super::*;
use crate::atomic::Ordering;
use crate::random::Random;
use crate::rcu::tests::kept_domain;
use crate::{Arc, thread};
use std::collections::HashMap;

fn table<V: Send + Sync>() -> HashTable<u64, V> {
    HashTable::new(kept_domain())
}

#[test]
fn the_table_agrees_with_the_standard_map_through_many_resizes() {
    let (table, mut oracle) = (table(), HashMap::new());
    let mut random = Random::new(7);
    let (steps, keys) = if SHRUNK { (150, 40) } else { (60_000, 4_000) };
    for step in 0..steps {
        let key = random.below(keys);
        match random.below(8) {
            0..5 => assert_eq!(table.insert(key, step).is_ok(), !oracle.contains_key(&key)),
            5..8 => assert_eq!(table.remove(&key), oracle.remove(&key).is_some()),
            _ => unreachable!("a remainder by 8"),
        }
        if table.contains(&key) {
            oracle.entry(key).or_insert(step);
        }
        if step % (steps / 60) == 0 {
            table.resize(1 << random.below(if SHRUNK { 4 } else { 12 }));
        }
    }
    let guard = table.read();
    assert!(oracle.iter().all(|(key, value)| table.get(key, &guard) == Some(value)));
    let mut seen = HashMap::new();
    table.for_each(|key, value| assert_eq!(seen.insert(*key, *value), None, "nobody resizes meanwhile"));
    assert_eq!(seen, oracle);
    assert_eq!(table.len(), oracle.len());
}

#[test]
#[cfg_attr(miri, ignore = "takes thousands of keys: each growth waits for a grace period")]
fn the_table_grows_by_itself_and_shrinks_on_request() {
    let table = table();
    let count = 10_000;
    (0..count).for_each(|key| table.insert(key, ()).expect("a new key"));
    assert!(table.buckets() * 8 >= table.len(), "{} buckets", table.buckets());
    (0..count - 1).for_each(|key| assert!(table.remove(&key)));
    let large = table.buckets();
    table.chains.domain.flush();
    // The last growth must end first, and each write moves it on a little.
    for _ in 0..large {
        if table.shrink() {
            break;
        }
        assert!(table.insert(count, ()).is_ok() && table.remove(&count));
    }
    assert!(table.buckets() < large && table.contains(&(count - 1)));
}

#[test]
fn a_key_that_stays_is_always_found_while_the_table_is_resized() {
    let table = table();
    let (stay, rounds) = if SHRUNK { (4, 10) } else { (200, 3_000) };
    (0..stay).for_each(|key| table.insert(key, key).expect("a new key"));
    let done = crate::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for key in 0..stay {
                        assert_eq!(table.get(&key, &table.read()), Some(&key));
                    }
                }
            });
        }
        let writers = [1u64, 2].map(|writer| {
            let table = &table;
            scope.spawn(move || {
                let mut random = Random::new(writer);
                for _ in 0..rounds {
                    let key = writer * 1_000_000 + random.below(500);
                    if table.insert(key, key).is_err() {
                        assert!(table.remove(&key));
                    }
                    table.resize(1 << random.below(10));
                }
            })
        });
        writers.into_iter().for_each(|writer| writer.join().expect("a writer ends"));
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_value_is_dropped_once_and_not_before_its_readers_end() {
    let (table, value) = (table(), Arc::new(()));
    let domain = table.chains.domain;
    let count = if SHRUNK { 10 } else { 1_000 };
    (0..count).for_each(|key| table.insert(key, value.clone()).expect("a new key"));
    let guard = table.read();
    let found = table.get(&3, &guard).expect("is there");
    assert!(table.remove(&3) && table.get(&3, &guard).is_none());
    assert_eq!(Arc::strong_count(found) as u64, count + 1);
    drop(guard);
    domain.flush();
    assert_eq!(Arc::strong_count(&value) as u64, count);
    table.resize(table.buckets() * 2);
    table.remove(&4);
    drop(table);
    domain.flush();
    assert_eq!(Arc::strong_count(&value), 1, "also when a move is half done");
}

#[test]
fn a_duplicate_is_given_back() {
    let table = table();
    assert!(table.insert(1, "one").is_ok());
    assert_eq!(table.insert(1, "two"), Err((1, "two")));
    assert_eq!(table.get(&1, &table.read()), Some(&"one"));
    assert!(!table.is_empty());
}
