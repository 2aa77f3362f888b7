//! Harness: nodes of one cluster in this process, each with its mount, gone when the test ends.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

use sluice_cluster::{Config, Node, Open, Role};
use sluice_fuse::{MountError, MountOptions};
use sluice_membership::Identity;
use sluice_vfs::{Options, Superblock};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// After this long something is taken to hang. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(120);

/// Says why nothing can be mounted, if that is so.
pub fn can_mount() -> bool {
    let usable = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !usable {
        eprintln!("SKIPPED: no /dev/fuse, or not root: this test of a cluster did not run");
    }
    usable
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A directory of a test's own.
pub fn fresh_dir() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("sluice-cluster-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
    dir
}

/// Runs `mapper ARGUMENTS...` (see `mapper.c`), or says why not.
pub fn mapper(arguments: &[&str]) -> Option<Child> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mapper.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mapper-{}", std::process::id()));
        let Ok(status) = Command::new("cc").args(["-O1", "-Wall", "-o"]).args([&program, &source]).status()
        else {
            eprintln!("SKIPPED: no C compiler (install gcc): no program maps a file");
            return None;
        };
        assert!(status.success(), "mapper.c does not compile");
        Some(program)
    };
    let program = PROGRAM.get_or_init(compile).as_ref()?;
    Some(Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().expect("it runs"))
}

/// A cluster and its nodes.
pub struct Cluster {
    shared: PathBuf,
    cluster: sluice_cluster::Cluster,
    nodes: Vec<Option<(Node, PathBuf)>>,
}

impl Cluster {
    /// An empty one, if file systems can be mounted here.
    pub fn new() -> Option<Cluster> {
        can_mount().then(|| {
            let shared = fresh_dir();
            let cluster = {
                let place = sluice_cluster::Rendezvous::Directory(shared.clone());
                sluice_cluster::Cluster::init(&place, &shared, Duration::from_secs(20)).expect("made")
            };
            let made = Superblock::create(shared.join("store"), Options::default()).expect("made");
            made.close().expect("closed");
            Cluster { shared, cluster, nodes: Vec::new() }
        })
    }

    /// One more node, which is served.
    pub fn join(&mut self) -> usize {
        let store = self.store();
        let node = self
            .start(Arc::new(move |_| Superblock::open(&store, Options::default()).map_err(io::Error::other)));
        assert!(self.node(node).await_server(HANG), "{:?}", self.node(node).status());
        node
    }

    /// One more node, which `open`s the store so, and may have no server yet.
    pub fn start(&mut self, open: Open) -> usize {
        let dir = fresh_dir();
        let config = Config {
            cluster: self.cluster.name().to_string(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            identity: self.identity(),
            membership: self.cluster.membership().expect("it is there"),
            open,
            dir: dir.clone(),
            options: MountOptions::parse("locks=sluice,transport=classic").expect("valid"),
            workspaces: None,
        };
        let node = Node::start(config).expect("started");
        self.nodes.push(Some((node, dir)));
        self.nodes.len() - 1
    }

    /// The name of the cluster.
    pub fn name(&self) -> &str {
        self.cluster.name()
    }

    /// The directory of the store.
    pub fn store(&self) -> PathBuf {
        self.shared.join("store")
    }

    pub fn identity(&self) -> Identity {
        self.cluster.identity(&self.shared).expect("issued")
    }

    pub fn node(&self, number: usize) -> &Node {
        &self.nodes[number].as_ref().expect("it has not left").0
    }

    pub fn role(&self, number: usize) -> Role {
        self.node(number).status().role
    }

    /// Where others reach it.
    pub fn address(&self, number: usize) -> String {
        let view = self.cluster.membership().and_then(|all| all.view(0, Duration::ZERO)).expect("reached");
        let id = sluice_membership::NodeId(self.node(number).status().node);
        view.members[&id].address.clone()
    }

    /// `name` in its mount.
    pub fn path(&self, number: usize, name: &str) -> PathBuf {
        self.nodes[number].as_ref().expect("it has not left").1.join(name)
    }

    /// It unmounts and leaves.
    pub fn leave(&mut self, number: usize) {
        let (node, dir) = self.nodes[number].take().expect("it has not left");
        eventually("nothing uses the mount any more", || match node.unmount() {
            Err(MountError::Busy(_)) => false,
            decided => decided.map(|()| true).expect("unmounting works"),
        });
        node.leave().expect("everything is durable");
        std::fs::remove_dir(dir).expect("it is empty");
    }

    /// All leave; the store is sound.
    pub fn finish(mut self) {
        for number in 0..self.nodes.len() {
            if self.nodes[number].is_some() {
                self.leave(number);
            }
        }
        let store = self.shared.join("store");
        let again = Superblock::open(store, Options::default()).expect("it was closed");
        assert!(again.check().is_clean(), "{}", again.check());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (node, dir) in self.nodes.drain(..).flatten() {
            let _ = node.relay().unmount_lazily();
            drop(node);
            let _ = std::fs::remove_dir(dir);
        }
        let _ = std::fs::remove_dir_all(&self.shared);
    }
}
