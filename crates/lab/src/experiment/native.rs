//! Native runs: pinned threads on this computer, for what 1 and 2 CPUs can show.

use super::ExperimentSession;
use crate::row::Row;
use crate::stats::median;
use sluice_console::failure::{Context, Result};
use sluice_console::machine::CpuTime;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Barrier, CachePadded, cpu, thread};
use std::hint::black_box;

/// The results of one run.
pub struct NativeRun {
    /// Operations of each thread.
    pub(crate) ops: Vec<u64>,
    /// Length of the run.
    pub(crate) time: Duration,
    /// CPU time of the CPUs in use meanwhile, where the system tells.
    pub(crate) cpu_time: Option<CpuTime>,
}

impl NativeRun {
    pub(crate) fn total(&self) -> u64 {
        self.ops.iter().sum()
    }

    pub(crate) fn ops_per_s(&self) -> f64 {
        self.total() as f64 / self.time.as_secs_f64()
    }

    /// Operations of the thread with the fewest over those of the thread with the most.
    pub(crate) fn fairness(&self) -> f64 {
        let most = self.ops.iter().max().copied().unwrap_or(0);
        let fewest = self.ops.iter().min().copied().unwrap_or(0);
        if most == 0 { 1.0 } else { fewest as f64 / most as f64 }
    }
}

/// The CPU counts that this process can show: 1, and 2 if it may use so many.
pub(crate) fn cpu_counts() -> Vec<usize> {
    (1..=cpu::allowed().len().clamp(1, 2)).collect()
}

/// Computes for `turns` turns of a loop that touches no memory, about a cycle each.
pub(crate) fn compute(turns: u64) {
    for turn in 0..turns {
        black_box(turn);
    }
}

/// Does `round` again and again for `time`, on one thread for each of the first `cpus` CPUs.
///
/// # Errors
/// When a thread cannot be pinned.
pub(crate) fn contend(cpus: usize, time: Duration, round: impl Fn() + Sync) -> Result<NativeRun> {
    contend_as((cpus, cpus), time, |_| round())
}

/// Contends on `tasks` threads in turn on these CPUs; `round` gets the number of its thread. Else like [`contend`].
///
/// # Errors
/// Errors of [`contend`].
pub(crate) fn contend_as(
    (cpus, tasks): (usize, usize),
    time: Duration,
    round: impl Fn(usize) + Sync,
) -> Result<NativeRun> {
    let allowed = cpu::allowed();
    let used = allowed.get(..cpus).unwrap_or(&allowed).to_vec();
    let stop = CachePadded::new(AtomicBool::new(false));
    let (ready, start) = (Barrier::new(tasks + 1), Barrier::new(tasks + 1));
    let (stop, ready, start, round) = (&stop, &ready, &start, &round);
    thread::scope(|scope| {
        let threads: Vec<_> = (used.iter().cycle().take(tasks).enumerate())
            .map(|(task, &cpu)| {
                scope.spawn(move || {
                    let pinned = cpu::pin(cpu);
                    ready.wait();
                    start.wait();
                    let mut ops = 0u64;
                    // Once at least, however late the thread gets to run.
                    loop {
                        round(task);
                        ops += 1;
                        // Relaxed: a flag that publishes nothing.
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    pinned.map(|()| ops)
                })
            })
            .collect();
        ready.wait();
        // Before anybody works: this thread may be late to wake from the barrier.
        let (begin, before) = (Instant::now(), CpuTime::now(&used));
        start.wait();
        thread::sleep(time);
        // Relaxed: as above.
        stop.store(true, Ordering::Relaxed);
        let (time, after) = (begin.elapsed(), CpuTime::now(&used));
        let ops = threads.into_iter().map(|thread| thread.join().expect("a round does not panic"));
        let ops = ops.collect::<std::io::Result<Vec<u64>>>().context(|| "cannot pin a thread to its CPU")?;
        Ok(NativeRun { ops, time, cpu_time: before.zip(after).map(|(before, after)| after.since(before)) })
    })
}

/// Runs of each design, and how long each takes, where nothing hangs on a few percent.
pub(super) const RUNS: usize = 5;
pub(super) const TIME: Duration = Duration::from_millis(20);

/// The runs of one design in [`in_turn`].
pub(super) fn steps_in_turn(runs: usize) -> usize {
    cpu_counts().len() * runs
}

/// Rows of all designs in turn, so many times: a slow minute of this computer hits them all.
pub(super) fn in_turn<D>(
    session: &mut ExperimentSession<'_>,
    (workload, times): (&str, usize),
    designs: &[D],
    name: impl Fn(&D) -> &str,
    run: impl Fn(&D, usize) -> Result<NativeRun>,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for cpus in cpu_counts() {
        let mut runs: Vec<Vec<NativeRun>> = designs.iter().map(|_| Vec::new()).collect();
        for _ in 0..times {
            for (design, runs) in designs.iter().zip(&mut runs) {
                let what = format!("{workload} natively, {} with {cpus} CPUs", name(design));
                runs.push(session.native_step(&what, cpus, || run(design, cpus))??);
            }
        }
        for (design, runs) in designs.iter().zip(&runs) {
            let row = row(session, workload, name(design), cpus, runs);
            session.row(&row)?;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// A row from native runs.
pub(super) fn row(
    session: &ExperimentSession<'_>,
    workload: &str,
    variant: &str,
    cpus: usize,
    runs: &[NativeRun],
) -> Row {
    let tasks = runs.first().map_or(cpus, |run| run.ops.len());
    let mut row = Row::new(&session.origin, workload, "lib".to_owned(), cpus, tasks);
    row.variant = Some(variant.to_owned());
    let all = |of: fn(&NativeRun) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    row.set_rates(runs.iter().map(NativeRun::total).sum(), &all(NativeRun::ops_per_s));
    row.fairness = median(&all(NativeRun::fairness));
    let times = runs.iter().map(|run| run.cpu_time).collect::<Option<Vec<CpuTime>>>();
    let time = times.map(|times| times.into_iter().fold(CpuTime::default(), |sum, time| sum + time));
    row.idle = time.filter(|time| time.total > 0).map(|time| time.idle as f64 / time.total as f64);
    row
}
