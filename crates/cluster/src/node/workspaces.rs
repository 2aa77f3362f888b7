//! Workspaces: the further file systems that a node's mount uses, each with a membership, an owner and a store of its own.
//!
//! # Theory
//! The first request of the kernel for a workspace makes its relay, and here a thread that joins the workspace's members, as a [`Node`]
//! without a mount of its own. So the first node that uses a workspace is its owner, and the others are guests, each by a connection to
//! that owner; death, fencing and takeover are those of any node, and concern the nodes that use this workspace alone. A node that
//! leaves lets its workspaces go first.

use super::connect::AskedNode;
use super::{Joined, Node, Open, Tls};
use crate::lock_class::NODES;
use crate::node::trouble::Trouble;
use crate::relay::Relay;
use crate::status::{Role, Status, WorkspaceStatus};
use sluice_membership::{Membership, NodeId};
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::thread::{self, Builder, JoinHandle};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Mutex};
use sluice_vfs::Superblock;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

/// The pause after the members of a workspace could not be joined, at first and at most.
const JOIN_PAUSE: Duration = Duration::from_millis(50);
const JOIN_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a node may take to be served where it is to use a workspace.
const USE_PATIENCE: Duration = Duration::from_secs(20);
/// How often the end is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Where the workspaces of a cluster have their stores.
pub trait WorkspaceStores: Send + Sync {
    /// Whether workspace `number` has a store.
    ///
    /// # Errors
    /// If that cannot be told.
    fn exists(&self, number: u32) -> io::Result<bool>;
    /// The members of workspace `number`.
    ///
    /// # Errors
    /// If the membership cannot be reached.
    fn membership(&self, number: u32) -> io::Result<Arc<dyn Membership>>;
    /// Opens its store for the owner in `epoch`; see [`Open`].
    ///
    /// # Errors
    /// The store's.
    fn open(&self, number: u32, epoch: u64) -> io::Result<Arc<Superblock>>;
    /// Makes the store of a new workspace, and returns its number, which no other has or had. The root has this mode, owner and group.
    ///
    /// # Errors
    /// The store's.
    fn make(&self, root: [u32; 3]) -> io::Result<u32>;
}

/// The workspaces that a node's mount uses.
#[derive(Default)]
pub(super) struct OpenWorkspaces {
    /// The means to join a workspace; none in a cluster without workspaces. *immutable*
    by: Option<WorkspaceMeans>,
    state: Mutex<NodesInUse>,
    /// *atomic (stands alone)*
    is_over: AtomicBool,
}

struct WorkspaceMeans {
    cluster: String,
    listen: SocketAddr,
    tls: Tls,
    stores: Arc<dyn WorkspaceStores>,
    /// The members of the cluster itself.
    members: Arc<dyn Membership>,
}

#[derive(Default)]
struct NodesInUse {
    nodes: BTreeMap<u32, Arc<Node>>,
    joining: BTreeMap<u32, JoinHandle<()>>,
}

impl OpenWorkspaces {
    pub(super) fn new(joined: &Joined, stores: Arc<dyn WorkspaceStores>) -> Arc<OpenWorkspaces> {
        let by = WorkspaceMeans {
            cluster: joined.cluster.clone(),
            listen: SocketAddr::new(joined.address.ip(), 0),
            tls: joined.tls.clone(),
            stores,
            members: joined.membership.clone(),
        };
        let state = Mutex::with_class(&NODES, NodesInUse::default());
        Arc::new(OpenWorkspaces { by: Some(by), state, is_over: AtomicBool::new(false) })
    }

    /// Finds servers for the workspaces of the mount that `relay` has.
    pub(super) fn serve(self: &Arc<Self>, relay: &Relay) {
        let (this, maker) = (Arc::downgrade(self), Arc::downgrade(self));
        let find_server = move |number, relay| {
            if let Some(this) = this.upgrade() {
                this.join_apart(number, relay);
            }
        };
        let make_store = move |root| {
            let maker = maker.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            maker.way()?.stores.make(root)
        };
        relay.have_workspaces(Box::new(find_server), Box::new(make_store));
    }

    /// Joins by a thread of its own: the membership may not answer. If none can be started the relay ends, and its requests fail.
    fn join_apart(self: &Arc<Self>, number: u32, relay: Relay) {
        let this = self.clone();
        let join = move || {
            let mut trouble = Trouble::default();
            let joined = loop {
                match this.join(number) {
                    Ok(Some(joined)) => break joined,
                    Ok(None) => return relay.end_as_absent(),
                    Err(error) => {
                        if trouble.is_new(&error.to_string()) {
                            log::warn!("workspace {number}: its members cannot be joined: {error}");
                        }
                        let pauses = trouble.pause(JOIN_PAUSE, JOIN_PAUSE_MAX).as_millis() / LOOK.as_millis();
                        for _ in 0..pauses.max(1) {
                            if this.is_over() {
                                return;
                            }
                            thread::sleep(LOOK);
                        }
                    }
                }
            };
            match Node::start_joined(joined, relay, Arc::default()) {
                Ok(node) => _ = this.state.lock().nodes.insert(number, Arc::new(node)),
                Err(error) => log::error!("workspace {number}: {error}"),
            }
        };
        match Builder::new().name("cluster-workspace".into()).spawn(join) {
            Ok(thread) => _ = self.state.lock().joining.insert(number, thread),
            Err(error) => log::error!("workspace {number}: {error}"),
        }
    }

    /// Joins the members of workspace `number`, if that has a store.
    fn join(&self, number: u32) -> io::Result<Option<Joined>> {
        let by = self.by.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        if !by.stores.exists(number)? {
            return Ok(None);
        }
        let stores = by.stores.clone();
        let open: Open = Arc::new(move |epoch| stores.open(number, epoch));
        let name = format!("{}+{number}", by.cluster);
        Joined::join(name, by.listen, by.tls.clone(), by.stores.membership(number)?, open).map(Some)
    }

    fn is_over(&self) -> bool {
        // Relaxed: each thread ends when it sees it.
        self.is_over.load(Ordering::Relaxed)
    }

    /// Leaves all, as [`Node::leave`] does, side by side.
    ///
    /// # Errors
    /// The first error of one.
    pub(super) fn leave(&self) -> io::Result<()> {
        // Relaxed: see above.
        self.is_over.store(true, Ordering::Relaxed);
        let joining = std::mem::take(&mut self.state.lock().joining);
        for thread in joining.into_values() {
            // A panic of its own was reported where it happened.
            let _ = thread.join();
        }
        let nodes = std::mem::take(&mut self.state.lock().nodes);
        let leave = |(number, node): (u32, Arc<Node>)| {
            // A thread that asks for its status lets it go soon.
            let mut node = node;
            let mut node = loop {
                match Arc::try_unwrap(node) {
                    Ok(node) => break node,
                    Err(still) => node = still,
                }
                thread::sleep(LOOK);
            };
            let outcome = node.end();
            outcome.map_err(|error| io::Error::new(error.kind(), format!("workspace {number}: {error}")))
        };
        let threads: Vec<_> = nodes
            .into_iter()
            .map(|one| Builder::new().name("cluster-leave".into()).spawn(move || leave(one)))
            .collect();
        let mut outcome = Ok(());
        for thread in threads {
            let left = thread.and_then(|thread| thread.join().unwrap_or(Ok(())));
            outcome = outcome.and(left);
        }
        outcome
    }

    pub(super) fn status(&self) -> Vec<WorkspaceStatus> {
        let nodes = self.state.lock().nodes.clone();
        let of = |(number, node): (u32, Arc<Node>)| {
            let status = node.status();
            WorkspaceStatus {
                workspace: number,
                role: status.role,
                failure: status.failure,
                epoch: status.epoch,
                guests: status.guests,
                requests: status.counts.requests,
                awaited: if status.role == Role::Owner { 0 } else { status.counts.awaited },
            }
        };
        nodes.into_iter().map(of).collect()
    }

    /// Answers an order about workspaces, if `question` is one.
    ///
    /// # Errors
    /// The stream's.
    pub(super) fn obey(&self, question: &[u8], stream: &mut UnixStream) -> io::Result<bool> {
        let question = String::from_utf8_lossy(question);
        let numbers: Vec<u64> = question.split(' ').skip(2).map_while(|it| it.parse().ok()).collect();
        let outcome = match (question.split(' ').next(), &numbers[..]) {
            (Some("new"), &[mode, uid, gid]) => {
                let root = [mode, uid, gid].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
                self.way().and_then(|way| way.stores.make(root))
            }
            (Some("have"), _) => self.way().map(|_| 0),
            (Some("move"), &[number, node]) => {
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                self.way().and_then(|way| way.move_to(number, NodeId(node))).map(|()| number)
            }
            _ => return Ok(false),
        };
        let text = match outcome {
            Ok(number) => format!("ok\n{number}\n"),
            Err(error) => format!("{error}\n"),
        };
        stream.write_all(text.as_bytes()).map(|()| true)
    }

    fn way(&self) -> io::Result<&WorkspaceMeans> {
        let why = "a store in a directory has no workspaces: use one in an object store (file://, s3://)";
        self.by.as_ref().ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// Has the mount that `relay` has use `workspace`, and waits until it is served there: the node's number among the members.
    ///
    /// # Errors
    /// If that takes too long.
    pub(super) fn use_one(&self, relay: &Relay, workspace: u32) -> io::Result<NodeId> {
        self.way()?;
        relay.use_workspace(workspace)?;
        let end = Instant::now() + USE_PATIENCE;
        while Instant::now() < end && !self.is_over() {
            let node = self.state.lock().nodes.get(&workspace).cloned();
            if let Some(node) = node.filter(|node| node.status().role != Role::Waiting) {
                return Ok(node.inner.id());
            }
            thread::sleep(LOOK);
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the node has no server for the workspace yet: try again",
        ))
    }

    /// Hands `workspace`, which this node owns, over to the member `to`.
    ///
    /// # Errors
    /// If this node does not own the workspace; if the store cannot be closed, or another node takes it.
    pub(super) fn hand_over(&self, workspace: u32, to: NodeId) -> io::Result<()> {
        let node = self.state.lock().nodes.get(&workspace).cloned();
        node.ok_or_else(not_the_owner)?.inner.hand_over(to)
    }
}

impl WorkspaceMeans {
    /// Has the owner of workspace `number`, whichever node that is, hand it over to the node `to` of the cluster.
    fn move_to(&self, number: u32, to: NodeId) -> io::Result<()> {
        let view = self.members.view(0, Duration::ZERO)?;
        let living = || view.members.iter().filter(|(_, member)| member.is_alive);
        let peer = |address| AskedNode { address, cluster: &self.cluster, calling: &self.tls.1 };
        let target = living().find(|(node, _)| **node == to).map(|(_, member)| peer(&member.address));
        let text = || format!("there is no node {} (`sluice cluster status` shows the nodes)", to.0);
        let target = target.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, text()))?;
        // A workspace without an owner gets the target as its owner.
        let member = target.uses(number)?;
        let owns = |status: &Status| {
            status.workspaces.iter().any(|one| one.workspace == number && one.role == Role::Owner)
        };
        if target.status().is_ok_and(|status| owns(&status)) {
            return Ok(());
        }
        let mut others = living().map(|(_, member)| peer(&member.address));
        let owner = others.find(|peer| peer.status().is_ok_and(|status| owns(&status)));
        let moved = owner.ok_or_else(not_the_owner)?.hands_over(number, member);
        moved.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), "the owner ended meanwhile: try again")
            }
            _ => error,
        })
    }
}

/// The workspace is just being taken over.
fn not_the_owner() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no node owns the workspace now: try again")
}
