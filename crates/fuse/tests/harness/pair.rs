//! Pair: two mounts of one file system, each by a relay.

use super::{can_mount, eventually, fresh_dir, fresh_superblock, is_mounted};
use sluice_fuse::{
    Guest, GuestChannel, Holdings, Host, MountError, MountOptions, Notice, Relay, Server, Ticket, Uplink,
};
use sluice_sync::{Arc, Weak, mpsc, thread};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

pub struct Pair {
    pub host: Host,
    pub nodes: Vec<Node>,
}

pub struct Node {
    pub relay: Arc<Relay>,
    pub guest: Option<Arc<Guest>>,
    pub dir: PathBuf,
}

impl Node {
    pub fn new(host: &Host, mount: u64) -> Node {
        Node::with_options(host, mount, "locks=sluice,transport=classic")
    }

    pub fn with_options(host: &Host, mount: u64, options: &str) -> Node {
        let dir = fresh_dir();
        let options = MountOptions::parse(options).expect("valid");
        let relay = Arc::new(Relay::mount(&dir, &options).expect("mounting works here"));
        let guest =
            relay.attach_host(host, &Holdings::default(), &BTreeMap::new(), false, mount).expect("admitted");
        Node { relay, guest: Some(guest), dir }
    }

    /// One whose server counts as being on another machine.
    pub fn far(host: &Host, mount: u64) -> Node {
        Node::far_with_options(host, mount, "locks=sluice,transport=classic")
    }

    pub fn far_with_options(host: &Host, mount: u64, options: &str) -> Node {
        let dir = fresh_dir();
        let options = MountOptions::parse(options).expect("valid");
        let relay = Arc::new(Relay::mount(&dir, &options).expect("mounting works here"));
        let attachment = relay.next_attachment();
        let line = Arc::new(Line { relay: Arc::downgrade(&relay), attachment });
        let guest = Arc::new(host.admit(line, true, mount).expect("admitted"));
        let server = Server::Remote(Arc::new(ToGuest::new(guest.clone())));
        relay.attach(attachment, server, &Default::default(), false);
        Node { relay, guest: Some(guest), dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
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
}

impl GuestChannel for Line {
    fn answer(&self, message: &[u8]) -> io::Result<()> {
        let relay = self.relay.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        relay.answer(self.attachment, message);
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
pub struct ToGuest {
    guest: Arc<Guest>,
    requests: mpsc::Sender<(Ticket, Vec<u8>)>,
}

impl ToGuest {
    pub fn new(guest: Arc<Guest>) -> ToGuest {
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
    pub fn far() -> Option<Pair> {
        can_mount().then(|| {
            let host = Host::new(fresh_superblock());
            let nodes = vec![Node::new(&host, 1), Node::far(&host, 2)];
            Pair { host, nodes }
        })
    }

    pub fn new() -> Option<Pair> {
        can_mount().then(|| {
            let host = Host::new(fresh_superblock());
            let nodes = vec![Node::new(&host, 1), Node::new(&host, 2)];
            Pair { host, nodes }
        })
    }

    pub fn dirs(&self) -> (&Path, &Path) {
        (&self.nodes[0].dir, &self.nodes[1].dir)
    }

    pub fn finish(mut self) {
        for node in self.nodes.drain(..) {
            eventually("nothing uses the mount any more", || match node.relay.unmount() {
                Err(MountError::Busy(_)) => false,
                decided => decided.map(|()| true).expect("unmounting works"),
            });
            assert!(!is_mounted(&node.dir));
        }
        let report = self.host.superblock().check_idle();
        assert!(report.is_clean(), "{report}");
    }
}
