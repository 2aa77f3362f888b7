//! Campaign: many sequences from fresh seeds, and what to say when one fails.

use crate::compare::{Difference, Subject, compare};
use crate::generate::sequence;
use crate::host::{Ground, Host, is_superuser, policy};
use crate::op::{ProcessOp, from_text, to_text};
use crate::pool::Limits;
use crate::shrink::shrink;
use sluice_sync::random::{Random, fresh_seed};
use sluice_sync::time::Instant;
use std::fmt;
use std::path::{Path, PathBuf};

/// Steps in one sequence.
pub const LENGTH: usize = 400;
/// Runs that the shrinker may spend on one failure.
const SHRINK_BUDGET: usize = 3000;

/// The runs to make.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Operations in all, rounded up to whole sequences.
    pub operations: usize,
    /// The only seed to run, if any.
    pub seed: Option<u64>,
    /// The abilities of the host.
    pub limits: Limits,
    /// Where a failing sequence is written.
    pub failures: PathBuf,
}

/// A sequence that fails, cut down.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed of the whole sequence.
    pub seed: u64,
    /// The steps that matter.
    pub steps: Vec<ProcessOp>,
    /// The difference that it shows.
    pub difference: Difference,
    /// Where the steps are written.
    pub file: PathBuf,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sluicefs and tmpfs disagree (seed {}):", self.seed)?;
        writeln!(f, "{}", self.difference)?;
        writeln!(f, "{} steps show it:\n{}", self.steps.len(), to_text(&self.steps))?;
        writeln!(
            f,
            "replay: SLUICE_ORACLE_REPLAY={} cargo test -p sluice-oracle replay",
            self.file.display()
        )?;
        write!(f, "whole sequence: SLUICE_ORACLE_SEED={} cargo test -p sluice-oracle", self.seed)
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not `{text}`")))
}

impl Campaign {
    /// `operations` operations, unless the environment says otherwise. Says loudly what this host cannot do.
    pub fn from_environment(operations: usize, failures: &Path) -> Campaign {
        let confined = !is_superuser();
        if confined {
            eprintln!(
                "ORACLE LIMITED: not the superuser, so one user, no absolute paths and no `..` are tested. \
                 Run as root for the whole test."
            );
        }
        let no_sticky =
            ["protected_regular", "protected_fifos", "protected_symlinks"].into_iter().any(policy);
        if no_sticky {
            eprintln!(
                "ORACLE LIMITED: /proc/sys/fs/protected_* restrict sticky directories; they are left out."
            );
        }
        Campaign {
            operations: number("SLUICE_ORACLE_OPS").map_or(operations, |n| n as usize),
            seed: number("SLUICE_ORACLE_SEED"),
            limits: Limits { confined, no_sticky, processes: if confined { 1 } else { 4 } },
            failures: failures.to_path_buf(),
        }
    }

    /// Runs sequences until the operations are done or `most` kinds of failure are found. Returns the
    /// operations done.
    ///
    /// # Errors
    /// The failures, one of each kind, shrunk.
    ///
    /// # Panics
    /// When a run cannot be started at all: that is no finding about the subject.
    pub fn run(
        &self,
        most: usize,
        tmpfs: &mut Host,
        subject: &mut dyn Subject,
    ) -> Result<usize, Vec<Failure>> {
        let mut seeds = Random::new(fresh_seed());
        let mut failures: Vec<Failure> = Vec::new();
        let mut done = 0;
        while done < self.operations && failures.len() < most {
            let seed = self.seed.unwrap_or_else(|| seeds.bits());
            let steps = sequence(seed, LENGTH, self.limits);
            done += steps.len();
            if let Some(difference) = must_start(compare(&steps, tmpfs, subject)) {
                let known = failures.iter().any(|known| known.difference.kind() == difference.kind());
                if !known {
                    failures.push(self.shrunk(seed, steps, difference, tmpfs, subject));
                }
            }
            if self.seed.is_some() {
                break;
            }
        }
        if failures.is_empty() { Ok(done) } else { Err(failures) }
    }

    fn shrunk(
        &self,
        seed: u64,
        steps: Vec<ProcessOp>,
        difference: Difference,
        tmpfs: &mut Host,
        subject: &mut dyn Subject,
    ) -> Failure {
        let kind = difference.kind();
        let steps = shrink(steps, SHRINK_BUDGET, |steps| {
            must_start(compare(steps, tmpfs, subject)).is_some_and(|found| found.kind() == kind)
        });
        // The steps failed when they were last tried; a difference that comes and goes is shown as it was first.
        let difference = must_start(compare(&steps, tmpfs, subject)).unwrap_or(difference);
        let file = self.failures.join(format!("seed-{seed}.ops"));
        let comment: String = difference.to_string().lines().map(|line| format!("# {line}\n")).collect();
        if let Err(error) = std::fs::write(&file, comment + &to_text(&steps)) {
            eprintln!("cannot write {}: {error}", file.display());
        }
        Failure { seed, steps, difference, file }
    }
}

fn must_start(result: Result<Option<Difference>, String>) -> Option<Difference> {
    result.unwrap_or_else(|error| panic!("the oracle cannot run: {error}"))
}

/// Runs a campaign of `operations` operations, unless the environment says otherwise, and prints what it did.
/// Failing sequences are written to `failures`.
///
/// # Panics
/// When `subject` disagrees with tmpfs; what is printed before says where.
pub fn prove(name: &str, operations: usize, failures: &Path, subject: &mut dyn Subject) {
    /// Kinds of failure that a campaign collects before it gives up.
    const KINDS: usize = 10;
    let campaign = Campaign::from_environment(operations, failures);
    if subject.is_mounted() && policy("protected_hardlinks") {
        eprintln!(
            "ORACLE LIMITED: /proc/sys/fs/protected_hardlinks is set; links that users make on mounts are left out."
        );
    }
    let mut tmpfs = Host::new(&Ground::Tmpfs).unwrap_or_else(|error| panic!("{error}"));
    tmpfs.compare_holes(subject.has_holes());
    let begin = Instant::now();
    match campaign.run(KINDS, &mut tmpfs, subject) {
        Ok(done) => {
            let seconds = begin.elapsed().as_secs_f64();
            println!("{name}: {done} operations, {:.0} a second", done as f64 / seconds);
        }
        Err(failures) => {
            failures.iter().for_each(|failure| println!("{name}: {failure}\n"));
            panic!("{name}: {} kinds of disagreement, see above", failures.len());
        }
    }
}

/// Replays a file.
///
/// # Errors
/// One line, when the file cannot be read or understood.
pub fn replay(
    file: &Path,
    tmpfs: &mut Host,
    subject: &mut dyn Subject,
) -> Result<Option<Difference>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let steps = from_text(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    compare(&steps, tmpfs, subject)
}
