//! Setup: what the nodes of a cluster agree about: what it is called, its authority, its leases.
//!
//! ```text
//!   in a directory: cluster.json  name, length of leases
//!                   ca.pem ca.key the authority; the key may be taken away when all nodes have joined
//!                   members/      the lease directory of the nodes, locks/ that of the processes with locks
//!   at an etcd:     charter       name, length of leases, and the certificate of the authority; its key never
//! ```
//! While an authority replaces another, `ca.pem` and the charter hold the certificates of both.

use crate::rendezvous::Rendezvous;
use serde::{Deserialize, Serialize};
use sluice_membership::{ClusterCa, Etcd, Identity, LeaseDirectory, Membership};
use sluice_sync::Arc;
use sluice_sync::time::{Duration, SystemTime, UNIX_EPOCH};
use std::fs::{DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

const FILE: &str = "cluster.json";
const CERTIFICATE: &str = "ca.pem";
/// Bits of a store's epoch below the time at which the cluster was made.
const EPOCHS: u32 = 32;

/// A cluster, as its nodes find it.
#[derive(Clone, Debug)]
pub struct Cluster {
    place: Rendezvous,
    saved: Saved,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Saved {
    name: String,
    ttl_ms: u64,
    /// When it was made, in seconds since 1970.
    made: u64,
    /// The certificate of the cluster's authority, unless a file has it.
    #[serde(default)]
    authority: String,
}

impl Cluster {
    /// Makes a cluster at `place`, with leases of the length `ttl`. The key of its authority goes to `keys`, if it is not there
    /// already.
    ///
    /// # Errors
    /// `AlreadyExists` if there is one; the file system's; etcd's.
    pub fn init(place: &Rendezvous, keys: &Path, ttl: Duration) -> io::Result<Cluster> {
        let exists = |text: String| Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        let made = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let number = format!("{:016x}", RandomState::new().hash_one(made));
        let mut saved = Saved { name: number.clone(), ttl_ms, made, authority: String::new() };
        match place {
            Rendezvous::Directory(dir) => {
                let named =
                    |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
                // Whatever the umask allows: others must not change what nodes trust.
                DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(named)?;
                if dir.join(FILE).exists() {
                    return exists(format!("{}: there is a cluster already", dir.display()));
                }
                ClusterCa::new()?.save(keys)?;
                if keys != dir {
                    std::fs::copy(keys.join(CERTIFICATE), dir.join(CERTIFICATE))?;
                }
                let mut file =
                    File::options().write(true).create_new(true).mode(0o644).open(dir.join(FILE))?;
                file.write_all(&serde_json::to_vec(&saved)?)?;
            }
            Rendezvous::Etcd { endpoints, name } => {
                Etcd::check_lease(ttl)?;
                let access = Rendezvous::access(endpoints);
                let taken = || {
                    exists(format!(
                        "{place}: there is a cluster already: give another name behind the last /"
                    ))
                };
                if Etcd::charter(&access, name)?.is_some() {
                    return taken();
                }
                if keys.join(CERTIFICATE).exists() {
                    return exists(format!("{}: there are keys of a cluster already", keys.display()));
                }
                ClusterCa::new()?.save(keys)?;
                saved.authority = std::fs::read_to_string(keys.join(CERTIFICATE))?;
                saved.name = format!("{name}-{number}");
                if !Etcd::found(&access, name, ttl, &serde_json::to_string(&saved)?)? {
                    return taken();
                }
            }
        }
        Cluster::open(place)
    }

    /// The cluster at `place`.
    ///
    /// # Errors
    /// If the place has no cluster; errors of etcd.
    pub fn open(place: &Rendezvous) -> io::Result<Cluster> {
        let none = |kind, why: &str| {
            let place = match place {
                Rendezvous::Directory(dir) => dir.display().to_string(),
                Rendezvous::Etcd { .. } => place.to_string(),
            };
            io::Error::new(kind, format!("{place}: no cluster: make one with `sluice cluster init`{why}"))
        };
        let damaged = |_| {
            let text = format!(
                "{place}: what says which cluster this is is damaged: make the cluster anew, with other keys"
            );
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let saved: Saved = match place {
            Rendezvous::Directory(dir) => {
                let read = |name| {
                    std::fs::read(dir.join(name)).map_err(|error| none(error.kind(), &format!(" ({error})")))
                };
                let mut saved: Saved = serde_json::from_slice(&read(FILE)?).map_err(damaged)?;
                saved.authority = String::from_utf8_lossy(&read(CERTIFICATE)?).into_owned();
                saved
            }
            Rendezvous::Etcd { endpoints, name } => {
                let charter = Etcd::charter(&Rendezvous::access(endpoints), name)?;
                let charter = charter.ok_or_else(|| none(io::ErrorKind::NotFound, ""))?;
                serde_json::from_str(&charter).map_err(damaged)?
            }
        };
        Ok(Cluster { place: place.clone(), saved })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.saved.name
    }

    /// How long leases are.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.saved.ttl_ms)
    }

    /// The store's epoch for an epoch of this cluster: greater than all epochs of clusters that were made before, and
    /// with some room after each for programs that open the store by themselves, when no node has it.
    pub fn store_epoch(&self, epoch: u64) -> u64 {
        const ROOM: u32 = 8;
        (self.saved.made << EPOCHS) + (epoch << ROOM)
    }

    /// Whether a store whose newest epoch is `newest` was used by a cluster that was made after this one. No epoch of this cluster is greater.
    pub fn is_older_than(&self, newest: u64) -> bool {
        newest >> EPOCHS > self.saved.made
    }

    /// The identity of a node in `keys`; or a new one, if there is the key of the authority.
    ///
    /// # Errors
    /// If both the node's key and the authority's are missing; if the key in use is unreadable, or is of another cluster.
    pub fn identity(&self, keys: &Path) -> io::Result<Identity> {
        if !keys.join("node.key").exists() {
            return self.new_identity(keys);
        }
        let identity = Identity::load(keys).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => error,
            kind => io::Error::new(kind, format!("{}: no identity of a node: {error}", keys.display())),
        })?;
        self.check(identity, keys)
    }

    /// A new identity of a node, by the key of the authority in `keys`.
    ///
    /// # Errors
    /// If the key is missing, unreadable, or of another cluster.
    pub fn new_identity(&self, keys: &Path) -> io::Result<Identity> {
        let ca = ClusterCa::load(keys).map_err(|error| {
            if error.kind() == io::ErrorKind::InvalidData {
                return error;
            }
            let text = format!(
                "{}: no ca.key of the cluster's authority: bring here what `sluice cluster join` makes ({error})",
                keys.display()
            );
            io::Error::new(error.kind(), text)
        })?;
        self.check(ca.issue()?, keys)
    }

    fn check(&self, identity: Identity, keys: &Path) -> io::Result<Identity> {
        if !identity.believes_one_of(&self.saved.authority) {
            let text = format!("{}: of the authority of another cluster than {}", keys.display(), self.place);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(identity)
    }

    /// Its members.
    ///
    /// # Errors
    /// If the directory cannot be used, or etcd not be reached.
    pub fn membership(&self) -> io::Result<Arc<dyn Membership>> {
        self.members("members", "")
    }

    /// The processes that have or want locks of the cluster: no nodes of the file system.
    ///
    /// # Errors
    /// Errors of [`membership`](Self::membership).
    pub fn lock_membership(&self) -> io::Result<Arc<dyn Membership>> {
        self.members("locks", "+locks")
    }

    /// The members of workspace `number`: the nodes whose mounts use it.
    ///
    /// # Errors
    /// Errors of [`membership`](Self::membership).
    pub fn workspace_membership(&self, number: u32) -> io::Result<Arc<dyn Membership>> {
        self.members(&format!("workspace-{number}"), &format!("+workspace-{number}"))
    }

    fn members(&self, dir_name: &str, suffix: &str) -> io::Result<Arc<dyn Membership>> {
        match &self.place {
            Rendezvous::Directory(dir) => {
                let dir = dir.join(dir_name);
                let opened = LeaseDirectory::open(&dir, 1, self.ttl());
                let named = |error: io::Error| match error.raw_os_error() {
                    Some(_) => io::Error::new(error.kind(), format!("{}: {error}", dir.display())),
                    None => error,
                };
                Ok(Arc::new(opened.map_err(named)?))
            }
            Rendezvous::Etcd { endpoints, name } => {
                let name = format!("{name}{suffix}");
                Ok(Arc::new(Etcd::connect(&Rendezvous::access(endpoints), &name, 1, self.ttl())?))
            }
        }
    }
}
