//! Histories: programs on three mounts make calls at the same time, and an order must explain what every call answered.
//!
//! The kernel's caches are real here, and nothing fails. With failing nodes, whose kernels are played: `seeds` of the cluster.
//!
//! # Limits
//! Contents are compared at the end only. Linux's client goes on with the old size when a notice comes while it asks for attributes before a
//! read (see docs/cluster.md).

use super::Cluster;
use crate::history::call::{
    Answer, Attr, CONTRADICTION, Call, DIRS, Outcome, Path as Name, SLOTS, Seen, Slot, Tree,
};
use crate::history::model::{EINVAL, EISDIR, ENOENT};
use crate::history::order::{Event, History, What, check};
use rustix::fs::FlockOperation;
use sluice_sync::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};

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

/// Makes calls by a seed on all mounts at once, and then looks from each.
fn record(seed: u64, roots: &[PathBuf]) -> History {
    let (clock, serial) = (AtomicU64::new(0), AtomicU64::new(1));
    let (clock, serial) = (&clock, &serial);
    let (events, together) = (Mutex::new(Vec::new()), Barrier::new(roots.len()));
    let make = |node: usize, program: &mut Program, call: Call| {
        let begun = clock.fetch_add(1, Ordering::SeqCst);
        let outcome = program.call(&call);
        let ended = Some(clock.fetch_add(1, Ordering::SeqCst));
        events.lock().expect("no panic").push(Event {
            what: What::Call { node, call, outcome },
            begun,
            ended,
        });
    };
    std::thread::scope(|scope| {
        for (node, root) in roots.iter().enumerate() {
            let (make, together) = (&make, &together);
            scope.spawn(move || {
                let mut random = Random::new(seed << 8 | node as u64);
                let mut program = Program { root: root.clone(), open: BTreeMap::new() };
                together.wait();
                for _ in 0..CALLS {
                    let call =
                        Call::draw(&mut random, &program.open(), serial.fetch_add(1, Ordering::SeqCst));
                    if !matches!(call, Call::Read(_)) {
                        make(node, &mut program, call);
                    }
                }
                (0..SLOTS)
                    .filter(|slot| program.open.contains_key(slot))
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|slot| {
                        make(node, &mut program, Call::Close(slot));
                    });
                together.wait();
                make(node, &mut program, Call::Look);
            });
        }
    });
    History { events: events.into_inner().expect("no panic"), ..History::default() }
}

#[test]
fn what_programs_on_three_mounts_are_told_has_an_order() {
    let test = "what_programs_on_three_mounts_are_told_has_an_order";
    let Some(cluster) = Cluster::new(test, 3) else { return };
    let histories =
        std::env::var("SLUICE_CLUSTER_HISTORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    for seed in 0..histories {
        let roots = [0, 1, 2].map(|node| cluster.path(node, &seed.to_string()));
        // Each in turn makes the directories, so that the owner and guests make them.
        let maker: &Path = &roots[seed as usize % 3];
        DIRS.iter().for_each(|dir| fs::create_dir_all(maker.join(dir)).expect("made"));
        let history = record(seed, &roots);
        check(&history).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    cluster.finish(&[]);
}
