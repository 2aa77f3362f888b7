//! Dlm: a node with threads, a clock and connections: what a program uses.
//!
//! # Theory
//! Threads, not a runtime: a lock that is cached needs neither, and one that waits is a future that any runtime can poll, or a
//! thread that sleeps. There are a few threads for a node (lease, view, wishes, clock, listener) and two for each other node: one
//! reads, and one writes what the threads that send could not write at once (`peer.rs`).
//!
//! # Cost
//! A cached lock: a read of the clock, and what [`Node::lock_cached`] costs. Nothing shared but the lock's own line is written.

mod guard;
mod serve;
mod status;

pub use guard::{Guard, LockFuture};
pub use status::{ask_status, ask_status_at};

use crate::error::LockError;
use crate::lock_class::{PEERS, WISHES};
use crate::message::Message;
use crate::node::{Effects, Masters, Node, Options, Submitted, Want};
use crate::peer::Peer;
use crate::probe::LockParty;
use crate::{Key, Mode, Name};
use sluice_membership::{Identity, Membership, NodeId, ShardId, View, bind, now};
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::thread::{self, JoinHandle};
use sluice_sync::time::{Duration, Instant, nanoseconds};
use sluice_sync::{Arc, Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::{fmt, fs, io, mem};

/// The fraction of a lease that is left unused, for clocks of different speed.
const MARGIN: u32 = 8;
/// How often a node tries to tell the membership that it leaves.
const LEAVES: u32 = 3;
/// Calls of [`Dlm::lock`] wait while so many messages are on their way to the node that they go to.
const PENDING_MAX: usize = 10_000;

/// The function that makes a dead node's writes fail: called before the node's locks are free, until it succeeds.
pub type Fence = Arc<dyn Fn(NodeId) -> io::Result<()> + Send + Sync>;

/// How a node takes part in a cluster.
pub struct Config {
    /// The name of the cluster, of at most 64 bytes.
    pub cluster: String,
    /// Where other nodes reach this one; port 0 chooses one.
    pub listen: SocketAddr,
    /// How this node shows that it belongs to the cluster.
    pub identity: Identity,
    /// The membership that all nodes trust.
    pub membership: Arc<dyn Membership>,
    /// How a dead node is fenced. Without one its locks are free when its lease is over, and `grace`.
    pub fence: Option<Fence>,
    /// How long a dead node's locks stay taken from when this node learns that its lease is over: time for what acts for
    /// that node to be stopped by somebody else. The same at all nodes.
    pub grace: Duration,
    /// The members that become masters; the same at all nodes.
    pub masters: Masters,
    /// How long a node that uses a lock keeps it although another wants it.
    pub hold: Duration,
    /// How many bytes of cached locks are kept, about.
    pub memory: u64,
    /// A Unix socket where the node tells its status ([`ask_status`]); a process that may connect to it may ask.
    pub status: Option<PathBuf>,
}

impl Config {
    /// A node on this machine.
    pub fn local(cluster: &str, identity: Identity, membership: Arc<dyn Membership>) -> Config {
        Config {
            cluster: cluster.to_string(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            identity,
            membership,
            fence: None,
            grace: Duration::ZERO,
            masters: Masters::Spread,
            hold: Duration::from_millis(5),
            memory: 256 << 20,
            status: None,
        }
    }
}

/// A member of a cluster. Dropping it leaves the cluster.
pub struct Dlm {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

pub(crate) struct Inner {
    pub(crate) node: Node<Post>,
    pub(crate) config: Config,
    address: SocketAddr,
    is_over: AtomicBool,
}

/// Where what a node wants done waits for the threads that do it.
pub(crate) struct Post {
    peers: Mutex<Peers>,
    wishes: Mutex<BTreeSet<Wish>>,
    wished: Condvar,
}

#[derive(Default)]
struct Peers {
    by_id: BTreeMap<NodeId, Arc<Peer>>,
    view: View,
}

/// A change that this node requests from the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    Fence(NodeId),
    Claim(ShardId, u64),
    Resign(ShardId, u64),
}

impl Post {
    fn new() -> Post {
        Post {
            peers: Mutex::with_class(&PEERS, Peers::default()),
            wishes: Mutex::with_class(&WISHES, BTreeSet::new()),
            wished: Condvar::new(),
        }
    }

    fn wish(&self, wish: Wish) {
        self.wishes.lock().insert(wish);
        self.wished.notify_one();
    }

    /// The node, if it can receive messages.
    fn peer(&self, id: NodeId) -> Option<Arc<Peer>> {
        let mut peers = self.peers.lock();
        if peers.view.is_gone(id) {
            return None;
        }
        Some(peers.by_id.entry(id).or_insert_with(|| Peer::new(id)).clone())
    }
}

impl Effects for Post {
    fn send(&self, to: NodeId, message: Message) {
        if let Some(peer) = self.peer(to) {
            peer.send(message);
        }
    }
    fn flush(&self, to: NodeId) {
        if let Some(peer) = self.peer(to) {
            peer.flush();
        }
    }
    fn fence(&self, dead: NodeId) {
        self.wish(Wish::Fence(dead));
    }
    fn claim(&self, shard: ShardId, epoch: u64) {
        self.wish(Wish::Claim(shard, epoch));
    }
    fn resign(&self, shard: ShardId, epoch: u64) {
        self.wish(Wish::Resign(shard, epoch));
    }
}

impl Dlm {
    /// Joins a cluster. Takes as long as the membership does: it is meant to be awaited at the start of a program.
    ///
    /// # Errors
    /// If the membership or the address is not there.
    pub async fn join(config: Config) -> io::Result<Dlm> {
        Dlm::join_now(config)
    }

    /// Joins the cluster, for callers in threads; see [`join`](Self::join).
    ///
    /// # Errors
    /// Errors of [`join`](Self::join).
    pub fn join_now(config: Config) -> io::Result<Dlm> {
        let tls = config.identity.configurations()?;
        let listener = bind(config.listen)?;
        let address = listener.local_addr()?;
        let status = config.status.as_ref().map(|path| {
            // A socket that a dead process left behind.
            let _ = fs::remove_file(path);
            UnixListener::bind(path)
        });
        let status = status.transpose()?;
        let membership = config.membership.clone();
        let sent_at = now();
        let id = membership.join(&address.to_string())?;
        let options = Options {
            shards: membership.shards(),
            hold: nanoseconds(config.hold),
            memory: config.memory,
            seed: RandomState::new().hash_one(id),
            masters: config.masters,
            ..Options::default()
        };
        let node = Node::new(id, options, Post::new());
        node.renewed(sent_at + nanoseconds(membership.ttl() - membership.ttl() / MARGIN));
        let inner = Arc::new(Inner { node, config, address, is_over: AtomicBool::new(false) });
        let mut threads = Vec::new();
        let mut start = |name: &str, work: Box<dyn FnOnce(Arc<Inner>) + Send>| {
            let inner = inner.clone();
            let builder = thread::Builder::new().name(format!("dlm-{name}"));
            builder.spawn(move || work(inner)).map(|thread| threads.push(thread))
        };
        let calling = tls.1.clone();
        start("lease", Box::new(|inner| inner.keep_lease()))?;
        start("view", Box::new(|inner| inner.keep_view(calling)))?;
        start("wishes", Box::new(|inner| inner.grant_wishes()))?;
        start("clock", Box::new(|inner| inner.keep_time()))?;
        start("listen", Box::new(move |inner| inner.listen(&listener, &tls.0)))?;
        if let Some(status) = status {
            start("status", Box::new(move |inner| inner.tell_status(&status)))?;
        }
        Ok(Dlm { inner, threads })
    }

    /// Its number.
    pub fn id(&self) -> NodeId {
        self.inner.node.id()
    }

    /// Where other nodes reach it.
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// Until when it is surely a member, by [`now`]: it grows with each renewal of the lease.
    pub fn valid_until(&self) -> u64 {
        self.inner.node.lease_end()
    }

    /// The node within.
    pub fn node(&self) -> &Node<impl Effects + use<>> {
        &self.inner.node
    }

    /// The key of a resource as a whole.
    ///
    /// # Errors
    /// `NameTooLong`.
    pub fn key(&self, name: impl AsRef<[u8]>) -> Result<Key, LockError> {
        let shards = self.inner.node.options().shards;
        Name::hashed(name.as_ref(), shards).map(Key::whole).ok_or(LockError::NameTooLong)
    }

    /// A new party, for [`Want::of`]: what takes several locks and wants to be told of a deadlock.
    ///
    /// ```
    /// # use sluice_dlm::{Config, Dlm, LockError, Mode, Want};
    /// # use sluice_membership::{ClusterCa, InMemory};
    /// # use std::{io, sync::Arc, time::Duration};
    /// # fn main() -> io::Result<()> {
    /// # let (ca, membership) = (ClusterCa::new()?, Arc::new(InMemory::new(1, Duration::from_secs(60))));
    /// # let dlm = Dlm::join_now(Config::local("test", ca.issue()?, membership))?;
    /// let want = Want::new(Mode::Ex).of(dlm.party());
    /// let lock = |name| dlm.lock_wait(&dlm.key(name)?, &want, None);
    /// let _from = lock("from").map_err(io::Error::other)?;
    /// match lock("to") {
    ///     Ok(_to) => println!("both are held"),
    ///     Err(LockError::Deadlock) => println!("another party has it, and waits for the first: unlock that, and begin anew"),
    ///     Err(error) => return Err(io::Error::other(error)),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn party(&self) -> LockParty {
        self.inner.node.party()
    }

    /// Locks a resource by its name. Nothing is asked for before the first poll; a future that is dropped holds nothing.
    pub fn lock(&self, name: impl AsRef<[u8]>, mode: Mode) -> LockFuture<'_> {
        LockFuture::new(self, self.key(name), Want::new(mode))
    }

    /// Locks a key as it is wanted.
    pub fn lock_key(&self, key: &Key, want: Want) -> LockFuture<'_> {
        LockFuture::new(self, Ok(key.clone()), want)
    }

    /// Locks, if the lock is cached and nobody is in the way. Never waits.
    #[inline]
    pub fn lock_cached(&self, key: &Key, mode: Mode) -> Option<Guard<'_>> {
        self.inner.node.lock_cached(now(), key, mode).map(|held| Guard::new(self, held))
    }

    /// Locks; the thread sleeps until that is possible, or until `deadline`.
    ///
    /// # Errors
    /// `TimedOut`, `Busy` if it was not to wait, `NotMember`.
    pub fn lock_wait(
        &self,
        key: &Key,
        want: &Want,
        deadline: Option<Instant>,
    ) -> Result<Guard<'_>, LockError> {
        let ticket = match self.submit(key, want)? {
            Submitted::Granted(held) => return Ok(Guard::new(self, held)),
            Submitted::Waiting(ticket) => ticket,
        };
        let is_late = ticket.sleep(deadline).is_none();
        let (outcome, held) = self.inner.node.finish(now(), ticket);
        let guard = held.map(|held| Guard::new(self, held));
        match (outcome, guard) {
            (Ok(()), Some(guard)) => Ok(guard),
            (Err(LockError::Cancelled), _) if is_late => Err(LockError::TimedOut),
            (outcome, _) => Err(outcome.err().unwrap_or(LockError::Cancelled)),
        }
    }

    fn submit(&self, key: &Key, want: &Want) -> Result<Submitted, LockError> {
        self.inner.wait_for_room();
        self.inner.node.lock(now(), key, want)
    }

    /// Ends as if the process had died: no message, no word to the membership. For tests.
    #[doc(hidden)]
    pub fn crash(mut self) {
        self.inner.end();
        self.join_threads();
        self.inner.node.stop();
    }

    fn join_threads(&mut self) {
        for thread in mem::take(&mut self.threads) {
            // A panic of its own was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn is_over(&self) -> bool {
        // Relaxed: each thread ends when it sees it.
        self.is_over.load(Ordering::Relaxed)
    }

    fn end(&self) {
        // Relaxed: as in is_over().
        self.is_over.store(true, Ordering::Relaxed);
        let post = self.node.effects();
        post.peers.lock().by_id.values().for_each(|peer| peer.close());
        post.wished.notify_all();
        // The listeners wait for a call.
        if let Some(path) = &self.config.status {
            let _ = UnixStream::connect(path);
            let _ = fs::remove_file(path);
        }
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }

    /// The most messages that are on their way to one node.
    fn pending(&self) -> usize {
        self.node.effects().peers.lock().by_id.values().map(|peer| peer.pending()).max().unwrap_or(0)
    }

    /// Back-pressure: a thread that asks for more than the network takes waits here.
    fn wait_for_room(&self) {
        while self.pending() > PENDING_MAX && !self.is_over() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Dlm {
    fn drop(&mut self) {
        if self.inner.is_over() {
            return;
        }
        self.inner.node.leave(now());
        let limit = Instant::now() + Duration::from_secs(2);
        while self.inner.pending() > 0 && Instant::now() < limit {
            thread::sleep(Duration::from_millis(1));
        }
        // If that fails in the end, the lease ends.
        let leave = |_: &u32| self.inner.config.membership.leave(self.id()).is_ok();
        let _ = (0..LEAVES).find(leave);
        self.inner.end();
        self.join_threads();
    }
}

impl fmt::Debug for Dlm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dlm").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}
