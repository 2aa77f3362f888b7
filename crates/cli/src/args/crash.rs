//! The command that tests programs against power failures, and its help text.

use std::ffi::OsString;

/// The moments at which the power fails.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CrashMoments {
    /// The moments before and after each fsync, after each output of the workload, and the end
    Fsync,
    /// After each change
    All,
}

/// The arguments of `sluice crash-test`.
#[derive(clap::Args)]
pub(crate) struct CrashTest {
    /// Trees of each moment whose losses chance chooses, torn writes included
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) seeds: u64,
    /// The moments at which the power fails
    #[arg(long, value_enum, default_value = "fsync")]
    pub(crate) points: CrashMoments,
    /// A command of the shell that makes the tree with which the workload begins: nothing of it is lost
    #[arg(long, value_name = "CMD")]
    pub(crate) setup: Option<OsString>,
    /// A command of the shell that ends with 0 if the tree is right; it reads on standard input what the workload had printed by then
    #[arg(long, value_name = "CMD")]
    pub(crate) check: OsString,
    /// A check that takes longer fails
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    /// As one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// The program to test and its arguments, after --
    #[arg(last = true, required = true)]
    pub(crate) workload: Vec<OsString>,
}

pub(super) const CRASH_TEST_EXAMPLES: &str = "\
The workload and each check run in the root of a file system of their own. Every tree that POSIX allows after a
power failure may be shown to the check: each change that no fsync has made durable may be there, missing or torn.
The first moment that fails is told with the fsync that is missing. docs/crash-testing.md has the model.
Exit status: 0 all trees pass, 1 a tree fails, 2 the test could not be made.

Examples:
  sluice crash-test --check 'test ! -e f || test \"$(cat f)\" = new' -- sh -c 'echo new > f.tmp; mv f.tmp f'
  sluice crash-test --points all --setup './db init' --check './db verify' -- ./db fill 100";
