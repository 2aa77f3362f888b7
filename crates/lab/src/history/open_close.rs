//! open and close of 2010: every one through global spin locks, against per-CPU lists and a walk without stores.
//!
//! Before, each open and close took the dentry cache's lock, the inode lock, the mount lock and the list of open files;
//! spin locks without order, as POWER had them. After, only lines that the process does not share are left.

use sluice_lock_zoo_sim::{RawSpinLock, Tas};
use sluice_machine::cell::touch_write;
use sluice_machine::{Machine, Report};
use sluice_sync_sim::CachePadded;

/// The global locks, and how often an open with its close takes each.
const TAKEN: [usize; 3] = [6, 2, 2];
/// The rest of it, in cycles: 384,558 a second at 3.5 GHz are 9,100 in all.
const REST: u64 = 8_000;
/// Computing under a lock.
const INSIDE: u64 = 60;

/// Opens and closes of `cpus` processes.
pub fn open_and_close(machine: &Machine, cpus: usize, global: bool) -> Report {
    let sets = if global { 1 } else { cpus };
    let locks: Vec<[CachePadded<Tas>; TAKEN.len()]> =
        (0..sets).map(|_| std::array::from_fn(|_| CachePadded::new(Tas::new()))).collect();
    let data: Vec<[CachePadded<u64>; TAKEN.len()]> =
        (0..sets).map(|_| std::array::from_fn(|_| CachePadded::new(0))).collect();
    machine.run(cpus, |cpu| {
        let set = cpu.id() % sets;
        while cpu.now() < 10_000_000 {
            for (lock, &times) in TAKEN.iter().enumerate() {
                for _ in 0..times {
                    locks[set][lock].lock();
                    touch_write(&raw const *data[set][lock], size_of::<u64>());
                    cpu.work(INSIDE);
                    locks[set][lock].unlock(());
                    cpu.work(REST / 20 + cpu.random(REST / 10));
                }
            }
            cpu.count_op();
        }
    })
}
