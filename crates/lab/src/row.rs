//! Row: one line of `bench --json`, and how the runs behind it are summed up.

use crate::disturbance::join;
use crate::hot_lines::{HotLine, HotPlace};
use crate::sleep_places::SleepPlaces;
use crate::stats::{median, median_interval, standard_deviation};
use crate::timed_run::{Outcome, latencies, total};
use serde::{Deserialize, Serialize};
use sluice_console::machine::{CpuTime, Stalled};
use std::collections::BTreeMap;

/// Each bound of [`Row::latency`] over the one before.
pub(crate) const BUCKET_RATIO: f64 = 1.2;

/// Places of the kernel that a row names.
const PLACES_MAX: usize = 5;
/// How many places of a simulated row are shown.
const PLACES_SHOWN: usize = 3;

/// One result: a workload on a target at a number of CPUs. Field names are an interface: tools parse them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The workload's name.
    pub workload: String,
    /// The target, as it was asked for.
    pub target: String,
    /// The design or lock under test, where there are several.
    pub variant: Option<String>,
    /// CPUs that the tasks were pinned to.
    pub cpus: usize,
    /// Tasks at once.
    pub tasks: usize,
    /// Runs behind this row.
    pub runs: usize,
    /// Operations of all runs together.
    pub ops: u64,
    /// Operations per second: the median over the runs.
    pub ops_per_s: Option<f64>,
    /// Standard deviation of the runs' rates.
    pub ops_per_s_sd: Option<f64>,
    /// Mean time of an operation as its task sees it: tasks / `ops_per_s`.
    pub mean_ns: Option<f64>,
    /// Median latency of the operations of the timed pass.
    pub p50_ns: Option<u64>,
    /// 99th percentile of it.
    pub p99_ns: Option<u64>,
    /// Longest operation of it.
    pub max_ns: Option<u64>,
    /// Share of time that the CPUs in use were idle, 0 to 1.
    pub idle: Option<f64>,
    /// True for results of the simulated machine.
    pub simulated: bool,
    /// The computer.
    pub machine: String,
    /// Its kernel.
    pub kernel: String,
    /// Version of sluicefs.
    pub version: String,
    /// Warnings about the figures, for instance that other programs ran meanwhile. Older results have none.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// True where each task was a process of its own; left out where they were threads.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub processes: bool,
    /// True where tasks could run on any CPU; left out where each was pinned to one.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub unpinned: bool,
    /// Memory per file; only for `footprint`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_per_file: Option<f64>,
    /// Operations of the CPU with the fewest over those of the CPU with the most, 0 to 1; only for `lab`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fairness: Option<f64>,
    /// `ops_per_s` of each run, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub rates: Vec<f64>,
    /// Lower end of the 95% bootstrap interval of `ops_per_s`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ops_per_s_low: Option<f64>,
    /// Upper end of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ops_per_s_high: Option<f64>,
    /// Share of time that the CPUs in use spent in programs, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub user: Option<f64>,
    /// Share of time that they spent in the kernel.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub system: Option<f64>,
    /// Context switches of the tasks per operation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub switches_per_op: Option<f64>,
    /// Share of the tasks' time that they were asleep in the kernel, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub asleep: Option<f64>,
    /// Share of it that they were ready to run while others had the CPU.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub for_cpu: Option<f64>,
    /// Where in the kernel they slept, and the share of looks at a task that found it there, the most frequent first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub asleep_in: Vec<(String, f64)>,
    /// Shares of the time in which tasks anywhere on the machine stood still for want of a CPU, of memory, of a device: the
    /// median over the runs; left out where the system does not tell.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stalled: Option<Stalled>,
    /// The rate of the timed pass, in which each operation includes the reading of the clock: the median over the runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timed_ops_per_s: Option<f64>,
    /// Distribution of these latencies: at most so many nanoseconds, and more than the bound before, so many
    /// operations; bounds are a fifth apart, and those without operations are left out.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub latency: Vec<(u64, u64)>,
    /// The lines that CPUs waited for most; only for simulated rows.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub hottest: Vec<HotLine>,
    /// The places in the source where CPUs waited for lines most, whatever the line, costliest first; only for simulated rows.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub places: Vec<HotPlace>,
    /// Type and options of the file system, where it is a mounted one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file_system: Option<String>,
    /// The command line.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub command: Option<String>,
    /// In the row of this program beside one of another: its rate over the other's, by pairs of runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratio: Option<f64>,
    /// Lower end of the 99% interval of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratio_low: Option<f64>,
    /// Upper end of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratio_high: Option<f64>,
    /// The verdict on the ratio: `faster`, `slower`, `no-difference`, or `machine-moved`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdict: Option<String>,
}

/// Facts common to all rows of a benchmark.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The computer.
    pub machine: String,
    /// Its kernel.
    pub kernel: String,
    /// The command that asked for the figures.
    pub command: Option<String>,
}

impl Origin {
    /// This computer, its kernel, and this program's command line.
    pub fn here() -> Origin {
        let mut words: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        if let Some(name) = words.first_mut() {
            *name = std::path::Path::new(name).file_name().unwrap_or_default().to_string_lossy().into_owned();
        }
        Origin {
            machine: sluice_console::machine::name(),
            kernel: sluice_console::machine::kernel(),
            command: Some(words.join(" ")),
        }
    }

    /// A simulated machine, asked for by this program's command line.
    pub fn simulated(title: &str) -> Origin {
        Origin { machine: format!("simulated: {title}"), kernel: "simulated".to_owned(), ..Origin::here() }
    }
}

impl Row {
    /// A row without figures.
    pub fn new(origin: &Origin, workload: &str, target: String, cpus: usize, tasks: usize) -> Row {
        Row {
            workload: workload.to_owned(),
            target,
            variant: None,
            cpus,
            tasks,
            runs: 0,
            ops: 0,
            ops_per_s: None,
            ops_per_s_sd: None,
            mean_ns: None,
            p50_ns: None,
            p99_ns: None,
            max_ns: None,
            idle: None,
            simulated: false,
            machine: origin.machine.clone(),
            kernel: origin.kernel.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            warnings: Vec::new(),
            processes: false,
            unpinned: false,
            bytes_per_file: None,
            fairness: None,
            rates: Vec::new(),
            ops_per_s_low: None,
            ops_per_s_high: None,
            user: None,
            system: None,
            switches_per_op: None,
            asleep: None,
            for_cpu: None,
            asleep_in: Vec::new(),
            stalled: None,
            timed_ops_per_s: None,
            latency: Vec::new(),
            hottest: Vec::new(),
            places: Vec::new(),
            file_system: None,
            command: origin.command.clone(),
            ratio: None,
            ratio_low: None,
            ratio_high: None,
            verdict: None,
        }
    }

    /// The number of tasks, for a person: `4`, or `4 processes, unpinned`.
    pub(crate) fn tasks_in_words(&self) -> String {
        let processes = if self.processes { " processes" } else { "" };
        format!("{}{processes}{}", self.tasks, if self.unpinned { ", unpinned" } else { "" })
    }

    /// The row as a line of JSON, with its newline.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text always have a JSON form") + "\n"
    }

    /// Sets the rate from the rates of the runs.
    pub fn set_rates(&mut self, ops: u64, rates: &[f64]) {
        self.runs = rates.len();
        self.ops = ops;
        self.ops_per_s = median(rates);
        self.ops_per_s_sd = standard_deviation(rates);
        let interval = median_interval(rates, 0.95);
        self.ops_per_s_low = interval.map(|interval| interval.low);
        self.ops_per_s_high = interval.map(|interval| interval.high);
        self.rates = rates.to_vec();
        self.mean_ns = self.ops_per_s.map(|rate| 1e9 * self.tasks as f64 / rate);
    }

    /// Sums up rows of the same key, each of which is a single run: every figure becomes the median of the runs.
    ///
    /// # Panics
    /// When there is none.
    pub(crate) fn of_runs(rows: &[&Row]) -> Row {
        let mut all = rows[0].clone();
        let rates: Vec<f64> = rows.iter().filter_map(|row| row.ops_per_s).collect();
        all.set_rates(rows.iter().map(|row| row.ops).fold(0, u64::saturating_add), &rates);
        let middle =
            |of: fn(&Row) -> Option<f64>| median(&rows.iter().filter_map(|row| of(row)).collect::<Vec<_>>());
        all.p50_ns = middle(|row| Some(row.p50_ns? as f64)).map(|ns| ns as u64);
        all.p99_ns = middle(|row| Some(row.p99_ns? as f64)).map(|ns| ns as u64);
        all.max_ns = rows.iter().filter_map(|row| row.max_ns).max();
        all.idle = middle(|row| row.idle);
        all.user = middle(|row| row.user);
        all.system = middle(|row| row.system);
        all.asleep = middle(|row| row.asleep);
        all.for_cpu = middle(|row| row.for_cpu);
        all.switches_per_op = middle(|row| row.switches_per_op);
        all.timed_ops_per_s = middle(|row| row.timed_ops_per_s);
        let mut latency: BTreeMap<u64, u64> = BTreeMap::new();
        for (bound, count) in rows.iter().flat_map(|row| &row.latency) {
            let sum = latency.entry(*bound).or_default();
            *sum = sum.saturating_add(*count);
        }
        all.latency = latency.into_iter().collect();
        rows.iter().for_each(|row| join(&mut all.warnings, &row.warnings));
        all
    }

    /// Sets all figures from the runs' outcomes.
    pub fn set_outcomes(&mut self, outcomes: &[Outcome]) {
        let rates: Vec<f64> = outcomes.iter().map(|outcome| outcome.ops_per_s).collect();
        self.set_rates(outcomes.iter().map(|outcome| outcome.ops).sum(), &rates);
        let mut latency = latencies();
        for outcome in outcomes {
            latency.add(&outcome.latency_ns).expect("histograms of equal bounds add up");
        }
        if !latency.is_empty() {
            self.p50_ns = Some(latency.value_at_quantile(0.5));
            self.p99_ns = Some(latency.value_at_quantile(0.99));
            self.max_ns = Some(latency.max());
            let buckets = latency.iter_log(64, BUCKET_RATIO);
            let buckets =
                buckets.map(|bucket| (bucket.value_iterated_to(), bucket.count_since_last_iteration()));
            self.latency = buckets.filter(|(_, count)| *count > 0).collect();
        }
        let time = outcomes.iter().map(|outcome| outcome.cpu_time).collect::<Option<Vec<_>>>();
        let time = time.map(|times| times.into_iter().fold(CpuTime::default(), |sum, time| sum + time));
        let time = time.filter(|time| time.total > 0);
        let share = |part: fn(&CpuTime) -> u64| time.map(|time| part(&time) as f64 / time.total as f64);
        self.user = share(|time| time.user);
        self.system = share(|time| time.system);
        let idle: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.idle).collect();
        self.idle = median(&idle);
        self.set_sleep(outcomes);
        let timed: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.timed_ops_per_s).collect();
        self.timed_ops_per_s = median(&timed);
        let stalled: Vec<Stalled> = outcomes.iter().filter_map(|outcome| outcome.stalled).collect();
        let median_of = |part: fn(&Stalled) -> f64| median(&stalled.iter().map(part).collect::<Vec<_>>());
        let (cpu, memory, io) = (median_of(|s| s.cpu), median_of(|s| s.memory), median_of(|s| s.io));
        self.stalled = cpu.zip(memory).zip(io).map(|((cpu, memory), io)| Stalled { cpu, memory, io });
        self.hottest = outcomes.first().map(|outcome| outcome.hottest.clone()).unwrap_or_default();
        self.places = outcomes.first().map(|outcome| outcome.places.clone()).unwrap_or_default();
        let switches: Option<u64> = outcomes.iter().map(|outcome| outcome.context_switches).sum();
        self.switches_per_op = switches.filter(|_| self.ops > 0).map(|count| count as f64 / self.ops as f64);
    }
}

impl Row {
    /// The first of its places, to be shown.
    pub(crate) fn costliest_places(&self) -> &[HotPlace] {
        &self.places[..self.places.len().min(PLACES_SHOWN)]
    }

    /// Sets what is known of the tasks' time.
    fn set_sleep(&mut self, outcomes: &[Outcome]) {
        let times = outcomes.iter().map(|outcome| outcome.task_time).collect::<Option<Vec<_>>>();
        let (spent, all) = times.unwrap_or_default().into_iter().fold(Default::default(), total);
        if !all.is_zero() {
            let share = |nanoseconds: u64| (nanoseconds as f64 / all.as_nanos() as f64).min(1.0);
            self.for_cpu = Some(share(spent.for_cpu));
            self.asleep = Some(1.0 - share(spent.on_cpu + spent.for_cpu));
        }
        let mut places = SleepPlaces::default();
        outcomes.iter().for_each(|outcome| places.add(&outcome.sleep_places));
        let share = |count: u64| count as f64 / places.looks.max(1) as f64;
        self.asleep_in = places.asleep.iter().map(|(place, &count)| (place.clone(), share(count))).collect();
        self.asleep_in.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        self.asleep_in.truncate(PLACES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(ops: u64, ops_per_s: f64, cpu_time: Option<CpuTime>) -> Outcome {
        let mut latency_ns = latencies();
        latency_ns.saturating_record(100);
        let idle = cpu_time.map(|time| time.idle as f64 / time.total as f64);
        let context_switches = Some(ops / 10);
        Outcome { latency_ns, idle, cpu_time, context_switches, ..Outcome::new(ops, ops_per_s) }
    }

    #[test]
    fn a_row_has_the_fields_that_tools_parse_and_further_ones_after_them() {
        let origin = Origin { machine: "m".into(), kernel: "k".into(), command: None };
        let mut row = Row::new(&origin, "stat", "lib".into(), 2, 4);
        let half_idle = Some(CpuTime { user: 1, system: 0, idle: 1, total: 2 });
        row.set_outcomes(&[
            outcome(10, 100.0, half_idle),
            outcome(20, 300.0, half_idle),
            outcome(30, 200.0, half_idle),
        ]);
        let line = serde_json::to_string(&row).unwrap();
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        let expected = [
            "workload",
            "target",
            "variant",
            "cpus",
            "tasks",
            "runs",
            "ops",
            "ops_per_s",
            "ops_per_s_sd",
            "mean_ns",
            "p50_ns",
            "p99_ns",
            "max_ns",
            "idle",
            "simulated",
            "machine",
            "kernel",
            "version",
            "warnings",
        ];
        let places = expected.map(|name| line.find(&format!("\"{name}\":")).unwrap());
        assert!(places.is_sorted(), "in the order that is documented, before all others: {line}");
        assert!(line[places[18]..].starts_with("\"warnings\":[]"));
        assert!(line.find("\"rates\"").unwrap() > places[18]);
        assert_eq!((value["user"].as_f64(), value["switches_per_op"].as_f64()), (Some(0.5), Some(0.1)));
        assert_eq!(value["rates"].as_array().unwrap().len(), 3);
        assert_eq!((value["ops"].as_u64(), value["runs"].as_u64()), (Some(60), Some(3)));
        assert_eq!((value["ops_per_s"].as_f64(), value["ops_per_s_sd"].as_f64()), (Some(200.0), Some(100.0)));
        assert_eq!((value["mean_ns"].as_f64(), value["idle"].as_f64()), (Some(2e7), Some(0.5)));
        assert_eq!((value["p50_ns"].as_u64(), value["simulated"].as_bool()), (Some(100), Some(false)));
        assert!(value["variant"].is_null());
        assert_eq!(serde_json::from_str::<Row>(&line).unwrap(), row);
    }

    #[test]
    fn rows_of_single_runs_become_one_row_with_the_medians() {
        let origin = Origin { machine: "m".into(), kernel: "k".into(), command: None };
        let run = |rate: f64, p50: u64, warning: &str| {
            let mut row = Row::new(&origin, "stat", "lib".into(), 1, 1);
            row.set_rates(10, &[rate]);
            (row.p50_ns, row.max_ns, row.idle) = (Some(p50), Some(9 * p50), Some(rate / 1000.0));
            (row.latency, row.warnings) = (vec![(p50, 1), (1000, 2)], vec![warning.to_owned()]);
            row
        };
        let runs = [run(100.0, 7, "a: 1"), run(300.0, 5, "b: 2"), run(200.0, 6, "a: 3")];
        let row = Row::of_runs(&runs.iter().collect::<Vec<_>>());
        assert_eq!(
            (row.runs, row.ops, row.ops_per_s, &row.rates[..]),
            (3, 30, Some(200.0), &[100.0, 300.0, 200.0][..])
        );
        assert_eq!((row.p50_ns, row.max_ns, row.idle), (Some(6), Some(63), Some(0.2)));
        assert_eq!(row.latency, [(5, 1), (6, 1), (7, 1), (1000, 6)]);
        assert_eq!(row.warnings, ["a: 3", "b: 2"]);
    }

    #[test]
    fn what_is_not_known_is_null() {
        let origin = Origin { machine: "m".into(), kernel: "k".into(), command: None };
        let mut row = Row::new(&origin, "stat", "lib".into(), 1, 1);
        row.set_outcomes(&[outcome(10, 100.0, None)]);
        assert_eq!((row.ops_per_s_sd, row.idle), (None, None));
        assert!(serde_json::to_string(&row).unwrap().contains("\"idle\":null"));
    }
}
