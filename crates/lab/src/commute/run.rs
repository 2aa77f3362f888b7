//! Run: one case on the simulated machine: which lines did one call write and the other touch?

use super::cases::{Case, Expected};
use super::stage::{CallAnswer, Stage, agrees};
use crate::simulated_fs::On;
use sluice_machine::atomic::{AtomicU32, Ordering};
use sluice_machine::cell::OwnLine;
use sluice_machine::{Conflict, Machine, Toucher, clear_labels, name_objects, spin_until};
use sluice_vfs_sim::{Errno, Options, Superblock};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;

/// CPU 0 sets up, 1 and 2 call.
const CPUS: usize = 3;

/// The findings of a case.
#[derive(Clone, Debug, Default)]
pub(super) struct Finding {
    /// The lines in conflict, by name.
    pub(super) conflicts: BTreeSet<LineName>,
    /// Answers or final states of the file system that differ from the model.
    pub(super) differences: Vec<String>,
}

/// The name of a line in conflict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineName {
    /// The object and where in it the line begins; or where in the source the line is written.
    pub(super) line: String,
    /// The type of the object.
    pub(super) owner: String,
    /// The field, or the place in the source where it is written.
    pub(super) field: String,
}

#[cfg(test)]
impl LineName {
    /// The line as the list of known conflicts has it, which does not change when a source file does.
    pub(super) fn in_lists(&self) -> String {
        match self.owner.as_str() {
            "(unnamed)" => self.line.split(':').next().unwrap_or_default().to_owned(),
            owner if self.line == owner && !self.field.contains(':') => format!("{owner}.{}", self.field),
            owner => owner.to_owned(),
        }
    }
}

/// The machine on which cases run.
pub(super) fn machine() -> Machine {
    Machine::named("skylake-4").jitter(false)
}

/// Runs `case`, and compares it with what the model expects.
pub(super) fn run(machine: &Machine, on: On, case: &Case, expected: &Expected) -> Finding {
    // Leftovers of earlier cases are freed now rather than during this case.
    Superblock::new(Options::default()).settle();
    clear_labels();
    name_objects(true);
    let stage: OnceCell<Result<Stage, String>> = OnceCell::new();
    let answers: [RefCell<Option<Result<CallAnswer, Errno>>>; 2] = Default::default();
    let gate = OwnLine(AtomicU32::new(0));
    let report = machine.try_run(CPUS, |cpu| {
        if cpu.id() == 0 {
            let _ = stage.set(Stage::set_up(case.state, on));
        }
        meet(&gate, 1);
        let Some(Ok(stage)) = stage.get() else { return };
        let actor = cpu.id();
        let warm = if actor == 0 { Ok(()) } else { stage.warm_up(actor) };
        meet(&gate, 2);
        if actor > 0 {
            let process = case.state.processes()[actor - 1];
            let answer =
                warm.and_then(|()| cpu.watch(|| stage.perform(actor, process, &case.calls[actor - 1])));
            *answers[actor - 1].borrow_mut() = Some(answer);
        }
    });
    name_objects(false);
    let mut finding = Finding::default();
    match report {
        Ok(report) => finding.conflicts = report.conflicts.lines.iter().map(name_of).collect(),
        Err(error) => finding.differences.push(error.to_string()),
    }
    for ((answer, outcome), call) in answers.iter().zip(&expected.outcomes).zip(&case.calls) {
        match &*answer.borrow() {
            Some(answer) if agrees(answer, outcome) => {}
            answer => finding.differences.push(format!("{call} answers {answer:?}, not {outcome:?}")),
        }
    }
    match stage.into_inner() {
        Some(Ok(stage)) => {
            finding.differences.extend(stage.differences(&expected.after));
            stage.end();
        }
        Some(Err(error)) => finding.differences.push(error),
        None => {}
    }
    finding
}

/// Waits until all CPUs are there for the `round`th time.
fn meet(gate: &AtomicU32, round: u32) {
    // SeqCst: the machine knows nothing weaker.
    gate.fetch_add(1, Ordering::SeqCst);
    spin_until(gate, |there| there >= round * CPUS as u32);
}

/// The name of a line for an engineer: its first writer.
fn name_of(conflict: &Conflict) -> LineName {
    let writes = |toucher: &&Toucher| toucher.kind.writes();
    let writer = conflict.touchers.iter().find(writes).unwrap_or(&conflict.touchers[0]);
    let file = writer.site.file().rsplit("crates/").next().unwrap_or_default();
    let file = file.rsplit("../").next().unwrap_or_default();
    let place = format!("{file}:{}", writer.site.line());
    if let Some((owner, field)) = writer.label.split_once('.') {
        return LineName { line: owner.to_owned(), owner: owner.to_owned(), field: field.to_owned() };
    }
    let (owner, offset) = writer.label.split_once('+').unwrap_or((&writer.label, "0"));
    match offset.parse::<usize>() {
        Ok(offset) if !owner.is_empty() => {
            LineName { line: format!("{owner}+{offset}"), owner: owner.to_owned(), field: place }
        }
        _ => LineName { line: place.clone(), owner: "(unnamed)".to_owned(), field: place },
    }
}

/// Whether the model and the file system agree on each state before any call.
#[cfg(test)]
pub(super) fn check_state(state: super::cases::CaseState, on: On) -> Vec<String> {
    let machine = machine();
    let stage = machine.prepare(CPUS, || Stage::set_up(state, on));
    stage.map_or_else(|error| vec![error], |stage| stage.differences(&super::cases::world(state)))
}
