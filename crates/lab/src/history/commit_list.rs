//! The log's list of committed items: under one lock, as XFS had it until 2022, and in a list for each CPU.
//!
//! A commit inserts its items into the list of the current checkpoint and books the space they take. Under the
//! one lock it writes lines that every other CPU has just written.
//!
//! How many lines and how much computing is a guess, and the share of the lock decides where the knee is.

use sluice_machine::cell::touch_write;
use sluice_machine::{Machine, Report};
use sluice_sync_sim::CachePadded;
use sluice_sync_sim::spin::{Queued, RawSpinLock};

/// Lines that a commit writes under the lock: the list's head and tail, the last item, the context's space and
/// counts, the ticket, the busy-extent list.
const LINES: usize = 6;
/// Computing under the lock: some items are linked.
const INSIDE: u64 = 900;
/// The rest of a file's creation or removal, per commit: 16 CPUs reached 700,000 commits a second, so one CPU
/// took some 23 us for each, 66,000 cycles at 2.9 GHz.
const OUTSIDE: u64 = 60_000;

/// Commits on `cpus` CPUs.
pub fn commit(machine: &Machine, cpus: usize, per_cpu: bool) -> Report {
    let lists: Vec<CachePadded<Queued>> = (0..cpus).map(|_| CachePadded::new(Queued::new())).collect();
    let data: Vec<[CachePadded<u64>; LINES]> =
        (0..cpus).map(|_| std::array::from_fn(|_| CachePadded::new(0))).collect();
    machine.run(cpus, |cpu| {
        while cpu.now() < 20_000_000 {
            let list = if per_cpu { cpu.id() } else { 0 };
            lists[list].lock();
            data[list].iter().for_each(|line| touch_write(&raw const **line, size_of::<u64>()));
            cpu.work(INSIDE);
            lists[list].unlock(());
            cpu.count_op();
            cpu.work(OUTSIDE / 2 + cpu.random(OUTSIDE));
        }
    })
}
