//! The commands that `sluice-lab` carries out, and their help texts. Both programs compile this file: `sluice` for its list
//! of commands and its completions.

use clap::Subcommand;
use std::path::PathBuf;

/// A command of the lab.
#[derive(Subcommand)]
pub(crate) enum LabCommand {
    /// Measure workloads on this library, on a mount of it, and on other file systems
    Bench(Box<Bench>),
    /// Compare two results, and say what became faster or slower beyond chance
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare {
        /// The earlier output of `bench --json`; several runs may be appended
        before: PathBuf,
        /// The later output
        after: PathBuf,
        /// Write a page there, with both in the same plots
        #[arg(short, long, value_name = "PAGE")]
        output: Option<PathBuf>,
        /// Exit status 1 if a rate fell by more than this
        #[arg(long, value_name = "PERCENT")]
        fail_over: Option<String>,
    },
    /// Make a page of a result: one HTML file, for any browser, without a network
    #[command(after_help = REPORT_EXAMPLES)]
    Report {
        /// The result that `bench --json` or `lab --json` wrote
        #[arg(required_unless_present = "sources")]
        result: Option<PathBuf>,
        /// Run every experiment, and set what it shows beside what its source said
        #[arg(long, conflicts_with = "result")]
        sources: bool,
        /// Where the page goes
        #[arg(short, long, value_name = "PAGE", required = true)]
        output: PathBuf,
    },
    /// Show what is known about locks, on simulated machines and on this one
    Lab(Lab),
    /// Look for lines that commuting calls share, on the simulated machine
    #[command(after_help = COMMUTE_EXAMPLES)]
    Commute(Commute),
}

const COMMUTE_EXAMPLES: &str = "\
Each case is a pair of calls in a small state in which, by a model of the API, their order shows in nothing. Both run
at once on two simulated CPUs. A case is conflict-free when no line that one writes is touched by the other.
Exit status 1 when a conflict has no explanation, or an answer is not the model's.

Examples:
  sluice commute
  sluice commute --on store
  sluice commute --pair open,unlink
  sluice commute --json pairs.json";

const COMPARE_EXAMPLES: &str = "\
A row is called faster or slower when the 99% bootstrap interval of its ratio excludes 1 and Welch's test agrees at
one in two thousand; give each side five runs or more. To keep the machine's drift out, measure in turn and append.

Examples:
  sluice compare before.json after.json
  sluice compare before.json after.json -o page.html --fail-over 5%";

const REPORT_EXAMPLES: &str = "Examples:
  sluice bench open-close stat --on lib,dir:/dev/shm --json result.json; sluice report result.json -o page.html
  sluice report --sources -o sources.html       every experiment; some minutes";

#[derive(clap::Args)]
pub(crate) struct Bench {
    /// Workloads from the list below, or `all`
    #[arg(value_name = "WORKLOAD", required_unless_present = "exec")]
    pub(crate) workloads: Vec<String>,
    /// Measure this command of the shell in place of workloads, on `dir:PATH` or `mount`: how long it takes
    #[arg(long, value_name = "CMD", conflicts_with_all = ["workloads", "processes", "lock_stats"])]
    pub(crate) exec: Option<String>,
    /// Where: `lib` (in process), `mount` (a mount of ours), `dir:PATH` (any file system), `sim:MACHINE` (in
    /// process on a simulated machine); the first is the one that ratios refer to [default: lib; with --exec dir:.]
    #[arg(long, value_name = "TARGET,...", value_delimiter = ',')]
    pub(crate) on: Vec<String>,
    /// Numbers of CPUs to pin the load to, each in turn [default: 1 and all; with --exec all]; the daemon of a mount is not pinned
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Tasks at once [default: one per CPU; 128 for the lock workloads]
    #[arg(long, value_name = "N")]
    pub(crate) tasks: Option<usize>,
    /// Make each task a process of its own, as will-it-scale does, and not a thread; on `dir:PATH` and `mount`
    #[arg(long)]
    pub(crate) processes: bool,
    /// Let tasks run on any CPU, as programs do, instead of pinning them
    #[arg(long)]
    pub(crate) unpinned: bool,
    /// Runs of which the median is taken [default: 5; with --against 20 of each program]
    #[arg(long, value_name = "N")]
    pub(crate) runs: Option<usize>,
    /// Length of a run [default: 0.2; with --exec the command once]
    #[arg(long, value_name = "S", conflicts_with = "ops", allow_negative_numbers = true)]
    pub(crate) seconds: Option<f64>,
    /// Length of a run, in operations of each task
    #[arg(long, value_name = "N")]
    pub(crate) ops: Option<u64>,
    /// Show at the end how often locks of each class were taken and waited for, for how long, and where; on `lib`
    /// only, in builds with the feature lock-debug or with assertions
    #[arg(long)]
    pub(crate) lock_stats: bool,
    /// Measure this build and that of PROGRAM, a `sluice` or `sluice-lab`, in turn, and compare them
    #[arg(long, value_name = "PROGRAM", conflicts_with = "lock_stats")]
    pub(crate) against: Option<PathBuf>,
    /// With --against: exit status 1 if this build's rate is lower by more than this
    #[arg(long, value_name = "PERCENT", requires = "against")]
    pub(crate) fail_over: Option<String>,
    /// Write the results there, one JSON object per line; `-` for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct Lab {
    /// Which; see the list below
    pub(crate) experiment: String,
    /// Write the results there, one JSON object per line; `-` for standard output instead of the tables
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct Commute {
    /// The storage below the file system
    #[arg(long, value_enum, default_value_t = Below::Ram)]
    pub(crate) on: Below,
    /// Only the cases of these two calls
    #[arg(long, value_name = "A,B")]
    pub(crate) pair: Option<String>,
    /// Write the results there, one JSON object for each pair of calls; `-` for standard output instead of the
    /// tables
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// The base of a simulated file system.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Below {
    /// Memory alone
    Ram,
    /// A store, with its disk in memory
    Store,
}
