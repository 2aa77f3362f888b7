//! A store on a small disk is filled, emptied and written to again: what was deleted is room at once, and nothing is lost.
//!
//! `SLUICE_ROOM_ROUNDS` says how often, `SLUICE_ROOM_SEED` where the random numbers begin.

use crate::harness::{Scratch, can_mount, skipped, sluice, small_disk, umount, until};
use sluice_sync::random::{Random, fresh_seed};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

/// A store on a disk of its own, and the files that it must have.
struct Station {
    random: Random,
    disk: PathBuf,
    store: PathBuf,
    dir: PathBuf,
    /// `size=` of the mount.
    size: Option<u64>,
    /// Name, seed of the contents, length.
    files: BTreeMap<String, (u64, u64)>,
    named: u64,
}

/// The contents of a file.
fn contents(seed: u64, len: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes()).collect();
    bytes.truncate(len as usize);
    bytes
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error())
}

impl Station {
    fn mount(&self) {
        let options = self.size.map(|size| format!("size={size}"));
        let options = options.iter().flat_map(|options| ["-o", options]).map(AsRef::as_ref);
        let mount = ["mount".as_ref()].into_iter().chain(options);
        sluice(mount.chain([self.store.as_os_str(), self.dir.as_os_str()])).well();
    }

    /// Bytes that `df` calls available.
    fn available(&self) -> u64 {
        let told = rustix::fs::statvfs(&self.dir).expect("a mount");
        told.f_bavail * told.f_frsize
    }

    /// Bytes that the files take, in whole pages.
    fn taken(&self) -> u64 {
        self.files.values().map(|(_, len)| len.next_multiple_of(4096)).sum()
    }

    /// Writes a file of `len` bytes and makes it durable. Removes the file if there is no room.
    fn write(&mut self, len: u64) -> io::Result<()> {
        let (name, seed) = (format!("f{}", self.named), self.random.bits());
        self.named += 1;
        let path = self.dir.join(&name);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(&contents(seed, len))?;
            file.sync_all()
        };
        let written = write();
        match written {
            Ok(()) => _ = self.files.insert(name, (seed, len)),
            // Without room for the name there is no file.
            Err(_) => fs::remove_file(&path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?,
        }
        written
    }

    /// A length of a small file or of a large one.
    fn len(&mut self) -> u64 {
        if self.random.chance(70) {
            self.random.between(1, 20_000)
        } else {
            self.random.between(MIB, 12 * MIB)
        }
    }

    /// Writes files until one has no room, and returns how many bytes that were.
    fn fill(&mut self) -> u64 {
        let before = self.taken();
        loop {
            let len = self.len();
            match self.write(len) {
                Ok(()) => {}
                Err(error) if is_full(&error) => return self.taken() - before,
                Err(error) => panic!("a full disk is ENOSPC: {error}"),
            }
        }
    }

    /// Removes about `percent` of the files, and returns how many bytes these took.
    fn remove(&mut self, percent: u64) -> u64 {
        let before = self.taken();
        let names: Vec<String> = self.files.keys().cloned().collect();
        for name in names.into_iter().filter(|_| self.random.chance(percent)) {
            fs::remove_file(self.dir.join(&name)).expect("a deletion needs no room");
            self.files.remove(&name);
        }
        before - self.taken()
    }

    fn check(&self) {
        for (name, (seed, len)) in &self.files {
            let found = fs::read(self.dir.join(name)).expect("it was made durable");
            assert!(found == contents(*seed, *len), "{name} of {len} bytes");
        }
        let names = fs::read_dir(&self.dir).expect("a directory").count();
        assert_eq!(names, self.files.len(), "names of files that were removed, or are lost");
    }

    fn snapshot(&self, what: &str, name: &str) -> bool {
        let ran = sluice(["snapshot", what, self.dir.to_str().expect("a name"), name]);
        assert!(ran.status == Some(0) || ran.stderr.contains("ENOSPC"), "{}", ran.stderr);
        ran.status == Some(0)
    }

    /// Fills the disk, deletes, and writes again.
    fn round(&mut self) {
        let free = self.available();
        let written = self.fill();
        // A file that has no room is 12 MiB at most, and records take room, too.
        assert!(written + free / 4 + 13 * MIB > free, "{written} bytes were all where df said {free}");
        let has_snapshot = self.random.chance(40) && self.snapshot("create", "kept");
        let percent = self.random.pick(&[30, 70, 100]);
        let freed = self.remove(percent);
        if has_snapshot {
            assert!(self.snapshot("delete", "kept"), "a deletion needs no room");
        }
        // The last writes may have used some of the room that is reserved for deletions: the reserve gets that back first.
        let freed = freed.saturating_sub(written.saturating_sub(free));
        let again = freed - freed / 4;
        if self.random.chance(20) {
            until("df shows what was deleted", || self.available() >= again);
        }
        let goal = self.taken() + again;
        while self.taken() < goal {
            let len = self.len().min(goal - self.taken());
            self.write(len).unwrap_or_else(|error| {
                let (missing, free) = (goal - self.taken(), self.available());
                panic!(
                    "{freed} bytes of room came back, {missing} of {again} have no room, df: {free}: {error}"
                )
            });
        }
        self.check();
    }

    fn fsck(&self) {
        umount(&self.dir);
        sluice(["fsck".as_ref(), self.store.as_os_str()]).well();
        self.mount();
        self.check();
    }

    /// Removes all, and sees that the disk has it back.
    fn end(&mut self) {
        self.remove(100);
        umount(&self.dir);
        sluice(["fsck".as_ref(), self.store.as_os_str()]).well();
        let files = fs::read_dir(&self.store).expect("a store").flatten();
        let segments = files.filter(|file| file.file_name().to_string_lossy().starts_with("segment"));
        let left: u64 = segments.map(|file| file.metadata().expect("it stays").blocks() * 512).sum();
        assert!(left <= MIB, "{left} bytes are left after everything was deleted");
        // Its memory is for the next one.
        until("the disk is not in use", || {
            Command::new("umount").arg(&self.disk).output().expect("umount runs").status.success()
        });
    }
}

fn station(scratch: &Scratch, number: u64, mut random: Random, mib: u64) -> Option<Station> {
    let disk = small_disk(scratch, &format!("disk-{number}"), &format!("{mib}m"))?;
    let (store, dir) = (disk.join("store"), scratch.dir(&format!("m-{number}")));
    sluice(["mkfs".as_ref(), store.as_os_str()]).well();
    // The disk may have more than the quota, or less.
    let size = random.chance(40).then(|| random.between(mib / 3, mib) * MIB);
    let station = Station { random, disk, store, dir, size, files: BTreeMap::new(), named: 0 };
    station.mount();
    Some(station)
}

#[test]
fn what_was_deleted_on_a_full_disk_can_be_written_again() {
    let name = "what_was_deleted_on_a_full_disk_can_be_written_again";
    if !can_mount(name) {
        return;
    }
    let read = |variable: &str| Path::new(&std::env::var_os(variable)?).to_str()?.parse::<u64>().ok();
    let rounds = read("SLUICE_ROOM_ROUNDS").unwrap_or(3);
    let seed = read("SLUICE_ROOM_SEED").unwrap_or_else(fresh_seed);
    println!("SLUICE_ROOM_SEED={seed}");
    let scratch = Scratch::new();
    let (mut random, mut done) = (Random::new(seed), 0);
    // Larger disks with more rounds.
    let sizes: &[u64] = if rounds < 20 { &[150] } else { &[150, 200, 300, 500, 1000, 2000] };
    for number in 0.. {
        let mib = random.pick(sizes);
        let Some(mut station) = station(&scratch, number, Random::new(random.bits()), mib) else {
            return skipped(name, "no tmpfs can be mounted: run as root");
        };
        let here = random.between(2, 5).min(rounds - done);
        for round in 0..here {
            println!("round {} of {rounds}: disk of {mib} MiB, size={:?}", done + round, station.size);
            station.round();
            if station.random.chance(50) {
                station.fsck();
            }
        }
        station.end();
        done += here;
        if done == rounds {
            return;
        }
    }
}
