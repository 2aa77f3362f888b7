//! Read-modify-writes: how many locked instructions an uncontended lock and unlock take, and where.

use sluice_locks_sim::{DomainOptions, FileLocks, Kind, LockDomain, Owner, Range, RangeRequest};
use sluice_machine::{Kind as Access, Machine, TraceEntry};

/// More accesses than any of the activities makes.
const ENTRIES: usize = 1_000;

/// The read-modify-writes of `pair` when nobody else uses the file and it was done before.
fn read_modify_writes(options: DomainOptions, pair: impl Fn(&FileLocks)) -> Vec<TraceEntry> {
    let machine = Machine::named("uma-2").trace(ENTRIES);
    let file = machine.prepare(1, || FileLocks::new(&LockDomain::new(options), 0, 1));
    machine.run(1, |_| pair(&file));
    let report = machine.run(1, |_| pair(&file));
    assert!(report.trace.len() < ENTRIES, "the trace is whole");
    assert!(!file.has_locks());
    report.trace.into_iter().filter(|entry| entry.kind == Access::Rmw).collect()
}

#[track_caller]
fn assert_count(entries: &[TraceEntry], count: usize) {
    let lines: Vec<_> = entries.iter().map(|entry| format!("{entry}\n")).collect();
    assert_eq!(entries.len(), count, "\n{}", lines.concat());
}

fn posix_pair(file: &FileLocks) {
    let range = Range::new(10, 19).expect("a range");
    let request = RangeRequest { owner: Owner::Process(1), pid: 1, kind: Kind::Exclusive, range };
    file.set_range(&request).expect("free");
    file.unlock_range(request.owner, range).expect("no limit");
}

fn flock_pair(file: &FileLocks) {
    file.set_flock(1, 1, Kind::Exclusive).expect("free");
    file.unlock_flock(1);
}

#[test]
fn a_files_only_lock_comes_by_one_exchange_and_goes_by_one() {
    for pair in [posix_pair, flock_pair] {
        assert_count(&read_modify_writes(DomainOptions::default(), pair), 2);
    }
}

#[test]
fn a_limit_on_the_number_of_locks_costs_one_more_for_each_call() {
    for pair in [posix_pair, flock_pair] {
        let options = DomainOptions { max_locks: Some(1_000_000), ..Default::default() };
        assert_count(&read_modify_writes(options, pair), 4);
    }
}
