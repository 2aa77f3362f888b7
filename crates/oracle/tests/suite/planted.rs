//! The oracle itself: file systems with a planted defect must be found, and the defect shown in few steps.

use sluice_oracle::campaign::{Campaign, replay};
use sluice_oracle::compare::Subject;
use sluice_oracle::executor::Executor;
use sluice_oracle::host::{Ground, Host};
use sluice_oracle::lib_exec::{InProcess, LibRun};
use sluice_oracle::op::{Op, ProcessOp};
use sluice_oracle::view::{Outcome, Value};
use sluice_vfs::Errno;
use std::path::Path;

/// The outcome that a liar gives instead of a step, if it lies.
type Lie = fn(&mut LibRun, &ProcessOp) -> Option<Outcome>;

/// sluicefs with a defect.
struct Liar {
    confined: bool,
    lie: Lie,
}

struct LiarRun {
    run: LibRun,
    lie: Lie,
}

impl Subject for Liar {
    fn start(&mut self) -> Result<Box<dyn Executor>, String> {
        Ok(Box::new(LiarRun { run: LibRun::new(self.confined), lie: self.lie }))
    }
}

impl Executor for LiarRun {
    fn run(&mut self, step: &ProcessOp) -> Outcome {
        (self.lie)(&mut self.run, step).unwrap_or_else(|| self.run.run(step))
    }
    fn processes(&self) -> usize {
        self.run.processes()
    }
}

/// The most steps of a shrunk sequence: what a defect needs depends on the case that the seed found, but it is far
/// from the hundreds of a whole sequence.
const MOST_STEPS: usize = 20;

/// The defect is found and shrunk, and the file that says so shows it again.
fn assert_found(name: &str, lie: Lie) {
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("planted-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("the target directory is writable");
    let mut tmpfs = Host::new(&Ground::Tmpfs).expect("the host has a tmpfs to compare with");
    let mut liar = Liar { confined: tmpfs.confined(), lie };
    let mut campaign = Campaign::from_environment(100_000, &directory);
    campaign.operations = 100_000;
    campaign.seed = None;
    let failures = campaign.run(1, &mut tmpfs, &mut liar).expect_err("the defect is found");
    let failure = &failures[0];
    assert!(failure.steps.len() <= MOST_STEPS, "{name} is not shrunk:\n{failure}");
    let again = replay(&failure.file, &mut tmpfs, &mut liar).expect("the file is a sequence");
    assert_eq!(again.map(|difference| difference.kind()), Some(failure.difference.kind()));
    let mut truthful = InProcess { confined: tmpfs.confined() };
    let without = replay(&failure.file, &mut tmpfs, &mut truthful).expect("the file is a sequence");
    assert!(without.is_none(), "the planted defect is the only one");
    std::fs::remove_dir_all(&directory).expect("only the failure is in there");
}

#[test]
fn a_wrong_errno_is_found() {
    let lie: Lie = |run, step| match (&step.op, run.run(step)) {
        (Op::Unlink { .. }, Err(Errno::EISDIR)) => Some(Err(Errno::EPERM)),
        (_, outcome) => Some(outcome),
    };
    assert_found("errno", lie);
}

#[test]
fn a_call_that_does_nothing_is_found() {
    let lie: Lie = |_, step| matches!(step.op, Op::Rename { .. }).then_some(Ok(Value::Done));
    assert_found("rename", lie);
}

#[test]
fn a_write_that_is_short_of_a_byte_is_found() {
    let lie: Lie = |run, step| match &step.op {
        Op::Pwrite { fd, data, offset } if data.len > 1 => {
            let mut data = *data;
            data.len -= 1;
            let op = Op::Pwrite { fd: *fd, data, offset: *offset };
            let shorter = run.run(&ProcessOp { process: step.process, op });
            Some(shorter.map(|_| Value::Number(data.len as i64 + 1)))
        }
        _ => None,
    };
    assert_found("write", lie);
}

#[test]
fn a_forgotten_modification_time_is_found() {
    // Truncation by descriptor goes on as if it had been asked to set both times to what they were.
    let lie: Lie = |run, step| {
        let Op::Ftruncate { fd, .. } = step.op else { return None };
        let now = |run: &mut LibRun, op| run.run(&ProcessOp { process: step.process, op });
        let outcome = now(run, step.op.clone());
        if outcome.is_ok() {
            let old = sluice_oracle::word::TimeArg::At(1_000_000_000, 0);
            let omit = sluice_oracle::word::TimeArg::Omit;
            let _ = now(run, Op::Futimens { fd, atime: omit, mtime: old });
        }
        Some(outcome)
    };
    assert_found("mtime", lie);
}

#[test]
fn a_lock_that_does_not_exclude_is_found() {
    let lie: Lie = |_, step| matches!(step.op, Op::Flock { .. }).then_some(Ok(Value::Done));
    assert_found("flock", lie);
}
