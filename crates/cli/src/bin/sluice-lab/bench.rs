//! `sluice bench`: the plan from the options, progress and rows to where they belong.

use crate::args::Bench;
use indicatif::{ProgressBar, ProgressStyle};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::output::Output;
use sluice_console::program::{companion, this_program};
use sluice_lab::against;
use sluice_lab::bench::{self, Listener, Plan};
use sluice_lab::compare::parse_percent;
use sluice_lab::row::Row;
use sluice_lab::target::Spec;
use sluice_lab::timed_run::Limit;
use sluice_lab::{row_table, workload};
use sluice_sync::lock_debug;
use sluice_sync::time::{Duration, Instant};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// Length of a run when nothing else is asked for.
const DEFAULT_TIME: Duration = Duration::from_millis(200);

/// The number of runs of each row, unless the user gives another.
const DEFAULT_RUNS: usize = 5;
/// Exit status when this program is slower by more than was allowed.
const SLOWER: u8 = 1;

pub(crate) fn bench(options: Bench) -> Result<u8> {
    let limit = match (options.seconds, options.ops) {
        (None, Some(ops)) => Limit::Ops(ops),
        (None, None) if options.exec.is_some() => Limit::Ops(1),
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
    let other = options.against.as_deref().map(against::program_at).transpose()?;
    let allowed = options.fail_over.as_deref().map(parse_percent).transpose()?;
    let is_command = options.exec.is_some();
    let on = match (options.on.is_empty(), is_command) {
        (false, _) => options.on,
        (true, false) => vec!["lib".to_owned()],
        (true, true) => vec!["dir:.".to_owned()],
    };
    let targets = on.iter().map(|text| text.parse()).collect::<Result<Vec<_>>>()?;
    let default_runs = if other.is_some() { against::RUNS } else { DEFAULT_RUNS };
    let mut plan = Plan {
        workloads: workload::select(&options.workloads)?,
        commands: options.exec.into_iter().collect(),
        cpus: match options.cpus.is_empty() {
            false => options.cpus,
            // A command is seldom meant for one CPU alone.
            true if is_command => bench::default_cpus(&targets)?.into_iter().max().into_iter().collect(),
            true => bench::default_cpus(&targets)?,
        },
        targets,
        tasks: options.tasks,
        processes: options.processes,
        unpinned: options.unpinned,
        runs: options.runs.unwrap_or(default_runs),
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
    let control = if other.is_some() { against::add_control(&mut plan) } else { Ok(()) };
    let runs = if other.is_some() { against::total_runs(&plan) } else { plan.total_runs() };
    let mut reporter = Reporter::new(runs, json);
    if let Err(reason) = control {
        reporter.note(reason);
    }
    let outcome = match &other {
        None => bench::bench(&plan, &mut reporter, &interrupt).map(|_| None),
        Some(other) => against::against(&plan, other, &mut reporter, &interrupt).map(Some),
    };
    reporter.bar.finish_and_clear();
    if !reporter.rows.is_empty() && !to_stdout {
        Output::plain().give(row_table::of_rows(&reporter.rows).as_bytes())?;
    }
    if options.lock_stats {
        let classes = lock_debug::table(&lock_debug::lock_stats());
        if to_stdout { reporter.note(&classes) } else { Output::plain().give(classes.as_bytes())? }
    }
    let Some(compared) = outcome? else { return Ok(0) };
    if !to_stdout {
        Output::plain().give(compared.text().as_bytes())?;
    }
    let slower = |share| compared.pairs.iter().any(|pair| pair.is_slower_by(share));
    Ok(if allowed.is_some_and(slower) { SLOWER } else { 0 })
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

/// A bar on standard error when that is a terminal.
pub(crate) fn progress_bar(runs: usize) -> ProgressBar {
    let bar = ProgressBar::new(runs as u64);
    match ProgressStyle::with_template("{bar:24} {pos}/{len}, {eta} left: {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The time between two lines about progress where standard error shows no bar.
const SILENCE: Duration = Duration::from_secs(30);

/// Shows progress, writes rows down, and keeps them.
pub(crate) struct Reporter {
    pub(crate) bar: ProgressBar,
    /// When a line about progress was written last.
    said: Instant,
    json: Option<Box<dyn Write>>,
    rows: Vec<Row>,
}

impl Reporter {
    pub(crate) fn new(runs: usize, json: Option<Box<dyn Write>>) -> Reporter {
        Reporter { bar: progress_bar(runs), said: Instant::now(), json, rows: Vec::new() }
    }

    /// The rows that are complete.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// A line about progress, if none was written for long.
    fn progress(&mut self, now: Instant, what: &str) -> Option<String> {
        if now.saturating_duration_since(self.said) < SILENCE {
            return None;
        }
        self.said = now;
        Some(format!(
            "{} of {} runs done; {what}",
            self.bar.position(),
            self.bar.length().unwrap_or_default()
        ))
    }
}

impl Listener for Reporter {
    fn run_begins(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        if self.bar.is_hidden()
            && let Some(line) = self.progress(Instant::now(), what)
        {
            self.note(&line);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_bar_is_seen_a_line_tells_of_progress_twice_a_minute() {
        let mut reporter = Reporter::new(8, None);
        let start = reporter.said;
        let after = |seconds| start + Duration::from_secs(seconds);
        reporter.bar.inc(3);
        assert_eq!(reporter.progress(after(29), "stat"), None);
        assert_eq!(
            reporter.progress(after(31), "stat on lib").as_deref(),
            Some("3 of 8 runs done; stat on lib")
        );
        assert_eq!(reporter.progress(after(60), "stat"), None);
        assert!(reporter.progress(after(62), "stat").is_some());
    }
}
