//! Against: a plan carried out by this program and by another, in turn, run by run.
//!
//! # Theory
//! ```text
//! round 1   lib: this, against    dir:/dev/shm: this, against
//! round 2   lib: against, this    dir:/dev/shm: against, this
//! ```
//! Each run is a process of its own, `PROGRAM bench ... --runs 1 --json FILE`, of this program as of the other: so neither keeps
//! the layout of its memory for all runs, and a slow minute of the machine hits both. The two change places from round to
//! round, because what goes first may have it better. [`compare`](crate::compare) then takes the runs as pairs.
//!
//! Beside rows of this library there is always a *control*, the same load on a tmpfs of the host: neither program is what it
//! measures. A row that moved no further than its control has no verdict. On a simulated machine nothing is left to chance:
//! each program has one process there, and no control.

use crate::bench::{BenchLoad, Listener, Plan};
use crate::command_run::await_end;
use crate::compare::{Comparison, compare, read};
use crate::disturbance::{Disturbances, join};
use crate::row::{Origin, Row};
use crate::target::Spec;
use crate::timed_run::Limit;
use rustix::fs::{Access, access};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::private_dir::{PrivateDir, runtime_dir};
use sluice_sync::cpu;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs of each program, unless told otherwise: with a noise of 2% they show a loss of 5% surely.
pub const RUNS: usize = 20;

/// The names of the two in `variant`: first the one that counts as *before*.
pub const VARIANTS: [&str; 2] = ["against", "this"];
const THIS: usize = 1;

/// Where Linux has a tmpfs that everybody may use.
const SHARED_MEMORY: &str = "/dev/shm";

/// The program at `path`, which is to be measured: a `sluice-lab`, or a `sluice` with one beside it.
///
/// # Errors
/// [`Failure::Usage`] if there is none.
pub fn program_at(path: &Path) -> Result<PathBuf> {
    let is_program = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let Some(program) = path.canonicalize().ok().filter(|path| is_program(path)) else {
        let text = "no program there; give the sluice or the sluice-lab of another build";
        return Err(Failure::Usage(format!("--against {}: {text}", path.display())));
    };
    // A sluice without its lab would look for one in PATH, and find this one.
    match program.file_name().is_some_and(|name| name == "sluice") {
        false => Ok(program),
        true => Some(program.with_file_name("sluice-lab")).filter(|lab| is_program(lab)).ok_or_else(|| {
            let text = "no sluice-lab beside it, which measures; give a build that has both";
            Failure::Usage(format!("--against {}: {text}", path.display()))
        }),
    }
}

/// Adds a control to `plan` if it has rows that need one.
///
/// # Errors
/// The reason, as a sentence for a person, if the host has no tmpfs for the control.
pub fn add_control(plan: &mut Plan) -> std::result::Result<(), &'static str> {
    let is_tmpfs = |spec: &Spec| spec.file_system().is_some_and(|system| system.starts_with("tmpfs "));
    let needs_one = plan.targets.iter().any(|spec| !matches!(spec, Spec::Simulated(..) | Spec::Dir(_)))
        && plan.loads().any(|load| !load.is_footprint());
    if !needs_one || plan.targets.iter().any(is_tmpfs) {
        return Ok(());
    }
    if !plan.commands.is_empty() {
        return Err(
            "no control is measured beside a command; add dir:PATH of a tmpfs where it can run to --on",
        );
    }
    let control = Spec::Dir(PathBuf::from(SHARED_MEMORY));
    if !is_tmpfs(&control) || access(SHARED_MEMORY, Access::WRITE_OK).is_err() {
        return Err("no control is measured, since /dev/shm is no tmpfs; add dir:PATH of one to --on");
    }
    plan.targets.push(control);
    Ok(())
}

/// Carries out `plan` by this program and by `other`. The rows of both go to the listener as they are completed.
///
/// # Errors
/// Errors of [`bench`](crate::bench::bench), of either program. After an interrupt the rows of the runs that were finished have
/// been given to the listener.
pub fn against(
    plan: &Plan,
    other: &Path,
    listener: &mut dyn Listener,
    interrupt: &Interrupt,
) -> Result<Comparison> {
    let scratch = PrivateDir::below(&runtime_dir())?;
    let comparison = Comparison { sides: VARIANTS, pairs: Vec::new(), alone: 0 };
    let (met, left_out) = (Disturbances::default(), Vec::new());
    let programs = [other, &plan.program];
    let mut duel = Duel { plan, programs, listener, interrupt, scratch, met, left_out, comparison };
    let loads = plan.loads().flat_map(|load| plan.cpu_counts(load).iter().map(move |&cpus| (load, cpus)));
    loads.into_iter().try_for_each(|(load, cpus)| duel.rounds(load, cpus))?;
    match duel.comparison.pairs.is_empty() {
        false => Ok(duel.comparison),
        true => Err(Failure::Failed("nothing was measured by both programs".into())),
    }
}

/// How many runs [`against`] makes.
pub fn total_runs(plan: &Plan) -> usize {
    let counts = plan.loads().map(|load| plan.cpu_counts(load).len()).sum::<usize>();
    counts * plan.targets.len() * plan.runs * VARIANTS.len()
}

struct Duel<'a> {
    plan: &'a Plan,
    /// In the order of [`VARIANTS`].
    programs: [&'a Path; 2],
    listener: &'a mut dyn Listener,
    interrupt: &'a Interrupt,
    scratch: PrivateDir,
    met: Disturbances,
    /// Loads that a target, by number, does not support.
    left_out: Vec<(String, usize)>,
    comparison: Comparison,
}

impl Duel<'_> {
    /// Measures one load at one number of CPUs, in all rounds.
    fn rounds(&mut self, load: BenchLoad<'_>, cpus: usize) -> Result<()> {
        let mut rows = [Vec::new(), Vec::new()];
        self.met.begin_row();
        let outcome = (0..self.plan.runs).try_for_each(|round| self.round(load, cpus, round, &mut rows));
        self.give(&rows)?;
        outcome
    }

    fn round(
        &mut self,
        load: BenchLoad<'_>,
        cpus: usize,
        round: usize,
        rows: &mut [Vec<Row>; 2],
    ) -> Result<()> {
        for (index, spec) in self.plan.targets.iter().enumerate() {
            let is_simulated = matches!(spec, Spec::Simulated(..));
            for turn in 0..VARIANTS.len() {
                let side = if round.is_multiple_of(2) { THIS - turn } else { turn };
                let name = load.name();
                let is_left_out = self.left_out.iter().any(|(load, of)| (&**load, *of) == (&*name, index));
                let needs_none = is_simulated && round > 0 || load.is_footprint() && *spec != Spec::Lib;
                if !is_left_out && !needs_none {
                    let what = format!("{name} on {spec}, {cpus} CPUs, {}", VARIANTS[side]);
                    self.listener.run_begins(&what);
                    match self.once(load, spec, cpus, side) {
                        Ok(found) => rows[side].extend(found),
                        Err(Failure::Unsupported(text)) if self.plan.has_others() => {
                            self.left_out.push((name.to_string(), index));
                            self.listener.note(&format!("{name} on {spec}: {text}; left out"));
                        }
                        Err(failure) => return Err(failure.in_context(format!("{name} on {spec}"))),
                    }
                }
                self.listener.run_ends();
            }
        }
        Ok(())
    }

    /// One process.
    fn once(&mut self, load: BenchLoad<'_>, spec: &Spec, cpus: usize, side: usize) -> Result<Vec<Row>> {
        self.interrupt.check()?;
        let allowed = cpu::allowed();
        self.met.look(allowed.get(..cpus).unwrap_or(&allowed));
        let (program, json) = (self.programs[side], self.scratch.path().join("rows.json"));
        let said = self.scratch.path().join("said");
        let mut command = Command::new(program);
        command.args(arguments(self.plan, load, spec, cpus)).arg("--json").arg(&json);
        // A group of its own: Ctrl-C reaches this program, which ends it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?).process_group(0);
        let mut child = command.spawn().context(|| format!("cannot run {}", program.display()))?;
        let status = await_end(&mut child, self.interrupt)?;
        if !status.success() {
            let said = fs::read_to_string(&said).unwrap_or_default();
            return Err(failure_of(program, &said, &status.to_string()));
        }
        read(&json)
    }

    /// Hands on what both have measured.
    fn give(&mut self, rows: &[Vec<Row>; 2]) -> Result<()> {
        // No row in common: one program has not come to its turn.
        let Ok(compared) = compare(&rows[0], &rows[THIS]) else { return Ok(()) };
        let (command, met) = (Origin::here().command, self.met.warnings());
        for mut pair in compared.pairs {
            for row in [&mut pair.before, &mut pair.after] {
                row.command = command.clone();
                if !row.simulated {
                    join(&mut row.warnings, &met);
                }
            }
            let [mut before, mut after] = [pair.before.clone(), pair.after.clone()];
            (before.variant, after.variant) = (Some(VARIANTS[0].into()), Some(VARIANTS[THIS].into()));
            after.ratio = Some(pair.ratio);
            after.ratio_low = pair.interval.map(|interval| interval.low);
            after.ratio_high = pair.interval.map(|interval| interval.high);
            after.verdict = Some(pair.verdict.word().to_owned());
            self.listener.row(&after)?;
            self.listener.row(&before)?;
            self.comparison.pairs.push(pair);
        }
        self.comparison.alone += compared.alone;
        Ok(())
    }
}

/// The command line of one process, up to where its result goes.
fn arguments(plan: &Plan, load: BenchLoad<'_>, spec: &Spec, cpus: usize) -> Vec<OsString> {
    let mut words: Vec<String> = vec!["bench".into()];
    match load {
        BenchLoad::Workload(workload) => words.push(workload.name.into()),
        BenchLoad::Command(command) => words.extend(["--exec".into(), command.into()]),
    }
    let runs = if let Spec::Simulated(..) = spec { plan.runs } else { 1 };
    words.extend(["--on".into(), spec.to_string(), "--cpus".into(), cpus.to_string()]);
    words.extend(["--runs".into(), runs.to_string()]);
    words.extend(match plan.limit {
        Limit::Time(time) => ["--seconds".into(), time.as_secs_f64().to_string()],
        Limit::Ops(ops) => ["--ops".into(), ops.to_string()],
    });
    // On a simulated machine each task has its CPU.
    if let (Some(tasks), false) = (plan.tasks, matches!(spec, Spec::Simulated(..))) {
        words.extend(["--tasks".into(), tasks.to_string()]);
    }
    words.extend(plan.processes.then(|| "--processes".into()));
    words.extend(plan.unpinned.then(|| "--unpinned".into()));
    words.into_iter().map(OsString::from).collect()
}

/// Why a run of `program` gave no result, by the last line that it `said`.
fn failure_of(program: &Path, said: &str, status: &str) -> Failure {
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    let text = last.map_or(status, |line| line.strip_prefix("sluice: ").unwrap_or(line));
    if text.contains("(EOPNOTSUPP)") || text.contains("(ENOSYS)") {
        return Failure::Unsupported(text.to_owned());
    }
    Failure::Failed(format!("{}: {text}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Verdict;
    use crate::workload::find;
    use sluice_sync::random::Random;
    use std::os::unix::fs::PermissionsExt;

    fn plan(targets: &[&str]) -> Plan {
        Plan {
            workloads: vec![find("stat").unwrap()],
            commands: Vec::new(),
            targets: targets.iter().map(|target| target.parse().unwrap()).collect(),
            cpus: vec![1, 2],
            tasks: Some(3),
            processes: false,
            unpinned: true,
            runs: 4,
            limit: Limit::Ops(32),
            program: PathBuf::from("/no/such/program"),
            server: PathBuf::from("/no/such/program"),
        }
    }

    /// Single runs as two programs have them in turn, on `lib` and on the control: neighbours on the machine slow
    /// both down by up to a half for some runs on end, each run has a noise of its own of 2%, and `this` is `speed` times
    /// as fast as the other.
    fn recorded(seed: u64, speed: f64, control: f64) -> [Vec<Row>; 2] {
        let mut random = Random::new(seed * 7919 + 11);
        let mut uniform = || (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let origin = Origin { machine: "m".into(), kernel: "k".into(), command: None };
        let mut rows = [Vec::new(), Vec::new()];
        let mut neighbours = 1.0;
        for round in 0..RUNS {
            if round % 3 == 0 {
                neighbours = 0.5 + 0.5 * uniform();
            }
            for (target, ratio) in [("lib", speed), ("dir:/dev/shm", control)] {
                for (side, rows) in rows.iter_mut().enumerate() {
                    let normal = (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
                    let rate =
                        1e6 * neighbours * (0.02 * normal).exp() * if side == THIS { ratio } else { 1.0 };
                    let mut row = Row::new(&origin, "stat", target.into(), 1, 1);
                    row.set_rates(100, &[rate]);
                    rows.push(row);
                }
            }
        }
        rows
    }

    fn verdict_of(rows: &[Vec<Row>; 2]) -> Verdict {
        compare(&rows[0], &rows[THIS]).unwrap().pairs[0].verdict
    }

    #[test]
    fn the_same_program_gets_no_verdict_in_twenty_tries_of_a_busy_machine() {
        for seed in 0..20 {
            assert_eq!(verdict_of(&recorded(seed, 1.0, 1.0)), Verdict::NoDifference, "seed {seed}");
        }
    }

    #[test]
    fn a_planted_loss_of_5_percent_is_found_in_19_of_20_tries() {
        let found = (0..20).filter(|&seed| verdict_of(&recorded(seed, 0.95, 1.0)) == Verdict::Slower);
        assert!(found.count() >= 19);
    }

    #[test]
    fn a_loss_that_the_control_has_too_is_none_of_the_program() {
        for seed in 0..20 {
            let verdict = verdict_of(&recorded(seed, 0.95, 0.93));
            assert!(
                [Verdict::MachineMoved, Verdict::NoDifference].contains(&verdict),
                "seed {seed}: {verdict}"
            );
        }
    }

    #[test]
    fn rows_of_this_library_get_a_control_and_others_none() {
        if Spec::Dir(SHARED_MEMORY.into()).file_system().is_none_or(|system| !system.starts_with("tmpfs ")) {
            assert!(
                add_control(&mut plan(&["lib"])).is_err_and(|text| text.contains("dir:PATH of one to --on"))
            );
            return;
        }
        for (targets, expected) in [
            (&["lib"][..], 2),
            (&["mount", "sim:uma-2"], 3),
            (&["sim:uma-2"], 1),
            (&["lib", "dir:/dev/shm"], 2),
            (&["dir:/"], 1),
        ] {
            let mut plan = plan(targets);
            assert_eq!(add_control(&mut plan), Ok(()));
            assert_eq!(plan.targets.len(), expected, "{targets:?}");
        }
        let mut of_commands = plan(&["mount"]);
        of_commands.commands = vec!["make".into()];
        assert!(
            add_control(&mut of_commands)
                .is_err_and(|text| text.contains("no control is measured beside a command"))
        );
    }

    #[test]
    fn what_is_no_program_is_refused_in_one_line() {
        let place = PrivateDir::below(&std::env::temp_dir()).unwrap();
        let file = |name: &str, mode| {
            let path = place.path().join(name);
            fs::write(&path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let refused = |path: &Path| program_at(path).unwrap_err().to_string();
        assert!(refused(&place.path().join("none")).ends_with("sluice-lab of another build"));
        assert!(refused(place.path()).contains("no program there"));
        let alone = file("sluice", 0o755);
        assert!(refused(&alone).contains("no sluice-lab beside it"));
        let lab = file("sluice-lab", 0o755);
        assert_eq!(program_at(&alone), program_at(&lab));
        assert!(program_at(&file("sluice-before", 0o700)).is_ok());
    }

    /// A program that answers each run with a row of its own, and writes down how it was called.
    fn stand_in(place: &Path, name: &str, rate: f64) -> PathBuf {
        let origin = Origin { machine: "m".into(), kernel: "k".into(), command: None };
        let mut row = Row::new(&origin, "stat", "TARGET".into(), 0, 3);
        row.set_rates(32, &[rate]);
        let row =
            row.to_json().replace("\"cpus\":0", "\"cpus\":$6").replace("TARGET", "$4").replace('"', "\\\"");
        let script = format!(
            "#!/bin/sh\necho {name} \"$*\" >> {0}/calls\nfor file; do :; done\nprintf '%s' \"{1}\" > \"$file\"\n",
            place.display(),
            row.trim_end()
        );
        let path = place.join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    #[derive(Default)]
    struct Rows(Vec<Row>, Vec<String>, usize);

    impl Listener for Rows {
        fn run_begins(&mut self, _: &str) {}
        fn run_ends(&mut self) {
            self.2 += 1;
        }
        fn row(&mut self, row: &Row) -> Result<()> {
            self.0.push(row.clone());
            Ok(())
        }
        fn note(&mut self, text: &str) {
            self.1.push(text.to_owned());
        }
    }

    #[test]
    fn both_programs_run_in_turn_and_change_places_from_round_to_round() {
        let place = PrivateDir::below(&std::env::temp_dir()).unwrap();
        let other = stand_in(place.path(), "other", 200.0);
        let mut plan = plan(&["lib", "dir:/dev/shm"]);
        plan.program = stand_in(place.path(), "mine", 100.0);
        let mut rows = Rows::default();
        let comparison = against(&plan, &other, &mut rows, &Interrupt::new()).unwrap();
        let calls = fs::read_to_string(place.path().join("calls")).unwrap();
        let of = |call: &str| call.split(' ').next().map(str::to_owned);
        let order: Vec<String> = calls.lines().filter_map(of).take(8).collect();
        assert_eq!(order, ["mine", "other", "mine", "other", "other", "mine", "other", "mine"]);
        assert_eq!((calls.lines().count(), rows.2, total_runs(&plan)), (32, 32, 32));
        let first = calls.lines().next().unwrap();
        let given = "mine bench stat --on lib --cpus 1 --runs 1 --ops 32 --tasks 3 --unpinned --json /";
        assert!(first.starts_with(given), "{first}");
        let variants: Vec<_> =
            rows.0.iter().map(|row| (row.variant.as_deref(), row.cpus, &*row.target)).collect();
        let both = |cpus, target| [(Some("this"), cpus, target), (Some("against"), cpus, target)];
        let expected = [both(1, "lib"), both(1, "dir:/dev/shm"), both(2, "lib"), both(2, "dir:/dev/shm")];
        assert_eq!(variants, expected.concat());
        let row = &rows.0[0];
        assert_eq!((row.runs, row.ratio, row.verdict.as_deref()), (4, Some(0.5), Some("machine-moved")));
        assert!(comparison.pairs[1].is_control && !comparison.pairs[0].is_slower_by(0.05));
        let text = comparison.text();
        assert!(
            text.lines().next().is_some_and(|heads| heads.contains("against") && heads.contains("this")),
            "{text}"
        );
    }

    #[test]
    fn what_a_program_says_at_last_is_why_it_gave_no_result() {
        let program = Path::new("/old/sluice-lab");
        let unsupported =
            failure_of(program, "sluice: lease01 on lib: not supported (EOPNOTSUPP)\n", "exit 1");
        assert_eq!(unsupported, Failure::Unsupported("lease01 on lib: not supported (EOPNOTSUPP)".into()));
        let said = failure_of(program, "note\nsluice: workload x: unknown\n\n", "exit 2").to_string();
        assert_eq!(said, "/old/sluice-lab: workload x: unknown");
        assert_eq!(failure_of(program, "", "signal: 9").to_string(), "/old/sluice-lab: signal: 9");
    }

    #[test]
    fn a_load_that_one_target_does_not_support_is_left_out_there_and_a_failure_ends_all() {
        let place = PrivateDir::below(&std::env::temp_dir()).unwrap();
        let refuse = |name: &str, words: &str| {
            let path = place.path().join(name);
            let script = format!(
                "#!/bin/sh\ncase \"$*\" in *lib*) exec {} \"$@\";; esac\necho '{words}' >&2\nexit 1\n",
                place.path().join("mine").display()
            );
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            path
        };
        let mut plan = plan(&["lib", "dir:/dev/shm"]);
        plan.program = stand_in(place.path(), "mine", 100.0);
        let mut rows = Rows::default();
        let without = refuse("without", "sluice: not supported (EOPNOTSUPP)");
        let compared = against(&plan, &without, &mut rows, &Interrupt::new()).unwrap();
        assert_eq!((compared.pairs.len(), rows.2, rows.1.len()), (2, 32, 1), "{:?}", rows.1);
        assert!(rows.1[0].ends_with("not supported (EOPNOTSUPP); left out"), "{:?}", rows.1);
        let broken = refuse("broken", "sluice: wrong result");
        let failure = against(&plan, &broken, &mut Rows::default(), &Interrupt::new()).err().unwrap();
        assert!(failure.to_string().ends_with("broken: wrong result"), "{failure}");
    }
}
