//! Cluster: `sluice cluster`, and a mount that is a node of one.

pub(crate) use crate::cluster_lock::{become_locked, lock};
pub(crate) use crate::dlm_status::dlm;
pub(crate) use crate::lock_member::hold_lock;

use crate::args::{ClusterAction, Watched};
use crate::cluster_demo;
use crate::cluster_place::{listening, place, warn_of_loose_keys};
use crate::cluster_top::{self, NodeSample};
use crate::failures::{failure, mount_failure};
use crate::mount_stat;
use crate::screens::Screens;
use crate::storage::Storage;
use crate::workspace_places::WorkspacePlaces;
use sluice_bucket::{Claim, process_runs};
use sluice_cluster::{
    Cluster, Config, Node, Rendezvous, Role, Status, WorkspaceStores, ask_stat, ask_status,
};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::output::Output;
use sluice_console::program::this_program;
use sluice_console::servers::tools;
use sluice_fuse::control::ProcessWait;
use sluice_fuse::{Ended, MountOptions, StopSignals, Users};
use sluice_membership::{Member, NodeId, View};
use sluice_store::StoreError;
use sluice_sync::Arc;
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use sluice_vfs::{Options, Superblock};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// How long a mount may wait for its first server: for the lease of one that died.
const FIRST_SERVER: Duration = Duration::from_secs(60);
/// So long it waits in silence.
const SILENT_WAIT: Duration = Duration::from_secs(2);
/// How long a node that leaves may take to bring everything to the store.
const LEAVING: Duration = Duration::from_secs(120);

/// How a mount takes part in a cluster.
pub(crate) struct ClusterMember {
    place: Rendezvous,
    identity: PathBuf,
    listen: SocketAddr,
}

impl ClusterMember {
    /// A member of the cluster at `place`.
    ///
    /// # Errors
    /// If `place` or `listen` cannot be used.
    pub(crate) fn of(
        place: &str,
        identity: Option<&Path>,
        listen: Option<SocketAddr>,
    ) -> Result<ClusterMember> {
        let place: Rendezvous =
            place.parse().map_err(|error| Failure::Usage(format!("--cluster {error}")))?;
        // Absolute: the serving process goes elsewhere.
        let place = match place {
            Rendezvous::Directory(dir) => {
                Rendezvous::Directory(dir.canonicalize().context(|| dir.display().to_string())?)
            }
            etcd @ Rendezvous::Etcd { .. } => etcd,
        };
        let listen = listening(&place, listen)?;
        let identity = identity.map(std::path::absolute).transpose()?.unwrap_or_else(|| place.keys());
        warn_of_loose_keys(&identity);
        Ok(ClusterMember { place, identity, listen })
    }

    /// The directories on this machine that a node needs, and what each is of.
    pub(crate) fn directories(&self) -> impl Iterator<Item = (&Path, &'static str)> {
        let members = match &self.place {
            Rendezvous::Directory(dir) => Some((dir.as_path(), "cluster")),
            Rendezvous::Etcd { .. } => None,
        };
        members.into_iter().chain([(self.identity.as_path(), "node's keys")])
    }

    /// The arguments that say the same.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let place = match &self.place {
            Rendezvous::Directory(dir) => {
                let mut place = OsString::from("dir:");
                place.push(dir);
                place
            }
            etcd @ Rendezvous::Etcd { .. } => etcd.to_string().into(),
        };
        let mut arguments =
            vec!["--cluster".into(), place, "--listen".into(), self.listen.to_string().into()];
        arguments.extend(["--identity".into(), self.identity.clone().into()]);
        arguments
    }

    /// Mounts as a node, tells `waits` what a mount without a server waits for, calls `ready` with the device number, serves until unmounted or told to stop by a signal, and
    /// leaves the cluster. Returns the outcome, and the device number.
    pub(crate) fn serve(
        &self,
        (store, storage): (&Path, Storage),
        ram: Options,
        dir: &Path,
        options: MountOptions,
        signals: StopSignals,
        (waits, ready): (impl Fn(&str), impl FnOnce((u32, u32)) -> Result<()>),
    ) -> Result<(Ended, u64)> {
        let cluster = Cluster::open(&self.place)?;
        // At once: as a node it would try again and again.
        refuse_later((store, &storage), &cluster)?;
        let workspaces = WorkspacePlaces::below(store, &storage, &ram, &cluster);
        let (path, of) = (store.to_path_buf(), cluster.clone());
        let config = Config {
            cluster: cluster.name().to_string(),
            listen: self.listen,
            identity: cluster.identity(&self.identity)?,
            membership: cluster.membership()?,
            open: Arc::new(move |epoch| {
                open((&path, &storage), ram.clone(), (&of, epoch)).map_err(io::Error::other)
            }),
            dir: dir.to_path_buf(),
            options,
            workspaces: workspaces.map(|places| Arc::new(places) as Arc<dyn WorkspaceStores>),
        };
        let node = Node::start(config).map_err(|error| Failure::Failed(error.to_string()))?;
        let (shown, because) =
            (store.display(), || node.last_failure().map_or(String::new(), |why| format!(": {why}")));
        if !node.await_server(SILENT_WAIT) && node.relay().is_mounted() {
            waits(&format!(
                "{shown}: waits for a node that serves it, or for the lease of one that died{}",
                because()
            ));
        }
        if !node.await_server(FIRST_SERVER) {
            let text = match node.last_failure() {
                Some(failure) => format!("no node serves the file system: {failure}"),
                None => "no node serves the file system".into(),
            };
            return Err(Failure::Failed(format!("{}: {text}", store.display())));
        }
        let (major, minor) = node.relay().device();
        ready((major, minor))?;
        let device = rustix::fs::makedev(major, minor);
        let ended = node.run_until_signal(signals)?;
        node.leave()
            .map_err(|error| Failure::Failed(format!("{}: not all is durable: {error}", store.display())))?;
        Ok((ended, device))
    }
}

/// Refuses `store` if a cluster that was made later than `cluster` has used it. An object store that does not answer is met, and told, later.
fn refuse_later((store, storage): (&Path, &Storage), cluster: &Cluster) -> Result<()> {
    let newest = storage.bucket(store).ok().flatten().and_then(|bucket| bucket.newest_epoch().ok());
    match newest.is_some_and(|newest| cluster.is_older_than(newest)) {
        true => Err(failure(store)(of_later())),
        false => Ok(()),
    }
}

/// The error of a store that a cluster has used which was made later.
fn of_later() -> StoreError {
    let text = "another cluster, which was made later than this one: mount it with that one, or make this cluster anew \
                (`sluice cluster init`, at another place), and it takes the store";
    StoreError::Claimed(text.into())
}

/// The file system in `store`, as of an `epoch` of `cluster`, which nodes of an earlier epoch lose. A store in a directory has no epochs: it is in the way
/// of others while a living process has it open.
pub(crate) fn open(
    (store, storage): (&Path, &Storage),
    options: Options,
    (cluster, epoch): (&Cluster, u64),
) -> std::result::Result<Arc<Superblock>, StoreError> {
    match storage.bucket(store)? {
        Some(bucket) => {
            let opened = bucket.open(Claim::Epoch(cluster.store_epoch(epoch)), options.store.clone());
            let opened = opened.map_err(|error| match error {
                StoreError::Superseded
                    if bucket.newest_epoch().is_ok_and(|newest| cluster.is_older_than(newest)) =>
                {
                    of_later()
                }
                error => error,
            });
            Superblock::open_in(opened?, options)
        }
        None => storage.open(store, options, false, &|_| ()),
    }
}

pub(crate) fn perform(action: ClusterAction) -> Result<()> {
    match action {
        ClusterAction::Init { ttl, authority, place: text } => {
            let ttl = Duration::try_from_secs_f64(ttl)
                .ok()
                .filter(|ttl| (Duration::from_millis(500)..Duration::from_secs(24 * 60 * 60)).contains(ttl));
            let ttl =
                ttl.ok_or_else(|| Failure::Usage("--ttl: give half a second or more, below a day".into()))?;
            let place = place(&text)?;
            if let Rendezvous::Directory(dir) = &place
                && ["super", "log"].iter().any(|part| dir.join(part).exists())
            {
                let text = format!("{}: is a store: give the cluster a directory of its own", dir.display());
                return Err(Failure::Usage(text));
            }
            Cluster::init(&place, &authority.unwrap_or_else(|| place.keys()), ttl)?;
        }
        ClusterAction::Join { authority, place: text, identity } => {
            let place = place(&text)?;
            let keys = authority.unwrap_or_else(|| place.keys());
            warn_of_loose_keys(&keys);
            Cluster::open(&place)?.new_identity(&keys)?.save(&identity)?;
        }
        ClusterAction::Status { json, identity, place: text } => {
            let place = place(&text)?;
            status(&place, &identity.unwrap_or_else(|| place.keys()), json)?;
        }
        ClusterAction::Leave { dir } => leave(&dir)?,
        ClusterAction::Demo => {
            let interrupt = Interrupt::on_signals()?;
            let mut output = Output::stopping(&interrupt);
            let outcome = cluster_demo::show(&this_program()?, &tools()?, &interrupt, &mut output);
            output.forgive(outcome)?;
        }
    }
    Ok(())
}

fn status(place: &Rendezvous, keys: &Path, json: bool) -> Result<()> {
    let cluster = Cluster::open(place)?;
    warn_of_loose_keys(keys);
    let identity = cluster.identity(keys)?;
    let view = cluster.membership()?.view(0, Duration::ZERO)?;
    let (mut text, mut statuses) = (String::new(), Vec::new());
    if !json {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "cluster {}, leases of {:?}\n{:>6} {:>8} {:>8} {:>8} {:>10} {:>10} {:>8}  address",
            cluster.name(),
            cluster.ttl(),
            "node",
            "role",
            "epoch",
            "guests",
            "requests",
            "notices",
            "rejoins"
        );
    }
    for (node, member) in &view.members {
        let told = if member.is_alive {
            ask_status(&member.address, cluster.name(), &identity)
                .and_then(|told| Ok((Status::parse(&told)?, told)))
        } else {
            Err(io::ErrorKind::TimedOut.into())
        };
        statuses.extend(told.iter().map(|(status, _)| status.clone()));
        let _ = match (told, json) {
            (Ok((_, told)), true) => writeln!(text, "{told}"),
            (Err(_), true) => writeln!(text, "{{\"node\":{},\"role\":\"silent\"}}", node.0),
            (Ok((Status { node, failure: Some(failure), .. }, _)), false) => {
                writeln!(text, "{node:>6} {:>8}  cannot open the store: {failure}", "waiting")
            }
            (Ok((status, _)), false) => writeln!(
                text,
                "{:>6} {:>8} {:>8} {:>8} {:>10} {:>10} {:>8}  {}",
                status.node,
                format!("{:?}", status.role).to_lowercase(),
                status.epoch,
                status.guests,
                status.counts.requests,
                status.counts.notices,
                status.counts.reconnections,
                member.address
            ),
            (Err(_), false) => {
                writeln!(text, "{:>6} {:>8}  does not answer at {}", node.0, "silent", member.address)
            }
        };
    }
    if !json {
        text += &owners_of_workspaces(&statuses);
    }
    Output::plain().give(text.as_bytes())
}

/// A line for each workspace that a node uses: its owner, and the nodes that are guests there.
fn owners_of_workspaces(statuses: &[Status]) -> String {
    let mut lines = BTreeMap::<u32, (Vec<String>, Vec<String>)>::new();
    for status in statuses {
        for workspace in &status.workspaces {
            let (owners, others) = lines.entry(workspace.workspace).or_default();
            match (workspace.role, &workspace.failure) {
                (Role::Owner, _) => owners.push(status.node.to_string()),
                (_, Some(failure)) => {
                    others.push(format!("{} (cannot open its store: {failure})", status.node))
                }
                _ => others.push(status.node.to_string()),
            }
        }
    }
    let list = |nodes: Vec<String>| if nodes.is_empty() { "none".to_owned() } else { nodes.join(", ") };
    let line = |(number, (owners, others))| {
        format!("workspace {number}: owner {}, other nodes {}\n", list(owners), list(others))
    };
    lines.into_iter().map(line).collect()
}

/// Every second what each node of the cluster has done.
pub(crate) fn top(text: &str, watched: &Watched) -> Result<()> {
    let place = place(text)?;
    let cluster = Cluster::open(&place)?;
    let identity = cluster.identity(&watched.identity.clone().unwrap_or_else(|| place.keys()))?;
    let membership = cluster.membership()?;
    let mut screens = Screens::begin(watched)?;
    let began = Instant::now();
    let samples = |view: &View| -> Vec<NodeSample> {
        let ask = |member: &Member| {
            let told = ask_stat(&member.address, cluster.name(), &identity).ok()?;
            mount_stat::parse(told.as_bytes()).ok()
        };
        let of = |(node, member): (&NodeId, &Member)| {
            let stat = if member.is_alive { ask(member) } else { None };
            NodeSample { node: node.0, at: began.elapsed(), stat }
        };
        view.members.iter().map(of).collect()
    };
    let mut view = membership.view(0, Duration::ZERO)?;
    let mut before = samples(&view);
    while screens.wait() {
        let mut trouble = String::new();
        match membership.view(0, Duration::ZERO) {
            Ok(newer) => view = newer,
            // The nodes that were there can still be asked.
            Err(error) => trouble = format!("   the membership does not answer: {error}"),
        }
        let now = samples(&view);
        let title = format!("cluster {}{trouble}", cluster.name());
        let screen = || format!("\n{}", cluster_top::screen(&now, &before));
        screens.show(&title, screen, || cluster_top::line(cluster.name(), &now, &before))?;
        before = now;
    }
    Ok(())
}

/// Unmounts, and waits until the process that served the mount has ended.
fn leave(dir: &Path) -> Result<()> {
    let server = sluice_fuse::control::server_of(dir).context(|| dir.display().to_string())?;
    sluice_fuse::unmount_at(dir, Users::Keep).map_err(mount_failure)?;
    let mut wait = ProcessWait::new(server, LEAVING);
    while let Some(pid) = server
        && process_runs(pid)
    {
        if wait.is_over() {
            return Err(Failure::Failed(format!("{}: process {pid} has not handed over yet", dir.display())));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
