//! Name tables on the simulated multiprocessor: looking up, and changing names of different buckets, share no written
//! line.
//!
//! Every figure here is simulated.

use sluice_machine::Machine;
use sluice_sync_sim::rcu::{Domain, domain};
use sluice_sync_sim::{NameTable, Ref};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A hash whose bucket is `n` in an array of 64.
fn hash_of(n: usize) -> u64 {
    (n as u64) << 58 | 1 << 40
}

/// A table of 64 buckets with one name in each 64th of the hashes.
fn table() -> NameTable<Ref<usize>> {
    table_of(64)
}

/// A table of `buckets` buckets, with the names of [`table`].
fn table_of(buckets: usize) -> NameTable<Ref<usize>> {
    // A domain of its own: tests that run beside this one have sections too.
    let domain: &Domain = Box::leak(Box::default());
    let table = NameTable::new(domain);
    for n in 0..64 {
        let mut entry = table.lock(hash_of(n), b"stays").expect("alive");
        entry.insert(Ref::new(n), 0).expect("a new name");
    }
    while table.buckets() < buckets {
        domain.flush();
        table.grow();
        // Each moves a few buckets.
        (0..table.buckets()).for_each(|_| table.help());
    }
    table
}

#[test]
fn finding_one_name_on_64_cpus_writes_no_shared_line() {
    let machine = Machine::named("power7-64").seed(1);
    let table = machine.prepare(64, table);
    let report = machine.run(64, |cpu| {
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
    let machine = Machine::named("power7-64").seed(1);
    let table = machine.prepare(64, table);
    let report = machine.run(64, |cpu| {
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

/// More buckets than count on their own for 64 CPUs.
const LARGE: usize = 16_384;

/// A hash whose bucket is `n` in an array of [`LARGE`].
fn hash_in_large(n: usize) -> u64 {
    (n as u64) << (64 - LARGE.ilog2()) | 1 << 40
}

#[test]
fn adding_and_removing_names_of_neighbouring_buckets_of_a_large_table_writes_no_shared_line() {
    let machine = Machine::named("power7-64").seed(1);
    let table = machine.prepare(64, || table_of(LARGE));
    let report = machine.run(64, |cpu| {
        let change = |n: usize| {
            let hash = hash_in_large(64 * n + cpu.id());
            let mut entry = table.lock(hash, b"comes").expect("alive");
            entry.insert(Ref::new(0), 1).expect("a new name");
            assert!(n % 3 == 1 || entry.remove().is_some());
        };
        // The first reference that is dropped is the one for which a CPU joins the others that count.
        (0..2).for_each(change);
        cpu.watch(|| (2..20).for_each(change));
    });
    assert!(report.conflicts.is_empty(), "{}", report.conflicts);
    machine.run(64, |_| {
        let sums = table.sums();
        assert_eq!((sums.entries, sums.weight), (64 + 7 * 64, 7 * 64));
    });
}

#[test]
fn a_thread_that_makes_and_removes_one_name_seldom_looks_at_the_counts_of_others() {
    let machine = Machine::named("power7-64").seed(1);
    let accesses = |buckets| {
        let table = machine.prepare(64, || table_of(buckets));
        let report = machine.run(64, |cpu| {
            for _ in 0..if cpu.id() == 0 { 1_024 } else { 0 } {
                let mut entry = table.lock(hash_of(0), b"comes").expect("alive");
                entry.insert(Ref::new(0), 0).expect("a new name");
                entry.remove().expect("is there");
            }
        });
        report.accesses()
    };
    // For one of 512 names, at two counts of each of 64 CPUs: one for each fourth name.
    let (small, large) = (accesses(64), accesses(LARGE));
    assert!(large < small + small / 16, "{small} in a small table, {large} in a large one");
}

#[test]
fn counting_the_names_stores_nothing() {
    let machine = Machine::named("power7-64").seed(1);
    for buckets in [64, LARGE] {
        let table = machine.prepare(64, || table_of(buckets));
        let report = machine.run(64, |cpu| {
            assert_eq!(table.len(), 64);
            cpu.watch(|| assert_eq!(table.len(), 64));
        });
        assert!(report.conflicts.is_empty(), "{}", report.conflicts);
        // Two looks at each bucket, or at what each CPU counted, and how far a move has come.
        let report = machine.run(1, |_| assert_eq!(table.len(), 64));
        assert!(report.accesses() < 800, "{} accesses", report.accesses());
    }
}

#[test]
fn one_cpu_alone_and_all_together_make_a_large_table_grow_in_time() {
    for cpus in [1, 64] {
        let machine = Machine::named("power7-64").seed(1);
        let table = machine.prepare(64, || table_of(LARGE));
        let names = AtomicUsize::new(64);
        machine.run(64, |cpu| {
            while cpu.id() < cpus && table.buckets() == LARGE {
                let n = names.fetch_add(1, Ordering::Relaxed);
                assert!(n <= 4 * LARGE, "full");
                let hash = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let mut entry = table.lock(hash, b"new").expect("alive");
                entry.insert(Ref::new(0), 0).expect("a new name");
                drop(entry);
                // Or thousands come before a grace period is over.
                cpu.work(10_000);
            }
        });
        assert_eq!(table.buckets(), 4 * LARGE);
        assert!(names.into_inner() > 2 * LARGE, "half empty");
    }
}

#[test]
fn a_listing_looks_once_at_each_bucket_and_each_name() {
    let machine = Machine::named("uma-2");
    let table = machine.prepare(1, table);
    let section = || machine.run(1, |_| drop(table.read()));
    // The first says that the reader is back.
    section();
    let report = machine.run(1, |_| {
        let section = table.read();
        assert_eq!(table.after(0, &section).count(), 64);
    });
    // Where the buckets are, the buckets, and the links behind the names and how these stand.
    assert_eq!(report.accesses() - section().accesses(), 1 + 64 + 2 * 64);
}

/// How many buckets a table has after each of 64 CPUs has locked the name of the hash that `hash` says, 64 times, and
/// added it if it was not there; `comes_and_goes` if it is then removed.
fn buckets_after(comes_and_goes: bool, hash: impl Fn(usize, usize) -> u64) -> usize {
    let table = NameTable::new(domain());
    Machine::named("power7-64").seed(1).run(64, |cpu| {
        for n in 0..64 {
            let mut entry = table.lock(hash(cpu.id(), n), b"name").expect("alive");
            if entry.insert((), 0).is_ok() && comes_and_goes {
                entry.remove().expect("added");
            }
            drop(entry);
            cpu.work(100);
        }
    });
    table.buckets()
}

#[test]
fn a_table_grows_when_many_wait_to_change_it_but_not_when_all_want_one_name() {
    assert_eq!(buckets_after(false, |_, n| hash_of(n)), 16);
    assert!(buckets_after(true, |cpu, _| hash_of(cpu)) >= 64);
}
