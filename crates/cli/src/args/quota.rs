//! The command about quotas, and its help text.

use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct QuotaArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// A directory of a mount
    pub(crate) dir: PathBuf,
    /// The most bytes that it may hold with all that is below it, such as 10G; `none` takes the quota away
    #[arg(allow_negative_numbers = true)]
    pub(crate) size: Option<String>,
}

pub(super) const QUOTA_EXAMPLES: &str = "\
A quota counts the pages of all files below the directory, and long targets of symbolic links; extended attributes do not count. Files that are
there count, and may take more than SIZE. Calls that would take more fail with EDQUOT, and `df DIR` shows the limit and
what is free. Snapshots do not count; a clone counts where it stands.

A file that is renamed across the border counts on the other side from then on. A directory, and a file of several names, is not renamed
across: the call fails with EXDEV, and `mv` copies. Quotas do not nest. The root of a mount has none: its limit is the mount option
size=. The quota of a store is durable when the command returns. In a cluster the owner's mount takes the command.

The command is for root and for the user who serves the mount; everybody may use `df DIR`.

Examples:
  sluice quota ~/scratch/build 10G
  sluice quota ~/scratch/build
  sluice quota --json ~/scratch/build
  df -h ~/scratch/build
  sluice quota ~/scratch/build none";
