//! The commands about clusters, and their help texts.

use clap::Subcommand;
use std::path::PathBuf;

/// The actions on a cluster.
#[derive(Subcommand)]
pub(crate) enum ClusterAction {
    /// Make a cluster: its name, its certificate authority, its leases
    #[command(after_help = CLUSTER_EXAMPLES)]
    Init {
        /// How long a node may be silent before another takes its place
        #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
        ttl: f64,
        /// Where the key of its authority goes: keep it secret [default: the directory; /etc/sluice/NAME for an etcd]
        #[arg(long, value_name = "DIR")]
        authority: Option<PathBuf>,
        /// A directory that all nodes share, or `http://HOST:PORT[,...][/NAME]` of an etcd
        #[arg(value_name = "CLUSTER")]
        place: String,
    },
    /// Make the identity of a node, for `sluice mount --identity`
    Join {
        /// Where the key of the authority is [default: as for init]
        #[arg(long, value_name = "DIR")]
        authority: Option<PathBuf>,
        /// The cluster, as for init
        #[arg(value_name = "CLUSTER")]
        place: String,
        /// Where the identity goes: keep it secret
        identity: PathBuf,
    },
    /// List the nodes: which is the owner, what each has served
    Status {
        /// As JSON, an object for each node, a line each
        #[arg(long)]
        json: bool,
        /// An identity that `join` made, or the key of the authority [default: where init put it]
        #[arg(long, value_name = "DIR")]
        identity: Option<PathBuf>,
        /// The cluster, as for init
        #[arg(value_name = "CLUSTER")]
        place: String,
    },
    /// Unmount, and wait until the node has handed everything over
    Leave {
        /// Where the node has it mounted
        dir: PathBuf,
    },
    /// Show it: three nodes on this machine; one is killed, and one cut off for a while
    Demo,
}

/// The mount or cluster that is watched.
#[derive(clap::Args, Default)]
#[command(
    override_usage = "sluice top [--once] [--json] DIR\n       sluice top [--once] [--json] --cluster CLUSTER [--identity DIR]",
    after_help = TOP_EXAMPLES
)]
pub(crate) struct Watched {
    /// Any file or directory of a mount: what its server does, by kind of request
    pub(crate) dir: Option<PathBuf>,
    /// Instead: a line for each node of this cluster, named as for `sluice cluster status`
    #[arg(long, value_name = "CLUSTER", conflicts_with = "dir")]
    pub(crate) cluster: Option<String>,
    /// An identity that `sluice cluster join` made, or the key of the cluster's authority [default: where init put it]
    #[arg(long, value_name = "DIR", requires = "cluster", conflicts_with = "dir")]
    pub(crate) identity: Option<PathBuf>,
    /// Ends after one screen
    #[arg(long)]
    pub(crate) once: bool,
    /// As one line of JSON a second: the counts of `sluice stat --json`, and requests a second
    #[arg(long)]
    pub(crate) json: bool,
}

const TOP_EXAMPLES: &str = "\
Of a node of a cluster, per second: requests of its kernel; those that the owner was asked and is waited for (awaited);
those that were answered before the owner had them (behind); those that the node decided by itself (here); changes of
others that its kernel was told (notices); what was left to the node and taken back for another (recalls). Now: requests
that wait for a lock, and bytes on their way to the store. The owner shows its requests to the object store, and how long the requests
of the last second took. A node that does not answer is `silent`.

Examples:
  sluice top ~/scratch                               every second, until Ctrl-C
  sluice top --once --json ~/scratch                 for a program
  sluice top --cluster http://10.0.0.1:2379/work     all nodes";

const CLUSTER_EXAMPLES: &str = "\
On each machine the same: mount the store with --cluster. See docs/cluster.md.

Examples:
  sluice mkfs s3://BUCKET/fs; sluice cluster init http://10.0.0.1:2379/work
  sluice mount s3://BUCKET/fs DIR --cluster http://10.0.0.1:2379/work
  sluice cluster status http://10.0.0.1:2379/work
  sluice cluster demo

On one machine, without etcd:
  sluice mkfs /shared/fs; sluice cluster init /shared/cluster
  sluice mount /shared/fs DIR --cluster dir:/shared/cluster

To an etcd that asks for it a user, certificates or both are shown, as ETCDCTL_USER, ETCDCTL_PASSWORD,
ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY in the environment say.";
