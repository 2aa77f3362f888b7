//! Timed run: one workload on one target with a number of pinned tasks, once.
//!
//! # Theory
//! ```text
//!  task 1   set up | warm up |##########|          verify | tidy
//!  task 2   set up | warm up |##########|          verify | tidy
//!  ...                       |          |
//!  conductor            barrier      stop = true
//!                       start         end
//! ```
//! Steady tasks look at `stop` before every operation, a line that is written once, so the look is free. The rate
//! is all operations over the time from start to end. Tasks that work in passes are timed by their own clocks
//! while a pass lasts and their rates are added up; they look at `stop` only between passes, and work at least one.
//!
//! One operation in [`SAMPLE_EVERY`] is timed for the distribution of latencies: reading the clock twice costs as
//! much as a fast call, and timing all of them would be half of what is measured.

use crate::corpus::Corpus;
use crate::failure::{Context, Failure, Result};
use crate::interrupt::Interrupt;
use crate::machine::{self, CpuTime, TaskTime};
use crate::row::HotLine;
use crate::sleep_places::SleepPlaces;
use crate::target::{Calls, Target, remove_emptied, remove_tree, with_task};
use crate::workload::{Seat, Shape, Task, Workload};
use hdrhistogram::Histogram;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Barrier, Mutex, cpu, thread};

/// One in how many operations has its latency taken.
pub const SAMPLE_EVERY: u64 = 16;

/// How often the conductor looks where tasks sleep.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The kernel brings a running task's time up to date at each tick: what lasted less than some ticks is not known.
const SETTLED: Duration = Duration::from_millis(40);

/// When a run ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    /// After this time.
    Time(Duration),
    /// After this many operations of each task. Passes are not cut short.
    Ops(u64),
}

/// What to run.
pub struct Setting<'a> {
    /// The workload.
    pub workload: &'a Workload,
    /// Where.
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
}

/// What came out of a run.
pub struct Outcome {
    /// Operations of all tasks.
    pub ops: u64,
    /// Their rate.
    pub ops_per_s: f64,
    /// Latencies of sampled operations, in nanoseconds.
    pub latency_ns: Histogram<u64>,
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
    /// The lines waited for most, on a simulated machine.
    pub hottest: Vec<HotLine>,
}

impl Outcome {
    /// An outcome of which nothing else is known.
    pub fn new(ops: u64, ops_per_s: f64) -> Outcome {
        Outcome {
            ops,
            ops_per_s,
            latency_ns: latencies(),
            idle: None,
            cpu_time: None,
            context_switches: None,
            task_time: None,
            sleep_places: SleepPlaces::default(),
            hottest: Vec::new(),
        }
    }
}

/// A histogram of nanoseconds up to a minute, to one percent.
pub fn latencies() -> Histogram<u64> {
    const MINUTE_NS: u64 = 60_000_000_000;
    Histogram::new_with_bounds(1, MINUTE_NS, 2).expect("the bounds are constants that the histogram accepts")
}

/// Runs once.
///
/// # Errors
/// Those of the calls, a wrong result, or [`Failure::Interrupted`].
pub fn timed_run(setting: &Setting<'_>, interrupt: &Interrupt) -> Result<Outcome> {
    with_task(setting.target, |calls| {
        calls.mkdir(setting.dir)?;
        Ok(calls.mkdir(&shared(setting.dir))?)
    })
    .context(|| format!("mkdir {}", setting.dir))?;
    let conductor = Conductor {
        // The conductor waits too.
        ready: Barrier::new(setting.tasks + 1),
        start: Barrier::new(setting.tasks + 1),
        stop: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        tasks: Mutex::new(Vec::new()),
    };
    let outcome: Result<Outcome> = thread::scope(|scope| {
        let tasks: Vec<_> = (0..setting.tasks)
            .map(|index| {
                scope.spawn({
                    let conductor = &conductor;
                    move || perform(setting, index, conductor)
                })
            })
            .collect();
        conductor.ready.wait();
        if conductor.failed.load(Ordering::Acquire) {
            conductor.stop.store(true, Ordering::Release);
        }
        let mut sleep_places = SleepPlaces::of(std::mem::take(&mut *conductor.tasks.lock()));
        let before = CpuTime::now(setting.cpus);
        let start = Instant::now();
        conductor.start.wait();
        if let Limit::Time(time) = setting.limit {
            watch(&mut sleep_places, time, interrupt);
            conductor.stop.store(true, Ordering::Release);
        }
        let end = Instant::now();
        let after_time = CpuTime::now(setting.cpus);
        while !tasks.iter().all(thread::ScopedJoinHandle::is_finished) {
            if interrupt.is_raised() {
                conductor.stop.store(true, Ordering::Release);
            }
            thread::sleep(Duration::from_millis(1));
        }
        let steady_time = matches!(setting.limit, Limit::Time(_)) && setting.workload.shape == Shape::Steady;
        let after = if steady_time { after_time } else { CpuTime::now(setting.cpus) };
        let mut parts = Vec::with_capacity(tasks.len());
        for task in tasks {
            parts.push(task.join().unwrap_or_else(|_| Err(Failure::Failed("a task panicked".into())))?);
        }
        let cpu_time = before.zip(after).map(|(before, after)| after.since(before));
        Ok(Outcome { sleep_places, ..sum_up(setting, &parts, start, end, cpu_time) })
    });
    let cleared = with_task(setting.target, |calls| Ok(remove_tree(calls, setting.dir)?));
    let outcome = outcome?;
    cleared?;
    interrupt.check()?;
    Ok(outcome)
}

/// What the tasks and their conductor share.
struct Conductor {
    ready: Barrier,         // immutable
    start: Barrier,         // immutable
    stop: AtomicBool,       // atomic (stop): set by the conductor, once
    failed: AtomicBool,     // atomic (failed): set by tasks before `ready`, read after it
    tasks: Mutex<Vec<u32>>, // filled by tasks before `ready`, read after it
}

/// What one task has done.
struct Part {
    ops: u64,
    /// Time inside passes.
    in_passes: Duration,
    end: Instant,
    latency_ns: Histogram<u64>,
    context_switches: Option<u64>,
    task_time: Option<(TaskTime, Duration)>,
}

impl Part {
    /// What a task has done by now.
    fn ending(ops: u64, in_passes: Duration, latency_ns: Histogram<u64>) -> Part {
        let end = Instant::now();
        Part { ops, in_passes, end, latency_ns, context_switches: None, task_time: None }
    }
}

/// The life of one task, on its own thread.
fn perform(setting: &Setting<'_>, index: usize, conductor: &Conductor) -> Result<Part> {
    let prepared = set_up(setting, index);
    if prepared.is_err() {
        // Release(failed): pairs with the load after the barrier.
        conductor.failed.store(true, Ordering::Release);
    }
    conductor.tasks.lock().push(machine::task_number());
    // Whatever happened, come to the barriers: the others wait for everybody.
    conductor.ready.wait();
    conductor.start.wait();
    let (mut calls, mut task, dir) = prepared?;
    let (before, time_before, start) = (machine::context_switches(), TaskTime::now(), Instant::now());
    let mut part = match setting.workload.shape {
        Shape::Passes => work_in_passes(&mut *task, &mut *calls, setting.limit, &conductor.stop),
        _ => work_steadily(&mut *task, &mut *calls, setting.limit, &conductor.stop),
    };
    if let Ok(part) = &mut part {
        part.context_switches = before.zip(machine::context_switches()).map(|(before, after)| after - before);
        let spent = time_before.zip(TaskTime::now()).map(|(before, after)| after.since(before));
        part.task_time = spent.map(|spent| (spent, start.elapsed())).filter(|(_, all)| *all >= SETTLED);
    }
    let verified = part.and_then(|part| task.verify(&mut *calls, setting.target).map(|()| part));
    task.tidy(&mut *calls).context(|| "tidying up")?;
    remove_emptied(|| calls.rmdir(&dir)).context(|| "tidying up")?;
    verified
}

/// The directory of all tasks of a run.
fn shared(dir: &str) -> String {
    format!("{dir}/shared")
}

type Prepared = (Box<dyn Calls>, Box<dyn Task>, String);

fn set_up(setting: &Setting<'_>, index: usize) -> Result<Prepared> {
    if let Some(&number) = setting.cpus.get(index % setting.cpus.len().max(1)) {
        cpu::pin(number).context(|| format!("cannot use CPU {number}"))?;
    }
    let mut calls = setting.target.task()?;
    let dir = format!("{}/task-{index}", setting.dir);
    calls.mkdir(&dir)?;
    let seat = Seat { dir: dir.clone(), shared: shared(setting.dir), index, corpus: setting.corpus.clone() };
    let mut task = (setting.workload.task)(seat);
    if setting.workload.shape == Shape::Steady {
        task.prepare(&mut *calls).context(|| "setting up")?;
        warm_up(&mut *task, &mut *calls, setting.limit).context(|| "warming up")?;
    }
    Ok((calls, task, dir))
}

fn warm_up(task: &mut dyn Task, calls: &mut dyn Calls, limit: Limit) -> Result<()> {
    let (time, ops) = match limit {
        Limit::Time(time) => ((time / 10).min(Duration::from_millis(50)), u64::MAX),
        Limit::Ops(ops) => (Duration::from_millis(50), ops / 10),
    };
    let start = Instant::now();
    for done in 0..ops {
        if done.is_multiple_of(SAMPLE_EVERY) && start.elapsed() >= time {
            break;
        }
        task.step(calls)?;
    }
    Ok(())
}

fn work_steadily(
    task: &mut dyn Task,
    calls: &mut dyn Calls,
    limit: Limit,
    stop: &AtomicBool,
) -> Result<Part> {
    let most = if let Limit::Ops(ops) = limit { ops } else { u64::MAX };
    let mut latency_ns = latencies();
    let mut ops = 0;
    // Relaxed: an operation more or less is no harm; the join orders the results.
    while ops < most && !stop.load(Ordering::Relaxed) {
        step(task, calls, ops, &mut latency_ns)?;
        ops += 1;
    }
    Ok(Part::ending(ops, Duration::ZERO, latency_ns))
}

fn work_in_passes(
    task: &mut dyn Task,
    calls: &mut dyn Calls,
    limit: Limit,
    stop: &AtomicBool,
) -> Result<Part> {
    let most = if let Limit::Ops(ops) = limit { ops } else { u64::MAX };
    let mut latency_ns = latencies();
    let (mut ops, mut in_passes) = (0, Duration::ZERO);
    loop {
        task.prepare(calls).context(|| "preparing a pass")?;
        let start = Instant::now();
        loop {
            let more = step(task, calls, ops, &mut latency_ns)?;
            ops += 1;
            if !more {
                break;
            }
        }
        in_passes += start.elapsed();
        // Relaxed: as above.
        if ops >= most || stop.load(Ordering::Relaxed) {
            return Ok(Part::ending(ops, in_passes, latency_ns));
        }
    }
}

#[inline]
fn step(
    task: &mut dyn Task,
    calls: &mut dyn Calls,
    number: u64,
    latency_ns: &mut Histogram<u64>,
) -> Result<bool> {
    if !number.is_multiple_of(SAMPLE_EVERY) {
        return Ok(task.step(calls)?);
    }
    let start = Instant::now();
    let more = task.step(calls)?;
    latency_ns.saturating_record(nanoseconds(start.elapsed()));
    Ok(more)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn sum_up(
    setting: &Setting<'_>,
    parts: &[Part],
    start: Instant,
    end: Instant,
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
    Outcome { latency_ns, idle, cpu_time, context_switches, task_time, ..Outcome::new(ops, ops_per_s) }
}

fn rate(ops: u64, time: Duration) -> f64 {
    ops as f64 / time.as_secs_f64().max(1e-9)
}

/// The times of two tasks, or of the runs of several, together.
pub fn total((a, all_a): (TaskTime, Duration), (b, all_b): (TaskTime, Duration)) -> (TaskTime, Duration) {
    (TaskTime { on_cpu: a.on_cpu + b.on_cpu, for_cpu: a.for_cpu + b.for_cpu }, all_a + all_b)
}

/// Looks where tasks sleep for `time`, or until the interrupt.
fn watch(sleep_places: &mut SleepPlaces, time: Duration, interrupt: &Interrupt) {
    let start = Instant::now();
    while !interrupt.is_raised() {
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
    use crate::target::{HostDir, Library};
    use crate::workload::find;

    fn run(name: &str, target: &dyn Target, tasks: usize, limit: Limit) -> Result<Outcome> {
        let corpus = Arc::new(Corpus::generated(50));
        let cpus = cpu::allowed();
        let workload = find(name).unwrap();
        let setting = Setting { workload, target, dir: "run", cpus: &cpus, tasks, limit, corpus: &corpus };
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
        let dir = crate::private_dir::PrivateDir::below(&std::env::temp_dir()).unwrap();
        let target = HostDir::below(dir.path()).unwrap();
        let outcome = run("open-close", &target, 2, Limit::Time(Duration::from_millis(20))).unwrap();
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
        };
        assert!(matches!(timed_run(&setting, &interrupt), Err(Failure::Interrupted)));
    }
}
