//! Setup: the directory that the nodes of a cluster share: what it is called, its authority, its leases.
//!
//! ```text
//!   cluster.json    name, length of leases
//!   ca.pem ca.key   the authority; the key may be taken away when all nodes have joined
//!   members/        the lease directory
//! ```

use serde::{Deserialize, Serialize};
use sluice_dlm::{ClusterCa, Identity, LeaseDirectory, Membership};
use sluice_sync::Arc;
use sluice_sync::time::{Duration, SystemTime, UNIX_EPOCH};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

const FILE: &str = "cluster.json";

/// A cluster's shared directory.
#[derive(Clone, Debug)]
pub struct Cluster {
    dir: PathBuf,
    saved: Saved,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Saved {
    name: String,
    ttl_ms: u64,
    /// When it was made, in seconds since 1970.
    made: u64,
}

impl Cluster {
    /// Makes a cluster in `dir`, with leases of the length `ttl`.
    ///
    /// # Errors
    /// `AlreadyExists` if there is one; the file system's.
    pub fn init(dir: &Path, ttl: Duration) -> io::Result<Cluster> {
        std::fs::create_dir_all(dir)?;
        if dir.join(FILE).exists() {
            let text = format!("{}: there is a cluster already", dir.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        ClusterCa::new()?.save(dir)?;
        let name = format!("{:016x}", RandomState::new().hash_one(dir));
        let made = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let saved = Saved { name, ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX), made };
        std::fs::write(dir.join(FILE), serde_json::to_vec(&saved)?)?;
        Cluster::open(dir)
    }

    /// The cluster in `dir`.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(dir: &Path) -> io::Result<Cluster> {
        let bytes = std::fs::read(dir.join(FILE)).map_err(|error| {
            let text =
                format!("{}: no cluster: make one with `sluice cluster init` ({error})", dir.display());
            io::Error::new(error.kind(), text)
        })?;
        Ok(Cluster { dir: dir.to_path_buf(), saved: serde_json::from_slice(&bytes)? })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.saved.name
    }

    /// How long leases are.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.saved.ttl_ms)
    }

    /// What a store is told for an epoch of this cluster: greater than for all clusters that were made before, and with some room
    /// after each for programs that open the store by themselves, when no node has it.
    pub fn store_epoch(&self, epoch: u64) -> u64 {
        const ROOM: u32 = 8;
        const EPOCHS: u32 = 32;
        (self.saved.made << EPOCHS) + (epoch << ROOM)
    }

    /// A new identity of a node.
    ///
    /// # Errors
    /// If the key of the authority is not there, or may not be read.
    pub fn issue(&self) -> io::Result<Identity> {
        let ca = ClusterCa::load(&self.dir).map_err(|error| {
            let text = format!(
                "{}: cannot make an identity without ca.key: give one with --identity ({error})",
                self.dir.display()
            );
            io::Error::new(error.kind(), text)
        })?;
        ca.issue()
    }

    /// Its members.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn membership(&self) -> io::Result<Arc<dyn Membership>> {
        Ok(Arc::new(LeaseDirectory::open(&self.dir.join("members"), 1, self.ttl())?))
    }
}
