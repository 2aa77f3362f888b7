//! The commands about clusters, and their help texts.

use clap::Subcommand;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What is done about a cluster.
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

/// A lock of a cluster, as it is wanted.
#[derive(clap::Args, Clone)]
pub(crate) struct LockRequest {
    /// The lock: any text of 1 to 255 bytes
    pub(crate) name: OsString,
    /// The cluster, as for `sluice cluster init`
    #[arg(long, value_name = "CLUSTER")]
    pub(crate) cluster: String,
    /// An identity that `sluice cluster join` made, or the key of the authority [default: where init put it]
    #[arg(long, value_name = "DIR")]
    pub(crate) identity: Option<PathBuf>,
    /// Where others that want locks reach this one [default: the address from which this machine reaches etcd]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Together with other holders that say --shared
    #[arg(long)]
    pub(crate) shared: bool,
    /// Give up after so long, with exit status 1; 0: do not wait for another holder
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) timeout: Option<f64>,
}

impl LockRequest {
    /// The arguments that say the same.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--cluster".into(), self.cluster.clone().into()];
        let identity = self.identity.clone().map(OsString::from);
        let listen = self.listen.map(|listen| listen.to_string().into());
        let timeout = self.timeout.map(|seconds| seconds.to_string().into());
        for (option, value) in [("--identity", identity), ("--listen", listen), ("--timeout", timeout)] {
            arguments.extend(value.into_iter().flat_map(|value| [option.into(), value]));
        }
        arguments.extend(self.shared.then(|| "--shared".into()));
        arguments.extend(["--".into(), self.name.clone()]);
        arguments
    }
}

/// What is asked of the lock manager.
#[derive(Subcommand)]
pub(crate) enum DlmAction {
    /// List the locks: holders, and requests that wait, by member; a member is a `sluice lock` that runs
    #[command(after_help = DLM_EXAMPLES)]
    Status {
        /// As JSON, an object for each member, a line each
        #[arg(long)]
        json: bool,
        /// An identity that `sluice cluster join` made, or the key of the authority [default: where init put it]
        #[arg(long, value_name = "DIR")]
        identity: Option<PathBuf>,
        /// The cluster, as for `sluice cluster init`
        #[arg(long, value_name = "CLUSTER")]
        cluster: String,
    },
}

/// What is watched.
#[derive(clap::Args)]
#[command(
    override_usage = "sluice top DIR\n       sluice top --cluster CLUSTER [--identity DIR]",
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
}

const TOP_EXAMPLES: &str = "\
Of a node of a cluster, per second: requests of its kernel; those that the owner was asked and is waited for (awaited);
those that were answered before the owner had them (behind); those that the node decided by itself (here); changes of
others that its kernel was told (notices); what was left to the node and taken back for another (recalls). Now: requests
that wait for a lock, and bytes on their way to the store. Of the owner: requests to the object store, and how long those
of the last second took. A node that does not answer is `silent`.

Examples:
  sluice top ~/scratch                               every second, until Ctrl-C
  sluice top --cluster http://10.0.0.1:2379/work     all nodes";

pub(super) const LOCK_EXAMPLES: &str = "\
The lock is held for as long as COMMAND runs; what COMMAND leaves running in the background has it no more. COMMAND finds
in SLUICE_LOCK_TOKEN a number that is greater for each later holder of the lock: a store that refuses numbers below the
greatest it has seen is safe from a holder of the past, also from one whose machine stood still. See docs/locks.md.

If the lock is lost while COMMAND runs, as the cluster could not be reached for a lease, COMMAND gets SIGTERM, and, a
quarter of a lease later, SIGKILL with all it has started: before another holder has the lock.

Exit status: that of COMMAND, or 128 + the number of the signal that ended it; 1 when the time is over, or the cluster
cannot be reached; 2 bad usage; 125 the lock was lost while COMMAND ran; 126 COMMAND cannot be executed; 127 there is
no COMMAND.

Examples:
  sluice lock nightly --cluster http://10.0.0.1:2379/work -- make backup      on any machine, one at a time
  sluice lock nightly --cluster http://10.0.0.1:2379/work --timeout 0 -- make backup   or not at all
  sluice cluster init /tmp/c; sluice lock a --cluster /tmp/c -- sh -c 'echo $SLUICE_LOCK_TOKEN'     on one machine";

const DLM_EXAMPLES: &str = "\
Examples:
  sluice dlm status --cluster http://10.0.0.1:2379/work";

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
