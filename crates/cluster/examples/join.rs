//! Join: a program that is a node of a cluster, with its mount. All nodes show one file system.
//!
//! `cargo run -p sluice-cluster --example join -- CLUSTER STORE DIR`, on each machine, until it is unmounted or a signal comes.
//! CLUSTER is a directory that all nodes of this machine see, such as `dir:/tmp/c`, or `http://ETCD:2379/NAME`; the first node makes
//! it. STORE is `file:///DIRECTORY` or `s3://BUCKET/PATH`; the first node makes it, too.

use sluice_bucket::{Bucket, Claim};
use sluice_cluster::{Cluster, Config, Node, Rendezvous};
use sluice_fuse::{Mount, StopSignals};
use sluice_vfs::{Options, StoreError, Superblock};
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The owner of a node's locks and caches waits so long for a node that it cannot reach.
const LEASE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, store, dir] = &arguments[..] else { return Err("usage: join CLUSTER STORE DIR".into()) };

    let place: Rendezvous = place.parse()?;
    let keys = place.keys();
    let cluster = match Cluster::open(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let cluster = Cluster::init(&place, &keys, LEASE)?;
            // An empty file system, which is closed at once: the owner opens it.
            let made = Bucket::make(store)?.create(Options::default().store)?;
            Superblock::create_in(made, Options::default())?.close()?;
            cluster
        }
        opened => opened?,
    };

    let (name, of) = (store.clone(), cluster.clone());
    let open = move |epoch| {
        let opened = || -> Result<_, StoreError> {
            let claim = Claim::Epoch(of.store_epoch(epoch));
            let store = Bucket::at(&name)?.open(claim, Options::default().store)?;
            Superblock::open_in(store, Options::default())
        };
        opened().map_err(io::Error::other)
    };
    let config = Config {
        cluster: cluster.name().to_owned(),
        listen: (place.own_address()?, 0).into(),
        identity: cluster.identity(&keys)?,
        membership: cluster.membership()?,
        open: Arc::new(open),
        dir: dir.into(),
        options: Mount::builder(),
        workspaces: None,
    };
    let signals = StopSignals::catch()?;
    let node = Node::start(config)?;
    if !node.await_server(Duration::from_secs(30)) {
        return Err(node.last_failure().unwrap_or_else(|| "no node serves the file system".into()).into());
    }
    println!("{:?}", node.status().role);
    node.run_until_signal(signals)?;
    node.leave()?;
    Ok(())
}
