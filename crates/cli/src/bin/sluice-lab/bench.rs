//! `sluice bench`: the plan from the options, progress and rows to where they belong.

use crate::args::Bench;
use indicatif::{ProgressBar, ProgressStyle};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::output::Output;
use sluice_console::program::{companion, this_program};
use sluice_lab::bench::{self, Listener, Plan};
use sluice_lab::row::Row;
use sluice_lab::target::Spec;
use sluice_lab::timed_run::Limit;
use sluice_lab::{row_table, workload};
use sluice_sync::lock_debug;
use sluice_sync::time::Duration;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// Length of a run when nothing else is asked for.
const DEFAULT_TIME: Duration = Duration::from_millis(200);

pub(crate) fn bench(options: Bench) -> Result<()> {
    let limit = match (options.seconds, options.ops) {
        (None, Some(ops)) => Limit::Ops(ops),
        (None, None) => Limit::Time(DEFAULT_TIME),
        (Some(seconds), _) => match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() => Limit::Time(time),
            _ => {
                return Err(Failure::Usage(format!(
                    "--seconds {seconds}: give a number of seconds above 0, such as 0.5"
                )));
            }
        },
    };
    let targets = options.on.iter().map(|text| text.parse()).collect::<Result<Vec<_>>>()?;
    let plan = Plan {
        workloads: workload::select(&options.workloads)?,
        cpus: if options.cpus.is_empty() { bench::default_cpus(&targets)? } else { options.cpus },
        targets,
        tasks: options.tasks,
        processes: options.processes,
        unpinned: options.unpinned,
        runs: options.runs,
        limit,
        program: this_program()?,
        server: companion("sluice").unwrap_or_else(|| "sluice".into()),
    };
    plan.check()?;
    if options.lock_stats {
        collect_lock_stats(&plan)?;
    }
    let interrupt = Interrupt::on_signals()?;
    let (json, to_stdout) = json_writer(options.json, &interrupt)?;
    let mut reporter = Reporter::new(plan.total_runs(), json);
    let outcome = bench::bench(&plan, &mut reporter, &interrupt);
    reporter.bar.finish_and_clear();
    if !reporter.rows.is_empty() && !to_stdout {
        Output::plain().give(row_table::of_rows(&reporter.rows).as_bytes())?;
    }
    if options.lock_stats {
        let classes = lock_debug::table(&lock_debug::lock_stats());
        if to_stdout { reporter.note(&classes) } else { Output::plain().give(classes.as_bytes())? }
    }
    outcome.map(|_| ())
}

/// Starts counting the locks of this process.
fn collect_lock_stats(plan: &Plan) -> Result<()> {
    if !lock_debug::COMPILED_IN {
        let how = "cargo build --release -p sluice --features lock-debug";
        return Err(Failure::Usage(format!("--lock-stats: not in this build; make one that counts: {how}")));
    }
    if plan.targets.iter().any(|target| *target != Spec::Lib) {
        return Err(Failure::Usage(
            "--lock-stats: counts locks of this process; use it with --on lib".into(),
        ));
    }
    lock_debug::collect_stats(true);
    Ok(())
}

/// Where rows go as JSON, if anywhere, and whether that is standard output.
pub(crate) fn json_writer(
    path: Option<PathBuf>,
    interrupt: &Interrupt,
) -> Result<(Option<Box<dyn Write>>, bool)> {
    let to_stdout = path.as_deref().is_some_and(|path| path.as_os_str() == "-");
    let json: Option<Box<dyn Write>> = match path {
        None => None,
        Some(_) if to_stdout => Some(Box::new(Output::stopping(interrupt))),
        Some(path) => Some(Box::new(File::create(&path).context(|| path.display().to_string())?)),
    };
    Ok((json, to_stdout))
}

/// A bar on standard error when that is a terminal, nothing else.
pub(crate) fn progress_bar(runs: usize) -> ProgressBar {
    let bar = ProgressBar::new(runs as u64);
    match ProgressStyle::with_template("{bar:24} {pos}/{len}, {eta} left: {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Shows progress, writes rows down, and keeps them.
pub(crate) struct Reporter {
    pub(crate) bar: ProgressBar,
    json: Option<Box<dyn Write>>,
    rows: Vec<Row>,
}

impl Reporter {
    pub(crate) fn new(runs: usize, json: Option<Box<dyn Write>>) -> Reporter {
        Reporter { bar: progress_bar(runs), json, rows: Vec::new() }
    }
}

impl Listener for Reporter {
    fn run_begins(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    fn run_ends(&mut self) {
        self.bar.inc(1);
    }

    fn row(&mut self, row: &Row) -> Result<()> {
        if let Some(json) = &mut self.json {
            let line = row.to_json();
            json.write_all(line.as_bytes())
                .and_then(|()| json.flush())
                .context(|| "cannot write the results")?;
        }
        self.rows.push(row.clone());
        Ok(())
    }

    fn note(&mut self, text: &str) {
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "sluice: {text}");
        });
    }
}
