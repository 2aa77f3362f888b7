//! Name tables on the simulated multiprocessor: looking up, and changing names of different buckets, share no written
//! line.
//!
//! Every figure here is simulated.

use sluice_machine::Machine;
use sluice_sync_sim::rcu::domain;
use sluice_sync_sim::{NameTable, Ref};

/// A hash whose bucket is `n` in an array of 64.
fn hash_of(n: usize) -> u64 {
    (n as u64) << 58 | 1 << 40
}

/// A table of 64 buckets with one name in each of them.
fn table() -> NameTable<Ref<usize>> {
    let table = NameTable::new(domain());
    for n in 0..64 {
        let mut entry = table.lock(hash_of(n), b"stays").expect("alive");
        entry.insert(Ref::new(n), 0).expect("a new name");
    }
    let write = || {
        let mut entry = table.lock(0, b"mover").expect("alive");
        entry.insert(Ref::new(0), 0).expect("a new name");
        entry.remove().expect("is there");
    };
    while table.buckets() < 64 {
        domain().flush();
        table.grow();
        // Each moves a few buckets.
        (0..16).for_each(|_| write());
    }
    table
}

#[test]
fn finding_one_name_on_64_cpus_writes_no_shared_line() {
    let table = table();
    let report = Machine::named("power7-64").seed(1).run(64, |cpu| {
        let find = || {
            let guard = table.read();
            assert_eq!(table.get(hash_of(7), b"stays", &guard).map(|found| **found), Some(7));
        };
        find();
        cpu.watch(find);
    });
    assert!(report.conflicts.is_empty(), "{}", report.conflicts);
    assert!(report.conflicts.lines_touched > 64, "they were watched");
}

#[test]
fn adding_and_removing_names_of_different_buckets_writes_no_shared_line() {
    let table = table();
    let report = Machine::named("power7-64").seed(1).run(64, |cpu| {
        let change = || {
            let hash = hash_of(cpu.id());
            let mut entry = table.lock(hash, b"comes").expect("alive");
            entry.insert(Ref::new(0), 0).expect("a new name");
            entry.remove().expect("is there");
        };
        change();
        cpu.watch(change);
    });
    assert!(report.conflicts.is_empty(), "{}", report.conflicts);
}

#[test]
fn counting_the_names_stores_nothing() {
    let table = table();
    let report = Machine::named("power7-64").seed(1).run(64, |cpu| {
        assert_eq!(table.len(), 64);
        cpu.watch(|| assert_eq!(table.len(), 64));
    });
    assert!(report.conflicts.is_empty(), "{}", report.conflicts);
}
