//! Copies of trees that change meanwhile: each must be the tree as it was at one moment.

use super::Omission;
use crate::process::Process;
use crate::watch::hook;
use crate::{
    AtFlags, Cred, FallocateMode, Fd, Fs, NewInode, NewKind, OpenFlags, Options, RenameFlags, SetTime, Stat,
    StoreOptions, Superblock, Timestamp, XattrFlags,
};
use sluice_store::disk::crash::CrashDisk;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::face::HOSTS_SHARE;
use sluice_sync::random::Random;
use sluice_sync::{Arc, Mutex, rcu, thread};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Faults that tests plant in the moments of a file system, and calls between the steps of a copier.
#[derive(Default)]
pub(super) struct Tested {
    pub(super) fault: Mutex<Option<Omission>>,
    act: Mutex<Option<Act>>,
}

type Act = Arc<dyn Fn() + Send + Sync>;

impl Tested {
    /// On a thread of its own, which holds none of the copier's locks.
    pub(super) fn step(&self) {
        let act = self.act.lock().clone();
        if let Some(act) = act {
            thread::spawn(move || {
                act();
            })
            .join()
            .expect("the call does not panic");
        }
    }
}

fn tested(fs: &Fs) -> &Tested {
    &fs.superblock().root().shared.moments.tested
}

/// A sequence of numbers that look random, the same for each seed.
struct Draw(Mutex<Random>);

impl Draw {
    fn below(&self, bound: u64) -> u64 {
        self.0.lock().below(bound)
    }
}

/// All that can be seen of the tree `top`, access times aside: by path, with the first path of each file of several names.
fn seen(fs: &Fs, top: &str) -> BTreeMap<PathBuf, String> {
    let process = fs.process(Cred::root());
    let (mut first, mut all) = (BTreeMap::new(), BTreeMap::new());
    let entries: Vec<_> = fs.walk(top).map(|entry| entry.expect("it is there")).collect();
    let mut paths: Vec<_> = entries.into_iter().map(|entry| (entry.path, entry.stat)).collect();
    paths.sort_by(|one, other| one.0.cmp(&other.0));
    for (path, stat) in paths {
        let below = path.strip_prefix(top).expect("below").to_owned();
        let same = first.entry(stat.ino).or_insert_with(|| below.clone()).clone();
        let Stat { mode, nlink, uid, gid, rdev, size, mtime, ctime, .. } = stat;
        let names = process.llistxattr(&path).expect("root may");
        let xattrs: Vec<_> = names.iter().map(|name| process.lgetxattr(&path, name)).collect();
        let bytes =
            fs.symlink_metadata(&path).is_ok_and(|stat| stat.mode & 0o170_000 == 0o100_000).then(|| {
                let bytes = fs.read(&path).expect("root may");
                (
                    bytes.len(),
                    bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte))),
                )
            });
        let target = fs.read_link(&path).ok();
        let seen = format!(
            "{mode:o} {nlink} {uid} {gid} {rdev} {size} {mtime:?} {ctime:?} {same:?} {names:?} {xattrs:?} {bytes:?} {target:?}"
        );
        all.insert(below, seen);
    }
    all
}

const DIRS: u64 = 5;
const NAMES: u64 = 4;

/// A path that may lead to something, at most two directories deep.
fn path(draw: &Draw) -> String {
    let mut path = String::from("/tree");
    for _ in 0..draw.below(3) {
        path += &format!("/d{}", draw.below(DIRS));
    }
    let kind = if draw.below(3) == 0 { 'd' } else { 'f' };
    format!("{path}/{kind}{}", draw.below(NAMES))
}

/// One change of the tree, or none where the names that were drawn do not fit.
fn change(process: &Process, draw: &Draw) {
    let (one, other) = (path(draw), path(draw));
    let now = draw.below(1 << 40);
    let at = Timestamp { sec: now as i64, nsec: 1 };
    let open = |flags| process.open(&one, flags, 0o600 + draw.below(0o100) as u32);
    let with_file = |flags, act: &dyn Fn(Fd)| {
        if let Ok(fd) = open(flags) {
            act(fd);
            let _ = process.close(fd);
        }
    };
    let write = OpenFlags::WRONLY | OpenFlags::CREAT;
    let len = 1 + draw.below(9_000) as usize;
    let _ = match draw.below(20) {
        0 | 1 => process.mkdir(&one, 0o755),
        2..=4 => {
            with_file(write, &|fd| {
                let _ = process.pwrite(fd, &vec![now as u8; len], draw.below(70_000) as i64);
            });
            Ok(())
        }
        5 => {
            with_file(write | OpenFlags::APPEND, &|fd| {
                let _ = process.write(fd, &vec![now as u8; len]);
            });
            Ok(())
        }
        6 => process.truncate(&one, draw.below(70_000) as i64),
        7 => {
            let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
            with_file(OpenFlags::WRONLY, &|fd| {
                let _ = process.fallocate(fd, punch, 0, len as i64);
            });
            Ok(())
        }
        8 | 9 => process.link(&one, &other),
        10..=12 => process.rename(&one, &other),
        13 => process.renameat2(Fd::CWD, &one, Fd::CWD, &other, RenameFlags::EXCHANGE),
        14 | 15 => process.unlink(&one),
        16 => process.rmdir(&one),
        17 => process.chmod(&one, 0o700 + draw.below(0o100) as u32),
        18 => match draw.below(4) {
            0 => process.chown(&one, Some(now as u32), None),
            1 => process.utimens(&one, [Some(SetTime::At(at)); 2]),
            2 => process.symlink(&other, &one),
            _ => process.unlinkat(Fd::CWD, &one, AtFlags::empty()),
        },
        _ => match draw.below(3) {
            0 => process.setxattr(&one, b"user.x", &now.to_le_bytes(), XattrFlags::empty()),
            1 => process.removexattr(&one, b"user.x"),
            _ => {
                with_file(OpenFlags::RDONLY, &|from| {
                    if let Ok(to) = process.open(&other, write, 0o600) {
                        let _ = process.copy_file_range(from, Some(&mut 0), to, Some(&mut 0), 1 << 20);
                        let _ = process.close(to);
                    }
                });
                Ok(())
            }
        },
    };
}

/// Where a file system is, and how its tree is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    Apart,
    InMemory,
    OverStore,
    /// In so little memory that a clone is made in batches.
    InBatches,
}

impl Copied {
    fn fs(self) -> Fs {
        let store = StoreOptions::default().log_size(1 << 20).background(false);
        let memory_limit = (self == Copied::InBatches).then_some(1 << 20);
        match self {
            Copied::Apart | Copied::InMemory => Fs::new(),
            _ => {
                let disk: Arc<dyn sluice_store::disk::Disk> = Arc::from(Box::new(CrashDisk::new()) as Box<_>);
                let made = Superblock::create_on(disk, Options { store, memory_limit, ..Options::default() });
                Fs::with_superblock(made.expect("an empty disk"))
            }
        }
    }

    /// Copies "/tree", and shows what is in the copy.
    fn copy(self, fs: &Fs) -> BTreeMap<PathBuf, String> {
        if self == Copied::Apart {
            let copy = fs.snapshot("/tree").expect("there is room");
            assert!(copy.check().is_clean(), "{:?}", copy.check().findings);
            return seen(&copy, "/");
        }
        fs.clone_tree("/tree", "/copy").expect("there is room");
        let copy = seen(fs, "/copy");
        fs.remove_dir_all("/copy").expect("root may");
        copy
    }
}

/// Whether a copy of a tree that changes at each step of the copier is what the tree was before.
fn is_of_one_moment(copied: Copied, seed: u64, fault: Option<Omission>) -> bool {
    let fs = copied.fs();
    fs.create_dir("/tree").expect("a fresh name");
    let draw = Arc::new(Draw(Mutex::new(Random::new(seed))));
    if copied == Copied::InBatches {
        for dir in 0..DIRS {
            fs.create_dir(format!("/tree/d{dir}")).expect("a fresh name");
            (0..60).for_each(|file| fs.write(format!("/tree/d{dir}/more{file}"), "x").expect("room"));
        }
    }
    let process = fs.process(Cred::root());
    (0..150).for_each(|_| change(&process, &draw));
    let held: Vec<_> = (0..6).filter_map(|_| process.open(path(&draw), OpenFlags::RDWR, 0).ok()).collect();
    let before = seen(&fs, "/tree");
    *tested(&fs).fault.lock() = fault;
    let act = {
        let (fs, draw) = (fs.clone(), draw.clone());
        move || {
            let process = fs.process(Cred::root());
            (0..draw.below(12)).for_each(|_| change(&process, &draw));
        }
    };
    *tested(&fs).act.lock() = Some(Arc::from(Box::new(act) as Box<dyn Fn() + Send + Sync>));
    // Times move at each tick alone.
    let tick = Timestamp::now();
    while Timestamp::now() == tick {
        thread::yield_now();
    }
    let after = copied.copy(&fs);
    *tested(&fs).act.lock() = None;
    let (before, after) = (without_top_links(before), without_top_links(after));
    let is_equal = before == after;
    if !is_equal && fault.is_none() {
        let differs = |(path, seen): &(&PathBuf, &String)| after.get(*path) != Some(*seen);
        let was: Vec<_> = before.iter().filter(differs).collect();
        let is: Vec<_> = was.iter().map(|(path, _)| after.get(*path)).collect();
        let new: Vec<_> = after.keys().filter(|path| !before.contains_key(*path)).collect();
        println!("{copied:?} seed {seed}\nwas {was:#?}\nis  {is:#?}\nnew {new:?}");
    }
    held.into_iter().for_each(|fd| process.close(fd).expect("it is open"));
    drop(process);
    fs.settle();
    let report = fs.check();
    is_equal && (fault.is_some() || report.is_clean())
}

/// The top's own attributes, too, but for the path.
fn without_top_links(mut seen: BTreeMap<PathBuf, String>) -> BTreeMap<PathBuf, String> {
    let top = seen.remove(Path::new(""));
    seen.extend(top.map(|top| (PathBuf::from("top"), top)));
    seen
}

#[test]
fn a_copy_is_the_tree_of_its_moment_whatever_changes_at_each_step_of_it() {
    let rounds =
        std::env::var("SLUICE_MOMENT_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(60);
    // Outside of a simulated machine its clock stands still: `vfs-sim` has a test with schedules instead.
    if !HOSTS_SHARE {
        return;
    }
    for copied in [Copied::Apart, Copied::InMemory, Copied::OverStore, Copied::InBatches] {
        for seed in 0..rounds {
            assert!(is_of_one_moment(copied, seed, None), "{copied:?}, seed {seed}");
        }
    }
}

#[test]
fn a_hook_that_is_left_out_is_found() {
    if !HOSTS_SHARE {
        return;
    }
    for fault in [Omission::InodeNotKept, Omission::NameNotPutDown, Omission::LinksForgotten] {
        for copied in [Copied::InMemory, Copied::OverStore] {
            let is_found = (0..40).any(|seed| !is_of_one_moment(copied, seed, Some(fault)));
            assert!(is_found, "{fault:?} is not found, {copied:?}");
        }
    }
}

/// Takes a snapshot on another thread while the caller's `change` is under way, and says whether the snapshot has all of it: `change`
/// gets a function that begins the snapshot, and waits until that is over, or seems to wait for the change.
fn has_change_under_way(fs: &Fs, change: impl FnOnce(&dyn Fn())) -> bool {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let taken = Mutex::new(None);
        change(&|| {
            let take = || {
                let snapshot = fs.snapshot("/").expect("there is room");
                is_over.store(true, Ordering::SeqCst);
                snapshot.exists("/one") && snapshot.exists("/two")
            };
            *taken.lock() = Some(scope.spawn(take));
            let shared = &fs.superblock().root().shared;
            while !shared.has_hook(hook::MOMENT) && !is_over.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            // With a fault it comes to its end.
            let turns = if tested(fs).fault.lock().is_some() { u32::MAX } else { 2_000 };
            (0..turns).take_while(|_| !is_over.load(Ordering::SeqCst)).for_each(|_| thread::yield_now());
        });
        let taken = taken.lock().take().expect("it began");
        taken.join().expect("it ends")
    })
}

#[test]
fn a_moment_comes_when_no_change_is_under_way() {
    if !HOSTS_SHARE {
        return;
    }
    let new = NewInode { kind: NewKind::Regular, mode: 0o600, umask: 0 };
    let in_a_section = |fs: &Fs| {
        let root = fs.superblock().root();
        has_change_under_way(fs, |wait| {
            let _section = root.shared.begin(0).expect("in memory");
            root.create(&Cred::root(), b"one", &new).expect("a fresh name");
            wait();
            root.enter(b"two", root.lookup(&Cred::root(), b"one").expect("it is there")).expect("room");
        })
    };
    let in_a_read_section = |fs: &Fs| {
        let root = fs.superblock().root();
        let two = root.create(&Cred::root(), b"two", &new).expect("a fresh name");
        root.unlink(&Cred::root(), b"two").expect("it is there");
        has_change_under_way(fs, |wait| {
            let _reading = rcu::domain().read();
            root.enter(b"one", two.clone()).expect("room");
            wait();
            root.enter(b"two", two).expect("room");
        })
    };
    for (fault, change) in [
        (Omission::NoBarrier, &in_a_section as &dyn Fn(&Fs) -> bool),
        (Omission::NoGracePeriod, &in_a_read_section),
    ] {
        let fs = Fs::new();
        assert!(change(&fs), "{fault:?} is not planted");
        let fs = Fs::new();
        *tested(&fs).fault.lock() = Some(fault);
        assert!(!change(&fs), "{fault:?} is planted");
    }
}
