//! Pair: two mounts of one file system, each by a relay.

use crate::mounts::{can_mount, eventually, fresh_dir, fresh_superblock, is_mounted};
use sluice_cluster::{Guest, GuestChannel, Holdings, Host, Notice, Relay, Server, Ticket, Uplink};
use sluice_fuse::{MountError, MountOptions};
use sluice_sync::{Arc, Mutex, Weak, mpsc, thread};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

pub(crate) struct Pair {
    pub(crate) host: Host,
    pub(crate) nodes: Vec<Node>,
}

pub(crate) struct Node {
    pub(crate) relay: Arc<Relay>,
    pub(crate) guest: Option<Arc<Guest>>,
    pub(crate) dir: PathBuf,
    /// Locked by a test, it keeps a far node's threads from returning after they have delivered an answer.
    pub(crate) delivered: Arc<Mutex<()>>,
}

impl Node {
    pub(crate) fn new(host: &Host, mount: u64) -> Node {
        Node::with_options(host, mount, "locks=sluice,transport=classic")
    }

    pub(crate) fn with_options(host: &Host, mount: u64, options: &str) -> Node {
        let dir = fresh_dir();
        let options = MountOptions::parse(options).expect("valid");
        let relay = Arc::new(Relay::mount(&dir, &options).expect("mounting works here"));
        let guest =
            relay.attach_host(host, &Holdings::default(), &BTreeMap::new(), false, mount).expect("admitted");
        Node { relay, guest: Some(guest), dir, delivered: Arc::default() }
    }

    /// One whose server counts as being on another machine.
    pub(crate) fn far(host: &Host, mount: u64) -> Node {
        Node::far_with_options(host, mount, "locks=sluice,transport=classic")
    }

    pub(crate) fn far_with_options(host: &Host, mount: u64, options: &str) -> Node {
        let dir = fresh_dir();
        let options = MountOptions::parse(options).expect("valid");
        let relay = Arc::new(Relay::mount(&dir, &options).expect("mounting works here"));
        let attachment = relay.next_attachment();
        let delivered = Arc::<Mutex<()>>::default();
        let line = Arc::new(Line { relay: Arc::downgrade(&relay), attachment, delivered: delivered.clone() });
        let guest = Arc::new(host.admit(line, true, mount).expect("admitted"));
        let server = Server::Remote(Arc::new(ToGuest::new(guest.clone())));
        relay.attach(attachment, server, &Default::default(), false);
        Node { relay, guest: Some(guest), dir, delivered }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.relay.unmount_lazily();
        let _ = fs::remove_dir(&self.dir);
    }
}

/// From a guest to a relay.
struct Line {
    relay: Weak<Relay>,
    attachment: u64,
    delivered: Arc<Mutex<()>>,
}

impl GuestChannel for Line {
    fn answer(&self, message: &[u8]) -> io::Result<()> {
        let relay = self.relay.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        relay.answer(self.attachment, message);
        drop(self.delivered.lock());
        Ok(())
    }

    fn announce(&self, notice: Notice) {
        if let Some(relay) = self.relay.upgrade() {
            let bytes = notice.bytes().to_vec();
            relay.announce(&bytes, move || drop(notice));
        }
    }
}

/// And back.
pub(crate) struct ToGuest {
    guest: Arc<Guest>,
    requests: mpsc::Sender<(Ticket, Vec<u8>)>,
}

impl ToGuest {
    pub(crate) fn new(guest: Arc<Guest>) -> ToGuest {
        let (requests, taken) = mpsc::channel::<(Ticket, Vec<u8>)>();
        let serves = guest.clone();
        thread::spawn(move || {
            for (ticket, mut message) in taken {
                let guest = serves.clone();
                if ticket.is_behind() {
                    // Before what comes after it.
                    guest.serve(ticket, &mut message);
                } else {
                    thread::spawn(move || guest.serve(ticket, &mut message));
                }
            }
        });
        ToGuest { guest, requests }
    }
}

impl Uplink for ToGuest {
    fn request(&self, message: &[u8]) {
        // An error means that the test is over.
        let _ = self.requests.send((self.guest.take(message), message.to_vec()));
    }
}

impl Pair {
    /// One near the host and one far from it.
    pub(crate) fn far() -> Option<Pair> {
        can_mount().then(|| {
            let host = Host::new(fresh_superblock());
            let nodes = vec![Node::new(&host, 1), Node::far(&host, 2)];
            Pair { host, nodes }
        })
    }

    pub(crate) fn new() -> Option<Pair> {
        can_mount().then(|| {
            let host = Host::new(fresh_superblock());
            let nodes = vec![Node::new(&host, 1), Node::new(&host, 2)];
            Pair { host, nodes }
        })
    }

    pub(crate) fn dirs(&self) -> (&Path, &Path) {
        (&self.nodes[0].dir, &self.nodes[1].dir)
    }

    pub(crate) fn finish(mut self) {
        for node in self.nodes.drain(..) {
            eventually("nothing uses the mount any more", || match node.relay.unmount() {
                Err(MountError::Busy(_)) => false,
                decided => decided.map(|()| true).expect("unmounting works"),
            });
            assert!(!is_mounted(&node.dir));
        }
        // A far node's threads let their guest go a little later.
        let check = || self.host.superblock().check_idle();
        eventually(&format!("an idle file system: {}", check()), || check().is_clean());
    }
}
