//! Node: a member of the cluster with its mount: which node serves it, and when that changes.
//!
//! # Theory
//! One thread, the *keeper*, decides. It follows the membership's view and the node's own role:
//!
//! ```text
//!                 +-- another owns ---> call it, tell what the kernel holds ---> guest --- link lost --+
//!   waiting <-----+                                                                                    |
//!      ^          +-- nobody owns ----> claim, open the store, grace ----------> owner --- lease over -+
//!      +-----------------------------------------------------------------------------------------------+
//! ```
//!
//! On each way back to *waiting* the kernel drops what it has cached, and its requests wait.
//!
//! *Cut off.* A node that reaches neither the membership nor the store must stop by itself, by its own clock. So the threads that look
//! at the time wait for neither: what ends with an owner is done by threads of its own ([`Closing`]), and what the store does not
//! answer within a further lease is given up.

mod closing;
mod connect;
mod follow_use;
mod parking;
mod seeking;
mod trouble;
mod workspaces;

use crate::lock_class::{CLOSING, ROLE, TAKEOVER};
use crate::owner::Owner;
use crate::status::{Role, Status, Takeover};
use crate::wire::Frame;
use closing::Closing;
use connect::Uplinked;
use follow_use::WorkspaceUse;
use trouble::Trouble;
use workspaces::OpenWorkspaces;
pub use workspaces::WorkspaceStores;

use crate::guest::Holdings;
use crate::relay::Relay;
pub use connect::{ask_stat, ask_status};
use rustls::{ClientConfig, ServerConfig};
use sluice_fuse::{Ended, MountError, MountOptions, StopSignals};
use sluice_membership::{Identity, Membership, NodeId, Owner as Owned, View, bind, now};
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::thread::{self, Builder, JoinHandle};
use sluice_sync::time::{Duration, nanoseconds};
use sluice_sync::{Arc, Mutex};
use sluice_vfs::Superblock;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

/// The error of a node that [leaves](Node::leave) and has lost changes of its programs.
pub const LOST_CHANGES: &str = "changes were lost when this node lost the store";
/// The fraction of a lease that is left unused, for clocks of different speed and for the time to stop.
const MARGIN: u32 = 8;
/// How often a lease is renewed within its length.
const RENEWALS: u32 = 4;
/// The longest pause of a node without a server before it looks for one again.
const SEEK_PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often time is looked at.
const TICK: Duration = Duration::from_millis(20);
/// The shard. The cluster has one shard.
const SHARD: u16 = 0;

/// Opens the store for the owner in this epoch. Nodes that opened it in an earlier epoch have lost it.
pub type Open = Arc<dyn Fn(u64) -> io::Result<Arc<Superblock>> + Send + Sync>;

/// How a node takes part.
pub struct Config {
    /// The name of the cluster, of at most 64 bytes.
    pub cluster: String,
    /// Where other nodes reach this one; port 0 chooses one.
    pub listen: SocketAddr,
    /// How this node shows that it belongs to the cluster.
    pub identity: Identity,
    /// The membership that all nodes trust, of one shard.
    pub membership: Arc<dyn Membership>,
    /// Opens the store. Tried again until it succeeds, while the node is to be owner.
    pub open: Open,
    /// Where it mounts.
    pub dir: PathBuf,
    /// The options of the mount.
    pub options: MountOptions,
    /// The stores of workspaces; none for a cluster without workspaces.
    pub workspaces: Option<Arc<dyn WorkspaceStores>>,
}

/// A member of a cluster, with its mount. Dropping it leaves the cluster and unmounts.
pub struct Node {
    inner: Arc<Inner>,
    keeper: Option<JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
    listener: Arc<TcpListener>,
}

struct Inner {
    cluster: String,
    membership: Arc<dyn Membership>,
    open: Open,
    address: SocketAddr,
    relay: Arc<Relay>,
    /// A number of the mount.
    mount: u64,
    /// *atomic (stands alone)*
    id: AtomicU64,
    /// Until when the node counts as a member. *atomic (stands alone)*
    valid_until: Arc<AtomicU64>,
    /// When a message was sent that an owner answered. *atomic (stands alone)*
    contact: AtomicU64,
    role: Mutex<At>,
    /// No server is looked for any more. *atomic (stands alone)*
    is_leaving: AtomicBool,
    /// *atomic (stands alone)*
    is_over: AtomicBool,
    /// When the last server was lost; 0 since there is one. *atomic (stands alone)*
    lost_at: AtomicU64,
    /// How long the last takeover took. *protected by its mutex*
    takeover: Mutex<Takeover>,
    /// Why the node that is to be owner cannot open the store. *protected by its mutex*
    failure: Mutex<Trouble>,
    /// Former stores of this node, until they are closed. Held while none is dropped. *protected by its mutex*
    closing: Mutex<Vec<Closing>>,
    /// Something was lost with a store that this node lost, changes of its own kernel perhaps. *atomic (stands alone)*
    has_lost: AtomicBool,
    /// The workspaces that its mount uses.
    workspaces: Arc<OpenWorkspaces>,
}

/// Both sides of a connection, as the identity of the node has it.
type Tls = (Arc<ServerConfig>, Arc<ClientConfig>);

/// A node that has joined, and has no mount yet.
struct Joined {
    cluster: String,
    membership: Arc<dyn Membership>,
    open: Open,
    tls: Tls,
    listener: TcpListener,
    address: SocketAddr,
    id: NodeId,
    valid_until: u64,
}

/// What a node knew that served a relay before.
#[derive(Clone, Copy, Default)]
struct FormerNode {
    /// As in [`Inner`].
    mount: u64,
    contact: u64,
    /// The epoch of its last server.
    epoch: u64,
}

/// The current state of a node.
#[derive(Default)]
struct At {
    owner: Option<Arc<Owner>>,
    link: Option<Arc<Uplinked>>,
    /// The owner, with its epoch, that is being called; or this node, whose store is being opened.
    seeking: Option<Owned>,
    /// How many threads open the store: more than one if it took so long that this node was to be owner again.
    opening: usize,
    /// The epoch of the last server.
    epoch: u64,
    view: View,
    /// The epoch in which this node was the owner and has handed the store over, or does so.
    handed_over: u64,
    /// Until then the store is another node's to claim.
    held_back_until: u64,
}

impl Node {
    /// Joins the cluster and mounts. Calls on the mount wait until it [has a server](Self::await_server).
    ///
    /// # Errors
    /// If the membership, the address or the directory cannot be used.
    pub fn start(config: Config) -> io::Result<Node> {
        let relay = Relay::mount(&config.dir, &config.options).map_err(io::Error::other)?;
        Node::start_over(config, relay)
    }

    /// Joins the cluster with a `relay` that is already mounted.
    ///
    /// # Errors
    /// If the membership or the address cannot be used.
    #[doc(hidden)]
    pub fn start_over(config: Config, relay: Relay) -> io::Result<Node> {
        let Config { cluster, listen, identity, membership, open, workspaces, .. } = config;
        let joined = Joined::join(cluster, listen, identity.configurations()?, membership, open)?;
        let workspaces = workspaces.map(|stores| OpenWorkspaces::new(&joined, stores));
        if let Some(workspaces) = &workspaces {
            workspaces.serve(&relay);
        }
        Node::start_joined(joined, Arc::new(relay), workspaces.unwrap_or_default(), None)
    }

    /// Serves `relay`; `before` tells of the node that did so before.
    fn start_joined(
        joined: Joined,
        relay: Arc<Relay>,
        workspaces: Arc<OpenWorkspaces>,
        before: Option<FormerNode>,
    ) -> io::Result<Node> {
        let Joined { cluster, membership, open, tls, listener, address, id, valid_until } = joined;
        let (answering, calling) = tls;
        let new = || FormerNode { mount: RandomState::new().hash_one(address), ..FormerNode::default() };
        let FormerNode { mount, epoch, contact } = before.unwrap_or_else(new);
        let inner = Arc::new(Inner {
            cluster,
            membership,
            open,
            address,
            relay,
            mount,
            id: AtomicU64::new(id.0),
            valid_until: Arc::new(AtomicU64::new(valid_until)),
            contact: AtomicU64::new(contact),
            role: Mutex::with_class(&ROLE, At { epoch, ..At::default() }),
            is_leaving: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            lost_at: AtomicU64::new(0),
            takeover: Mutex::with_class(&TAKEOVER, Takeover::default()),
            failure: Mutex::with_class(&ROLE, Trouble::default()),
            closing: Mutex::with_class(&CLOSING, Vec::new()),
            has_lost: AtomicBool::new(false),
            workspaces,
        });
        let told = Arc::downgrade(&inner);
        let orders = inner.workspaces.clone();
        inner.relay.answer_questions(
            move || told.upgrade().map_or_else(|| "{}".into(), |inner| inner.status().to_json()),
            move |question, stream| orders.obey(question, stream),
        );
        let listener = Arc::new(listener);
        let mut node =
            Node { inner: inner.clone(), keeper: None, threads: Vec::new(), listener: listener.clone() };
        let keeper = Builder::new().name("cluster-keeper".into());
        let this = inner.clone();
        node.keeper = Some(keeper.spawn(move || this.keep(&calling))?);
        let mut start = |name: &str, work: Box<dyn FnOnce(Arc<Inner>) + Send>| {
            let inner = inner.clone();
            let builder = Builder::new().name(format!("cluster-{name}"));
            builder.spawn(move || work(inner)).map(|thread| node.threads.push(thread))
        };
        start("lease", Box::new(|inner| inner.keep_lease()))?;
        start("tick", Box::new(|inner| inner.tick()))?;
        start("listen", Box::new(move |inner| inner.listen(&listener, &answering)))?;
        Ok(node)
    }

    /// The mount.
    pub fn relay(&self) -> &Relay {
        &self.inner.relay
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// The node's status.
    pub fn status(&self) -> Status {
        self.inner.status()
    }

    /// Waits until the mount has a server, or for as long as `limit`. True if the mount has one.
    pub fn await_server(&self, limit: Duration) -> bool {
        let end = now() + nanoseconds(limit);
        while self.status().role == Role::Waiting {
            if now() > end || !self.inner.relay.is_mounted() {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Why this node, which is to be owner, cannot open the store, if that is so.
    pub fn last_failure(&self) -> Option<String> {
        self.inner.failure.lock().reason.clone()
    }

    /// Serves until somebody unmounts or one of `signals` comes, which unmounts. To be followed by [`leave`](Self::leave).
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn run_until_signal(&self, signals: StopSignals) -> io::Result<Ended> {
        self.inner.relay.run_until_signal(signals)
    }

    /// Unmounts.
    ///
    /// # Errors
    /// Errors of [`Relay::unmount`].
    pub fn unmount(&self) -> Result<(), MountError> {
        self.inner.relay.unmount()
    }

    /// Leaves the cluster, in an order that loses nothing: an owner makes everything durable and closes the store before another may
    /// have it.
    ///
    /// # Errors
    /// The store's: then it is not known what of the last changes is durable. If changes were lost before, because this node was the owner
    /// and lost the store.
    pub fn leave(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        if self.keeper.is_none() && self.threads.is_empty() {
            return Ok(());
        }
        let left = self.inner.workspaces.leave();
        self.end_own().and(left)
    }

    fn end_own(&mut self) -> io::Result<()> {
        let inner = &self.inner;
        // While it has the server that it had last.
        let has_lost_changes = inner.relay.has_lost_changes();
        // Relaxed: the keeper ends when it sees it.
        inner.is_leaving.store(true, Ordering::Relaxed);
        if let Some(keeper) = self.keeper.take() {
            // A panic of its own was reported where it happened.
            let _ = keeper.join();
        }
        let link = {
            let mut role = inner.role.lock();
            // A search under way comes too late.
            role.seeking = None;
            role.link.take()
        };
        if let Some(link) = link {
            link.link.send(&Frame::Detach);
            // The queue is written before the link is closed, or the owner waits for the lease.
            thread::sleep(Duration::from_millis(20));
            link.link.close();
        }
        inner.await_opening();
        let closed = inner.stop_owning(false, false).and_then(|()| inner.await_closing());
        // Relaxed: each thread ends when it sees it. The lease was renewed until the store was closed.
        inner.is_over.store(true, Ordering::Relaxed);
        // The listener waits for a call, which an address that is gone would never get.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        for thread in std::mem::take(&mut self.threads) {
            // A panic of its own was reported where it happened.
            let _ = thread.join();
        }
        // If it cannot be reached the lease runs out.
        let left = inner.membership.leave(inner.id());
        // Waits for stores that the other threads gave up meanwhile.
        closed.and(inner.await_closing()).and(left)?;
        // Relaxed: the threads that set it have ended.
        match has_lost_changes && inner.has_lost.load(Ordering::Relaxed) {
            true => Err(io::Error::other(LOST_CHANGES)),
            false => Ok(()),
        }
    }
}

/// How much of a lease of this length is used, in nanoseconds.
fn usable(ttl: Duration) -> u64 {
    nanoseconds(ttl - ttl / MARGIN)
}

impl Joined {
    fn join(
        cluster: String,
        listen: SocketAddr,
        tls: Tls,
        membership: Arc<dyn Membership>,
        open: Open,
    ) -> io::Result<Joined> {
        let listener = bind(listen)?;
        let address = listener.local_addr()?;
        let sent_at = now();
        let id = membership.join(&address.to_string())?;
        let valid_until = sent_at + usable(membership.ttl());
        Ok(Joined { cluster, membership, open, tls, listener, address, id, valid_until })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.inner.relay.unmount().is_err() {
            // In use: a destructor has nobody to tell.
            let _ = self.inner.relay.unmount_lazily();
        }
        // A destructor has no caller to tell.
        let _ = self.end();
    }
}

impl Inner {
    fn is_leaving(&self) -> bool {
        // Relaxed: the keeper ends when it sees it.
        self.is_leaving.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        // Relaxed: each thread ends when it sees it.
        self.is_over.load(Ordering::Relaxed)
    }

    fn id(&self) -> NodeId {
        // Relaxed: see the field.
        NodeId(self.id.load(Ordering::Relaxed))
    }

    fn usable(&self) -> u64 {
        usable(self.membership.ttl())
    }

    /// Joins again.
    fn join(&self) -> io::Result<()> {
        let sent_at = now();
        let id = self.membership.join(&self.address.to_string())?;
        // Relaxed: see the fields.
        self.id.store(id.0, Ordering::Relaxed);
        self.valid_until.store(sent_at + self.usable(), Ordering::Relaxed);
        Ok(())
    }

    fn is_member(&self) -> bool {
        // Relaxed: see the field.
        now() < self.valid_until.load(Ordering::Relaxed)
    }

    /// Sleeps, for at most as long as it takes to notice the end.
    fn pause(&self, time: Duration) {
        self.pause_until(time, || self.is_over());
    }

    /// Pauses for `time`, or until `is_enough` is true.
    fn pause_until(&self, time: Duration, is_enough: impl Fn() -> bool) {
        let end = now() + nanoseconds(time);
        while !is_enough() && now() < end {
            thread::sleep(Duration::from_nanos(end - now().min(end)).min(TICK));
        }
    }

    /// Renews the lease, and what the kernel may cache.
    fn keep_lease(&self) {
        let mut trouble = Trouble::default();
        while !self.is_over() {
            let sent_at = now();
            let mut wait = self.membership.ttl() / RENEWALS;
            match self.membership.renew(self.id()) {
                // Relaxed: see the field. An owner that has stopped does not begin again.
                Ok(true) if self.is_member() => {
                    trouble = Trouble::default();
                    self.valid_until.store(sent_at + self.usable(), Ordering::Relaxed);
                }
                Ok(_) => {
                    self.valid_until.store(0, Ordering::Relaxed);
                    self.lose();
                    let old = self.id();
                    let told = match self.join() {
                        Ok(()) => {
                            // In this order: a node that sees that the old one is gone sees the new one. If this fails it runs out.
                            drop(self.membership.leave(old));
                            "the lease is over: this node joined again".into()
                        }
                        Err(error) => format!("the lease is over, and this node cannot join again: {error}"),
                    };
                    if trouble.is_new(&told) {
                        log::warn!("{told}");
                    }
                }
                // It runs out by itself.
                Err(error) => {
                    if trouble.is_new(&error.to_string()) {
                        log::warn!("cannot renew the lease: {error}");
                    }
                    wait = trouble.pause(TICK, wait);
                }
            }
            self.relay.tell_of_overdue();
            let up = self.role.lock().link.clone();
            if let Some(up) = up {
                up.link.send(&Frame::Ping(now()));
            }
            self.pause(wait);
        }
    }

    fn tick(self: &Arc<Self>) {
        let mut used = WorkspaceUse::default();
        while !self.is_over() {
            let (owner, up) = {
                let role = self.role.lock();
                (role.owner.clone(), role.link.clone())
            };
            if let Some(owner) = owner {
                match self.is_member() && owner.superblock().failure().is_none() {
                    true => {
                        owner.tick();
                        self.follow_use(&owner, &mut used);
                    }
                    false => self.lose(),
                }
            }
            self.hasten_closing();
            if let Some(up) = up
                // Relaxed: see the field.
                && up.until.load(Ordering::Relaxed) < now()
            {
                log::warn!("the owner does not answer");
                up.link.close();
            }
            thread::sleep(TICK);
        }
    }

    /// Decides which node serves the mount.
    fn keep(self: Arc<Self>, calling: &Arc<ClientConfig>) {
        let mut trouble = Trouble::default();
        while !self.is_leaving() {
            let lost = {
                let mut role = self.role.lock();
                role.link.take_if(|up| up.link.is_closed())
            };
            if lost.is_some() {
                log::info!("the server is lost");
                // Relaxed: see the field.
                self.lost_at.store(now(), Ordering::Relaxed);
                self.relay.detach();
            }
            let (revision, has_server) = {
                let role = self.role.lock();
                (role.view.revision, role.owner.is_some() || role.link.is_some())
            };
            let wait = if has_server { SEEK_PAUSE_MAX } else { Duration::ZERO };
            let followed = match self.membership.view(if has_server { revision } else { 0 }, wait) {
                Ok(view) if has_server || view.revision != revision => {
                    trouble = Trouble::default();
                    self.follow(view, calling)
                }
                Ok(view) => self.follow(view, calling),
                Err(error) => {
                    if trouble.is_new(&error.to_string()) {
                        log::warn!("the membership cannot be read: {error}");
                    }
                    Err(error)
                }
            };
            if let Err(error) = &followed {
                log::debug!("no server yet: {error}");
            }
            // A membership that does not answer, and a view in which nothing has changed, are looked at again after a pause.
            if followed.is_err() || !has_server {
                self.pause(trouble.pause(TICK, SEEK_PAUSE_MAX));
            }
        }
    }

    /// The kernel's holdings, for a server that is about to be attached. Requests that the last server may have given
    /// up are left out.
    fn holdings(&self) -> Holdings {
        // Relaxed: see the field.
        if self.contact.load(Ordering::Relaxed) + self.usable() < now() {
            self.relay.give_up_behind();
        }
        self.relay.holdings()
    }

    fn status(&self) -> Status {
        let mut counts = self.relay.counts();
        let failure = self.failure.lock().reason.clone();
        // Each has a role of its own.
        let workspaces = self.workspaces.status();
        let role = self.role.lock();
        let living = role.view.living_owner(SHARD);
        counts.dirty_bytes +=
            role.owner.as_ref().and_then(|owner| owner.superblock().changed_bytes()).unwrap_or(0);
        let does = match () {
            () if role.owner.as_ref().is_some_and(|owner| owner.local().is_some()) => Role::Owner,
            () if role.link.as_ref().is_some_and(|up| up.epoch == role.epoch) => Role::Guest,
            () => Role::Waiting,
        };
        Status {
            cluster: self.cluster.clone(),
            node: self.id().0,
            role: does,
            failure: if does == Role::Waiting { failure } else { None },
            owner: living.map_or(0, |owner| owner.node.0),
            epoch: living.map_or(0, |owner| owner.epoch),
            members: role.view.members.values().filter(|member| member.is_alive).count(),
            guests: role.owner.as_ref().map_or(0, |owner| owner.seats()),
            counts,
            takeover: *self.takeover.lock(),
            workspaces,
        }
    }
}
