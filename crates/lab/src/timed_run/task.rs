//! Task: the life of one task of a run, the same on a thread and in a process of its own.
//!
//! # Theory
//! To read the clock takes as long as a fast call, so latencies have a pass of their own, after the one that is counted:
//! there every operation is timed, while the other tasks do the same.

use super::{Limit, SETTLED, Setting, latencies, rate};
use crate::target::{CallResult, Calls, remove_emptied};
use crate::workload::{Seat, Shape, Task};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sluice_console::failure::{Context, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::machine::{self, TaskTime};
use sluice_sync::cpu;
use sluice_sync::time::{Duration, Instant, nanoseconds};
use sluice_vfs::Errno;

/// One in how many looks at the clock there are operations while warming up.
const LOOK_EVERY: u64 = 16;
/// The timed pass lasts for this part of the counted one, but not longer than the time below it.
const TIMED_PART: u32 = 16;
const TIMED_MAX: Duration = Duration::from_millis(100);

/// The work that one task has done.
#[derive(Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) ops: u64,
    /// Time inside passes.
    pub(super) in_passes: Duration,
    /// When it was done, by [`machine::monotonic`].
    pub(super) end: Duration,
    pub(super) context_switches: Option<u64>,
    pub(super) task_time: Option<(TaskTime, Duration)>,
    /// Latencies and operations per second of the timed pass.
    #[serde(with = "as_counts")]
    pub(super) latency_ns: Histogram<u64>,
    pub(super) timed_ops_per_s: f64,
}

/// A histogram of [`latencies`] as pairs of a value and how often it was met.
mod as_counts {
    use super::latencies;
    use hdrhistogram::Histogram;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        histogram: &Histogram<u64>,
        to: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        let met = histogram.iter_recorded().map(|met| (met.value_iterated_to(), met.count_at_value()));
        met.collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> std::result::Result<Histogram<u64>, D::Error> {
        let mut histogram = latencies();
        for (value, count) in Vec::<(u64, u64)>::deserialize(from)? {
            histogram.saturating_record_n(value, count);
        }
        Ok(histogram)
    }
}

/// The system's counts for a task when the task begins to work.
struct Begun {
    context_switches: Option<u64>,
    time: Option<TaskTime>,
    at: Instant,
}

impl Begun {
    fn now() -> Begun {
        let (context_switches, time) = (machine::context_switches(), TaskTime::now());
        Begun { context_switches, time, at: Instant::now() }
    }

    /// The part that the task has done by now.
    fn ending(&self, ops: u64, in_passes: Duration) -> Part {
        let end = machine::monotonic();
        let switches = self.context_switches.zip(machine::context_switches());
        let spent = self.time.zip(TaskTime::now()).map(|(before, after)| after.since(before));
        Part {
            ops,
            in_passes,
            end,
            context_switches: switches.map(|(before, after)| after - before),
            task_time: spent.map(|spent| (spent, self.at.elapsed())).filter(|(_, all)| *all >= SETTLED),
            latency_ns: latencies(),
            timed_ops_per_s: 0.0,
        }
    }
}

/// Task `index` of the run, from setting up to tidying up. In between `until_start` is told whether all is ready, and
/// returns when the work begins; a task that is not ready says so too, because the others wait for all.
pub(super) fn perform(
    setting: &Setting<'_>,
    index: usize,
    stop: &Interrupt,
    until_start: impl FnOnce(bool),
) -> Result<Part> {
    let prepared = set_up(setting, index);
    until_start(prepared.is_ok());
    let (mut calls, mut task, dir) = prepared?;
    let mut worker = ReadyTask {
        task: &mut *task,
        calls: &mut *calls,
        shape: setting.workload.shape,
        limit: setting.limit,
        stop,
    };
    let part = worker.work().and_then(|mut part| {
        worker.time_each(&mut part).context(|| "timing each operation")?;
        Ok(part)
    });
    let verified = part.and_then(|part| task.verify(&mut *calls, setting.target).map(|()| part));
    task.tidy(&mut *calls).context(|| "tidying up")?;
    remove_emptied(|| calls.rmdir(&dir)).context(|| "tidying up")?;
    verified
}

type Prepared = (Box<dyn Calls>, Box<dyn Task>, String);

fn set_up(setting: &Setting<'_>, index: usize) -> Result<Prepared> {
    if let Some(&number) = setting.cpus.get(index % setting.cpus.len().max(1)) {
        cpu::pin(number).context(|| format!("cannot use CPU {number}"))?;
    }
    let mut calls = setting.target.task()?;
    let dir = format!("{}/task-{index}", setting.dir);
    calls.mkdir(&dir)?;
    let seat =
        Seat { dir: dir.clone(), shared: super::shared(setting.dir), index, corpus: setting.corpus.clone() };
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
        if done.is_multiple_of(LOOK_EVERY) && start.elapsed() >= time {
            break;
        }
        task.step(calls)?;
    }
    Ok(())
}

/// A task that has set up, and its limit.
struct ReadyTask<'a> {
    task: &'a mut dyn Task,
    calls: &'a mut dyn Calls,
    shape: Shape,
    limit: Limit,
    stop: &'a Interrupt,
}

impl ReadyTask<'_> {
    /// Works as the workload's shape has it.
    fn work(&mut self) -> Result<Part> {
        let begun = Begun::now();
        let (ops, in_passes) = match self.shape {
            Shape::Passes => self.in_passes()?,
            _ => (self.steadily()?, Duration::ZERO),
        };
        Ok(begun.ending(ops, in_passes))
    }

    /// The operations done.
    fn steadily(&mut self) -> CallResult<u64> {
        let most = self.limit.ops().unwrap_or(u64::MAX);
        let mut ops = 0;
        while ops < most && !self.stop.is_raised() {
            match self.task.step(self.calls) {
                // Where being told to stop is a signal, it ends a call that waits.
                Err(Errno::EINTR) if self.stop.is_raised() => break,
                other => other?,
            };
            ops += 1;
        }
        Ok(ops)
    }

    /// The operations done, and the time inside passes.
    fn in_passes(&mut self) -> Result<(u64, Duration)> {
        let most = self.limit.ops().unwrap_or(u64::MAX);
        let (mut ops, mut in_passes) = (0, Duration::ZERO);
        loop {
            self.task.prepare(self.calls).context(|| "preparing a pass")?;
            let start = Instant::now();
            loop {
                let more = self.task.step(self.calls)?;
                ops += 1;
                if !more {
                    break;
                }
            }
            in_passes += start.elapsed();
            if ops >= most || self.stop.is_raised() {
                return Ok((ops, in_passes));
            }
        }
    }

    /// The pass in which each operation is timed; what it shows goes into `part`.
    fn time_each(&mut self, part: &mut Part) -> CallResult<()> {
        let (time, most) = match self.limit {
            Limit::Time(time) => ((time / TIMED_PART).min(TIMED_MAX), u64::MAX),
            Limit::Ops(ops) => (Duration::MAX, ops.div_ceil(u64::from(TIMED_PART))),
        };
        if self.shape == Shape::Passes {
            self.task.prepare(self.calls)?;
        }
        let (start, mut ops) = (Instant::now(), 0);
        let mut before = start;
        loop {
            let more = self.task.step(self.calls)?;
            let now = Instant::now();
            part.latency_ns.saturating_record(nanoseconds(now - before));
            ops += 1;
            let ended = match self.shape {
                Shape::Passes => !more,
                _ => ops >= most || now - start >= time,
            };
            if ended {
                part.timed_ops_per_s = rate(ops, now - start);
                return Ok(());
            }
            // Time for recording is nobody's latency.
            before = Instant::now();
        }
    }
}
