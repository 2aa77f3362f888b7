//! Lease directory: the membership of the processes of one machine, as a file that they change one after the other.
//!
//! `registry.json` is replaced as a whole, under a lock on the file `lock`. Leases are counted by the clock of the machine, from
//! when it was started: what is from before is over.

use super::{Keeper, Registry};
use crate::clock::now;
use crate::view::View;
use serde::{Deserialize, Serialize};
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant, nanoseconds};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// How often a process looks whether another has changed the registry.
const POLL: Duration = Duration::from_millis(20);

/// A membership in a directory.
#[derive(Debug)]
pub struct LeaseDirectory {
    /// *immutable*
    dir: PathBuf,
    /// *immutable*
    shards: u16,
    /// *immutable*
    ttl: Duration,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Saved {
    /// Since which start of the machine its times count.
    boot: String,
    registry: Registry,
}

impl LeaseDirectory {
    /// The cluster of `dir`, which is made if it is not there. All its members say the same `shards` and `ttl`.
    ///
    /// # Errors
    /// If the directory cannot be made, or is of a cluster with another number of shards or length of leases.
    pub fn open(dir: &Path, shards: u16, ttl: Duration) -> io::Result<LeaseDirectory> {
        fs::create_dir_all(dir)?;
        let membership = LeaseDirectory { dir: dir.to_path_buf(), shards, ttl };
        let same = membership.change(|registry| {
            registry.view().owners.len() == usize::from(shards) && registry.ttl == nanoseconds(ttl)
        })?;
        if !same {
            let what =
                format!("{}: a cluster with other shards or leases; use another directory", dir.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(membership)
    }
}

impl Keeper for LeaseDirectory {
    fn lease(&self) -> Duration {
        self.ttl
    }
    fn shard_count(&self) -> u16 {
        self.shards
    }
    fn change<R>(&self, change: impl FnOnce(&mut Registry) -> R) -> io::Result<R> {
        let lock = File::create(self.dir.join("lock"))?;
        lock.lock()?;
        let path = self.dir.join("registry.json");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut registry = match fs::read(&path) {
            Ok(bytes) => {
                let saved: Saved = serde_json::from_slice(&bytes)?;
                let mut registry = saved.registry;
                if saved.boot != boot {
                    registry.expire(u64::MAX);
                }
                registry
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Registry::new(self.shards, nanoseconds(self.ttl))
            }
            Err(error) => return Err(error),
        };
        let before = registry.clone();
        let result = change(&mut registry);
        if registry != before || !path.exists() {
            let new = self.dir.join("registry.new");
            fs::write(&new, serde_json::to_vec(&Saved { boot, registry })?)?;
            fs::rename(new, path)?;
        }
        Ok(result)
    }
    fn wait_for_view(&self, revision: u64, wait: Duration) -> io::Result<View> {
        let end = Instant::now() + wait;
        loop {
            let view = self.change(|registry| {
                registry.expire(now());
                registry.view().clone()
            })?;
            if view.revision > revision || Instant::now() >= end {
                return Ok(view);
            }
            thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Membership;

    #[test]
    fn what_one_process_changes_another_sees_until_leases_end() {
        let dir = std::env::temp_dir().join(format!("sluice-dlm-leases-{}", std::process::id()));
        let open = |place: &str, shards, ttl| LeaseDirectory::open(&dir.join(place), shards, ttl);
        // This lease does not end while the machine is slow.
        let ttl = Duration::from_secs(600);
        let (a, b) = (open("long", 2, ttl).expect("made"), open("long", 2, ttl).expect("the same"));
        assert!(open("long", 3, ttl).is_err(), "another cluster");
        let node = a.join("here").expect("a member");
        assert!(a.claim(node, 1, 0).expect("reached"));
        let view = b.view(0, Duration::ZERO).expect("reached");
        assert_eq!(view.owners[1].map(|owner| owner.node), Some(node));
        // Of this one nobody asks anything before it has ended.
        let ttl = Duration::from_millis(200);
        let (a, b) = (open("short", 2, ttl).expect("made"), open("short", 2, ttl).expect("the same"));
        let node = a.join("here").expect("a member");
        let limit = Instant::now() + Duration::from_secs(60);
        let mut view = b.view(0, Duration::ZERO).expect("reached");
        while view.is_alive(node) && Instant::now() < limit {
            view = b.view(view.revision, Duration::from_secs(1)).expect("reached");
        }
        assert!(!view.is_alive(node) && !a.renew(node).expect("reached"));
        assert!(b.fenced(node).expect("reached"));
        fs::remove_dir_all(dir).expect("removed");
    }
}
