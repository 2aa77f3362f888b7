//! Csi: the services of the Container Storage Interface, for Kubernetes and its like: identity, controller and node in one process, over a
//! Unix socket.
//!
//! # Theory
//! Volumes are directories of one mount, each with a quota (`volumes.rs`). The plugin keeps nothing in its memory that counts: what there is
//! stands in the mount and in the kernel's table of mounts. So it may be killed at any time, and the next one goes on; the mount
//! stays with its holder meanwhile (`place.rs`).
//!
//! Two calls about one volume do not run at once: the second is told `ABORTED`, and repeated by its caller.

mod bind_mounts;
mod capabilities;
mod controller;
mod errors;
mod grpc;
mod identity;
mod messages;
mod node;
mod place;
mod volumes;

use crate::args::CsiArgs;
use crate::system_log;
use grpc::CsiServices;
use messages::NodeTopology;
use place::VolumePlace;
use rustix::fs::Mode;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use sluice_console::failure::{Context, Failure, Result};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Mutex};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use tonic::Status;
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use volumes::{VolumeShelf, Volumes};

/// The variable that says where the socket is, if no argument does.
const ENDPOINT: &str = "CSI_ENDPOINT";
/// How long clients may take, once the plugin is told to end, to read answers and to hang up.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Threads that read and write on the socket; calls have others.
const THREADS: usize = 2;

/// The state behind all services.
struct Plugin {
    /// The driver's name.
    driver: String,
    node_id: String,
    place: Arc<VolumePlace>,
    busy: BusyVolumes,
}

impl Plugin {
    /// The volumes, in a mount that answers.
    fn volumes(&self) -> std::result::Result<Volumes, Status> {
        Volumes::below(self.place.reached()?)
    }

    /// The nodes that reach the volumes: this one; none is named if all do.
    fn topology(&self) -> Option<NodeTopology> {
        let segments = [(format!("{}/node", self.driver), self.node_id.clone())].into();
        (!self.place.is_shared()).then_some(NodeTopology { segments })
    }
}

/// The volumes and snapshots that calls are about.
#[derive(Default)]
struct BusyVolumes {
    /// *Protected by its mutex, held for a look.*
    keys: Mutex<BTreeSet<String>>,
}

/// A volume or a snapshot that a call is about.
struct BusyVolume<'a> {
    all: &'a BusyVolumes,
    key: String,
}

impl BusyVolumes {
    /// Keeps other calls away from a volume or a snapshot until the result is dropped.
    ///
    /// # Errors
    /// `ABORTED`: there is such a call.
    fn hold(&self, shelf: VolumeShelf, id: &str) -> std::result::Result<BusyVolume<'_>, Status> {
        let key = format!("{shelf:?} {id}");
        if !self.keys.lock().insert(key.clone()) {
            let text = format!("another call about {id} is under way: repeat this one later");
            return Err(Status::aborted(text));
        }
        Ok(BusyVolume { all: self, key })
    }
}

impl Drop for BusyVolume<'_> {
    fn drop(&mut self) {
        self.all.keys.lock().remove(&self.key);
    }
}

/// Serves until a signal comes. The store stays mounted.
pub(crate) fn csi(args: &CsiArgs) -> Result<()> {
    let endpoint = args.endpoint.clone().or_else(|| std::env::var(ENDPOINT).ok());
    let socket = socket_of(endpoint.as_deref())?;
    check_driver_name(&args.driver_name)?;
    check_user(rustix::process::geteuid().is_root())?;
    system_log::begin(log::LevelFilter::Warn, false)?;
    let listener = listen(&socket)?;
    let served = begin(args).and_then(|plugin| serve(plugin, listener));
    // A later plugin makes it anew.
    let _ = std::fs::remove_file(&socket);
    served
}

/// The plugin, with its store mounted, and without dead mounts of an earlier one.
fn begin(args: &CsiArgs) -> Result<Plugin> {
    let plugin = Plugin {
        driver: args.driver_name.clone(),
        node_id: args.node_id.clone().unwrap_or_else(host_name),
        place: Arc::new(VolumePlace::open(args)?),
        busy: BusyVolumes::default(),
    };
    plugin.place.reached().map_err(|status| Failure::Failed(status.message().to_owned()))?;
    Ok(plugin)
}

fn serve(plugin: Plugin, listener: UnixListener) -> Result<()> {
    let (stop, tells) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        pipe::register(signal, tells.try_clone()?)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    listener.set_nonblocking(true)?;
    stop.set_nonblocking(true)?;
    runtime.block_on(async {
        let connections = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener)?);
        let stop = tokio::net::UnixStream::from_std(stop)?;
        let stopped = async { drop(stop.readable().await) };
        let late = async {
            drop(stop.readable().await);
            tokio::time::sleep(LAST_ANSWERS).await;
        };
        let server = tonic::transport::Server::builder();
        let served = server.serve_with_incoming_shutdown(CsiServices(Arc::new(plugin)), connections, stopped);
        tokio::select! {
            served = served => served.map_err(|error| Failure::Failed(error.to_string())),
            () = late => Ok(()),
        }
    })
}

/// The path of the socket that `endpoint` names.
fn socket_of(endpoint: Option<&str>) -> Result<PathBuf> {
    let Some(endpoint) = endpoint else {
        let text = "csi: give the socket: --endpoint unix:///csi/csi.sock, or the variable CSI_ENDPOINT";
        return Err(Failure::Usage(text.into()));
    };
    // `unix:///PATH`, as orchestrators write it, `unix:/PATH` as some do, or the path.
    let path =
        endpoint.strip_prefix("unix:").map_or(endpoint, |rest| rest.strip_prefix("//").unwrap_or(rest));
    if !path.starts_with('/') {
        return Err(Failure::Usage(format!("{endpoint}: give a socket as unix:///PATH")));
    }
    Ok(path.into())
}

/// # Errors
/// The user may not mount for others.
fn check_user(is_root: bool) -> Result<()> {
    let text = "csi mounts volumes for programs of all users: run it as root";
    if is_root { Ok(()) } else { Err(Failure::Failed(text.into())) }
}

/// # Errors
/// No orchestrator takes the name.
fn check_driver_name(name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let ends_well = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    if bytes.len() > 63
        || !bytes.iter().all(|&byte| is_plain(byte))
        || !ends_well(bytes.first())
        || !ends_well(bytes.last())
    {
        let text = format!(
            "{name}: a driver has a name such as csi.sluicefs: up to 63 letters, digits, dots and dashes"
        );
        return Err(Failure::Usage(text));
    }
    Ok(())
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Listens on `socket`, for root alone. A socket that nobody listens on is replaced.
fn listen(socket: &Path) -> Result<UnixListener> {
    let named = || socket.display().to_string();
    match UnixStream::connect(socket) {
        Ok(_) => {
            return Err(Failure::Failed(format!("{}: another process listens there: end it first", named())));
        }
        // Left by a plugin that was killed.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(socket).context(named)?;
        }
        Err(_) => {}
    }
    let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(socket);
    rustix::process::umask(mask);
    listener.context(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_named_as_orchestrators_do() {
        for endpoint in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(socket_of(Some(endpoint)), Ok("/csi/csi.sock".into()));
        }
        let refused = |endpoint| socket_of(endpoint).expect_err("no socket").to_string();
        assert!(refused(None).contains("or the variable CSI_ENDPOINT"));
        for endpoint in ["tcp://0.0.0.0:1", "unix://csi.sock", ""] {
            assert!(refused(Some(endpoint)).contains("give a socket as unix:///PATH"), "{endpoint}");
        }
    }

    #[test]
    fn one_call_at_a_time_is_about_a_volume() {
        let busy = BusyVolumes::default();
        let held = busy.hold(VolumeShelf::Volumes, "v").expect("free");
        let refused = busy.hold(VolumeShelf::Volumes, "v").err().expect("held");
        assert!(refused.message().contains(" is under way: repeat this one later"), "{refused}");
        assert!(busy.hold(VolumeShelf::Snapshots, "v").is_ok());
        drop(held);
        assert!(busy.hold(VolumeShelf::Volumes, "v").is_ok());
    }

    #[test]
    fn root_alone_serves() {
        assert_eq!(check_user(true), Ok(()));
        assert!(check_user(false).expect_err("a user").to_string().contains("run it as root"));
    }

    #[test]
    fn a_driver_has_the_name_of_a_domain() {
        assert_eq!(check_driver_name("csi.sluicefs"), Ok(()));
        for name in ["", "a_b", ".a", "a.", &"a".repeat(64)] {
            let refused = check_driver_name(name).expect_err("no name").to_string();
            assert!(refused.contains("a driver has a name such as csi.sluicefs"), "{refused}");
        }
    }
}
