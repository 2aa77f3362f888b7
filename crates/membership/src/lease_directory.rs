//! Lease directory: the membership of the processes of one machine, as files that they make one after the other.
//!
//! # Theory
//! Each change makes a file with the whole registry, `registry.N`, where N is one more than the number of the file
//! before. It is written under another name, and linked: that fails if there is an N, as another process was first;
//! then the change is made again, from that one. So a process that stands still, wherever it does, is in nobody's way.
//!
//! The last [`KEPT`] files stay. A process that has stood still for longer may link a number that was made and removed
//! since. Files are removed in the order of their numbers: so if the file that the change was made from is still there
//! after the link, there was no such number before. If the file is gone, the process gets an error, and the outcome of
//! its change is unknown.
//!
//! Leases are counted by the machine's clock since boot: leases from before a boot are over.

use crate::clock::now;
use crate::lock_class::REGISTRY;
use crate::membership::Keeper;
use crate::registry::Registry;
use crate::view::View;
use serde::{Deserialize, Serialize};
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::time::{Duration, Instant, nanoseconds};
use sluice_sync::{Condvar, Mutex};
use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{io, process};

/// How often a process looks whether another has changed the registry.
const POLL: Duration = Duration::from_millis(20);

/// So many of the last files stay.
const KEPT: u64 = 128;
/// The prefixes of file names: of a complete file, and of a file that is being written.
const WHOLE: &str = "registry.";
const WRITTEN: &str = "written.";

/// A membership in a directory.
#[derive(Debug)]
pub struct LeaseDirectory {
    /// *immutable*
    dir: PathBuf,
    /// *immutable*
    shards: u16,
    /// *immutable*
    ttl: Duration,
    /// How often this process has changed it, for threads that wait for news.
    changes: Mutex<u64>,
    changed: Condvar,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Saved {
    /// Since which start of the machine its times count.
    boot: String,
    registry: Registry,
}

impl LeaseDirectory {
    /// The cluster of `dir`, which is created if missing. All its members say the same `shards` and `ttl`.
    ///
    /// # Errors
    /// If the directory cannot be made, or is of a cluster with another number of shards or length of leases.
    pub fn open(dir: &Path, shards: u16, ttl: Duration) -> io::Result<LeaseDirectory> {
        // Whatever the umask allows: others must not change the registry.
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        let changes = Mutex::with_class(&REGISTRY, 0);
        let membership =
            LeaseDirectory { dir: dir.to_path_buf(), shards, ttl, changes, changed: Condvar::new() };
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

impl LeaseDirectory {
    /// The newest registry that is whole, the number of the newest file (0 before the first), and how many damaged files are between
    /// the two. `None`: the file has just become an old one.
    fn newest(&self, boot: &str) -> io::Result<Option<(u64, Registry, u64)>> {
        let files = self.numbers(WHOLE)?;
        let number = files.last().map_or(0, |(number, _)| *number);
        let mut damaged = 0;
        // The name that earlier programs gave the file.
        let first = (0, self.dir.join("registry.json"));
        let candidates = if number == 0 { vec![first] } else { files };
        for (_, path) in candidates.iter().rev() {
            let bytes = match fs::read(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let none = || (0, Registry::new(self.shards, nanoseconds(self.ttl)), 0);
                    return Ok((number == 0).then(none));
                }
                bytes => bytes?,
            };
            let Ok(Saved { boot: of, mut registry }) = serde_json::from_slice(&bytes) else {
                damaged += 1;
                continue;
            };
            if of != boot {
                registry.expire(u64::MAX);
            }
            if damaged > 0 {
                registry.pass_over(now(), damaged);
            }
            return Ok(Some((number, registry, damaged)));
        }
        let what = format!(
            "{}: every file of the membership is damaged; unmount all nodes, and remove its registry.* files",
            self.dir.display()
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }

    /// Makes file `number`. False if another process has.
    fn add(&self, number: u64, saved: &Saved) -> io::Result<bool> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only uniqueness matters.
        let own = format!("{WRITTEN}{number}.{}.{}", process::id(), LAST.fetch_add(1, Ordering::Relaxed));
        let own = self.dir.join(own);
        let written = write_durably(&own, &serde_json::to_vec(saved)?);
        let linked = written.and_then(|()| self.link(&own, number));
        // A file that stays is removed later.
        let _ = fs::remove_file(&own);
        if !linked? {
            return Ok(false);
        }
        File::open(&self.dir)?.sync_all()?;
        if number > 1 && !self.whole(number - 1).exists() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "this process stood still for too long"));
        }
        for prefix in [WHOLE, WRITTEN] {
            for (_, old) in self.numbers(prefix)?.into_iter().filter(|(old, _)| old + KEPT < number) {
                // Another process removes them, too.
                let _ = fs::remove_file(old);
            }
        }
        Ok(true)
    }

    /// Gives the file `own` the name of file `number`. False if another process has one, or has removed `own` since its number is of long ago.
    fn link(&self, own: &Path, number: u64) -> io::Result<bool> {
        match fs::hard_link(own, self.whole(number)) {
            Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {
                Ok(false)
            }
            linked => linked.map(|()| true),
        }
    }

    /// The files of one kind by their numbers, in order.
    fn numbers(&self, prefix: &str) -> io::Result<Vec<(u64, PathBuf)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let number =
                name.to_str().and_then(|name| name.strip_prefix(prefix)?.split('.').next()?.parse().ok());
            found.extend(number.map(|number| (number, entry.path())));
        }
        found.sort_unstable();
        Ok(found)
    }

    fn whole(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{WHOLE}{number}"))
    }
}

/// Makes a file whose contents outlive a power failure once this has returned.
fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

impl Keeper for LeaseDirectory {
    fn lease(&self) -> Duration {
        self.ttl
    }
    fn shard_count(&self) -> u16 {
        self.shards
    }
    fn change<R>(&self, change: impl Fn(&mut Registry) -> R) -> io::Result<R> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        loop {
            let Some((number, mut registry, damaged)) = self.newest(&boot)? else { continue };
            let before = registry.clone();
            let result = change(&mut registry);
            if registry == before && number > 0 && damaged == 0 {
                return Ok(result);
            }
            if self.add(number + 1, &Saved { boot: boot.clone(), registry })? {
                *self.changes.lock() += 1;
                self.changed.notify_all();
                if damaged > 0 {
                    let dir = self.dir.display();
                    log::warn!(
                        "{dir}: passed over {damaged} damaged files of the membership, up to registry.{number}"
                    );
                }
                return Ok(result);
            }
        }
    }
    fn wait_for_view(&self, revision: u64, wait: Duration) -> io::Result<View> {
        let end = Instant::now() + wait;
        loop {
            let before = *self.changes.lock();
            let view = self.change(|registry| {
                registry.expire(now());
                registry.view().clone()
            })?;
            if view.revision > revision || Instant::now() >= end {
                return Ok(view);
            }
            let changes = self.changes.lock();
            if *changes == before {
                let _ = self.changed.wait_timeout(changes, POLL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Membership;

    #[test]
    fn what_one_process_changes_another_sees_until_leases_end() {
        let dir = std::env::temp_dir().join(format!("sluice-membership-leases-{}", std::process::id()));
        let open = |place: &str, shards, ttl| LeaseDirectory::open(&dir.join(place), shards, ttl);
        // This lease does not end while the machine is slow.
        let ttl = Duration::from_secs(600);
        let (a, b) = (open("long", 2, ttl).expect("made"), open("long", 2, ttl).expect("the same"));
        assert!(open("long", 3, ttl).is_err(), "another cluster");
        let node = a.join("here").expect("a member");
        assert!(a.claim(node, 1, 0).expect("reached"));
        let view = b.view(0, Duration::ZERO).expect("reached");
        assert_eq!(view.owners[1].map(|owner| owner.node), Some(node));
        // This node gets no request before its lease has ended.
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

    #[test]
    fn a_damaged_newest_file_keeps_nobody_out_and_no_number_is_given_again() {
        let dir = std::env::temp_dir().join(format!("sluice-membership-damaged-{}", std::process::id()));
        let open = || LeaseDirectory::open(&dir, 1, Duration::from_secs(600));
        let members = open().expect("made");
        let first = members.join("a").expect("a member");
        for damage in ["", "{\"boot\":"] {
            let lost = members.join("b").expect("a member");
            let newest = members.numbers(WHOLE).expect("read").pop().expect("a file");
            fs::write(&newest.1, damage).expect("damaged");
            let next = open().expect("passed over").join("c").expect("a member");
            assert!(next > lost, "{next:?} after {lost:?}");
            assert!(members.renew(first).expect("reached"), "its lease goes on");
        }
        for (_, path) in members.numbers(WHOLE).expect("read") {
            fs::write(path, "").expect("damaged");
        }
        assert!(open().expect_err("refused").to_string().contains("registry.*"));
        fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn a_process_that_stands_still_in_a_change_is_in_nobodys_way_and_loses_no_change_of_others() {
        let dir = std::env::temp_dir().join(format!("sluice-membership-still-{}", std::process::id()));
        let open = || LeaseDirectory::open(&dir, 1, Duration::from_secs(600)).expect("made");
        let (a, b) = (open(), open());
        for others in [1, 2 * KEPT] {
            let calls = AtomicU64::new(0);
            let changed = a.change(|registry| {
                // Relaxed: one thread.
                if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                    for _ in 0..others {
                        b.join("b").expect("a member");
                    }
                }
                registry.join(now(), "a")
            });
            match others {
                1 => assert!(b.view(0, Duration::ZERO).expect("read").is_alive(changed.expect("made again"))),
                _ => assert_eq!(changed.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut)),
            }
            let members = b.view(0, Duration::ZERO).expect("read").members.into_values();
            let of_b = members.filter(|member| member.address == "b").count() as u64;
            assert_eq!(of_b, if others == 1 { 1 } else { 1 + others });
        }
        assert!(a.numbers(WHOLE).expect("read").len() as u64 <= KEPT + 2);
        assert!(a.numbers(WRITTEN).expect("read").is_empty());
        // Others have removed what it had written: the change is made again.
        assert!(!a.link(&dir.join("written.1.0.0"), 1).expect("no error"));
        fs::remove_dir_all(dir).expect("removed");
    }
}
