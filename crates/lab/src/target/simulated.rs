//! Simulated: the targets `sim:MACHINE` and `sim:MACHINE:store`, the library's twin on a machine of 2 to 256 simulated CPUs.
//!
//! # Theory
//! ```text
//!  on the machine   every CPU: set up its task            a run of its own, so that its waiting does not count
//!  on the machine   every CPU: warm up | go on until the last is warm | n operations | go on until the last has done its n
//!  off the machine  every task: verify
//! ```
//! A CPU's rate is its n operations over its own time for them, and the rates are added up; those that are done
//! go on for a while, uncounted, so that the last ones do not get the machine for themselves. Between passes a task is set up
//! again, in time that is not counted. Setting up on the CPU that works later matters: what was made there lies in its per-CPU structures.
//!
//! All figures are *simulated*: compare them with other simulated figures of the same machine only.

#[path = "library.rs"]
#[allow(clippy::duplicate_mod, reason = "the same source with the twin of the library")]
#[allow(unreachable_pub, reason = "public where it is the target `lib`")]
mod library;

use library::Library;

use crate::hot_lines::{HotLine, HotPlace};
use crate::simulated_fs::On;
use crate::target::{Calls, Target};
use crate::timed_run::{Outcome, latencies};
use crate::workload::{Seat, Task, Workload};
use hdrhistogram::Histogram;
use sluice_console::corpus::Corpus;
use sluice_console::failure::{Failure, Result};
use sluice_machine::{Cpu, Machine, Report};
use sluice_sync::Arc;
use sluice_sync_sim::{Host, rcu, refcache};
use sluice_vfs_sim::{self as vfs, Fs};
use std::cell::{Cell, RefCell};
use std::panic::Location;

/// Operations of each CPU that are counted, unless a number is asked for.
pub const DEFAULT_OPS: u64 = 100;
/// As many operations warm the CPU up first, but at most this number and a quarter of the counted ones: by then memory of removed files is
/// freed and used again.
const WARM_UP_MAX: u64 = 1_000;
/// For how many times its counted operations a CPU goes on at most: one that starves must not starve for ever.
const KEEP_ON_FACTOR: u64 = 4;
/// Over how many cycles the CPUs' starts are spread.
const SCATTER: u64 = 2000;
/// How many of a report's hottest lines a result keeps.
const HOT_LINES: usize = 5;

/// One run of `workload` on `cpus` CPUs of `machine`, a task for each, `ops` operations of each counted.
///
/// # Errors
/// Errors of the calls, a wrong result, and a fault that keeps the machine from ending.
pub fn simulated_run(
    machine: &Machine,
    on: On,
    workload: &Workload,
    cpus: usize,
    ops: u64,
    corpus: &Arc<Corpus>,
) -> Result<Outcome> {
    // Without a new host this run would meet the rest of an earlier one: a CPU that counts no more is waited for, a reader looked
    // at.
    Host::renew();
    let superblock = machine.prepare(cpus, || on.superblock(Library::options()));
    let superblock = superblock.map_err(|error| Failure::Failed(error.to_string()))?;
    let library = machine.prepare(cpus, || Library::within(Fs::with_superblock(superblock.clone()), "/"));
    let seats = machine.prepare(cpus, || {
        let mut calls = library.task()?;
        calls.mkdir("shared")?;
        let seats = (0..cpus).map(|index| {
            let mut calls = library.task()?;
            let dir = format!("task-{index}");
            calls.mkdir(&dir)?;
            let seat = Seat { dir, shared: "shared".into(), index, corpus: corpus.clone() };
            let task = (workload.task)(seat);
            let worker = TaskOnCpu { calls, task, is_ready: false, part: Part::default() };
            Ok(RefCell::new(worker))
        });
        seats.collect::<Result<Vec<_>>>()
    })?;
    on_every_cpu(machine, &seats, |_, worker| worker.get_ready())?;
    let (cold, left) = (Cell::new(cpus), Cell::new(cpus));
    let report = on_every_cpu(machine, &seats, |cpu, worker| worker.work(cpu, ops, &cold, &left))?;
    machine.prepare(cpus, || {
        for seat in &seats {
            let worker = &mut *seat.borrow_mut();
            worker.task.verify(&mut *worker.calls, &library)?;
        }
        let outcome = outcome(&seats, &report);
        drop((seats, library));
        rcu::domain().flush();
        refcache::settle();
        // The last to let go of it: one over a store wants to end outside of any destructor.
        drop(superblock);
        Ok(outcome)
    })
}

/// Does `work` on every CPU, with its own worker.
fn on_every_cpu(
    machine: &Machine,
    seats: &[RefCell<TaskOnCpu>],
    work: impl Fn(&Cpu, &mut TaskOnCpu) -> Result<()>,
) -> Result<Report> {
    let failed = RefCell::new(None);
    let report = machine.try_run(seats.len(), |cpu| {
        if let Err(failure) = work(&cpu, &mut seats[cpu.id()].borrow_mut()) {
            failed.borrow_mut().get_or_insert(failure);
        }
    });
    match failed.into_inner() {
        Some(failure) => Err(failure),
        None => report.map_err(|error| Failure::Failed(error.to_string())),
    }
}

/// A task with its calls, on one CPU.
struct TaskOnCpu {
    calls: Box<dyn Calls>,
    task: Box<dyn Task>,
    /// The task is set up, and its pass has not ended.
    is_ready: bool,
    part: Part,
}

/// The counts of a CPU. Times are in cycles.
#[derive(Default)]
struct Part {
    cycles: u64,
    each: Vec<u64>,
    /// All operations, also those that are not counted.
    steps: u64,
}

impl TaskOnCpu {
    /// `cold` CPUs have yet to warm up, and `left` to do their operations. One host thread runs all CPUs, so these need no
    /// atomic, and the machine does not see them.
    fn work(&mut self, cpu: &Cpu, ops: u64, cold: &Cell<usize>, left: &Cell<usize>) -> Result<()> {
        let warm = self.warm_up(cpu, ops);
        cold.set(cold.get() - 1);
        let counted = warm
            .and_then(|()| self.go_on_until(cpu, ops, || cold.get() == 0))
            .and_then(|()| self.count(cpu, ops));
        left.set(left.get() - 1);
        counted.and_then(|()| self.go_on_until(cpu, ops, || left.get() == 0))
    }

    /// Operations that are not counted, until something `is_over`: a CPU that waited idly would be waited for.
    fn go_on_until(&mut self, cpu: &Cpu, ops: u64, is_over: impl Fn() -> bool) -> Result<()> {
        for _ in 0..ops * KEEP_ON_FACTOR {
            if is_over() {
                break;
            }
            self.step(cpu)?;
        }
        Ok(())
    }

    /// Sets the task up, before its first pass and after each.
    fn get_ready(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.task.prepare(&mut *self.calls)?;
        }
        Ok(())
    }

    /// One operation; returns how many cycles it took.
    fn step(&mut self, cpu: &Cpu) -> Result<u64> {
        self.get_ready()?;
        self.part.steps += 1;
        let before = cpu.now();
        self.is_ready = self.task.step(&mut *self.calls)?;
        Ok(cpu.now() - before)
    }

    fn warm_up(&mut self, cpu: &Cpu, ops: u64) -> Result<()> {
        scatter(cpu);
        (0..ops.min(WARM_UP_MAX).max(ops / 4)).try_for_each(|_| self.step(cpu).map(drop))
    }

    fn count(&mut self, cpu: &Cpu, ops: u64) -> Result<()> {
        for _ in 0..ops {
            let cycles = self.step(cpu)?;
            cpu.count_op();
            self.part.cycles += cycles;
            self.part.each.push(cycles);
        }
        Ok(())
    }
}

/// CPUs that arrive in one nanosecond are a storm that no benchmark on a real machine sees.
fn scatter(cpu: &Cpu) {
    cpu.work(cpu.random(SCATTER));
}

fn outcome(seats: &[RefCell<TaskOnCpu>], report: &Report) -> Outcome {
    let mhz = f64::from(report.mhz);
    let mut latency_ns: Histogram<u64> = latencies();
    let (mut ops, mut steps, mut ops_per_s) = (0, 0, 0.0);
    for seat in seats {
        let part = &seat.borrow().part;
        let counted = part.each.len() as u64;
        ops += counted;
        steps += part.steps;
        ops_per_s += counted as f64 * mhz * 1e6 / part.cycles.max(1) as f64;
        part.each.iter().for_each(|&cycles| latency_ns.saturating_record((cycles as f64 * 1e3 / mhz) as u64));
    }
    // The report is about all of them.
    let per_op = |count: u64| count as f64 / steps.max(1) as f64;
    let hottest = report.hottest.iter().take(HOT_LINES).map(|line| HotLine {
        name: name_of(line),
        writers: line.writers.len(),
        wait_cycles_per_op: per_op(line.stall + line.waited + line.parked),
    });
    let hottest = hottest.filter(|line| line.wait_cycles_per_op >= 1.0).collect();
    let places = report.places.iter().map(|place| HotPlace {
        name: in_words(place.site),
        lines: place.lines,
        misses_per_op: per_op(place.misses),
        wait_cycles_per_op: per_op(place.cost()),
    });
    let places = places.filter(|place| place.wait_cycles_per_op >= 1.0).collect();
    Outcome { latency_ns, idle: Some(report.idle()), hottest, places, ..Outcome::new(ops, ops_per_s) }
}

/// The labels of the line; without one, the two costliest places in the source that missed on it.
fn name_of(line: &sluice_machine::HotLine) -> String {
    if !line.labels.is_empty() {
        return line.labels.join(", ");
    }
    line.sites.iter().take(2).map(|site| in_words(site.site)).collect::<Vec<_>>().join(", ")
}

/// File and line of `site`.
fn in_words(site: &Location<'_>) -> String {
    // A twin's path leads through its own package: crates/vfs-sim/../vfs/src/inode.rs.
    let file = site.file().rsplit("/../").next().unwrap_or_default();
    format!("{file}:{}", site.line())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Shape, WORKLOADS, find};

    #[test]
    fn every_workload_does_what_it_says_on_simulated_cpus() {
        let corpus = Arc::new(Corpus::generated(20));
        for workload in WORKLOADS.iter().filter(|workload| workload.shape != Shape::Footprint) {
            let machine = Machine::named("uma-2").seed(1);
            for on in [On::Ram, On::Store] {
                let outcome = simulated_run(&machine, on, workload, 2, 6, &corpus)
                    .unwrap_or_else(|failure| panic!("{}: {failure}", workload.name));
                assert_eq!(outcome.ops, 12, "{}", workload.name);
                assert!(outcome.ops_per_s > 0.0 && outcome.latency_ns.len() == 12);
            }
        }
    }

    #[test]
    fn a_task_that_works_in_passes_begins_the_next_in_time_that_is_not_counted() {
        let corpus = Arc::new(Corpus::generated(0));
        let machine = Machine::named("uma-2");
        let outcome = simulated_run(&machine, On::Ram, find("DWTL").unwrap(), 1, 3_000, &corpus).unwrap();
        assert_eq!(outcome.ops, 3_000, "a file of 1,024 blocks is cut to nothing in each pass");
        // Before each pass 1,024 blocks are written, at 100 ns at least.
        let in_all = outcome.latency_ns.mean() * outcome.ops_per_s / 1e9;
        assert!(outcome.latency_ns.max() < 100_000 && (0.9..1.1).contains(&in_all), "{in_all}");
    }

    #[test]
    fn a_run_does_not_meet_what_an_earlier_one_has_left() {
        let corpus = Arc::new(Corpus::generated(0));
        let machine = Machine::named("power7-64").seed(7);
        let run = |name, cpus, ops| {
            simulated_run(&machine, On::Ram, find(name).unwrap(), cpus, ops, &corpus).unwrap()
        };
        let alone = || run("MRDL", 1, 20).ops_per_s;
        let before = alone();
        run("creat-unlink", 16, 300);
        assert_eq!(before, alone());
    }

    #[test]
    fn a_failing_call_fails_the_run() {
        let corpus = Arc::new(Corpus::generated(0));
        let error =
            simulated_run(&Machine::named("uma-2"), On::Ram, find("stat").unwrap(), 3, 1, &corpus).err();
        assert!(error.is_some_and(|error| error.to_string().contains("CPUs")), "uma-2 has two CPUs");
    }
}
