//! Serve: the threads of a node.

use super::{Inner, MARGIN, Peers, Wish};
use crate::peer::{Peer, UNSAID_FOR};
use rustls::{ClientConfig, ServerConfig};
use sluice_membership::{Hello, NodeId, Secure, View, listen, now};
use sluice_sync::time::{Duration, nanoseconds};
use sluice_sync::{Arc, thread};
use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::net::{TcpListener, TcpStream};

/// The protocol and its version.
const PROTOCOL: [u8; 8] = *b"slucdlm2";
/// The protocol of a question for the status.
pub(super) const STATUS: [u8; 8] = *b"slucdls1";
/// So long a thread that grants wishes sleeps at most.
const LATER: Duration = Duration::from_millis(100);
/// How long a caller is listened to that this node has not heard of.
const UNHEARD: Duration = Duration::from_millis(100);
/// How often a lease is renewed within its length, and the membership reminded.
const RENEWALS: u32 = 4;

fn start_writer(peer: &Arc<Peer>) {
    let writer = peer.clone();
    let builder = thread::Builder::new().name("dlm-write".to_string());
    drop(builder.spawn(move || writer.write()).expect("a thread can be started"));
}

impl Inner {
    /// Renews the lease.
    pub(super) fn keep_lease(&self) {
        let membership = &self.config.membership;
        let usable = membership.ttl() - membership.ttl() / MARGIN;
        while !self.is_over() {
            let sent_at = now();
            // If it cannot be reached the lease runs out by itself.
            match membership.renew(self.node.id()) {
                Ok(true) => self.node.renewed(sent_at + nanoseconds(usable)),
                Ok(false) => self.node.stop(),
                Err(_) => {}
            }
            self.node.remind(now());
            self.pause(membership.ttl() / RENEWALS);
        }
    }

    /// Sleeps, for at most as long as it takes to notice the end.
    pub(super) fn pause(&self, time: Duration) {
        let end = now() + nanoseconds(time);
        while !self.is_over() && now() < end {
            thread::sleep(Duration::from_nanos(end - now().min(end)).min(Duration::from_millis(20)));
        }
    }

    /// Learns of members that come and go.
    pub(super) fn keep_view(self: Arc<Self>, calling: Arc<ClientConfig>) {
        let mut revision = 0;
        while !self.is_over() {
            let Ok(view) = self.config.membership.view(revision, Duration::from_millis(200)) else {
                self.pause(Duration::from_millis(100));
                continue;
            };
            if view.revision == revision {
                continue;
            }
            revision = view.revision;
            let mut started = Vec::new();
            {
                let Peers { by_id, view: known } = &mut *self.node.effects().peers.lock();
                known.clone_from(&view);
                by_id.retain(|id, peer| {
                    let is_gone = view.is_gone(*id);
                    if is_gone {
                        peer.close();
                    }
                    !is_gone
                });
                for (&id, member) in view.members.iter().filter(|(id, _)| **id != self.node.id()) {
                    let peer = by_id.entry(id).or_insert_with(|| Peer::new(id)).clone();
                    if peer.start() {
                        started.push((peer, member.address.clone()));
                    }
                }
            }
            for (peer, address) in started {
                self.serve_peer(&peer, address, &calling);
            }
            self.node.view(now(), view);
        }
    }

    /// Starts the threads of a peer. They end when it is closed.
    fn serve_peer(self: &Arc<Self>, peer: &Arc<Peer>, address: String, calling: &Arc<ClientConfig>) {
        start_writer(peer);
        // The later one calls: it knows the address of the earlier one from its first view.
        if peer.id < self.node.id() {
            let (inner, peer, calling) = (self.clone(), peer.clone(), calling.clone());
            thread::spawn(move || {
                while !peer.is_closed() && !inner.is_over() {
                    let called = inner.call(&address, peer.id, &calling);
                    if let Ok(connection) = called {
                        inner.read(&peer, &connection);
                    }
                    inner.pause(Duration::from_millis(50));
                }
            });
        }
    }

    fn read(&self, peer: &Peer, connection: &Arc<Secure>) {
        peer.connect(connection.clone());
        peer.read(connection, |message| self.node.message(now(), peer.id, message));
    }

    fn call(&self, address: &str, to: NodeId, calling: &Arc<ClientConfig>) -> io::Result<Arc<Secure>> {
        let address = address.parse().map_err(io::Error::other)?;
        let tcp = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        let connection = Secure::call(tcp, calling.clone())?;
        let hello =
            Hello { protocol: PROTOCOL, cluster: self.config.cluster.clone(), from: self.node.id(), to };
        hello.say(&connection)?;
        let answer = Hello::hear(&connection)?;
        if answer != (Hello { from: to, to: self.node.id(), ..hello }) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        connection.settled()?;
        Ok(Arc::new(connection))
    }

    /// Listens to callers.
    pub(super) fn listen(self: Arc<Self>, listener: &TcpListener, answering: &Arc<ServerConfig>) {
        let (inner, reader, answering) = (self.clone(), self.clone(), answering.clone());
        let recognise = move |tcp| inner.answer(tcp, answering.clone());
        let serve = move |(peer, connection): (Arc<Peer>, _)| reader.read(&peer, &connection);
        listen(listener, || self.is_over(), recognise, serve);
    }

    fn answer(&self, tcp: TcpStream, answering: Arc<ServerConfig>) -> io::Result<(Arc<Peer>, Arc<Secure>)> {
        let connection = Secure::accept(tcp, answering)?;
        let hello = Hello::hear(&connection)?;
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        if hello.protocol == STATUS && hello.cluster == self.config.cluster {
            self.answer_question(&connection)?;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if hello.protocol != PROTOCOL
            || hello.cluster != self.config.cluster
            || hello.to != self.node.id()
            || self.is_over()
        {
            return Err(refused());
        }
        let peer = self.caller(hello.from).ok_or_else(refused)?;
        Hello { from: hello.to, to: hello.from, ..hello }.say(&connection)?;
        connection.settled()?;
        Ok((peer, Arc::new(connection)))
    }

    /// The member that calls. The view of this node may be older than that member.
    fn caller(&self, from: NodeId) -> Option<Arc<Peer>> {
        let (post, membership) = (self.node.effects(), &self.config.membership);
        let is_member = |view: &View| view.members.contains_key(&from);
        let end = now() + nanoseconds(UNHEARD);
        while !is_member(&post.peers.lock().view)
            && !membership.view(0, Duration::ZERO).is_ok_and(|view| is_member(&view))
        {
            if now() >= end || self.is_over() {
                return None;
            }
            thread::sleep(UNHEARD / 16);
        }
        let peer = post.peer(from)?;
        // It needs no thread that calls it.
        if from > self.node.id() && peer.start() {
            start_writer(&peer);
        }
        Some(peer)
    }

    /// Asks the membership for what the node wishes.
    pub(super) fn grant_wishes(&self) {
        let post = self.node.effects();
        let (membership, id) = (&self.config.membership, self.node.id());
        let grace = nanoseconds(self.config.grace);
        // From when on each dead node is fenced.
        let mut fences = BTreeMap::new();
        while !self.is_over() {
            let wishes = {
                let mut wishes = post.wishes.lock();
                if wishes.is_empty() {
                    wishes = post.wished.wait_timeout(wishes, LATER).0;
                }
                mem::take(&mut *wishes)
            };
            for wish in wishes {
                if let Wish::Fence(dead) = wish {
                    fences.entry(dead).or_insert_with(|| now() + grace);
                }
                // A failed wish is repeated when the membership is reminded.
                let _ = match wish {
                    Wish::Claim(shard, epoch) => membership.claim(id, shard, epoch),
                    Wish::Resign(shard, epoch) => membership.resign(id, shard, epoch),
                    Wish::Fence(_) => continue,
                };
            }
            fences.retain(|&dead, due| {
                let fence = || self.config.fence.as_ref().map_or(Ok(()), |fence| fence(dead));
                *due > now() || fence().and_then(|()| membership.fenced(dead)).is_err()
            });
        }
    }

    /// Lets time pass for the node.
    pub(super) fn keep_time(&self) {
        let step = (self.config.hold / 4).clamp(Duration::from_micros(500), Duration::from_millis(20));
        let mut acknowledged_at = now();
        while !self.is_over() {
            self.node.tick(now());
            if now() >= acknowledged_at + nanoseconds(UNSAID_FOR) {
                acknowledged_at = now();
                let peers: Vec<_> = self.node.effects().peers.lock().by_id.values().cloned().collect();
                peers.iter().for_each(|peer| peer.acknowledge());
            }
            thread::sleep(step);
        }
    }
}
