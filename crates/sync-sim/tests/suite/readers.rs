//! Reader-heavy primitives on the simulated multiprocessor: reading stores to no shared line, and 64 CPUs read 64 times
//! as often as one. (Scalable references are looked at in `refcache.rs`, with their flushes.)
//!
//! Every figure here is simulated.

use sluice_machine::Machine;
use sluice_sync_sim::percpu::Counter;
use sluice_sync_sim::rcu::{RcuCell, domain};
use sluice_sync_sim::{Arc, BrLock, HashTable, RadixTree, SeqLock};
use std::cell::Cell;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

/// Nothing written is shared by 64 CPUs that call `read`, and none of them takes a cycle longer than one alone.
fn is_linear(read: impl Fn()) {
    let machine = Machine::named("power7-64").seed(1);
    let report = machine.run(64, |cpu| {
        // The first use takes the own lines into service.
        read();
        cpu.watch(|| (0..20).for_each(|_| read()));
    });
    assert!(report.conflicts.is_empty(), "{}", report.conflicts);
    assert!(report.conflicts.lines_touched > 0, "they were watched");
    // The slowest CPU's time for a thousand reads, when it has fetched what it reads.
    let cycles = |cpus: usize| {
        let slowest = Cell::new(0);
        machine.run(cpus, |cpu| {
            (0..100).for_each(|_| read());
            let begin = cpu.now();
            (0..1_000).for_each(|_| read());
            slowest.set(slowest.get().max(cpu.now() - begin));
        });
        slowest.get()
    };
    let (alone, together) = (cycles(1), cycles(64));
    println!("simulated: 1,000 reads take {alone} cycles alone, {together} beside 63 others");
    assert_eq!(together, alone, "a load that missed, or a store");
}

#[test]
fn reading_under_a_big_reader_lock() {
    let lock = BrLock::new(5);
    is_linear(|| assert_eq!(*lock.read(), 5));
}

#[test]
fn an_rcu_section_and_what_is_read_in_it() {
    let cell = RcuCell::new(domain(), 5);
    is_linear(|| assert_eq!(*cell.load(&cell.read()), 5));
}

#[test]
fn reading_under_a_sequence_lock() {
    let lock = SeqLock::new([1, 2]);
    is_linear(|| assert_eq!(lock.read(), [1, 2]));
}

#[test]
fn finding_in_a_hash_table() {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let table = HashTable::with_buckets_and_hasher(domain(), 1_024, hasher);
    (0..1_000u64).for_each(|key| table.insert(key, key).expect("a new key"));
    is_linear(|| assert!(table.contains(&77)));
}

#[test]
fn finding_in_a_radix_tree() {
    #[repr(align(64))]
    struct Number(u64);
    let tree = RadixTree::new(());
    (0..1_000u64).for_each(|index| tree.write().slots().insert(index, Arc::new(Number(index))));
    is_linear(|| assert_eq!(tree.get(&domain().read(), 77).map(|number| number.0), Some(77)));
}

#[test]
fn adding_to_a_per_cpu_counter() {
    let counter = Counter::new(0);
    is_linear(|| {
        counter.add(1);
        counter.add(-1);
    });
    assert_eq!(counter.sum(), 0);
}
