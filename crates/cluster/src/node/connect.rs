//! Connect: how nodes reach each other: the owner is called, and the others are listened to.

use super::Inner;
use crate::cache_lease;
use crate::guest::Lost;
use crate::link::Link;
use crate::owner::Owner;
use crate::relay::{Server, Uplink};
use crate::status::Status;
use crate::wire::Frame;
use rustls::{ClientConfig, ServerConfig};
use sluice_membership::{Hello, Identity, NodeId, Owner as Owned, Secure, now};
use sluice_sync::Arc;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::thread::Builder;
use sluice_sync::time::{Duration, nanoseconds};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

/// How long a call may take.
const CALL_PATIENCE: Duration = Duration::from_secs(1);
/// So many leases a node waits until the owner has taken it in.
const ATTACHING: u32 = 8;
/// The protocol and its version.
const PROTOCOL: [u8; 8] = *b"slucfsc5";
/// The protocol of a question for the status, ...
const STATUS: [u8; 8] = *b"slucfss1";
/// ... and for the complete statistics of the node's mount.
const STAT: [u8; 8] = *b"slucfst1";
/// The protocol of a request to use a workspace, ...
const USE: [u8; 8] = *b"slucfsu1";
/// ... and of one to hand it over to the node that has a number among its members.
const HAND_OVER: [u8; 8] = *b"slucfsh1";
/// The longest answer: longer than what is told of a mount, with a count in each bucket of each kind of request.
const ANSWER_MAX: usize = 256 << 10;

/// The beginning of an answer that is no error.
const OK: &str = "ok ";

/// Another node, as one that is asked.
pub(super) struct AskedNode<'p> {
    pub(super) address: &'p str,
    pub(super) cluster: &'p str,
    pub(super) calling: &'p Arc<ClientConfig>,
}

impl AskedNode<'_> {
    /// Its [`Status`].
    pub(super) fn status(&self) -> io::Result<Status> {
        Status::parse(&ask(STATUS, (self.address, self.cluster), self.calling.clone(), &[])?)
    }

    /// Has its mount use `workspace`; its number among the members of that.
    pub(super) fn uses(&self, workspace: u32) -> io::Result<NodeId> {
        self.number(USE, &[workspace.into()]).map(NodeId)
    }

    /// Has it, the owner of `workspace`, hand that over to member `to`.
    pub(super) fn hands_over(&self, workspace: u32, to: NodeId) -> io::Result<()> {
        self.number(HAND_OVER, &[workspace.into(), to.0]).map(drop)
    }

    fn number(&self, question: [u8; 8], numbers: &[u64]) -> io::Result<u64> {
        let told = ask(question, (self.address, self.cluster), self.calling.clone(), numbers)?;
        let number = told.strip_prefix(OK).and_then(|number| number.parse().ok());
        number.ok_or_else(|| io::Error::other(told))
    }
}

/// A connection to the owner.
pub(super) struct Uplinked {
    pub(super) link: Arc<Link>,
    pub(super) to: NodeId,
    pub(super) epoch: u64,
    /// Until when the owner counts as reached. *atomic (stands alone)*
    pub(super) until: AtomicU64,
}

impl Uplink for Uplinked {
    fn request(&self, message: &[u8]) {
        self.link.queue(&Frame::Request(message.to_vec()));
    }

    fn flush(&self) {
        self.link.flush();
    }
}

/// Asks the node at `address`, of the cluster with this name, for its [`Status`] as JSON.
///
/// # Errors
/// If the node cannot be reached, or belongs to another cluster.
pub fn ask_status(address: &str, cluster: &str, identity: &Identity) -> io::Result<String> {
    ask(STATUS, (address, cluster), identity.configurations()?.1, &[])
}

/// Asks the node at `address` for the statistics of its mount, as [`Relay::stat`](crate::Relay::stat) gives them.
///
/// # Errors
/// Errors of [`ask_status`].
pub fn ask_stat(address: &str, cluster: &str, identity: &Identity) -> io::Result<String> {
    ask(STAT, (address, cluster), identity.configurations()?.1, &[])
}

/// The answer of the node at `address`, of the cluster with this name, to a `question` with these numbers.
fn ask(
    question: [u8; 8],
    (address, cluster): (&str, &str),
    calling: Arc<ClientConfig>,
    numbers: &[u64],
) -> io::Result<String> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let tcp = TcpStream::connect_timeout(&address, CALL_PATIENCE)?;
    let secure = Secure::call(tcp, calling)?;
    let hello = Hello { protocol: question, cluster: cluster.to_string(), from: NodeId(0), to: NodeId(0) };
    hello.say(&secure)?;
    if !numbers.is_empty() {
        secure.write_all(&numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>())?;
        // It may have to bring everything to the store first.
        secure.settled()?;
    }
    let mut length = [0; 4];
    secure.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > ANSWER_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length];
    secure.read_exact(&mut text)?;
    String::from_utf8(text).map_err(io::Error::other)
}

impl Inner {
    /// Calls the owner on a thread of its own: one that is frozen takes a call and says nothing, and another may come.
    pub(super) fn call_apart(
        self: &Arc<Self>,
        owner: Owned,
        address: String,
        calling: &Arc<ClientConfig>,
    ) -> io::Result<()> {
        let calling = calling.clone();
        self.seek(owner, "call", move |this| this.call(owner, &address, &calling))
    }

    /// Becomes a guest of the owner.
    fn call(
        self: &Arc<Self>,
        Owned { node: to, epoch }: Owned,
        address: &str,
        calling: &Arc<ClientConfig>,
    ) -> io::Result<()> {
        let address: SocketAddr = address.parse().map_err(io::Error::other)?;
        let tcp = TcpStream::connect_timeout(&address, CALL_PATIENCE)?;
        let secure = Secure::call(tcp, calling.clone())?;
        let hello = Hello { protocol: PROTOCOL, cluster: self.cluster.clone(), from: self.id(), to };
        hello.say(&secure)?;
        let answer = Hello::hear(&secure)?;
        if answer != (Hello { from: to, to: self.id(), ..hello }) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        secure.settled()?;
        let link = Link::start(secure)?;
        // It may take long to find what the kernel holds. Nothing is cached by then, and of its death the membership tells.
        let until = AtomicU64::new(now() + nanoseconds(self.membership.ttl() * ATTACHING));
        let up = Arc::new(Uplinked { link: link.clone(), to, epoch, until });
        let last = {
            let mut role = self.role.lock();
            if role.seeking != Some(Owned { node: to, epoch }) || role.link.is_some() || role.owner.is_some()
            {
                return Err(io::ErrorKind::Interrupted.into());
            }
            role.link = Some(up.clone());
            role.epoch
        };
        let holdings = self.holdings();
        let told_at = now();
        link.send(&Frame::Attach { mount: self.mount, epoch: last, holdings: holdings.encode() });
        let this = self.clone();
        let read = move || {
            // Whatever it ends with: the keeper calls again.
            let _ = this.read(&up, last, told_at);
            up.link.close();
        };
        Builder::new().name("cluster-read".into()).spawn(read).inspect_err(|_| link.close())?;
        Ok(())
    }

    fn read(&self, up: &Arc<Uplinked>, last: u64, told_at: u64) -> io::Result<()> {
        let attachment = self.relay.next_attachment();
        let lease = nanoseconds(cache_lease(self.membership.ttl()));
        loop {
            match up.link.read(true)? {
                Frame::Attached { handles, nameless, executed } => {
                    let lost = Lost {
                        handles: handles.into_iter().collect(),
                        nameless: nameless.into_iter().collect(),
                        executed: executed.into_iter().collect(),
                    };
                    let is_another = last != 0 && last != up.epoch;
                    {
                        let mut role = self.role.lock();
                        if !role.link.as_ref().is_some_and(|other| Arc::ptr_eq(other, up)) {
                            return Ok(());
                        }
                        role.epoch = up.epoch;
                    }
                    // Relaxed: see the field.
                    self.contact.fetch_max(told_at, Ordering::Relaxed);
                    self.lost_at.store(0, Ordering::Relaxed);
                    log::info!("node {} serves this mount, epoch {}", up.to.0, up.epoch);
                    // Relaxed: see the field. The kernel's cache misses come after this, so the owner hears of this
                    // node later.
                    up.until.store(now() + lease, Ordering::Relaxed);
                    self.relay.attach(attachment, Server::Remote(up.clone()), &lost, is_another);
                }
                Frame::Answer(answer) => self.relay.answer(attachment, &answer),
                Frame::Notice(number, bytes) => {
                    let link = up.link.clone();
                    self.relay.announce(&bytes, move || link.send(&Frame::Noticed(number)));
                }
                Frame::HandOver(node) => self.hold_back(NodeId(node)),
                Frame::Pong(time) => {
                    // Relaxed: see the fields.
                    up.until.fetch_max(time.saturating_add(lease), Ordering::Relaxed);
                    self.contact.fetch_max(time, Ordering::Relaxed);
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Listens to other nodes.
    pub(super) fn listen(self: Arc<Self>, listener: &TcpListener, answering: &Arc<ServerConfig>) {
        let (inner, answering) = (self.clone(), answering.clone());
        let recognise = move |tcp| inner.recognise(tcp, answering.clone());
        sluice_membership::listen(
            listener,
            || self.is_over(),
            recognise,
            |(node, owner, link)| {
                if let Err(error) = owner.serve(node, &link) {
                    log::info!("the connection of node {} ended: {error}", node.0);
                }
                link.close();
            },
        );
    }

    fn recognise(
        &self,
        tcp: TcpStream,
        answering: Arc<ServerConfig>,
    ) -> io::Result<(NodeId, Arc<Owner>, Arc<Link>)> {
        let secure = Secure::accept(tcp, answering)?;
        let hello = Hello::hear(&secure)?;
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        if matches!(hello.protocol, STATUS | STAT) && hello.cluster == self.cluster {
            let status = self.status().to_json();
            let text = if hello.protocol == STAT { self.relay.stat(&status) } else { status };
            let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
            secure.write_all(&[length.to_le_bytes().as_slice(), text.as_bytes()].concat())?;
            return Err(io::ErrorKind::Interrupted.into());
        }
        if matches!(hello.protocol, USE | HAND_OVER) && hello.cluster == self.cluster {
            self.answer_about_workspace(hello.protocol, &secure)?;
            return Err(io::ErrorKind::Interrupted.into());
        }
        if hello.protocol != PROTOCOL || hello.cluster != self.cluster || hello.to != self.id() {
            return Err(refused());
        }
        // If this node is not the owner yet, or does not know the caller, the caller tries again.
        let owner = {
            let role = self.role.lock();
            let owner =
                role.owner.clone().filter(|_| role.view.is_alive(hello.from) || self.knows(hello.from));
            owner.ok_or_else(refused)?
        };
        Hello { from: hello.to, to: hello.from, ..hello.clone() }.say(&secure)?;
        secure.settled()?;
        Ok((hello.from, owner, Link::start(secure)?))
    }

    /// Reads the rest of a question about a workspace, and answers it.
    fn answer_about_workspace(&self, question: [u8; 8], secure: &Secure) -> io::Result<()> {
        let number = || {
            let mut bytes = [0; 8];
            secure.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
        };
        let workspace = u32::try_from(number()?).unwrap_or(u32::MAX);
        let told = match question {
            USE => self.workspaces.use_one(&self.relay, workspace).map(|node| node.0),
            _ => self.workspaces.hand_over(workspace, NodeId(number()?)).map(|()| 0),
        };
        let text = told.map_or_else(|error| error.to_string(), |number| format!("{OK}{number}"));
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        secure.write_all(&[length.to_le_bytes().as_slice(), text.as_bytes()].concat())
    }

    /// Whether the membership knows a living member that is not in the last view.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        self.membership.view(0, Duration::ZERO).is_ok_and(|view| view.is_alive(node))
    }
}
