//! Timed run: one workload on one target with a number of pinned tasks, once.
//!
//! A task is a thread, or, on a directory, a process if one asks for it.
//!
//! # Theory
//! ```text
//!  task 1   set up | warm up |##########| timed pass | verify | tidy
//!  task 2   set up | warm up |##########| timed pass | verify | tidy
//!  ...                       |          |
//!  conductor            ready        stop = true
//!                       start         end
//! ```
//! Steady tasks look at `stop` before every operation, a line that is written once, so the look is free. The rate
//! is all operations over the time from start to end. Tasks that work in passes are timed by their own clocks
//! while a pass lasts and their rates are added up; they look at `stop` only between passes, and work at least one.
//!
//! Nothing is timed while operations are counted. Latencies come from a pass of their own after it, which
//! also shows what timing each operation would have cost the rate ([`Outcome::timed_ops_per_s`]).

mod processes;
mod start;
mod task;
mod threads;

pub use processes::serve;

use crate::hot_lines::{HotLine, HotPlace};
use crate::sleep_places::SleepPlaces;
use crate::target::{Target, remove_tree, with_task};
use crate::workload::{Shape, Workload};
use hdrhistogram::Histogram;
use processes::Processes;
use serde::{Deserialize, Serialize};
use sluice_console::corpus::Corpus;
use sluice_console::failure::{Context, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::machine::{self, CpuTime, Stalled, TaskTime};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, thread};
use std::path::Path;
use task::Part;

/// How often the conductor looks where tasks sleep.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The kernel brings a running task's time up to date at each tick: what lasted less than some ticks is not known.
const SETTLED: Duration = Duration::from_millis(40);

/// When a run ends.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Limit {
    /// After this time.
    Time(Duration),
    /// After this many operations of each task. Passes are not cut short.
    Ops(u64),
}

impl Limit {
    /// The limit of operations, if it is one.
    pub(crate) fn ops(self) -> Option<u64> {
        match self {
            Limit::Time(_) => None,
            Limit::Ops(ops) => Some(ops),
        }
    }
}

/// The run to make.
pub struct Setting<'a> {
    /// The workload.
    pub workload: &'a Workload,
    /// The file system that it runs on.
    pub target: &'a dyn Target,
    /// A directory of the target that does not exist yet; gone again after the run.
    pub dir: &'a str,
    /// The numbers of the CPUs to use: task `i` is pinned to `cpus[i % len]`.
    pub cpus: &'a [usize],
    /// The number of tasks.
    pub tasks: usize,
    /// The end.
    pub limit: Limit,
    /// Files for the workloads that unpack some.
    pub corpus: &'a Arc<Corpus>,
    /// Each task is a process of this program, the `sluice` binary; `None`: a thread.
    pub processes: Option<&'a Path>,
}

/// The results of a run.
pub struct Outcome {
    /// Operations of all tasks.
    pub ops: u64,
    /// Their rate.
    pub ops_per_s: f64,
    /// Latencies of the operations of the timed pass, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// The rate of that pass, in which reading the clock is a part of each operation.
    pub timed_ops_per_s: Option<f64>,
    /// Share of time that the CPUs used were idle, 0 to 1.
    pub idle: Option<f64>,
    /// Where else their time went, where the system tells.
    pub cpu_time: Option<CpuTime>,
    /// How often tasks left their CPU while they worked.
    pub context_switches: Option<u64>,
    /// Where the tasks' time went: on a CPU, waiting for one, and the rest asleep; and all of it.
    pub task_time: Option<(TaskTime, Duration)>,
    /// Where they slept.
    pub sleep_places: SleepPlaces,
    /// For how much of the time tasks anywhere on the machine stood still for want of something, where the system tells.
    pub stalled: Option<Stalled>,
    /// The lines waited for most, on a simulated machine.
    pub hottest: Vec<HotLine>,
    /// The places where lines were waited for most, on a simulated machine.
    pub places: Vec<HotPlace>,
}

impl Outcome {
    /// An outcome of which nothing else is known.
    pub fn new(ops: u64, ops_per_s: f64) -> Outcome {
        Outcome {
            ops,
            ops_per_s,
            latency_ns: latencies(),
            timed_ops_per_s: None,
            idle: None,
            cpu_time: None,
            context_switches: None,
            task_time: None,
            sleep_places: SleepPlaces::default(),
            stalled: None,
            hottest: Vec::new(),
            places: Vec::new(),
        }
    }
}

/// A histogram of nanoseconds up to a day, to one percent: a command may take hours.
pub fn latencies() -> Histogram<u64> {
    const DAY_NS: u64 = 86_400_000_000_000;
    Histogram::new_with_bounds(1, DAY_NS, 2).expect("the bounds are constants that the histogram accepts")
}

/// Runs once.
///
/// # Errors
/// Errors of the calls, a wrong result, or [`Failure::Interrupted`](sluice_console::failure::Failure::Interrupted).
pub fn timed_run(setting: &Setting<'_>, interrupt: &Interrupt) -> Result<Outcome> {
    with_task(setting.target, |calls| {
        calls.mkdir(setting.dir)?;
        Ok(calls.mkdir(&shared(setting.dir))?)
    })
    .context(|| format!("mkdir {}", setting.dir))?;
    let outcome = match setting.processes {
        None => threads::with_crew(setting, |crew| conduct(setting, crew, interrupt)),
        Some(program) => conduct(setting, Processes::start(setting, program)?, interrupt),
    };
    let cleared = with_task(setting.target, |calls| Ok(remove_tree(calls, setting.dir)?));
    // A signal that interrupts a run may have ended its tasks too: that is no failure of theirs.
    interrupt.check()?;
    let outcome = outcome?;
    cleared?;
    Ok(outcome)
}

/// The tasks of a run, whatever they are.
trait Crew {
    /// Waits until all have set up, and says by which numbers the kernel knows them. If one task failed to set up, all
    /// tasks are told to stop.
    fn ready(&mut self) -> Result<Vec<u32>>;

    /// Lets all begin.
    fn begin(&mut self);

    /// Whether a task has ended already, which only a failure explains before they are told to stop. Each call looks at one.
    fn misses_one(&mut self) -> bool;

    /// Tells all to stop; more than once is fine.
    fn stop(&mut self);

    /// Whether all have ended.
    fn has_ended(&mut self) -> bool;

    /// The part of each task.
    ///
    /// # Errors
    /// The error of the first task that failed.
    fn parts(self) -> Result<Vec<Part>>;
}

/// A run, from the moment when its tasks set up.
fn conduct(setting: &Setting<'_>, mut crew: impl Crew, interrupt: &Interrupt) -> Result<Outcome> {
    let mut sleep_places = SleepPlaces::of(crew.ready()?);
    let (before, stalled) = (CpuTime::now(setting.cpus), Stalled::now());
    let start = machine::monotonic();
    crew.begin();
    if let Limit::Time(time) = setting.limit {
        watch(&mut sleep_places, time, || interrupt.is_raised() || crew.misses_one());
        crew.stop();
    }
    let end = machine::monotonic();
    let (after_time, after_stalled) = (CpuTime::now(setting.cpus), Stalled::now());
    while !crew.has_ended() {
        if interrupt.is_raised() {
            crew.stop();
        }
        thread::sleep(Duration::from_millis(1));
    }
    let steady_time = matches!(setting.limit, Limit::Time(_)) && setting.workload.shape == Shape::Steady;
    let (after, after_stalled, length) = if steady_time {
        (after_time, after_stalled, end - start)
    } else {
        (CpuTime::now(setting.cpus), Stalled::now(), machine::monotonic() - start)
    };
    let parts = crew.parts()?;
    let cpu_time = before.zip(after).map(|(before, after)| after.since(before));
    let stalled = stalled.zip(after_stalled).map(|(before, after)| after.share_since(before, length));
    Ok(Outcome { sleep_places, stalled, ..sum_up(setting, &parts, start, end, cpu_time) })
}

/// The directory of all tasks of a run.
fn shared(dir: &str) -> String {
    format!("{dir}/shared")
}

fn sum_up(
    setting: &Setting<'_>,
    parts: &[Part],
    start: Duration,
    end: Duration,
    cpu_time: Option<CpuTime>,
) -> Outcome {
    let mut latency_ns = latencies();
    for part in parts {
        latency_ns.add(&part.latency_ns).expect("histograms of equal bounds add up");
    }
    let ops = parts.iter().map(|part| part.ops).sum();
    let ops_per_s = match (setting.workload.shape, setting.limit) {
        (Shape::Passes, _) => parts.iter().map(|part| rate(part.ops, part.in_passes)).sum(),
        (_, Limit::Time(_)) => rate(ops, end - start),
        (_, Limit::Ops(_)) => {
            let last = parts.iter().map(|part| part.end).max().unwrap_or(end);
            rate(ops, last - start)
        }
    };
    let context_switches = parts.iter().map(|part| part.context_switches).sum();
    let task_time = parts.iter().map(|part| part.task_time).collect::<Option<Vec<_>>>();
    let task_time = task_time.map(|times| times.into_iter().fold(Default::default(), total));
    let idle = cpu_time.filter(|time| time.total > 0).map(|time| time.idle as f64 / time.total as f64);
    let timed_ops_per_s = Some(parts.iter().map(|part| part.timed_ops_per_s).sum());
    Outcome {
        latency_ns,
        timed_ops_per_s,
        idle,
        cpu_time,
        context_switches,
        task_time,
        ..Outcome::new(ops, ops_per_s)
    }
}

fn rate(ops: u64, time: Duration) -> f64 {
    ops as f64 / time.as_secs_f64().max(1e-9)
}

/// The times of two tasks, or of the runs of several, together.
pub fn total((a, all_a): (TaskTime, Duration), (b, all_b): (TaskTime, Duration)) -> (TaskTime, Duration) {
    (TaskTime { on_cpu: a.on_cpu + b.on_cpu, for_cpu: a.for_cpu + b.for_cpu }, all_a + all_b)
}

/// Looks where tasks sleep for `time`, or until it is `over`.
fn watch(sleep_places: &mut SleepPlaces, time: Duration, mut over: impl FnMut() -> bool) {
    let start = Instant::now();
    while !over() {
        let left = time.saturating_sub(start.elapsed());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(LOOK_EVERY));
        sleep_places.look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Calls, HostDir, Library};
    use crate::workload::find;
    use sluice_console::failure::Failure;
    use sluice_sync::cpu;

    fn run(name: &str, target: &dyn Target, tasks: usize, limit: Limit) -> Result<Outcome> {
        let corpus = Arc::new(Corpus::generated(50));
        let cpus = cpu::allowed();
        let workload = find(name).unwrap();
        let (dir, corpus, processes) = ("run", &corpus, None);
        let setting = Setting { workload, target, dir, cpus: &cpus, tasks, limit, corpus, processes };
        timed_run(&setting, &Interrupt::new())
    }

    #[test]
    fn a_run_limited_by_operations_counts_exactly_those() {
        let target = Library::new();
        let outcome = run("creat-unlink", &target, 3, Limit::Ops(160)).unwrap();
        assert_eq!(outcome.ops, 480);
        assert_eq!(outcome.latency_ns.len(), 30);
        assert!(outcome.ops_per_s > 0.0);
    }

    #[test]
    fn a_run_limited_by_time_ends_and_leaves_nothing() {
        let dir = sluice_console::private_dir::PrivateDir::below(&std::env::temp_dir()).unwrap();
        let target = HostDir::below(dir.path()).unwrap();
        let outcome = run("open-close", &target, 2, Limit::Time(Duration::from_secs(1))).unwrap();
        assert!(outcome.ops > 0);
        let left = with_task(&target, |calls| Ok(calls.stat("run").is_err())).unwrap();
        assert!(left, "the run's directory is gone");
    }

    #[test]
    fn passes_are_worked_to_their_end() {
        let target = Library::new();
        let entries = Corpus::generated(50).entries.len() as u64;
        let untar = run("untar", &target, 2, Limit::Ops(1)).unwrap();
        assert_eq!(untar.ops, 2 * entries);
        let rmtree = run("rmtree", &target, 2, Limit::Ops(entries + 2)).unwrap();
        assert_eq!(rmtree.ops, 4 * (entries + 1), "two passes of two tasks, the top directory included");
    }

    #[test]
    fn a_task_that_cannot_set_up_fails_the_run_and_does_not_hang_it() {
        struct Broken;
        impl Target for Broken {
            fn task(&self) -> Result<Box<dyn Calls>> {
                match thread::current().name() {
                    _ if cpu::allowed().len() == 1 => Err(Failure::Failed("no".into())),
                    _ => Library::new().task(),
                }
            }
        }
        // Tasks of different libraries: the run's directory is missing in those of the tasks.
        assert!(run("stat", &Broken, 2, Limit::Ops(10)).is_err());
    }

    #[test]
    fn an_interrupted_run_is_no_result() {
        let interrupt = Interrupt::new();
        interrupt.raise();
        let corpus = Arc::new(Corpus::generated(50));
        let target = Library::new();
        let workload = find("stat").unwrap();
        let limit = Limit::Time(Duration::from_secs(60));
        let setting = Setting {
            workload,
            target: &target,
            dir: "run",
            cpus: &cpu::allowed(),
            tasks: 1,
            limit,
            corpus: &corpus,
            processes: None,
        };
        assert!(matches!(timed_run(&setting, &interrupt), Err(Failure::Interrupted)));
    }
}
