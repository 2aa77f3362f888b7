//! The command for orchestrators of containers, and its help text.

use std::path::PathBuf;

#[derive(clap::Args, Default)]
pub(crate) struct CsiArgs {
    /// The socket to listen on, such as unix:///csi/csi.sock [default: the variable CSI_ENDPOINT]
    #[arg(long, value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<String>,
    /// A store, which is mounted; or a directory of a mount
    #[arg(long, value_name = "STORE")]
    pub(crate) store: PathBuf,
    /// What the orchestrator calls this node [default: the name of the host]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_id: Option<String>,
    /// What the orchestrator calls the driver
    #[arg(long, value_name = "NAME", default_value = "csi.sluicefs")]
    pub(crate) driver_name: String,
    /// The directory on which to mount the store [default: /run/sluicefs-csi/ and the driver's name]
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,
    /// Mount options for the store, as for `sluice mount`
    #[arg(short = 'o', value_name = "OPT,...")]
    pub(crate) options: Vec<String>,
}

pub(super) const CSI_EXAMPLES: &str = "\
Serves identity, controller and node of the Container Storage Interface (version 1) until a signal comes. A volume is a directory below
csi/ of the mount, with a quota; a snapshot is a copy of one that shares its bytes. The store stays mounted when the command ends, and when
it is killed: programs go on, and the next `sluice csi` finds all as it was. To end the mount: sluice umount DIR.

Root alone runs it, and root alone may use its socket. See docs/csi.md, and contrib/csi for Kubernetes.

Examples:
  sluice mkfs /srv/store; sluice csi --endpoint unix:///run/csi.sock --store /srv/store
  CSI_ENDPOINT=unix:///csi/csi.sock sluice csi --store /srv/mount --node-id \"$NODE\"";
