//! Members: a node's way to the membership, which may be cut, and to the other nodes, which goes by proxies that lose what they are told to.

use sluice_membership::{Membership, NodeId, ShardId, View};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node's way to the membership.
pub(crate) struct Way {
    membership: Arc<dyn Membership>,
    is_cut: AtomicBool,
    /// It takes its lease for prolonged when it cannot reach the membership: a planted fault.
    is_careless: bool,
    known: Mutex<View>,
    /// How often it has joined.
    joined: AtomicU64,
    roads: Mutex<HashMap<String, Arc<Road>>>,
}

impl Way {
    pub(crate) fn new(membership: Arc<dyn Membership>, is_careless: bool) -> Arc<Way> {
        Arc::new(Way {
            membership,
            is_cut: AtomicBool::new(false),
            is_careless,
            known: Mutex::default(),
            joined: AtomicU64::new(0),
            roads: Mutex::default(),
        })
    }

    /// Whether the membership is reached.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }

    pub(crate) fn joined(&self) -> u64 {
        self.joined.load(Ordering::SeqCst)
    }

    /// The roads to other nodes that this node has used.
    pub(crate) fn roads(&self) -> Vec<Arc<Road>> {
        lock(&self.roads).values().cloned().collect()
    }

    fn reach(&self) -> io::Result<&dyn Membership> {
        match self.is_cut.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(&*self.membership),
        }
    }
}

impl Membership for Way {
    fn ttl(&self) -> Duration {
        self.membership.ttl()
    }
    fn shards(&self) -> u16 {
        self.membership.shards()
    }
    fn join(&self, address: &str) -> io::Result<NodeId> {
        self.joined.fetch_add(1, Ordering::SeqCst);
        self.reach()?.join(address)
    }
    fn renew(&self, node: NodeId) -> io::Result<bool> {
        if self.is_careless && self.reach().is_err() {
            return Ok(true);
        }
        self.reach()?.renew(node)
    }
    fn claim(&self, node: NodeId, shard: ShardId, epoch: u64) -> io::Result<bool> {
        self.reach()?.claim(node, shard, epoch)
    }
    fn resign(&self, node: NodeId, shard: ShardId, epoch: u64) -> io::Result<bool> {
        self.reach()?.resign(node, shard, epoch)
    }
    fn fenced(&self, dead: NodeId) -> io::Result<bool> {
        self.reach()?.fenced(dead)
    }
    fn leave(&self, node: NodeId) -> io::Result<()> {
        self.reach()?.leave(node)
    }
    fn view(&self, revision: u64, wait: Duration) -> io::Result<View> {
        if let Ok(membership) = self.reach() {
            let mut view = membership.view(revision, wait)?;
            let mut roads = lock(&self.roads);
            for member in view.members.values_mut() {
                if !roads.contains_key(&member.address) {
                    roads.insert(member.address.clone(), Road::to(&member.address)?);
                }
                member.address = roads[&member.address].address.to_string();
            }
            *lock(&self.known) = view;
        }
        Ok(lock(&self.known).clone())
    }
}

/// The fate of messages on a road.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Fine,
    /// Nobody is let through.
    Closed,
    /// Messages stand still.
    Slow,
    /// Answers are lost.
    OneWay,
}

/// The road from one node to another.
pub(crate) struct Road {
    pub(crate) address: SocketAddr,
    /// To which node.
    pub(crate) to: String,
    weather: Mutex<Weather>,
    travelling: Mutex<Vec<TcpStream>>,
    listener: TcpListener,
}

impl Road {
    fn to(address: &str) -> io::Result<Arc<Road>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let road = Arc::new(Road {
            address: listener.local_addr()?,
            to: address.to_string(),
            weather: Mutex::new(Weather::Fine),
            travelling: Mutex::default(),
            listener: listener.try_clone()?,
        });
        let this = Arc::downgrade(&road);
        std::thread::spawn(move || {
            while let Ok((from, _)) = listener.accept() {
                let Some(road) = this.upgrade() else { return };
                // A node that is called and is not there refuses.
                let _ = road.carry(from);
            }
        });
        Ok(road)
    }

    /// Sets the weather for later messages. Messages under way are cut off, if the road is closed.
    pub(crate) fn set(&self, weather: Weather) {
        *lock(&self.weather) = weather;
        if weather == Weather::Closed {
            self.cut();
        }
    }

    /// Connections that are there break.
    pub(crate) fn cut(&self) {
        for end in lock(&self.travelling).drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    fn weather(&self) -> Weather {
        *lock(&self.weather)
    }

    fn carry(self: &Arc<Road>, from: TcpStream) -> io::Result<()> {
        if self.weather() == Weather::Closed {
            return Ok(());
        }
        let to = TcpStream::connect(&self.to)?;
        for stream in [&from, &to] {
            stream.set_nodelay(true)?;
            lock(&self.travelling).push(stream.try_clone()?);
        }
        let back = (to.try_clone()?, from.try_clone()?);
        for ((mut from, mut to), is_back) in [((from, to), false), (back, true)] {
            let road = self.clone();
            std::thread::spawn(move || {
                let mut bytes = vec![0; 16 << 10];
                while let Ok(len @ 1..) = from.read(&mut bytes) {
                    while road.weather() == Weather::Slow {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    // The bytes after a loss would be no message, so the connection ends.
                    let is_lost = is_back && road.weather() == Weather::OneWay;
                    if is_lost || to.write_all(&bytes[..len]).is_err() {
                        break;
                    }
                }
                if is_back && road.weather() == Weather::OneWay {
                    // Requests still arrive, for a while.
                    std::thread::sleep(Duration::from_millis(5));
                }
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        Ok(())
    }

    /// Nobody uses it any more.
    pub(crate) fn end(&self) {
        self.set(Weather::Closed);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}
