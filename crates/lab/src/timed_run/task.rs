//! Task: the life of one task of a run, the same on a thread and in a process of its own.

use super::{Limit, SAMPLE_EVERY, SETTLED, Setting, latencies};
use crate::failure::{Context, Result};
use crate::interrupt::Interrupt;
use crate::machine::{self, TaskTime};
use crate::target::{CallResult, Calls, remove_emptied};
use crate::workload::{Seat, Shape, Task};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sluice_sync::cpu;
use sluice_sync::time::{Duration, Instant};
use sluice_vfs::Errno;

/// What one task has done.
#[derive(Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) ops: u64,
    /// Time inside passes.
    pub(super) in_passes: Duration,
    /// When it was done, by [`machine::monotonic`].
    pub(super) end: Duration,
    #[serde(with = "as_counts")]
    pub(super) latency_ns: Histogram<u64>,
    pub(super) context_switches: Option<u64>,
    pub(super) task_time: Option<(TaskTime, Duration)>,
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

impl Part {
    /// What a task has done by now.
    fn ending(ops: u64, in_passes: Duration, latency_ns: Histogram<u64>) -> Part {
        let end = machine::monotonic();
        Part { ops, in_passes, end, latency_ns, context_switches: None, task_time: None }
    }
}

/// Task `index` of the run, from setting up to tidying up. In between `until_start` is told whether all is ready, and
/// returns when the work begins; who is not ready is told so too, because the others wait for everybody.
pub(super) fn perform(
    setting: &Setting<'_>,
    index: usize,
    stop: &Interrupt,
    until_start: impl FnOnce(bool),
) -> Result<Part> {
    let prepared = set_up(setting, index);
    until_start(prepared.is_ok());
    let (mut calls, mut task, dir) = prepared?;
    let (before, time_before, start) = (machine::context_switches(), TaskTime::now(), Instant::now());
    let mut part = match setting.workload.shape {
        Shape::Passes => work_in_passes(&mut *task, &mut *calls, setting.limit, stop),
        _ => work_steadily(&mut *task, &mut *calls, setting.limit, stop),
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
        if done.is_multiple_of(SAMPLE_EVERY) && start.elapsed() >= time {
            break;
        }
        task.step(calls)?;
    }
    Ok(())
}

fn work_steadily(task: &mut dyn Task, calls: &mut dyn Calls, limit: Limit, stop: &Interrupt) -> Result<Part> {
    let most = if let Limit::Ops(ops) = limit { ops } else { u64::MAX };
    let mut latency_ns = latencies();
    let mut ops = 0;
    while ops < most && !stop.is_raised() {
        match step(task, calls, ops, &mut latency_ns) {
            // Where being told to stop is a signal, it ends a call that waits.
            Err(Errno::EINTR) if stop.is_raised() => break,
            other => other?,
        };
        ops += 1;
    }
    Ok(Part::ending(ops, Duration::ZERO, latency_ns))
}

fn work_in_passes(
    task: &mut dyn Task,
    calls: &mut dyn Calls,
    limit: Limit,
    stop: &Interrupt,
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
        if ops >= most || stop.is_raised() {
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
) -> CallResult<bool> {
    if !number.is_multiple_of(SAMPLE_EVERY) {
        return task.step(calls);
    }
    let start = Instant::now();
    let more = task.step(calls)?;
    latency_ns.saturating_record(nanoseconds(start.elapsed()));
    Ok(more)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
