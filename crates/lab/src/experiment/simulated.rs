//! Simulated runs: a load on a named machine, over a few seeds, as a row.

use crate::row::{Origin, Row};
use crate::stats::median;
use sluice_machine::cell::{touch_read, touch_write};
use sluice_machine::{Cpu, Machine, Report};
use sluice_sync_sim::CachePadded;
use std::cell::Cell;

/// The work that every CPU repeats. Times are in cycles of the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Computing inside the critical section.
    pub(crate) inside: u64,
    /// Lines of shared data that the critical section writes.
    pub(crate) lines: usize,
    /// Computing outside: this at least, and less than twice as much.
    pub(crate) outside: u64,
    /// When no new round is begun. The first quarter is for warming up.
    pub(crate) until: u64,
}

/// A run: what the machine reports, and from when on operations were counted.
pub(crate) struct Run {
    pub(crate) report: Report,
    warm: u64,
}

impl Run {
    /// Operations per second at the machine's clock, after the warm-up.
    pub(crate) fn ops_per_s(&self) -> f64 {
        let Report { mhz, cycles, .. } = self.report;
        self.report.ops() as f64 * f64::from(mhz) * 1e6 / cycles.saturating_sub(self.warm).max(1) as f64
    }
}

/// The data behind a lock: written in each critical section, so that it moves with the lock.
pub(crate) struct Protected {
    lines: Vec<CachePadded<u64>>,
    busy: Cell<bool>,
}

impl Protected {
    pub(crate) fn new(lines: usize) -> Protected {
        Protected { lines: (0..lines).map(|_| CachePadded::new(0)).collect(), busy: Cell::new(false) }
    }

    /// A critical section.
    ///
    /// # Panics
    /// When another CPU is in a critical section: the lock does not exclude.
    pub(crate) fn write(&self, cpu: &Cpu, load: &Load) {
        assert!(!self.busy.replace(true), "two CPUs are in the critical section");
        for line in self.lines.iter().take(load.lines) {
            touch_write(&raw const **line, size_of::<u64>());
        }
        cpu.work(load.inside);
        self.busy.set(false);
    }

    /// A critical section that only reads.
    ///
    /// # Panics
    /// When another CPU is writing: the lock does not exclude.
    pub(crate) fn read(&self, cpu: &Cpu, load: &Load) {
        assert!(!self.busy.get(), "a CPU reads while another writes");
        for line in self.lines.iter().take(load.lines) {
            touch_read(&raw const **line, size_of::<u64>());
        }
        cpu.work(load.inside);
        assert!(!self.busy.get(), "a CPU writes while another reads");
    }
}

/// Rounds of `section` and of computing outside on `cpus` CPUs. They start one after the other: a hundred CPUs
/// that arrive in one nanosecond are a storm of their own, which no benchmark on a real machine sees.
pub(crate) fn contend(machine: &Machine, cpus: usize, load: &Load, section: impl Fn(&Cpu)) -> Run {
    let warm = load.until / 4;
    let report = machine.run(cpus, |cpu| {
        cpu.work(cpu.random(1 + warm / 2));
        while cpu.now() < load.until {
            section(&cpu);
            if cpu.now() >= warm {
                cpu.count_op();
            }
            cpu.work(load.outside + cpu.random(load.outside.max(1)));
        }
    });
    Run { report, warm }
}

/// A row from one run for each seed.
pub(crate) fn row(
    machine: &str,
    workload: &str,
    variant: &str,
    cpus: usize,
    seeds: &[u64],
    run: impl Fn(&Machine) -> Run,
) -> Row {
    let plain = Machine::named(machine);
    let origin = Origin::simulated(plain.spec().title);
    let runs: Vec<Run> = seeds.iter().map(|&seed| run(&plain.clone().seed(seed))).collect();
    let mut row = Row::new(&origin, workload, format!("sim:{machine}"), cpus, cpus);
    row.variant = Some(variant.to_owned());
    row.simulated = true;
    let all = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    row.set_rates(runs.iter().map(|run| run.report.ops()).sum(), &all(Run::ops_per_s));
    row.fairness = median(&all(|run| run.report.fairness()));
    row.idle = median(&all(|run| run.report.idle()));
    row
}
