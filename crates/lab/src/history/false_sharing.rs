//! The dentry whose reference count shared a line with its name, until 2024.
//!
//! To stat a file its name is compared and its count is raised and lowered. Where both are in one line, each
//! comparison brings back a line that somebody has just written.
//!
//! The kernel's count is changed by a compare-and-exchange loop; here by unconditional additions. With the loop
//! nothing is gained (1.00): its load brings the name along, which is then compared for nothing.

use sluice_machine::cell::touch_read;
use sluice_machine::{Machine, Report};
use sluice_sync_sim::CachePadded;
use sluice_sync_sim::atomic::{AtomicU64, Ordering};

/// The rest of a stat, in cycles: a third of a microsecond.
const OUTSIDE: u64 = 1_000;

#[repr(C, align(64))]
#[derive(Default)]
struct Dentry {
    name: [u8; 32],
    count: AtomicU64,
}

/// stat(2) of one file, from `cpus` CPUs.
pub fn stat(machine: &Machine, cpus: usize, apart: bool) -> Report {
    let (dentry, other) = (Box::new(Dentry::default()), CachePadded::new(AtomicU64::new(0)));
    let count = if apart { &*other } else { &dentry.count };
    machine.run(cpus, |cpu| {
        while cpu.now() < 4_000_000 {
            touch_read(dentry.name.as_ptr(), dentry.name.len());
            count.fetch_add(1, Ordering::Relaxed);
            cpu.work(OUTSIDE / 2);
            count.fetch_sub(1, Ordering::Relaxed);
            cpu.count_op();
            cpu.work(OUTSIDE / 2);
        }
    })
}
