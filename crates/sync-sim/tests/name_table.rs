//! Name tables on the simulated multiprocessor: looking up, and changing names of different buckets, share no written
//! line.
//!
//! Every figure here is simulated.

use sluice_machine::Machine;
use sluice_sync_sim::rcu::domain;
use sluice_sync_sim::{NameTable, Ref};

/// Each name on lines of its own: the host's heap would decide otherwise which of them share one.
#[global_allocator]
static HEAP: sluice_machine::Heap = sluice_machine::Heap;

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
    grow(&table, 64, write);
    table
}

/// Makes `buckets` buckets of a table in which `write` changes a name.
fn grow<V: Clone + Send + Sync>(table: &NameTable<V>, buckets: usize, write: impl Fn()) {
    while table.buckets() < buckets {
        domain().flush();
        table.grow();
        // Each moves a few buckets.
        (0..buckets / 4).for_each(|_| write());
    }
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

#[test]
fn where_there_are_too_many_buckets_to_count_each_cpu_counts_for_itself() {
    let machine = Machine::named("skylake-4").seed(1);
    let table = machine.prepare(4, || {
        let table = NameTable::new(domain());
        let write = || {
            let mut entry = table.lock(1 << 63, b"mover").expect("alive");
            entry.insert((), 0).expect("a new name");
            entry.remove().expect("is there");
        };
        write();
        grow(&table, 1024, write);
        table
    });
    let report = machine.run(4, |cpu| {
        let change = || {
            // Buckets side by side.
            let mut entry = table.lock((cpu.id() as u64) << 54 | 1 << 40, b"comes").expect("alive");
            entry.insert((), 0).expect("a new name");
            entry.remove().expect("is there");
        };
        change();
        cpu.watch(change);
    });
    assert!(report.conflicts.is_empty(), "{}", report.conflicts);
    assert_eq!((table.len(), table.buckets()), (0, 1024));
}

#[test]
fn counting_the_names_stores_nothing() {
    let machine = Machine::named("power7-64").seed(1);
    let table = machine.prepare(64, table);
    let report = machine.run(64, |cpu| {
        assert_eq!(table.len(), 64);
        cpu.watch(|| assert_eq!(table.len(), 64));
    });
    assert!(report.conflicts.is_empty(), "{}", report.conflicts);
}

#[test]
fn a_listing_looks_once_at_each_bucket_and_each_name() {
    let machine = Machine::named("uma-2");
    let table = machine.prepare(1, table);
    let report = machine.run(1, |_| {
        let section = table.read();
        assert_eq!(table.after(0, &section).count(), 64);
    });
    let section = machine.run(1, |_| drop(table.read()));
    // Where the buckets are, the buckets, and the links behind the names and how these stand.
    assert_eq!(report.accesses() - section.accesses(), 1 + 64 + 2 * 64);
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
