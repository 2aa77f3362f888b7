//! File locks: one global lock, the design of 2013 and ours, from two CPUs to 256 and natively; many waiters; many ranges.
//!
//! # Sources
//! Layton, "locks: scalability improvements for file locking" (2013): 128 processes lock and unlock one file
//! (posix01, flock01), or a file each (posix02, flock02), on 2 and on 32 CPUs. Its figures are time spent in the
//! calls, summed over the processes; ours are operations per second, of which a part is computing between the calls.
//! The wait tree of 2018 for many waiters.

use super::curves::Curves;
use super::file_locks_on_host;
use super::native;
use super::verdict::Verdict;
use super::{ExperimentSession, Findings};
use crate::history::file_lock_tasks::{Design, Form, HERDS, Run, TASKS, TESTS, Tasks};
use crate::history::{file_locks_2012::FileLocks2012, file_locks_2013::FileLocks2013};
use crate::row::{Origin, Row};
use crate::stats::median;
use sluice_console::failure::Result;
use sluice_locks::{FileLocks, Kind, LockDomain, Owner, Range, RangeRequest};
use sluice_locks_sim as sim;
use sluice_machine::Machine;
use sluice_sync::Arc;
use sluice_sync::time::Duration;
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Wake, Waker};

const SEEDS: &[u64] = &[7, 8, 9];
/// Ours alone, where the source had no machine.
const LARGE: (&str, &[usize]) = ("milan-2s", &[1, 64, 128, 256]);
const PLACES: &[(&str, &[usize])] = &[("uma-2", &[1, 2]), ("opteron-32", &[1, 2, 4, 8, 16, 32])];
const HERD: (&str, usize) = ("opteron-32", 32);
/// Ranges held by another while one more is locked and unlocked.
const HELD: &[u64] = &[10, 1_000, 10_000, 100_000];
const NATIVE_RUNS: usize = 9;
const NATIVE_TIME: Duration = Duration::from_millis(30);

const VARIANTS: &[(&str, Make)] = &[
    ("before", |tasks, form, files| Box::new(FileLocks2012::new(tasks, form, files))),
    ("source", |tasks, form, files| Box::new(FileLocks2013::new(tasks, form, files))),
    ("ours", |tasks, form, files| Box::new(Ours::new(tasks, form, files))),
];

/// Makes a design for tasks that call so, with so many files.
type Make = fn(&Arc<Tasks>, Form, usize) -> Box<dyn Design>;

/// The lock manager of sluicefs, on the machine: each task is one of asynchronous code.
struct Ours {
    form: Form,
    /// Held by an `Arc` that the machine does not see: the counting would be ours, not that of the locks.
    files: Vec<Arc<sim::FileLocks>>,
    wakers: Vec<Waker>,
    /// The request of each task that waits.
    waiting: Vec<RefCell<Option<sim::LockFuture<Arc<sim::FileLocks>>>>>,
}

/// Wakes one task.
struct WakeTask {
    tasks: Arc<Tasks>,
    task: usize,
}

impl Wake for WakeTask {
    fn wake(self: Arc<Self>) {
        self.tasks.wake(self.task);
    }
}

impl Ours {
    fn new(tasks: &Arc<Tasks>, form: Form, files: usize) -> Ours {
        let domain = sim::LockDomain::new(sim::DomainOptions::default());
        let files = (0..files).map(|ino| Arc::new(sim::FileLocks::new(&domain, 0, ino as u64))).collect();
        let waker = |task| Waker::from(Arc::new(WakeTask { tasks: tasks.clone(), task }));
        let wakers: Vec<_> = (0..tasks.count()).map(waker).collect();
        Ours { form, files, waiting: wakers.iter().map(|_| RefCell::default()).collect(), wakers }
    }
}

impl Design for Ours {
    fn lock(&self, task: usize, file: usize) -> bool {
        let mut waiting = self.waiting[task].borrow_mut();
        let future = waiting.get_or_insert_with(|| {
            let (file, kind, range) = (self.files[file].clone(), sim::Kind::Exclusive, sim::Range::WHOLE);
            let owner = sim::Owner::Process(task as u64);
            match self.form {
                Form::Flock => sim::LockFuture::flock(file, task as u64, 1, kind),
                Form::Posix => sim::LockFuture::range(file, sim::RangeRequest { owner, pid: 1, kind, range }),
            }
        });
        let outcome = pin!(future).poll(&mut Context::from_waker(&self.wakers[task]));
        if outcome.is_ready() {
            // Without limits, and one lock at a time: it is granted.
            *waiting = None;
        }
        outcome.is_ready()
    }

    fn unlock(&self, task: usize, file: usize) {
        match self.form {
            Form::Flock => self.files[file].unlock_flock(task as u64),
            Form::Posix => self.files[file].release_owner(sim::Owner::Process(task as u64)),
        }
    }
}

/// Runs a design on so many CPUs with so many tasks.
fn simulate(machine: &Machine, cpus: usize, tasks: usize, (form, one_file): (Form, bool), make: Make) -> Run {
    let file_of: fn(usize) -> usize = if one_file { |_| 0 } else { |task| task };
    let files = if one_file { 1 } else { tasks };
    Tasks::run(machine, (cpus, tasks), file_of, |post| make(post, form, files))
}

pub(super) fn steps() -> usize {
    let points: usize = PLACES.iter().map(|(_, cpus)| cpus.len()).sum();
    let large = TESTS.iter().filter(|(.., one_file)| !one_file).count() * LARGE.1.len();
    TESTS.len() * VARIANTS.len() * points
        + large
        + HERDS.len() * VARIANTS.len()
        + HELD.len() * NATIVE_RUNS
        + file_locks_on_host::steps()
}

/// Rows of the simulated runs, and of the herds the wake-ups for each release.
#[derive(Default)]
struct FileLockRows {
    rows: Vec<Row>,
    wakes: Vec<(String, usize, f64)>,
}

impl FileLockRows {
    fn measure(
        &mut self,
        session: &mut ExperimentSession<'_>,
        (workload, test): (&str, (Form, bool)),
        (machine, cpus, tasks): (&str, usize, usize),
        (variant, make): (&str, Make),
    ) -> Result<()> {
        let what = format!("{workload} on {machine}, {variant} with {cpus} CPUs");
        let plain = Machine::named(machine);
        let runs: Vec<Run> = session.step(&what, || {
            SEEDS.iter().map(|&seed| simulate(&plain.clone().seed(seed), cpus, tasks, test, make)).collect()
        })?;
        let origin = Origin::simulated(plain.spec().title);
        let mut row = Row::new(&origin, workload, format!("sim:{machine}"), cpus, tasks);
        row.variant = Some(variant.to_owned());
        row.simulated = true;
        let all = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
        row.set_rates(runs.iter().map(|run| run.report.ops()).sum(), &all(|run| run.ops_per_s));
        row.fairness = median(&all(|run| run.report.fairness()));
        row.idle = median(&all(|run| run.report.idle()));
        session.row(&row)?;
        self.rows.push(row);
        self.wakes.extend(
            median(&all(|run| run.wakes_per_release)).map(|wakes| (variant.to_owned(), tasks, wakes)),
        );
        Ok(())
    }
}

pub(super) fn run(session: &mut ExperimentSession<'_>) -> Result<Findings> {
    let mut seen = FileLockRows::default();
    for &(machine, cpu_counts) in PLACES {
        for &(workload, form, one_file) in TESTS {
            for &cpus in cpu_counts {
                for &variant in VARIANTS {
                    seen.measure(session, (workload, (form, one_file)), (machine, cpus, TASKS), variant)?;
                }
            }
        }
    }
    let ours = VARIANTS[VARIANTS.len() - 1];
    for &(workload, form, one_file) in TESTS.iter().filter(|(.., one_file)| !one_file) {
        for &cpus in LARGE.1 {
            let tasks = if cpus == 1 { 1 } else { cpus };
            seen.measure(session, (workload, (form, one_file)), (LARGE.0, cpus, tasks), ours)?;
        }
    }
    seen.wakes.clear();
    for &tasks in HERDS {
        for &variant in VARIANTS {
            let workload = format!("herd-{tasks}");
            seen.measure(session, (&workload, (Form::Posix, true)), (HERD.0, HERD.1, tasks), variant)?;
        }
    }
    let (ranges, times) = many_ranges(session)?;
    let (host_tables, host_verdicts) = file_locks_on_host::run(session)?;
    let curves = Curves(&seen.rows);
    let mut verdicts = verdicts(&curves);
    verdicts.extend(herd_verdicts(&curves, &seen.wakes));
    verdicts.push(range_verdict(&times));
    verdicts.extend(host_verdicts);
    Ok(Findings { tables: curves.tables() + &host_tables + &Curves(&ranges).tables(), verdicts })
}

/// Natively: a lock and unlock of one more range, while another owner holds many. Rows, and ns for each of [`HELD`].
fn many_ranges(session: &mut ExperimentSession<'_>) -> Result<(Vec<Row>, Vec<f64>)> {
    let domain = LockDomain::new(Default::default());
    let mut runs: Vec<Vec<_>> = HELD.iter().map(|_| Vec::new()).collect();
    let files: Vec<_> = HELD.iter().map(|&held| many_held(&domain, held)).collect();
    for _ in 0..NATIVE_RUNS {
        for ((file, &held), runs) in files.iter().zip(HELD).zip(&mut runs) {
            runs.push(session.native_step(&format!("one range more than {held}"), 1, || {
                native::contend(1, NATIVE_TIME, || one_more(file, held / 2))
            })??);
        }
    }
    let (mut rows, mut times) = (Vec::new(), Vec::new());
    for (&held, runs) in HELD.iter().zip(&runs) {
        let rates: Vec<f64> = runs.iter().map(native::NativeRun::ops_per_s).collect();
        let mut row = Row::new(&session.origin, &format!("ranges-{held}"), "lib".to_owned(), 1, 1);
        row.variant = Some("ours".to_owned());
        row.set_rates(runs.iter().map(native::NativeRun::total).sum(), &rates);
        session.row(&row)?;
        times.extend(row.mean_ns);
        rows.push(row);
    }
    Ok((rows, times))
}

/// A file of which another owner holds `held` ranges of 10 bytes, each followed by a gap.
fn many_held(domain: &Arc<LockDomain>, held: u64) -> FileLocks {
    let file = FileLocks::new(domain, 0, held);
    for at in 0..held {
        let range = Range::new(at * 20, at * 20 + 9).expect("far from the largest offset");
        let other = RangeRequest { owner: Owner::Description(2), pid: -1, kind: Kind::Exclusive, range };
        file.set_range(&other).expect("disjoint, and there is no limit");
    }
    file
}

/// Locks and unlocks the gap numbered `at`.
fn one_more(file: &FileLocks, at: u64) {
    let range = Range::new(at * 20 + 10, at * 20 + 19).expect("far from the largest offset");
    let owner = Owner::Description(1);
    file.set_range(&RangeRequest { owner, pid: -1, kind: Kind::Exclusive, range }).expect("a gap");
    file.unlock_range(owner, range).expect("there is no limit");
}

fn verdicts(curves: &Curves<'_>) -> Vec<Verdict> {
    let at_32 = |workload, variant| curves.rate(workload, "sim:opteron-32", variant, 32);
    let gain = |workload| at_32(workload, "source") / at_32(workload, "before");
    let table = [
        ("posix01", "30,889 -> 25,505, 1.2 times better", 1.0..2.4),
        ("posix02", "1,354.7 -> 541.4, 2.5 times better", 1.5..5.0),
        ("flock01", "23,618 -> 24,743, 3-5% worse", 0.85..1.0),
        ("flock02", "1,348.6 -> 8.48, 160 times better", 30.0..f64::INFINITY),
    ];
    let mut verdicts: Vec<_> = (table.into_iter())
        .map(|(workload, published, wanted)| {
            let seen = gain(workload);
            Verdict::new(
                format!("{workload} on 32 CPUs, one global lock -> design of 2013: {published}"),
                format!(
                    "simulated, opteron-32: {seen:.2} times the throughput (wanted: {:.2} to {:.2})",
                    wanted.start, wanted.end
                ),
                wanted.contains(&seen),
            )
        })
        .collect();
    for &(machine, cpu_counts) in PLACES {
        for &(workload, ..) in TESTS {
            let target = format!("sim:{machine}");
            let ratio = |cpus| {
                let rate = |variant| curves.rate(workload, &target, variant, cpus);
                (rate("ours") / rate("before").max(rate("source")), cpus)
            };
            let worst = cpu_counts.iter().map(|&cpus| ratio(cpus)).min_by(|a, b| a.0.total_cmp(&b.0));
            let (ratio, cpus) = worst.unwrap_or((0.0, 0));
            verdicts.push(Verdict::new(
                format!("{workload}: ours at least as good as the better of the two"),
                format!("simulated, {machine}: {ratio:.2} times or more; least at {cpus} CPUs (wanted: 1)"),
                ratio >= 1.0,
            ));
        }
    }
    for &(workload, ..) in TESTS.iter().filter(|(.., one_file)| !one_file) {
        let target = format!("sim:{}", LARGE.0);
        let share = |cpus: usize| (curves.share(workload, &target, "ours", 1, cpus), cpus);
        let worst = LARGE.1.iter().map(|&cpus| share(cpus)).min_by(|a, b| a.0.total_cmp(&b.0));
        let (share, cpus) = worst.unwrap_or((0.0, 0));
        verdicts.push(Verdict::new(
            format!("{workload} scales perfectly over cores (the reviewer's bar)"),
            format!(
                "simulated, {}: {share:.3} of linear or more; least at {cpus} CPUs (wanted: 0.95)",
                LARGE.0
            ),
            share >= 0.95,
        ));
    }
    verdicts
}

fn herd_verdicts(curves: &Curves<'_>, wakes: &[(String, usize, f64)]) -> Vec<Verdict> {
    let rate = |variant, tasks: usize| {
        curves.rate(&format!("herd-{tasks}"), &format!("sim:{}", HERD.0), variant, HERD.1)
    };
    let kept = rate("ours", 1_000) / rate("ours", 20);
    let most =
        wakes.iter().filter(|(variant, ..)| variant == "ours").map(|(.., wakes)| *wakes).fold(0.0, f64::max);
    let at_20 = rate("ours", 20) / rate("before", 20).max(rate("source", 20));
    vec![
        Verdict::new(
            "a thousand waiters cost no more than twenty",
            format!("simulated, {}: {kept:.3} of the throughput (wanted: 0.9)", HERD.0),
            kept >= 0.9,
        ),
        Verdict::new(
            "no thundering herd: a release of an exclusive lock wakes one",
            format!("simulated, {}: {most:.3} wake-ups a release or fewer (wanted: 1)", HERD.0),
            most <= 1.0,
        ),
        Verdict::new(
            "20 waiters: a tree of waiters lost 22% against waking all",
            format!("simulated, {}: ours / the better of waking all = {at_20:.2} (wanted: 1)", HERD.0),
            at_20 >= 1.0,
        ),
    ]
}

fn range_verdict(times: &[f64]) -> Verdict {
    let (few, many) = (times.first().copied().unwrap_or(0.0), times.last().copied().unwrap_or(0.0));
    let ten_thousand = times.get(2).copied().unwrap_or(0.0);
    Verdict::new(
        "Linux OFD locks: lock and unlock of one range more takes 604 us with 10,000 held, 0.8 us with none",
        format!(
            "native: {few:.0} ns with 10 held, {ten_thousand:.0} ns with 10,000 (wanted: 500), {many:.0} ns with \
             100,000 (wanted: 3 times that with 10; is {:.1})",
            many / few
        ),
        ten_thousand < 500.0 && many <= 3.0 * few,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(variant: usize, test: usize, cpus: usize, tasks: usize) -> f64 {
        let (_, form, one_file) = TESTS[test];
        let run = simulate(
            &Machine::named("opteron-32").seed(7),
            cpus,
            tasks,
            (form, one_file),
            VARIANTS[variant].1,
        );
        assert!(run.report.ops() > 100);
        assert!(variant != 2 || run.wakes_per_release <= 1.0, "{} wake-ups a release", run.wakes_per_release);
        run.ops_per_s
    }

    #[test]
    fn one_global_lock_holds_up_those_who_use_files_of_their_own_and_ours_does_not() {
        let [before, source, ours] = [0, 1, 2].map(|variant| rate(variant, 3, 8, 16));
        assert!(before * 3.0 < source && source < ours * 1.05, "{before:.0} {source:.0} {ours:.0}");
    }

    #[test]
    fn a_herd_of_waiters_does_not_slow_a_file_down() {
        let (few, many) = (rate(2, 0, 8, 20), rate(2, 0, 8, 200));
        assert!(many > 0.9 * few, "{many:.0} of {few:.0}");
    }
}
