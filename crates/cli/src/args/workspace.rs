//! The commands about workspaces, and their help text.

use clap::Subcommand;
use std::path::PathBuf;

/// The actions on a workspace.
#[derive(Subcommand)]
pub(crate) enum WorkspaceAction {
    /// Make a directory of a cluster's mount a workspace: a store and an owner of its own
    Create {
        /// A new directory, or an empty one
        dir: PathBuf,
    },
    /// Make each directory that is made in a directory from now on a workspace: homes, jobs, volumes
    Auto {
        /// New directories here are ordinary directories again
        #[arg(long)]
        off: bool,
        /// A directory of a cluster's mount; the directories that it has already stay as they are
        dir: PathBuf,
    },
    /// Print the workspaces at and below a directory: number, role of this node, directory
    List {
        /// As an array of objects
        #[arg(long)]
        json: bool,
        /// A directory of a mount; all directories below are read, but not those in the workspaces that are found
        dir: PathBuf,
    },
    /// Have another node own a workspace: the owner brings everything to the store, and hands it over
    Move {
        /// Its directory
        dir: PathBuf,
        /// The number of the node, as `sluice cluster status` shows it
        node: u64,
    },
    /// Remove an empty workspace, as `rmdir` does
    Delete {
        /// Its directory
        dir: PathBuf,
    },
}

pub(super) const WORKSPACE_EXAMPLES: &str = "\
A workspace is a directory of a cluster's mount whose files have a store of their own, below that of the file system, and an
owner of their own: the first node that uses it, and later the node that makes most requests there. The calls of the owner send
no message to other nodes. The death of a node stops the workspaces that it owned, and no others, until another node has taken
each over.

Names are not moved, and files not linked, across the border (EXDEV: `mv` copies); `df DIR`, snapshots and quotas are those of
the workspace. A workspace is no part of a snapshot of the directory above. The store must be one in an object store (s3://,
file://). create and auto are for root; see docs/cluster.md.

Examples:
  sluice workspace create /srv/team/jobs/a
  sluice workspace auto /srv/team/jobs                each `mkdir /srv/team/jobs/...` makes a workspace
  sluice workspace list /srv/team
  sluice snapshot create /srv/team/jobs/a before
  sluice fsck s3://BUCKET/fs/workspaces/1
  sluice cluster status http://10.0.0.1:2379/work     which node owns which workspace
  sluice workspace move /srv/team/jobs/a 7            node 7 is its owner from then on
  rm -r /srv/team/jobs/a/*; sluice workspace delete /srv/team/jobs/a";
