//! Bench: carries out a plan of workloads, targets and CPU counts, alternating between the targets.

use crate::command_run::{CommandSetting, command_run};
use crate::disturbance::{Disturbances, warnings_of};
use crate::footprint::{self, Footprint};
use crate::row::{Origin, Row};
use crate::target::{DEFAULT_OPS, Ready, Spec, Target, simulated_run};
use crate::timed_run::{Limit, Outcome, Setting, timed_run};
use crate::workload::{Shape, TREE_ENTRIES, Workload};
use sluice_console::corpus::Corpus;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_machine::Machine;
use sluice_sync::{Arc, cpu};
use std::borrow::Cow;
use std::path::PathBuf;

/// More tasks than any suite has; a slip of the hand shall not fill the machine's table of tasks.
const TASKS_MAX: usize = 10_000;
/// Seed of the first run on a simulated machine; each further run has the next.
const FIRST_SEED: u64 = 7;

/// The measurements to make.
pub struct Plan {
    /// In this order.
    pub workloads: Vec<&'static Workload>,
    /// Commands of the shell, after the workloads. Each is a load whose operation is to run it, in the target's root.
    pub commands: Vec<String>,
    /// The first is the one that the others are compared with.
    pub targets: Vec<Spec>,
    /// Numbers of CPUs, each in turn.
    pub cpus: Vec<usize>,
    /// Tasks at once; `None`: as the workload has it.
    pub tasks: Option<usize>,
    /// Tasks are processes, not threads; on directories and mounts.
    pub processes: bool,
    /// The tasks may run on any CPU; how many are used says only how many tasks there are by default.
    pub unpinned: bool,
    /// Runs per row.
    pub runs: usize,
    /// Length of a run.
    pub limit: Limit,
    /// The running program, for workloads and tasks that need a process of their own.
    pub program: PathBuf,
    /// The program `sluice`, which serves mounts.
    pub server: PathBuf,
}

/// The load of a run: a workload, or a command.
#[derive(Clone, Copy)]
pub(crate) enum BenchLoad<'a> {
    Workload(&'a Workload),
    Command(&'a str),
}

impl<'a> BenchLoad<'a> {
    /// Its name in results.
    pub(crate) fn name(self) -> Cow<'a, str> {
        match self {
            BenchLoad::Workload(workload) => workload.name.into(),
            BenchLoad::Command(command) => format!("exec:{command}").into(),
        }
    }

    /// Whether it measures memory, which does not depend on the number of CPUs.
    pub(crate) fn is_footprint(self) -> bool {
        matches!(self, BenchLoad::Workload(workload) if workload.shape == Shape::Footprint)
    }
}

impl Plan {
    /// Checks what can be checked beforehand.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a plan that cannot be carried out here.
    pub fn check(&self) -> Result<()> {
        let usage = |text: String| Err(Failure::Usage(text));
        let is_place = |target: &Spec| matches!(target, Spec::Dir(_) | Spec::Mount | Spec::MountStore(_));
        for target in &self.targets {
            let there = target.cpus_max()?;
            if let Some(many) = self.cpus.iter().find(|&&cpus| cpus == 0 || cpus > there) {
                return usage(format!("--cpus {many}: {target} may use 1 to {there}"));
            }
            if self.tasks.is_some() && matches!(target, Spec::Simulated(..)) {
                return usage(format!("--tasks: on {target} there is one task per CPU; leave it out"));
            }
            if self.processes && !is_place(target) {
                return usage(format!("--processes: {target} lives in one; use it on dir:PATH or mount"));
            }
        }
        if let Some(target) =
            self.targets.iter().find(|&target| !self.commands.is_empty() && !is_place(target))
        {
            return usage(format!(
                "--exec: a command finds no files on {target}; use it on dir:PATH or mount"
            ));
        }
        if self.commands.iter().any(|command| command.trim().is_empty() || command.contains(char::is_control))
        {
            return usage("--exec: give one line, such as 'make -j2'".into());
        }
        if self.unpinned && self.targets.iter().any(|target| matches!(target, Spec::Simulated(..))) {
            return usage("--unpinned: on a simulated machine each task has its CPU; leave it out".into());
        }
        if self.tasks == Some(0) || self.runs == 0 || self.limit == Limit::Ops(0) {
            return usage("--tasks, --runs and --ops must be at least 1".into());
        }
        if self.tasks.is_some_and(|tasks| tasks > TASKS_MAX) {
            return usage(format!("--tasks: at most {TASKS_MAX}"));
        }
        let footprint = self.workloads.iter().any(|workload| workload.shape == Shape::Footprint);
        if footprint && self.targets.iter().any(|target| *target != Spec::Lib) {
            return usage("footprint measures memory in process: use --on lib".into());
        }
        Ok(())
    }

    /// True when a workload that a target does not support leaves others to carry out.
    pub(crate) fn has_others(&self) -> bool {
        self.loads().count() * self.targets.len() > 1
    }

    /// Workloads and commands.
    pub(crate) fn loads(&self) -> impl Iterator<Item = BenchLoad<'_>> {
        let commands = self.commands.iter().map(|command| BenchLoad::Command(command));
        self.workloads.iter().map(|workload| BenchLoad::Workload(workload)).chain(commands)
    }

    /// How many runs there will be in all.
    pub fn total_runs(&self) -> usize {
        let of_load = |load: BenchLoad<'_>| match load.is_footprint() {
            true => footprint::CONTENTS.len(),
            false => self.cpu_counts(load).len(),
        };
        self.loads().map(of_load).sum::<usize>() * self.targets.len() * self.runs
    }

    pub(crate) fn cpu_counts(&self, load: BenchLoad<'_>) -> &[usize] {
        if load.is_footprint() { &self.cpus[..1] } else { &self.cpus }
    }
}

/// Is told how a benchmark gets on.
pub trait Listener {
    /// A run begins; `what` names it.
    fn run_begins(&mut self, what: &str);
    /// A run has ended.
    fn run_ends(&mut self);
    /// A row is complete.
    ///
    /// # Errors
    /// Ends the benchmark, for instance when the row cannot be written down.
    fn row(&mut self, row: &Row) -> Result<()>;
    /// Something to know about the figures.
    fn note(&mut self, text: &str);
}

/// Carries out the plan. Rows go to the listener as they are completed and are returned together.
///
/// # Errors
/// Errors of targets and workloads. After an interrupt the rows of the runs that were finished have been given to
/// the listener, and the result is [`Failure::Interrupted`].
pub fn bench(plan: &Plan, listener: &mut dyn Listener, interrupt: &Interrupt) -> Result<Vec<Row>> {
    plan.check()?;
    let needs_corpus = plan.workloads.iter().any(|workload| workload.tree);
    let corpus = Arc::new(if needs_corpus { Corpus::load(TREE_ENTRIES) } else { Corpus::generated(0) });
    let mut session = BenchSession {
        plan,
        listener,
        interrupt,
        corpus,
        origin: Origin::here(),
        cpus: cpu::allowed(),
        next_dir: 0,
        met: Disturbances::default(),
        left_out: Vec::new(),
        rows: Vec::new(),
    };
    let outcome = session.all();
    for text in warnings_of(session.rows.iter().map(|row| &row.warnings)) {
        session.listener.note(&text);
    }
    outcome.map(|()| session.rows)
}

struct BenchSession<'a> {
    plan: &'a Plan,
    listener: &'a mut dyn Listener,
    interrupt: &'a Interrupt,
    corpus: Arc<Corpus>,
    origin: Origin,
    cpus: Vec<usize>,
    next_dir: u64,
    met: Disturbances,
    /// Loads that a target, by number, does not support.
    left_out: Vec<(String, usize)>,
    rows: Vec<Row>,
}

impl BenchSession<'_> {
    fn all(&mut self) -> Result<()> {
        let mut targets = Vec::new();
        for spec in &self.plan.targets {
            self.interrupt.check()?;
            let (server, runs_commands) = (&self.plan.server, !self.plan.commands.is_empty());
            let ready = if runs_commands { spec.open_root(server) } else { spec.open(server) };
            targets.push(ready.context(|| spec.to_string())?);
        }
        for load in self.plan.loads() {
            for &cpus in self.plan.cpu_counts(load) {
                match load.is_footprint() {
                    true => footprint::CONTENTS.iter().try_for_each(|bytes| self.footprint(*bytes))?,
                    false => self.compare(load, cpus, &targets)?,
                }
            }
        }
        Ok(())
    }

    /// All runs of one load at one number of CPUs: A B A B.
    fn compare(&mut self, load: BenchLoad<'_>, cpus: usize, targets: &[Ready]) -> Result<()> {
        let name = load.name();
        let by_default = match load {
            BenchLoad::Workload(workload) => workload.tasks.unwrap_or(cpus),
            BenchLoad::Command(_) => 1,
        };
        let native = self.plan.tasks.unwrap_or(by_default);
        let tasks = |target: &Ready| if let Ready::Simulated(..) = target { cpus } else { native };
        let mut outcomes: Vec<Vec<Outcome>> = targets.iter().map(|_| Vec::new()).collect();
        let mut stopped = Ok(());
        self.met.begin_row();
        'runs: for run in 0..self.plan.runs {
            for (index, target) in targets.iter().enumerate() {
                let spec = &self.plan.targets[index];
                if self.left_out.iter().any(|(load, of)| (&**load, *of) == (&*name, index)) {
                    self.listener.run_ends();
                    continue;
                }
                self.listener.run_begins(&format!("{name} on {spec}, {cpus} CPUs"));
                let outcome =
                    self.interrupt.check().and_then(|()| self.once(load, target, cpus, native, run));
                match outcome.context(|| format!("{name} on {spec}")) {
                    Ok(outcome) => outcomes[index].push(outcome),
                    Err(Failure::Unsupported(text)) if self.plan.has_others() => {
                        self.left_out.push((name.to_string(), index));
                        self.listener.note(&format!("{text}; left out"));
                    }
                    Err(failure) => {
                        stopped = Err(failure);
                        break 'runs;
                    }
                }
                self.listener.run_ends();
            }
        }
        for ((spec, target), outcomes) in self.plan.targets.iter().zip(targets).zip(outcomes) {
            if outcomes.is_empty() {
                continue;
            }
            let origin = match target {
                Ready::Native(_) | Ready::Root(_) => &self.origin,
                Ready::Simulated(machine, _) => &Origin::simulated(machine.spec().title),
            };
            let mut row = Row::new(origin, &name, spec.to_string(), cpus, tasks(target));
            row.simulated = matches!(target, Ready::Simulated(..));
            if !row.simulated {
                row.warnings = self.met.warnings();
            }
            row.processes = self.plan.processes;
            row.unpinned = self.plan.unpinned;
            row.set_outcomes(&outcomes);
            row.file_system = spec.file_system();
            self.give(row)?;
        }
        stopped
    }

    /// Simulated seconds are too long to wait for: a limit of time means a number of operations there.
    fn simulated_ops(&self) -> u64 {
        self.plan.limit.ops().unwrap_or(DEFAULT_OPS)
    }

    fn once(
        &mut self,
        load: BenchLoad<'_>,
        target: &Ready,
        cpus: usize,
        tasks: usize,
        run: usize,
    ) -> Result<Outcome> {
        match (load, target) {
            (BenchLoad::Workload(workload), Ready::Simulated(machine, on)) => {
                let machine = Machine::clone(machine).seed(FIRST_SEED + run as u64);
                simulated_run(&machine, *on, workload, cpus, self.simulated_ops(), &self.corpus)
            }
            (BenchLoad::Workload(workload), Ready::Native(target)) => {
                self.native_run(workload, &**target, cpus, tasks)
            }
            (BenchLoad::Command(command), Ready::Root(root)) => {
                let cpus = self.look(cpus);
                let (root, limit) = (root.path(), self.plan.limit);
                command_run(&CommandSetting { command, root, cpus, tasks, limit }, self.interrupt)
            }
            _ => unreachable!("a plan has loads and targets of one kind"),
        }
    }

    fn native_run(
        &mut self,
        workload: &Workload,
        target: &dyn Target,
        cpus: usize,
        tasks: usize,
    ) -> Result<Outcome> {
        let cpus = &*self.look(cpus);
        self.next_dir += 1;
        let dir = format!("run-{}", self.next_dir);
        let setting = Setting {
            workload,
            target,
            dir: &dir,
            cpus,
            tasks,
            limit: self.plan.limit,
            corpus: &self.corpus,
            processes: self.plan.processes.then_some(&*self.plan.program),
        };
        timed_run(&setting, self.interrupt)
    }

    /// Looks who else is there, and says by which numbers the kernel knows the CPUs to pin tasks to.
    fn look(&mut self, cpus: usize) -> Vec<usize> {
        let used = self.cpus.get(..cpus).unwrap_or(&self.cpus);
        self.met.look(used);
        if self.plan.unpinned { Vec::new() } else { used.to_vec() }
    }

    /// Measures the footprint of files of `bytes` bytes.
    fn footprint(&mut self, bytes: usize) -> Result<()> {
        let name = footprint::name(bytes);
        let mut measured: Vec<Footprint> = Vec::new();
        let mut stopped = Ok(());
        for _ in 0..self.plan.runs {
            self.listener.run_begins(&format!("{name} on lib"));
            let one = self.interrupt.check().and_then(|()| footprint::in_child(&self.plan.program, bytes));
            match one {
                Ok(one) => measured.push(one),
                Err(failure) => {
                    stopped = Err(failure);
                    break;
                }
            }
            self.listener.run_ends();
        }
        if !measured.is_empty() {
            let mut row = Row::new(&self.origin, &name, Spec::Lib.to_string(), 1, 1);
            let rates: Vec<f64> = measured.iter().map(Footprint::creates_per_s).collect();
            row.set_rates(measured.iter().map(|one| one.files).sum(), &rates);
            let bytes: Vec<f64> = measured.iter().map(Footprint::bytes_per_file).collect();
            row.bytes_per_file = crate::stats::median(&bytes);
            self.give(row)?;
        }
        stopped
    }

    fn give(&mut self, row: Row) -> Result<()> {
        self.listener.row(&row)?;
        self.rows.push(row);
        Ok(())
    }
}

/// The default CPU counts: one, and the largest count that all targets have.
///
/// # Errors
/// [`Failure::Usage`] for a machine that nobody knows.
pub fn default_cpus(targets: &[Spec]) -> Result<Vec<usize>> {
    let counts = targets.iter().map(Spec::cpus_max).collect::<Result<Vec<_>>>()?;
    Ok(match counts.into_iter().min() {
        None | Some(1) => vec![1],
        Some(many) => vec![1, many],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::find;
    use sluice_console::private_dir::PrivateDir;

    #[derive(Default)]
    struct Log {
        begun: Vec<String>,
        ended: usize,
        rows: Vec<Row>,
        interrupt_after: Option<(usize, Interrupt)>,
    }

    impl Listener for Log {
        fn run_begins(&mut self, what: &str) {
            self.begun.push(what.to_owned());
        }
        fn run_ends(&mut self) {
            self.ended += 1;
            if let Some((after, interrupt)) = &self.interrupt_after
                && *after == self.ended
            {
                interrupt.raise();
            }
        }
        fn row(&mut self, row: &Row) -> Result<()> {
            self.rows.push(row.clone());
            Ok(())
        }
        fn note(&mut self, _: &str) {}
    }

    fn plan(workloads: &[&str], targets: &[&str], runs: usize) -> Plan {
        Plan {
            workloads: workloads.iter().map(|name| find(name).unwrap()).collect(),
            commands: Vec::new(),
            targets: targets.iter().map(|target| target.parse().unwrap()).collect(),
            cpus: vec![1],
            tasks: None,
            processes: false,
            unpinned: false,
            runs,
            limit: Limit::Ops(32),
            program: PathBuf::from("/no/such/program"),
            server: PathBuf::from("/no/such/program"),
        }
    }

    fn tmp_target() -> String {
        format!("dir:{}", std::env::temp_dir().display())
    }

    #[test]
    fn runs_alternate_between_the_targets() {
        let other = tmp_target();
        let plan = plan(&["stat", "creat-unlink"], &["lib", &other], 2);
        let mut log = Log::default();
        let rows = bench(&plan, &mut log, &Interrupt::new()).unwrap();
        let on: Vec<_> = log.begun.iter().map(|what| what.contains("on lib")).collect();
        assert_eq!(on, [true, false, true, false, true, false, true, false]);
        assert_eq!((log.ended, plan.total_runs()), (8, 8));
        assert_eq!(rows, log.rows);
        let names: Vec<_> =
            rows.iter().map(|row| (row.workload.as_str(), row.target.as_str(), row.ops)).collect();
        assert_eq!(
            names,
            [
                ("stat", "lib", 64),
                ("stat", &*other, 64),
                ("creat-unlink", "lib", 64),
                ("creat-unlink", &*other, 64)
            ]
        );
    }

    #[test]
    fn a_command_is_a_load_of_its_wall_time_in_the_root_of_each_target() {
        let place = PrivateDir::below(&std::env::temp_dir()).unwrap();
        let target = format!("dir:{}", place.path().display());
        let mut plan = plan(&[], &[&target], 3);
        (plan.commands, plan.limit) = (vec!["pwd >> log; sleep 0.01".into()], Limit::Ops(2));
        let rows = bench(&plan, &mut Log::default(), &Interrupt::new()).unwrap();
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.workload.as_str(), row.ops, row.runs), ("exec:pwd >> log; sleep 0.01", 6, 3));
        assert!(row.p50_ns >= Some(10_000_000) && row.mean_ns >= Some(1e7) && row.tasks == 1, "{row:?}");
        let log = std::fs::read_to_string(place.path().join("log")).unwrap();
        let root = place.path().canonicalize().unwrap().display().to_string();
        assert_eq!(log.lines().collect::<Vec<_>>(), [&root; 6]);
        plan.commands = vec!["exit 3".into()];
        let Err(Failure::Failed(text)) = bench(&plan, &mut Log::default(), &Interrupt::new()) else {
            panic!()
        };
        assert!(text.starts_with("exec:exit 3 on dir:") && text.contains("exit status: 3"), "{text}");
        assert!(text.contains("a command must succeed to be measured"), "{text}");
    }

    #[test]
    fn an_interrupt_keeps_the_finished_runs() {
        let interrupt = Interrupt::new();
        let mut log = Log { interrupt_after: Some((2, interrupt.clone())), ..Log::default() };
        let outcome = bench(&plan(&["stat"], &["lib"], 5), &mut log, &interrupt);
        assert_eq!(outcome, Err(Failure::Interrupted));
        assert_eq!(log.rows.iter().map(|row| row.runs).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_plan_that_cannot_work_is_refused_beforehand() {
        let mut too_many = plan(&["stat"], &["lib"], 1);
        too_many.cpus = vec![1, 100_000];
        let mut none = plan(&["stat"], &["lib"], 1);
        none.tasks = Some(0);
        let mut slip = plan(&["stat"], &["lib"], 1);
        slip.tasks = Some(1_000_000);
        let other = tmp_target();
        let mut in_memory = plan(&[], &["lib"], 1);
        in_memory.commands = vec!["true".into()];
        let mut two_lines = plan(&[], &[&other], 1);
        two_lines.commands = vec!["true\ntrue".into()];
        for plan in [too_many, none, slip, in_memory, two_lines, plan(&["footprint"], &[&other], 1)] {
            assert!(matches!(plan.check(), Err(Failure::Usage(_))));
        }
    }
}
