//! Calibrate: the simulated machine against published curves: ratios, never absolutes.
//!
//! # Theory
//! A simulator is worth believing as far as shapes come out that were measured elsewhere. Each row has a ratio
//! from a source, the same ratio of a small model in [`crate::history`], and how far they may be apart: a
//! factor of [`FACTOR`], unless it says otherwise. Parameters of the models are the sources' own single-CPU
//! figures where they give them, and guesses otherwise.
//!
//! Not all rows are independent evidence. Two models were corrected after a first run had missed: the commit
//! list got a machine of two sockets (the knee was 1.63, the gain 1.28; then 1.24 and 1.76, until its head came to lie
//! beside its lock), and the dentry's count unconditional additions for a compare-and-exchange loop (the gain was 0.99).
//! Their rows are marked.

use super::{ExperimentSession, Findings};
use crate::history::commit_list::{CommitLists, create_or_remove};
use crate::history::small_locks::Small;
use crate::history::{false_sharing, file_lock_waiters, open_close, small_locks};
use crate::row::{Origin, Row};
use sluice_console::failure::Result;
use sluice_console::table::Table;
use sluice_lock_zoo_sim::Queued;
use sluice_machine::{Machine, Report};
use std::fmt::Write as _;

/// How far simulated and published ratio may be apart.
const FACTOR: f64 = 1.6;

struct Check {
    what: &'static str,
    source: &'static str,
    published: f64,
    simulated: f64,
    /// Effects that the model omits or guesses, as far as a miss is understood.
    left_out: &'static str,
}

impl Check {
    fn met(&self) -> bool {
        let apart = self.simulated / self.published;
        // A gain that comes out as a loss is a miss, however small both are.
        let gain = |ratio: f64| ratio > 1.0;
        let same_side = (0.9..=1.1).contains(&self.published) || gain(self.published) == gain(self.simulated);
        same_side && (1.0 / FACTOR..=FACTOR).contains(&apart)
    }
}

/// One model's figures: rows as they come, and what they are checked against.
struct Gauge<'a, 's> {
    session: &'a mut ExperimentSession<'s>,
    checks: Vec<Check>,
}

const FOLLY: &str = "folly, SmallLocksBenchmark, Xeon E5-2680 v4, 32 threads";
const CIL: &str = "XFS, commits of 2021 and 2022, 32 CPUs";
const WAITERS: &str = "file lock wait tree, 2018, 72 CPUs";
const SHARING: &str = "dentry reference count and name in one line, 2024, 20 CPUs";
const POWER7: &str = "VFS scaling tree of 2010, POWER7, open-close in separate directories";

/// Nothing that is known to matter.
const NOTHING: &str = "not understood.";
const MUTEX: &str =
    "not understood; the lock of the kernel's hash bucket, which this model has, explains a twentieth.";
const ASLEEP: &str = "1.8 million unlocks a second leave no time to wake 19 tasks one by one, so most of the source's\n\
     cannot have slept, as here all waiting tasks do.";
const GUESSED: &str = "how often an open with its close takes each global lock is a guess.";
const UNTOLD: &str = "the model's processes share nothing any more, so none can lose; the source does not say what\n\
     cost half of the rate.";

const SMALL: [(Small, &str); 6] = [
    (Small::FetchAdd, "fetch-add"),
    (Small::CompareExchange, "cas"),
    (Small::Futex, "futex"),
    (Small::TestAndSet, "tas"),
    (Small::Queue, "mcs"),
    (Small::Combining, "combining"),
];
const SMALL_THREADS: [usize; 5] = [1, 2, 8, 16, 32];
const COMMIT_CPUS: [usize; 5] = [1, 8, 16, 24, 32];
const WAITER_TASKS: [usize; 5] = [2, 20, 50, 70, 100];

pub(super) fn steps() -> usize {
    SMALL.len() * SMALL_THREADS.len() + 2 * COMMIT_CPUS.len() + 2 * WAITER_TASKS.len() + 4 + 4
}

pub(super) fn run(session: &mut ExperimentSession<'_>) -> Result<Findings> {
    let mut gauge = Gauge { session, checks: Vec::new() };
    gauge.small_locks()?;
    gauge.commit_list()?;
    gauge.waiters()?;
    gauge.false_sharing()?;
    gauge.open_close()?;
    Ok(Findings { tables: report(&gauge.checks), verdicts: Vec::new() })
}

fn report(checks: &[Check]) -> String {
    let mut table = Table::with_left_columns(1);
    table.line(["ratio", "published", "simulated", "verdict"]);
    let mut source = "";
    for check in checks {
        if source != check.source {
            source = check.source;
            table.line([source]);
        }
        let verdict = if check.met() { "met" } else { "MISSED" };
        table.line([
            format!("  {}", check.what),
            number(check.published),
            number(check.simulated),
            verdict.to_owned(),
        ]);
    }
    let met = checks.iter().filter(|check| check.met()).count();
    let mut text = table.render();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "\nA ratio is met within a factor of {FACTOR}. {met} of {} are met; a miss says where not to believe the\n\
         simulated machine or the model. The published figures are of other machines: only their shape is compared.\n\
         (*) the model was corrected after it had missed at first, so that this row is weaker evidence.",
        checks.len()
    );
    for check in checks.iter().filter(|check| !check.met()) {
        let _ = writeln!(text, "\nMissed, {}:\n{}", check.what, check.left_out);
    }
    text
}

fn number(ratio: f64) -> String {
    if ratio < 0.095 { format!("{ratio:.5}") } else { format!("{ratio:.2}") }
}

impl Gauge<'_, '_> {
    fn measure(
        &mut self,
        (workload, variant): (&str, &str),
        machine: &Machine,
        cpus: usize,
        run: impl Fn(&Machine) -> Report,
    ) -> Result<f64> {
        let what = format!("{workload}, {variant} with {cpus} CPUs");
        let machine = machine.clone().seed(7);
        let report = self.session.step(&what, || run(&machine))?;
        let rate = report.ops_per_s();
        let spec = machine.spec();
        let origin = Origin::simulated(spec.title);
        let mut row = Row::new(&origin, workload, format!("sim:{}", spec.name), cpus, cpus);
        row.variant = Some(variant.to_owned());
        row.simulated = true;
        row.set_rates(report.ops(), &[rate]);
        row.fairness = Some(report.fairness());
        row.idle = Some(report.idle());
        self.session.row(&row)?;
        Ok(rate)
    }

    fn check(
        &mut self,
        source: &'static str,
        what: &'static str,
        (published, simulated): (f64, f64),
        left_out: &'static str,
    ) {
        self.checks.push(Check { what, source, published, simulated, left_out });
    }

    fn small_locks(&mut self) -> Result<()> {
        let machine = small_locks::machine();
        let mut at_32 = Vec::new();
        let mut from_2 = 0.0;
        for (small, name) in SMALL {
            for threads in SMALL_THREADS {
                let rate = self.measure(("calibrate-small-locks", name), &machine, threads, |machine| {
                    small_locks::contend(machine, threads, small)
                })?;
                match threads {
                    2 if small == Small::Futex => from_2 = rate,
                    32 => at_32.push(rate),
                    _ => {}
                }
            }
        }
        // Microseconds for an operation by each of 32 threads, as published.
        let published = [3.33, 4.87, 30.3, 95.9, 18.7, 5.00];
        let cost = |of: usize| (published[of] / published[0], at_32[0] / at_32[of]);
        let queue = "an MCS queue stands for it, whose owner does not ask whether a waiter runs before it hands over.";
        let too_cheap = "std::mutex is too cheap, as above.";
        for (what, ratios, left_out) in [
            ("cost of a cas loop / fetch-add", cost(1), NOTHING),
            ("cost of std::mutex / fetch-add", cost(2), MUTEX),
            ("cost of test-and-set / fetch-add", cost(3), NOTHING),
            ("cost of a queue (DistributedMutex) / fetch-add", cost(4), queue),
            ("cost of combining / fetch-add", cost(5), NOTHING),
            (
                "cost of test-and-set / std::mutex",
                (published[3] / published[2], at_32[2] / at_32[3]),
                too_cheap,
            ),
            ("cost of std::mutex, 32 threads / 2", (1.6, from_2 / at_32[2]), MUTEX),
        ] {
            self.check(FOLLY, what, ratios, left_out);
        }
        Ok(())
    }

    fn commit_list(&mut self) -> Result<()> {
        // The source's machine had two sockets, and threads on both.
        let machine = small_locks::machine();
        let mut rates = [[0.0; COMMIT_CPUS.len()]; 2];
        for (per_cpu, rates) in rates.iter_mut().enumerate() {
            let variant = ["before", "source"][per_cpu];
            for (cpus, rate) in COMMIT_CPUS.into_iter().zip(rates) {
                *rate = self.measure(("calibrate-commit-list", variant), &machine, cpus, |machine| {
                    let lists = CommitLists::<Queued>::new([1, cpus][per_cpu]);
                    machine.run(cpus, |cpu| {
                        while cpu.now() < 20_000_000 {
                            lists.commit(&cpu);
                            cpu.count_op();
                            create_or_remove(&cpu);
                        }
                    })
                })?;
            }
        }
        let [before, after] = rates;
        self.check(
            CIL,
            "one list: rate at 32 CPUs / 16, the knee (*)",
            (1.0, before[4] / before[2]),
            NOTHING,
        );
        self.check(
            CIL,
            "list per CPU / one list, at 32 CPUs (*)",
            (1.3 / 0.7, after[4] / before[4]),
            NOTHING,
        );
        Ok(())
    }

    fn waiters(&mut self) -> Result<()> {
        let machine = Machine::named("icelake-2s");
        let mut rates = [[0.0; WAITER_TASKS.len()]; 2];
        for (tree, rates) in rates.iter_mut().enumerate() {
            let variant = ["before", "source"][tree];
            for (tasks, rate) in WAITER_TASKS.into_iter().zip(rates) {
                *rate = self.measure(("calibrate-waiters", variant), &machine, tasks, |machine| {
                    file_lock_waiters::lock_and_unlock(machine, tasks, tree == 1)
                })?;
            }
        }
        let [before, after] = rates;
        self.check(WAITERS, "tree / wake-all, 20 tasks", (1.4 / 1.8, after[1] / before[1]), ASLEEP);
        self.check(WAITERS, "tree / wake-all, 100 tasks", (1.4 / 0.7, after[4] / before[4]), ASLEEP);
        self.check(WAITERS, "tree, 100 tasks / 20", (1.0, after[4] / after[1]), NOTHING);
        Ok(())
    }

    fn false_sharing(&mut self) -> Result<()> {
        let machine = Machine::named("icelake-2s");
        let mut at_20 = [0.0; 2];
        for (apart, at_20) in at_20.iter_mut().enumerate() {
            for cpus in [1, 20] {
                *at_20 = self.measure(
                    ("calibrate-false-sharing", ["before", "source"][apart]),
                    &machine,
                    cpus,
                    |machine| false_sharing::stat(machine, cpus, apart == 1),
                )?;
            }
        }
        self.check(
            SHARING,
            "apart / together, 20 CPUs (*)",
            (7_842_883.0 / 5_038_006.0, at_20[1] / at_20[0]),
            NOTHING,
        );
        Ok(())
    }

    fn open_close(&mut self) -> Result<()> {
        let machine = Machine::named("power7-64");
        let mut kept = [0.0; 2];
        for (per_cpu, kept) in kept.iter_mut().enumerate() {
            let mut rates = [0.0; 2];
            for (cpus, rate) in [1, 64].into_iter().zip(&mut rates) {
                *rate = self.measure(
                    ("calibrate-open-close", ["before", "source"][per_cpu]),
                    &machine,
                    cpus,
                    |machine| open_close::open_and_close(machine, cpus, per_cpu == 0),
                )? / cpus as f64;
            }
            *kept = rates[1] / rates[0];
        }
        self.check(
            POWER7,
            "global locks: rate per process, all cores / one",
            (86.6 / 384_558.0, kept[0]),
            GUESSED,
        );
        self.check(
            POWER7,
            "per-CPU: rate per process, all cores / one",
            (164_055.0 / 355_924.0, kept[1]),
            UNTOLD,
        );
        Ok(())
    }
}
