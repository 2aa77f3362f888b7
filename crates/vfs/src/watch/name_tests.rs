//! The naive model of names after a crash: steps as the header of `journal.rs` has them, each pair compared, and every subset of those
//! that are not durable tried.

use super::tests::{crash, tracked};
use crate::{Cred, FileType, Fs, OpenFlags, Process};
use sluice_sync::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Type and device number tell an inode from others.
type Tree = BTreeMap<PathBuf, (FileType, u64)>;
type Slot = (u64, String);

#[derive(Clone, Debug)]
struct JournalStep {
    names: Vec<(Slot, Option<u64>)>,
    inodes: BTreeSet<u64>,
    moves_directory: bool,
}

impl JournalStep {
    fn depends_on(&self, earlier: &JournalStep) -> bool {
        let dirs =
            |step: &JournalStep| -> BTreeSet<u64> { step.names.iter().map(|((dir, _), _)| *dir).collect() };
        let slots = |step: &JournalStep| -> BTreeSet<Slot> {
            step.names.iter().map(|(slot, _)| slot.clone()).collect()
        };
        !self.inodes.is_disjoint(&earlier.inodes)
            || !self.inodes.is_disjoint(&dirs(earlier))
            || !dirs(self).is_disjoint(&earlier.inodes)
            || !slots(self).is_disjoint(&slots(earlier))
            || self.moves_directory && earlier.moves_directory
    }
}

#[derive(Clone, Default)]
struct Model {
    durable: BTreeMap<Slot, u64>,
    now: BTreeMap<Slot, u64>,
    steps: Vec<JournalStep>,
    /// Type and number of each inode, the root's first.
    inodes: Vec<(FileType, u64)>,
}

fn apply(tree: &mut BTreeMap<Slot, u64>, step: &JournalStep) {
    for (slot, ino) in &step.names {
        match ino {
            Some(ino) => drop(tree.insert(slot.clone(), *ino)),
            None => drop(tree.remove(slot)),
        }
    }
}

impl Model {
    fn new() -> Model {
        Model { inodes: vec![(FileType::Directory, 0)], ..Model::default() }
    }

    fn ino(&self, path: &str) -> u64 {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.fold(0, |dir, name| self.now[&(dir, name.to_owned())])
    }

    fn slot(&self, path: &str) -> Slot {
        let (dir, name) = path.rsplit_once('/').expect("absolute");
        (self.ino(dir), name.to_owned())
    }

    fn put_down(&mut self, names: Vec<(Slot, Option<u64>)>, inodes: &[u64], moves_directory: bool) {
        let step = JournalStep { names, inodes: inodes.iter().copied().collect(), moves_directory };
        apply(&mut self.now, &step);
        self.steps.push(step);
    }

    /// All earlier ones that the chosen ones depend on, by trying until nothing changes.
    fn closed(&self, mut chosen: BTreeSet<usize>) -> BTreeSet<usize> {
        loop {
            let more = chosen.iter().flat_map(|later| {
                (0..*later).filter(|earlier| self.steps[*later].depends_on(&self.steps[*earlier]))
            });
            let all: BTreeSet<usize> = more.chain(chosen.iter().copied()).collect();
            if all == chosen {
                return all;
            }
            chosen = all;
        }
    }

    fn synced(&mut self, ino: u64) {
        let concerns = |step: &JournalStep| {
            step.inodes.contains(&ino) || step.names.iter().any(|((dir, _), _)| *dir == ino)
        };
        let chosen = self.closed((0..self.steps.len()).filter(|at| concerns(&self.steps[*at])).collect());
        chosen.iter().for_each(|at| apply(&mut self.durable, &self.steps[*at]));
        let mut at = 0;
        self.steps.retain(|_| {
            at += 1;
            !chosen.contains(&(at - 1))
        });
    }

    fn tree(&self, names: &BTreeMap<Slot, u64>) -> Tree {
        let (mut tree, mut dirs) = (Tree::new(), vec![(0, PathBuf::from("/"))]);
        while let Some((dir, at)) = dirs.pop() {
            for ((_, name), ino) in names.iter().filter(|((of, _), _)| *of == dir) {
                let kind = self.inodes[*ino as usize];
                tree.insert(at.join(name), kind);
                if kind.0 == FileType::Directory {
                    dirs.push((*ino, at.join(name)));
                }
            }
        }
        tree
    }

    /// Every tree that a crash may leave.
    fn possible(&self) -> Vec<Tree> {
        let subset = |bits: usize| (0..self.steps.len()).filter(move |at| bits >> at & 1 == 1);
        (0..1 << self.steps.len())
            .filter(|bits| {
                let kept: BTreeSet<usize> = subset(*bits).collect();
                self.closed(kept.clone()) == kept
            })
            .map(|bits| {
                let mut names = self.durable.clone();
                subset(bits).for_each(|at| apply(&mut names, &self.steps[at]));
                self.tree(&names)
            })
            .collect()
    }
}

fn look(fs: &Fs) -> Tree {
    let entries =
        fs.walk("/").map(|entry| entry.expect("memory")).filter(|entry| entry.path != Path::new("/"));
    entries.map(|entry| (entry.path, (entry.stat.file_type(), entry.stat.rdev))).collect()
}

const PATHS: &[&str] = &["/a", "/b", "/c", "/a/x", "/a/y", "/b/x", "/b/y", "/a/x/p", "/b/x/p", "/c/q"];

/// One call on both, chosen by `random`.
fn act(model: &mut Model, process: &Process, random: &mut Random) {
    let mut path = || random.pick(PATHS);
    let (one, other) = (path(), path());
    match random.below(9) {
        kind @ 0..=2 => {
            let (file_type, rdev) = match kind {
                0 => (FileType::Directory, 0),
                _ => (FileType::CharDevice, model.inodes.len() as u64),
            };
            let made = match kind {
                0 => process.mkdir(one, 0o755),
                _ => process.mknod(one, file_type, 0o600, rdev),
            };
            if made.is_ok() {
                let ino = model.inodes.len() as u64;
                model.inodes.push((file_type, rdev));
                model.put_down(vec![(model.slot(one), Some(ino))], &[ino], false);
            }
        }
        3 | 4 => {
            if process.unlink(one).or_else(|_| process.rmdir(one)).is_ok() {
                let ino = model.ino(one);
                model.put_down(vec![(model.slot(one), None)], &[ino], false);
            }
        }
        5 | 6 => {
            let there = |path: &str| process.lstat(path).is_ok().then(|| path.to_owned());
            let (source, target) = (there(one), there(other));
            let before = (source.map(|path| model.ino(&path)), target.map(|path| model.ino(&path)));
            if process.rename(one, other).is_ok() && before.0 != before.1 {
                let (source, target) = (before.0.expect("it was there"), before.1);
                let names = vec![(model.slot(one), None), (model.slot(other), Some(source))];
                let moves = model.inodes[source as usize].0 == FileType::Directory;
                model.put_down(names, &[vec![source], target.into_iter().collect()].concat(), moves);
            }
        }
        7 => {
            if process.link(one, other).is_ok() {
                let ino = model.ino(one);
                model.put_down(vec![(model.slot(other), Some(ino))], &[ino], false);
            }
        }
        _ => {
            // A device cannot be opened, so its directory is synchronised.
            let dir = if one.len() > 2 { &one[..one.len() - 2] } else { "/" };
            if let Ok(fd) = process.open(dir, OpenFlags::RDONLY | OpenFlags::DIRECTORY, 0) {
                process.fsync(fd).expect("it can be");
                process.close(fd).expect("it is open");
                let ino = model.ino(dir);
                model.synced(ino);
            }
        }
    }
}

#[test]
fn a_crash_leaves_a_tree_that_the_naive_model_has() {
    const STEPS_MAX: usize = 9;
    for round in 0..40 {
        tracked(|fs| {
            let (mut model, mut random) = (Model::new(), Random::new(round));
            let process = fs.process(Cred::root());
            for _ in 0..60 {
                act(&mut model, &process, &mut random);
                if model.steps.len() > STEPS_MAX {
                    process.sync();
                    let steps = std::mem::take(&mut model.steps);
                    steps.iter().for_each(|step| apply(&mut model.durable, step));
                }
            }
            assert_eq!(look(fs), model.tree(&model.now), "the model is right of the calls");
            let possible = model.possible();
            for seed in 0..40 {
                let found = look(&crash(fs, seed));
                assert!(
                    possible.contains(&found),
                    "round {round}, seed {seed}: {found:?} of {:?}",
                    model.steps
                );
                match seed {
                    0 => assert_eq!(found, model.tree(&model.durable)),
                    1 => assert_eq!(found, model.tree(&model.now)),
                    _ => {}
                }
            }
        });
    }
    // Each of few trees is met by some seed.
    tracked(|fs| {
        let (mut model, process) = (Model::new(), fs.process(Cred::root()));
        for path in ["/a", "/a/x", "/b"] {
            process.mkdir(path, 0o755).expect("a fresh name");
            model.inodes.push((FileType::Directory, 0));
            let ino = model.inodes.len() as u64 - 1;
            model.put_down(vec![(model.slot(path), Some(ino))], &[ino], false);
        }
        let found: BTreeSet<Tree> = (0..200).map(|seed| look(&crash(fs, seed))).collect();
        assert_eq!(found, model.possible().into_iter().collect());
        assert_eq!(found.len(), 6);
    });
}

#[test]
fn a_history_plays_again_what_happened_and_says_it_in_words() {
    use crate::{Errno, File, Fs};
    let fs = Fs::new();
    fs.create_dir("/d").expect("made");
    fs.write("/d/before", "durable").expect("written");
    fs.record_history(|_| 7).expect("memory");
    let crash = |fs: &Fs, seed| {
        let left = fs.crash_clone(seed).expect("memory");
        let mut names: Vec<_> = left
            .read_dir("/")
            .expect("listed")
            .map(|entry| entry.expect("an entry").file_name().to_owned())
            .collect();
        names.sort();
        (names, left.read("/d/before").ok(), left.read("/f").ok())
    };
    fs.symlink("target", "/link").expect("made");
    fs.clone_tree("/d", "/copy").expect("copied");
    let open = File::create(&fs, "/gone").expect("made");
    fs.remove_file("/gone").expect("removed");
    open.write_all_at(b"nobody sees it", 0).expect("written");
    fs.write("/f", "one").expect("written");
    File::open(&fs, "/f").and_then(|file| file.sync_all()).expect("synchronised");
    fs.rename("/f", "/g").expect("renamed");
    fs.rename("/g", "/f").expect("renamed");
    let live: Vec<_> = (0..20).map(|seed| crash(&fs, seed)).collect();
    let history = fs.history().expect("recorded");
    let mut point = history.begin();
    let mut fingerprints = std::collections::BTreeSet::new();
    loop {
        fingerprints.insert(point.fingerprint(&point.losses(1)));
        if !point.advance() {
            break;
        }
    }
    for (seed, expected) in (0..).zip(live) {
        let left = point.crash(&point.losses(seed)).expect("memory");
        left.track_crashes().expect("memory");
        assert_eq!(crash(&left, 1), expected, "seed {seed}");
    }
    let changes = history.changes();
    assert_eq!(
        fingerprints.len(),
        1 + changes.iter().filter(|change| !change.is_sync).count(),
        "each change makes a tree"
    );
    assert!(changes.iter().all(|change| change.stamp == 7 && change.process == 0));
    let calls: Vec<&str> = changes.iter().map(|change| change.call.as_str()).collect();
    for wanted in [
        "make symbolic link /link",
        "copy a tree to /copy",
        "remove /gone",
        "write 14 bytes at 0 of a file without a name",
        "fsync /f",
        "rename /g to /f",
    ] {
        assert!(calls.contains(&wanted), "{wanted}: {calls:?}");
    }
    assert_eq!(fs.history().err(), Some(Errno::EINVAL), "the recording has ended");
}
