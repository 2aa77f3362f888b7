//! The command that looks for incoherent mounts, and its help text.

use std::ffi::OsString;
use std::path::PathBuf;

/// The arguments of `sluice check-coherence`.
#[derive(clap::Args)]
pub(crate) struct CheckCoherence {
    /// Directories that show one tree, two to twelve: the same directory of several mounts
    #[arg(value_name = "DIR", required = true, num_args = 2..=12)]
    pub(crate) dirs: Vec<PathBuf>,
    /// Length of the check
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub(crate) seconds: u64,
    /// A command of the shell that runs beside, to kill a server or to cut a link
    #[arg(long, value_name = "CMD")]
    pub(crate) nemesis: Option<OsString>,
    /// A program whose calls take longer together is given up; its last call counts as one without an answer
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) timeout: u64,
    /// As one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) const CHECK_COHERENCE_EXAMPLES: &str = "\
One program on each directory makes calls at the same time as the others: create, open, read, write, append, truncate,
rename, link, unlink, mkdir, rmdir, readdir, stat, flock and fcntl locks. All that the programs were told must have one
order, as on a local file system. Else the fewest calls that are found without such an order are printed. The programs
work in a new directory sluice-coherence-PID-NUMBER of the tree, which is removed at the end. docs/coherence.md says which promises
are checked, and which are not.
Exit status: 0 coherent, 1 incoherent, 2 the check could not be made.

Examples:
  sluice check-coherence /mnt/a /mnt/b --seconds 60
  sluice check-coherence /mnt/a /mnt/b /mnt/c --nemesis 'sleep 5; kill -9 4711'";
