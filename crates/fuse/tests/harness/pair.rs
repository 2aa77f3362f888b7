//! Pair: two mounts of one file system, each by a relay.

use super::{can_mount, eventually, fresh_dir, fresh_superblock, is_mounted};
use sluice_fuse::{Guest, Holdings, Host, MountError, MountOptions, Relay};
use sluice_sync::Arc;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub struct Pair {
    pub host: Host,
    pub nodes: Vec<Node>,
}

pub struct Node {
    pub relay: Relay,
    pub guest: Option<Arc<Guest>>,
    pub dir: PathBuf,
}

impl Node {
    pub fn new(host: &Host, mount: u64) -> Node {
        let dir = fresh_dir();
        let options = MountOptions::parse("locks=sluice,transport=classic").expect("valid");
        let relay = Relay::mount(&dir, &options).expect("mounting works here");
        let guest =
            relay.attach_host(host, &Holdings::default(), &BTreeMap::new(), false, mount).expect("admitted");
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

impl Pair {
    pub fn new() -> Option<Pair> {
        can_mount().then(|| {
            let host = Host::new(fresh_superblock(), 1);
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
