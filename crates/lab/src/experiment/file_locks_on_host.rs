//! File locks on this computer: the three designs of `file_locks`, by threads of which many share a CPU.

use super::ExperimentSession;
use super::curves::Curves;
use super::native;
use super::verdict::Verdict;
use crate::history::file_lock_tasks::{Design, Form, HERDS, TASKS, TESTS};
use crate::history::file_lock_threads::Tasks;
use crate::history::on_host::file_locks_2012::FileLocks2012;
use crate::history::on_host::file_locks_2013::FileLocks2013;
use crate::row::Row;
use sluice_console::failure::Result;
use sluice_locks::{Cancel, DomainOptions, FileLocks, Kind, LockDomain, Owner, Range, RangeRequest};
use sluice_sync::Arc;
use sluice_sync::time::Duration;

/// The lock manager of sluicefs. A task sleeps in it and not in [`Tasks`].
struct Ours {
    form: Form,
    files: Vec<FileLocks>,
}

impl Ours {
    fn new(form: Form, files: usize) -> Ours {
        let domain = LockDomain::new(DomainOptions::default());
        Ours { form, files: (0..files).map(|ino| FileLocks::new(&domain, 0, ino as u64)).collect() }
    }
}

impl Design for Ours {
    fn lock(&self, task: usize, file: usize) -> bool {
        let (file, kind, never) = (&self.files[file], Kind::Exclusive, Cancel::never());
        let outcome = match self.form {
            Form::Flock => file.set_flock_wait(task as u64, 1, kind, &never),
            Form::Posix => {
                let (owner, range) = (Owner::Process(task as u64), Range::WHOLE);
                file.set_range_wait(&RangeRequest { owner, pid: 1, kind, range }, &never)
            }
        };
        // Without limits, and one lock at a time: it is granted.
        outcome.is_ok()
    }

    fn unlock(&self, task: usize, file: usize) {
        match self.form {
            Form::Flock => self.files[file].unlock_flock(task as u64),
            Form::Posix => self.files[file].release_owner(Owner::Process(task as u64)),
        }
    }
}

/// How long a run is: many of the times that one of many threads has a CPU.
const TIME: Duration = Duration::from_millis(100);

/// Makes a design for tasks that call so, with so many files.
type Make = fn(&Arc<Tasks>, Form, usize) -> Box<dyn Design + Sync>;

const VARIANTS: &[(&str, Make)] = &[
    ("before", |tasks, form, files| Box::new(FileLocks2012::new(tasks, form, files))),
    ("source", |tasks, form, files| Box::new(FileLocks2013::new(tasks, form, files))),
    ("ours", |_, form, files| Box::new(Ours::new(form, files))),
];

/// Many waiters for one file, of so many tasks.
fn herd(tasks: usize) -> String {
    format!("herd-{tasks}")
}

pub(super) fn steps() -> usize {
    (TESTS.len() + HERDS.len()) * VARIANTS.len() * native::steps_in_turn(native::RUNS)
}

/// Rows, a table and verdicts.
pub(super) fn run(session: &mut ExperimentSession<'_>) -> Result<(String, Vec<Verdict>)> {
    let mut rows = Vec::new();
    for &(workload, form, one_file) in TESTS {
        rows.extend(rows_of(session, workload, form, one_file, TASKS)?);
    }
    for &tasks in HERDS {
        rows.extend(rows_of(session, &herd(tasks), Form::Posix, true, tasks)?);
    }
    let curves = Curves(&rows);
    Ok((curves.tables(), verdicts(&curves)))
}

fn rows_of(
    session: &mut ExperimentSession<'_>,
    workload: &str,
    form: Form,
    one_file: bool,
    tasks: usize,
) -> Result<Vec<Row>> {
    let file_of: fn(usize) -> usize = if one_file { |_| 0 } else { |task| task };
    let files = if one_file { 1 } else { tasks };
    native::in_turn(
        session,
        (workload, native::RUNS),
        VARIANTS,
        |(name, _)| name,
        |(_, make), cpus| Tasks::run((cpus, tasks), TIME, file_of, |all| make(all, form, files)),
    )
}

fn verdicts(curves: &Curves<'_>) -> Vec<Verdict> {
    let cpus = native::cpu_counts().last().copied().unwrap_or(1);
    let ratio = |workload: &str| {
        let rate = |variant| curves.rate(workload, "lib", variant, cpus);
        rate("ours") / rate("before").max(rate("source"))
    };
    let mut verdicts: Vec<_> = (TESTS.iter())
        .map(|&(workload, ..)| {
            let ratio = ratio(workload);
            Verdict::new(
                format!("{workload} on this computer: ours at least as good as the better of the two"),
                format!("native, {cpus} CPUs: {ratio:.2} times (wanted: 1)"),
                ratio >= 1.0,
            )
        })
        .collect();
    let rate = |tasks| curves.rate(&herd(tasks), "lib", "ours", cpus);
    let (few, many) = (HERDS[0], HERDS[HERDS.len() - 1]);
    let kept = rate(many) / rate(few);
    verdicts.push(Verdict::new(
        "a thousand waiters cost no more than twenty on this computer",
        format!("native, {cpus} CPUs: {kept:.3} of the throughput (wanted: 0.9)"),
        kept >= 0.9,
    ));
    let at_few = ratio(&herd(few));
    verdicts.push(Verdict::new(
        "20 waiters on this computer: no loss against waking all",
        format!("native, {cpus} CPUs: {at_few:.2} of the better of waking all (wanted: 1)"),
        at_few >= 1.0,
    ));
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_every_design_each_of_many_tasks_comes_to_its_turn_and_to_its_end() {
        for (name, make) in VARIANTS {
            for form in [Form::Posix, Form::Flock] {
                let time = Duration::from_millis(2);
                let run = Tasks::run((1, 8), time, |task| task % 2, |all| make(all, form, 2)).expect(name);
                assert_eq!(run.ops.len(), 8, "{name}");
                assert!(run.ops.iter().all(|&ops| ops > 0), "{name} {form:?}: {:?}", run.ops);
            }
        }
    }
}
