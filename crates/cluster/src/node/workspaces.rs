//! Workspaces: the further file systems that a node's mount uses, each with a membership, an owner and a store of its own.
//!
//! # Theory
//! The first request of the kernel for a workspace makes its relay, and here a thread that joins the workspace's members, as a [`Node`]
//! without a mount of its own. So the first node that uses a workspace is its owner, and the others are guests, each by a connection to
//! that owner; death, fencing and takeover are those of any node, and concern the nodes that use this workspace alone. A node that
//! leaves lets its workspaces go first. A workspace that nobody uses is [parked](super::parking).

use super::connect::AskedNode;
use super::{FormerNode, Joined, Node, Open, Tls};
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
/// So many workspaces a mount has open at a time. A further one waits until another can be parked, ...
const OPEN_MAX: usize = 64;
/// ... for so long at most.
const ROOM_PATIENCE: Duration = Duration::from_secs(15);
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
    /// How long a workspace stays open that this node's programs do not use; none: until the node leaves.
    fn park_after(&self) -> Option<Duration>;
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
    /// The last status of nodes that are on their way out of the members.
    leaving: BTreeMap<u32, WorkspaceStatus>,
    joining: BTreeMap<u32, JoinHandle<()>>,
    /// Relays that have no server until the next request, since nobody uses their workspaces.
    parked: BTreeMap<u32, (Arc<Relay>, FormerNode)>,
    /// Numbers of workspaces: open or about to be opened, and in line for the place of a parked one.
    open: usize,
    waiting: usize,
    parker: Option<JoinHandle<()>>,
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
        let find_server = move |number, relay: Option<Relay>| {
            if let Some(this) = this.upgrade() {
                match relay {
                    Some(relay) => this.join_apart(number, Arc::new(relay), None),
                    None => this.wake(number),
                }
            }
        };
        let make_store = move |root| {
            let maker = maker.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            maker.way()?.stores.make(root)
        };
        relay.have_workspaces(Box::new(find_server), Box::new(make_store));
        let after = self.way().ok().and_then(|way| way.stores.park_after());
        let this = self.clone();
        let park = after
            .map(|after| Builder::new().name("cluster-parker".into()).spawn(move || this.park_idle(after)));
        match park.transpose() {
            Ok(parker) => self.state.lock().parker = parker,
            Err(error) => log::warn!("workspaces that nobody uses stay open: {error}"),
        }
    }

    /// Joins by a thread of its own: the membership may not answer. If none can be started the relay ends, and its requests fail.
    fn join_apart(self: &Arc<Self>, number: u32, relay: Arc<Relay>, before: Option<FormerNode>) {
        let this = self.clone();
        let join = move || {
            if !this.await_room() {
                return relay.end_without_room();
            }
            if !this.join_for(number, relay, before) {
                this.state.lock().open -= 1;
            }
        };
        match Builder::new().name("cluster-workspace".into()).spawn(join) {
            Ok(thread) => _ = self.state.lock().joining.insert(number, thread),
            Err(error) => log::error!("workspace {number}: {error}"),
        }
    }

    /// Joins the members of workspace `number` and serves `relay`. False: the relay has no server.
    fn join_for(&self, number: u32, relay: Arc<Relay>, before: Option<FormerNode>) -> bool {
        let mut trouble = Trouble::default();
        let joined = loop {
            if self.is_over() {
                return false;
            }
            match self.join(number) {
                Ok(Some(joined)) => break joined,
                Ok(None) => {
                    relay.end_as_absent();
                    return false;
                }
                Err(error) => {
                    if trouble.is_new(&error.to_string()) {
                        log::warn!("workspace {number}: its members cannot be joined: {error}");
                    }
                    let pauses = trouble.pause(JOIN_PAUSE, JOIN_PAUSE_MAX).as_millis() / LOOK.as_millis();
                    for _ in 0..pauses.max(1) {
                        if self.is_over() {
                            return false;
                        }
                        thread::sleep(LOOK);
                    }
                }
            }
        };
        match Node::start_joined(joined, relay, Arc::default(), before) {
            Ok(node) => _ = self.state.lock().nodes.insert(number, Arc::new(node)),
            Err(error) => {
                log::error!("workspace {number}: {error}");
                return false;
            }
        }
        true
    }

    /// Waits for a place among the [`OPEN_MAX`] workspaces, and takes it. False after [`ROOM_PATIENCE`].
    fn await_room(&self) -> bool {
        let end = Instant::now() + ROOM_PATIENCE;
        let mut is_counted = false;
        loop {
            {
                let mut state = self.state.lock();
                let has_room = state.open < OPEN_MAX;
                if has_room || self.is_over() || Instant::now() > end {
                    state.waiting -= usize::from(is_counted);
                    state.open += usize::from(has_room);
                    return has_room;
                }
                state.waiting += usize::from(!is_counted);
                is_counted = true;
            }
            thread::sleep(LOOK);
        }
    }

    /// The workspaces that the mount has open, and whether a further one waits for one of them to be parked.
    pub(super) fn nodes_in_use(&self) -> (BTreeMap<u32, Arc<Node>>, bool) {
        let state = self.state.lock();
        (state.nodes.clone(), state.waiting > 0)
    }

    /// Workspace `number`, which `node` serves, is about to be let go.
    pub(super) fn remove(&self, number: u32, node: &Node) {
        let status = workspace_status(number, node);
        let mut state = self.state.lock();
        state.nodes.remove(&number);
        state.leaving.insert(number, status);
    }

    /// The relay of workspace `number` has no server until it is [woken](Self::wake).
    pub(super) fn keep_parked(&self, number: u32, relay: Arc<Relay>, before: FormerNode) {
        let mut state = self.state.lock();
        state.open -= 1;
        state.leaving.remove(&number);
        state.parked.insert(number, (relay, before));
    }

    pub(super) fn take_parked(&self, number: u32) -> Option<(Arc<Relay>, FormerNode)> {
        self.state.lock().parked.remove(&number)
    }

    /// The parked relay of workspace `number` has a request.
    pub(super) fn wake(self: &Arc<Self>, number: u32) {
        if let Some((relay, before)) = self.take_parked(number) {
            self.join_apart(number, relay, Some(before));
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

    pub(super) fn is_over(&self) -> bool {
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
        let (parker, parked) = {
            let mut state = self.state.lock();
            (state.parker.take(), std::mem::take(&mut state.parked))
        };
        drop(parked);
        let joining = || std::mem::take(&mut self.state.lock().joining).into_values();
        // The parker may have others join once more.
        for thread in parker.into_iter().chain(std::iter::once_with(joining).flatten()) {
            // A panic of its own was reported where it happened.
            let _ = thread.join();
        }
        let nodes = std::mem::take(&mut self.state.lock().nodes);
        let leave =
            |(number, node)| Builder::new().name("cluster-leave".into()).spawn(move || end_of(number, node));
        let threads: Vec<_> = nodes.into_iter().map(leave).collect();
        let mut outcome = Ok(());
        for thread in threads {
            let left = thread.and_then(|thread| thread.join().unwrap_or(Ok(())));
            outcome = outcome.and(left);
        }
        outcome
    }

    pub(super) fn status(&self) -> Vec<WorkspaceStatus> {
        let (nodes, leaving) = {
            let state = self.state.lock();
            (state.nodes.clone(), state.leaving.clone())
        };
        let mut all: Vec<_> = nodes.iter().map(|(number, node)| workspace_status(*number, node)).collect();
        all.extend(leaving.into_values());
        all.sort_unstable_by_key(|one| one.workspace);
        all
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

fn workspace_status(number: u32, node: &Node) -> WorkspaceStatus {
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
}

/// Ends the node of workspace `number`, as [`Node::leave`] does.
///
/// # Errors
/// Errors of [`Node::leave`], with the workspace.
pub(super) fn end_of(number: u32, mut node: Arc<Node>) -> io::Result<()> {
    // A thread that asks for its status lets it go soon.
    let mut node = loop {
        match Arc::try_unwrap(node) {
            Ok(node) => break node,
            Err(still) => node = still,
        }
        thread::sleep(LOOK);
    };
    node.end().map_err(|error| io::Error::new(error.kind(), format!("workspace {number}: {error}")))
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
