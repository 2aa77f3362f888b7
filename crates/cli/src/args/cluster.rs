//! The commands about clusters, and their help texts.

use clap::Subcommand;
use std::path::PathBuf;

/// What is asked of a node of the cluster lock manager.
#[derive(Subcommand)]
pub(crate) enum DlmAction {
    /// List who holds and who waits, since when, and which resources go to and fro, in the manner of /proc/locks
    #[command(after_help = DLM_EXAMPLES)]
    Status {
        /// As one line of JSON, with what was counted
        #[arg(long)]
        json: bool,
        /// The socket where the node tells it (`Config::status` of the library)
        socket: PathBuf,
    },
}

/// What is done about a cluster.
#[derive(Subcommand)]
pub(crate) enum ClusterAction {
    /// Make a cluster: its name, its certificate authority, its leases
    #[command(after_help = CLUSTER_EXAMPLES)]
    Init {
        /// How long a node may be silent before another takes its place
        #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
        ttl: f64,
        /// A directory that all nodes share
        shared: PathBuf,
    },
    /// Make the identity of a node, for `sluice mount --identity`
    Join {
        /// The cluster's directory, with the key of its authority
        shared: PathBuf,
        /// Where the identity goes: keep it secret
        identity: PathBuf,
    },
    /// List the nodes: which is the owner, what each has served
    Status {
        /// As JSON, an object for each node, a line each
        #[arg(long)]
        json: bool,
        /// An identity that `join` made; without, one is made for the question
        #[arg(long, value_name = "DIR")]
        identity: Option<PathBuf>,
        /// The cluster's directory
        shared: PathBuf,
    },
    /// Unmount, and wait until the node has handed everything over
    Leave {
        /// Where the node has it mounted
        dir: PathBuf,
    },
    /// Show it: three nodes on this machine, one of which is killed
    Demo,
}

const CLUSTER_EXAMPLES: &str = "\
On each machine the same: mount the store with --cluster. See docs/cluster.md.

Examples:
  sluice mkfs /shared/fs; sluice cluster init /shared/cluster
  sluice mount /shared/fs DIR --cluster dir:/shared/cluster
  sluice cluster status /shared/cluster
  sluice cluster demo";

const DLM_EXAMPLES: &str = "Examples:
  sluice dlm status /run/node.sock
  sluice dlm status --json /run/node.sock | jq .counts";
