//! Histories: programs on three mounts make calls at the same time, and an order must explain what every call answered.
//!
//! What the kernel keeps is real here, and nodes are killed while calls are under way. All other faults, with kernels that are played:
//! `seeds` of the cluster.
//!
//! *A node that is killed.* What its programs were told before may be lost with an owner, and is not if it was synchronised; what they
//! asked for last may have happened or not. What the next owner found in the store nobody looks at: it may be each tree that there was
//! since the last `fsync`.
//!
//! # Limits
//! Contents are compared at the end only. Linux's client goes on with the old size when a notice comes while it asks for attributes before a
//! read (see docs/cluster.md).

use crate::Cluster;
use crate::history::call::{
    Answer, Attr, CONTRADICTION, Call, DIRS, Outcome, Path as Name, Seen, Slot, Tree,
};
use crate::history::model::{EINVAL, EISDIR, ENOENT};
use crate::history::order::{Event, History, What, check};
use crate::random::Random;
use rustix::fs::FlockOperation;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

/// Calls that each program makes in a history.
const CALLS: u64 = 12;

/// A program on one mount: one call at a time.
struct Program {
    /// Where the two directories are.
    root: PathBuf,
    open: BTreeMap<Slot, (File, bool)>,
}

impl Program {
    /// The files that are open, and whether each is locked.
    fn open(&self) -> BTreeMap<Slot, bool> {
        self.open.iter().map(|(slot, (_, is_locked))| (*slot, *is_locked)).collect()
    }

    fn path(&self, name: Name) -> PathBuf {
        self.root.join(name.dir()).join(name.name())
    }

    fn call(&mut self, call: &Call) -> Outcome {
        Some(self.perform(call).map_err(|error| match (call, error.raw_os_error()) {
            // The model has one error for an open that finds a directory.
            (Call::Open(..), Some(EISDIR)) => EINVAL,
            (_, errno) => errno.unwrap_or(CONTRADICTION),
        }))
    }

    fn perform(&mut self, call: &Call) -> io::Result<Answer> {
        match *call {
            Call::Make(slot, name, appends) | Call::Open(slot, name, appends) => {
                let mut options = File::options();
                options.read(true).append(appends).write(true).create_new(matches!(call, Call::Make(..)));
                self.open.insert(slot, (options.open(self.path(name))?, false));
            }
            Call::Close(slot) => {
                // That a close ends a lock another machine hears a little later.
                if self.open.get(&slot).is_some_and(|(_, is_locked)| *is_locked) {
                    self.lock(slot, FlockOperation::Unlock)?;
                }
                self.open.remove(&slot);
            }
            // Written to an offset, which a file that was opened to append ignores.
            Call::Write(slot, offset, bytes) => self.open[&slot].0.write_all_at(&bytes, offset)?,
            Call::Read(slot) => {
                let mut bytes = vec![0; 4096];
                let length = self.open[&slot].0.read_at(&mut bytes, 0)?;
                bytes.truncate(length);
                return Ok(Answer::Bytes(bytes));
            }
            Call::Truncate(slot, size) => self.open[&slot].0.set_len(size)?,
            Call::Fsync(slot) => self.open[&slot].0.sync_all()?,
            Call::TryLock(slot) => self.lock(slot, FlockOperation::NonBlockingLockExclusive)?,
            Call::Unlock(slot) => self.lock(slot, FlockOperation::Unlock)?,
            Call::Stat(name) => return Ok(Answer::Attr(attr(&fs::metadata(self.path(name))?))),
            Call::Rename(old, new) => fs::rename(self.path(old), self.path(new))?,
            Call::Link(old, new) => fs::hard_link(self.path(old), self.path(new))?,
            Call::Unlink(name) => fs::remove_file(self.path(name))?,
            Call::Mkdir(name) => fs::create_dir(self.path(name))?,
            Call::Rmdir(name) => fs::remove_dir(self.path(name))?,
            // The machine has one kernel for all mounts.
            Call::DropCaches => {}
            Call::Look => return self.look().map(Answer::Tree),
        }
        Ok(Answer::Done)
    }

    fn lock(&mut self, slot: Slot, operation: FlockOperation) -> io::Result<()> {
        let (file, is_locked) = self.open.get_mut(&slot).expect("it is open");
        rustix::fs::flock(&*file, operation)?;
        *is_locked = operation != FlockOperation::Unlock;
        Ok(())
    }

    /// The whole tree. Nobody changes it meanwhile.
    fn look(&self) -> io::Result<Tree> {
        let mut tree = Tree::new();
        for dir in DIRS {
            let listed = fs::read_dir(self.root.join(dir))?.map(|entry| Ok(entry?.file_name()));
            let listed = listed.collect::<io::Result<BTreeSet<_>>>()?;
            for name in Name::all().filter(|name| name.dir() == dir) {
                let path = self.path(name);
                let metadata = match fs::metadata(&path) {
                    Err(error) if error.raw_os_error() == Some(ENOENT) => continue,
                    metadata => metadata?,
                };
                assert!(
                    listed.contains(std::ffi::OsStr::new(name.name())),
                    "{name:?} is there and not listed"
                );
                let seen = if metadata.is_dir() {
                    Seen::Dir
                } else {
                    let bytes = fs::read(path)?;
                    assert_eq!(bytes.len() as u64, metadata.len(), "{name:?}: its size and what is read");
                    Seen::File(bytes, metadata.nlink() as u32)
                };
                tree.insert(name, seen);
            }
            assert_eq!(
                listed.len(),
                tree.keys().filter(|name| name.dir() == dir).count(),
                "{listed:?}: {tree:?}"
            );
        }
        Ok(tree)
    }
}

fn attr(metadata: &fs::Metadata) -> Attr {
    Attr { size: metadata.len(), nlink: metadata.nlink() as u32, is_dir: metadata.is_dir() }
}

/// The lease where nodes die: each death is awaited for that long.
const SHORT_TTL: Duration = Duration::from_secs(4);
/// Longer than an answer of a dead owner is on its way to a program, and shorter than a lease.
const UNDER_WAY: Duration = Duration::from_millis(300);

/// What is recorded while programs make calls.
struct Record {
    clock: AtomicU64,
    events: Mutex<Vec<Event>>,
    /// Which nodes were killed.
    killed: Vec<AtomicBool>,
}

impl Record {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn push(&self, what: What, begun: u64, ended: Option<u64>) {
        self.events.lock().expect("no panic").push(Event { what, begun, ended });
    }

    fn is_dead(&self, node: usize) -> bool {
        self.killed[node].load(Ordering::SeqCst)
    }

    /// A program makes a call. False if its node has died: nobody knows what became of the call.
    fn call(&self, node: usize, program: &mut Program, call: Call) -> bool {
        let begun = self.now();
        let outcome = program.call(&call);
        let (outcome, ended) = if self.is_dead(node) { (None, None) } else { (outcome, Some(self.now())) };
        self.push(What::Call { node, call, outcome }, begun, ended);
        ended.is_some()
    }
}

/// Makes calls by a seed on all mounts at once, and then looks from each that lives. `victims` are killed meanwhile.
fn record(seed: u64, cluster: &Cluster, victims: &[usize]) -> History {
    let name = seed.to_string();
    let roots: Vec<_> = (0..cluster.nodes.len()).map(|node| cluster.path(node, &name)).collect();
    let record = Record {
        clock: AtomicU64::new(0),
        events: Mutex::default(),
        killed: roots.iter().map(|_| AtomicBool::new(false)).collect(),
    };
    let (record, serial) = (&record, &AtomicU64::new(1));
    // The programs, and what kills nodes.
    let together = &Barrier::new(roots.len() + 1);
    let programs = |node: usize, root: &Path| {
        let mut random = Random(seed << 8 | node as u64);
        let mut program = Program { root: root.to_owned(), open: BTreeMap::new() };
        together.wait();
        let mut lives = true;
        let mut calls = 0;
        while lives && calls < CALLS {
            let call = Call::draw(&mut random, &program.open(), serial.fetch_add(1, Ordering::SeqCst));
            calls += 1;
            lives = matches!(call, Call::Read(_)) || record.call(node, &mut program, call);
        }
        for slot in program.open().into_keys() {
            lives = lives && record.call(node, &mut program, Call::Close(slot));
        }
        // All victims are dead by now, and no takeover can have begun.
        together.wait();
        if record.is_dead(node) {
            together.wait();
            together.wait();
            return;
        }
        // Only a server that there is now does it, and this kernel has dropped by then what a takeover has made old.
        let here = root.join(format!("node {node} is served"));
        let served = File::create(here).and_then(|file| file.sync_all());
        together.wait();
        together.wait();
        served.expect("it is served");
        record.call(node, &mut program, Call::Look);
    };
    let was_owned = victims.iter().any(|victim| cluster.role(*victim) == "owner");
    let mut shaken = Vec::new();
    std::thread::scope(|scope| {
        for (node, root) in roots.iter().enumerate() {
            scope.spawn(move || programs(node, root));
        }
        together.wait();
        let at = Random(seed).below(CALLS * roots.len() as u64);
        while !victims.is_empty() && record.clock.load(Ordering::SeqCst) < at {
            std::thread::yield_now();
        }
        for &victim in victims {
            let at = record.now();
            record.killed[victim].store(true, Ordering::SeqCst);
            cluster.signal(victim, Signal::KILL);
            record.push(What::Death(victim), at, None);
            shaken.push((victim, at));
        }
        if !victims.is_empty() {
            std::thread::sleep(UNDER_WAY);
        }
        let taken_over = record.now();
        for &victim in victims {
            // A dead server's thread may wait in the kernel for the directory of a call that waits for the server. It is in use: its
            // connection ends, and the mount stays.
            let _ = Command::new("umount").arg("--force").arg(cluster.nodes[victim].path()).output();
        }
        together.wait();
        together.wait();
        if was_owned {
            record.push(What::Takeover(usize::MAX, None), taken_over, Some(record.now()));
        }
        together.wait();
    });
    let disturbed = shaken.iter().map(|(_, at)| *at).collect();
    let events = std::mem::take(&mut *record.events.lock().expect("no panic"));
    History { events, disturbed, shaken }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Makes the directories of a history; each node in turn, so that the owner and guests make them.
fn make_dirs(seed: u64, cluster: &Cluster) {
    let maker = cluster.path(seed as usize % cluster.nodes.len(), &seed.to_string());
    DIRS.iter().for_each(|dir| fs::create_dir_all(maker.join(dir)).expect("made"));
    // What is made before a history is not lost in it.
    File::open(maker).and_then(|dir| dir.sync_all()).expect("durable");
}

#[test]
fn what_programs_on_three_mounts_are_told_has_an_order() {
    let test = "what_programs_on_three_mounts_are_told_has_an_order";
    let Some(cluster) = Cluster::new(test, 3) else { return };
    for seed in 0..number("SLUICE_CLUSTER_HISTORIES", 100) {
        make_dirs(seed, &cluster);
        let history = record(seed, &cluster, &[]);
        check(&history).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    cluster.finish(&[]);
}

#[test]
fn what_programs_are_told_while_nodes_are_killed_has_an_order_and_what_was_synchronised_is_there() {
    let test =
        "what_programs_are_told_while_nodes_are_killed_has_an_order_and_what_was_synchronised_is_there";
    let Some(mut cluster) = Cluster::over(true, test, 3, SHORT_TTL) else { return };
    let from = number("SLUICE_CLUSTER_SEED", 0);
    for seed in from..from + number("SLUICE_CLUSTER_DEATHS", 3) {
        make_dirs(seed, &cluster);
        let owner = (0..3).find(|node| cluster.role(*node) == "owner").expect("one owns");
        let victims: &[usize] = match seed % 3 {
            0 => &[owner],
            1 => &[(owner + 1) % 3],
            _ => &[owner, (owner + 1) % 3],
        };
        let history = record(seed, &cluster, victims);
        check(&history).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        for &victim in victims {
            let fresh = cluster.join();
            let _ = std::mem::replace(&mut cluster.nodes[victim], fresh).unmount();
        }
    }
    cluster.finish(&[]);
}
