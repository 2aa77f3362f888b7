//! The commands about locks between machines, and their help texts.

use clap::Subcommand;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A command about locks between machines.
#[derive(Subcommand)]
pub(crate) enum LockCommand {
    /// Run a command under a lock that all machines of a cluster share, as flock(1) on one
    #[command(
        override_usage = "sluice lock NAME --cluster CLUSTER [--shared] [--timeout SECONDS] -- COMMAND...",
        after_help = LOCK_EXAMPLES
    )]
    Lock {
        #[command(flatten)]
        request: WantedLock,
        /// The command and its arguments, after --
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// The lock manager of a cluster, of which `sluice lock` has its locks
    #[command(after_help = DLM_EXAMPLES)]
    Dlm {
        #[command(subcommand)]
        action: DlmAction,
    },
}

/// A lock of a cluster, as it is wanted.
#[derive(clap::Args, Clone)]
pub(crate) struct WantedLock {
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

impl WantedLock {
    /// The arguments that say the same.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(dead_code, reason = "a build without clusters has no locks between machines")
    )]
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

/// The questions to the lock manager.
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

const LOCK_EXAMPLES: &str = "\
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
