//! Clones of trees that are larger than memory: what is in memory, what a crash or an error leaves.

use super::audit::audit;
use super::crash_calls_tests::Call::{self, *};
use super::crash_tests::{begin, run, shared};
use super::mutant::Mutant;
use super::share_tests::check;
use super::tests::options;
use crate::{Cred, Errno, Fs, Options, Superblock};
use sluice_store::disk::crash::CrashDisk;
use sluice_store::disk::fault::FaultDisk;
use sluice_store::disk::{Disk, DiskFile};
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::face::HOSTS_SHARE;
use sluice_sync::{Arc, Mutex, thread};
use std::{fmt, io};

const LIMIT: u64 = 1 << 20;
/// So many inodes may be in memory.
const SHARE: u64 = LIMIT / 4 / crate::superblock::INODE_BYTES;
const DIRS: usize = 30;
const FILES: usize = 100;

/// A disk that is asked at each push how much room it has, and then looks at a file system.
#[derive(Clone)]
struct Looking(Arc<Looked>);

struct Looked {
    below: Arc<dyn Disk>,
    at: Mutex<Option<Arc<Superblock>>>,
    /// The most inodes that were in memory, and how often it has looked.
    most: AtomicU64,
    looks: AtomicU64,
    /// At this look, and later, there is no room.
    full_from: AtomicU64,
}

impl Looked {
    fn at(&self, fs: &Fs) {
        self.most.store(0, Ordering::SeqCst);
        self.looks.store(0, Ordering::SeqCst);
        *self.at.lock() = Some(fs.superblock().clone());
    }
}

impl fmt::Debug for Looking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.below.fmt(f)
    }
}

impl Disk for Looking {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.0.below.open(name)
    }
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.0.below.create(name, len)
    }
    fn names(&self) -> io::Result<Vec<String>> {
        self.0.below.names()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        let at = self.0.at.lock().clone();
        if let Some(superblock) = at {
            self.0.most.fetch_max(superblock.inodes_in_memory(), Ordering::SeqCst);
        }
        let look = self.0.looks.fetch_add(1, Ordering::SeqCst);
        Ok(if look < self.0.full_from.load(Ordering::SeqCst) { 1 << 40 } else { 0 })
    }
    fn sync_names(&self) -> io::Result<()> {
        self.0.below.sync_names()
    }
}

fn tight(inode_limit: Option<u64>) -> Options {
    let store = options().store.segment_size(1 << 20).background(false);
    Options { store, memory_limit: Some(LIMIT), inode_limit, ..options() }
}

fn of(disk: impl Disk + 'static) -> Arc<dyn Disk> {
    Arc::from(Box::new(disk) as Box<dyn Disk>)
}

fn opened(disk: &CrashDisk) -> Fs {
    let again = CrashDisk::with(disk.files());
    Fs::with_superblock(Superblock::open_on(shared(&again), tight(None)).expect("a store"))
}

/// A file system in little memory, in it a tree with directories of files, one of which has a name in each of them.
fn with_tree(inode_limit: Option<u64>) -> (CrashDisk, Arc<Looked>, Fs) {
    let below = CrashDisk::new();
    let disk = Looked {
        below: shared(&below),
        at: Mutex::new(None),
        most: AtomicU64::new(0),
        looks: AtomicU64::new(0),
        full_from: AtomicU64::new(u64::MAX),
    };
    let disk = Arc::new(disk);
    let made = Superblock::create_on(of(Looking(disk.clone())), tight(inode_limit)).expect("an empty disk");
    let fs = Fs::with_superblock(made);
    for dir in 0..DIRS {
        fs.create_dir_all(format!("/tree/{dir}/below")).expect("room");
        for file in 0..FILES {
            fs.write(format!("/tree/{dir}/{file}"), format!("{dir} {file}")).expect("room");
        }
        if dir > 0 {
            fs.hard_link("/tree/0/0", format!("/tree/{dir}/link")).expect("room");
        }
        fs.write(format!("/tree/{dir}/below/large"), vec![dir as u8 + 1; 70_000]).expect("room");
    }
    fs.sync().expect("the disk works");
    (below, disk, fs)
}

/// How many inodes the tree has.
const TREE: u64 = (1 + DIRS * (FILES + 3)) as u64;

/// Checks that the tree `dir` is whole.
fn is_whole(fs: &Fs, dir: &str) {
    let stat = |path: String| fs.metadata(path).expect("it is there");
    assert_eq!(stat(dir.to_owned()).nlink as usize, 2 + DIRS);
    let linked = stat(format!("{dir}/0/0"));
    assert_eq!(linked.nlink as usize, DIRS);
    for at in 0..DIRS {
        assert_eq!(
            fs.read_dir(format!("{dir}/{at}")).expect("it is there").count(),
            FILES + 1 + usize::from(at > 0)
        );
        for file in (0..FILES).step_by(9) {
            assert_eq!(fs.read_to_string(format!("{dir}/{at}/{file}")), Ok(format!("{at} {file}")));
        }
        assert!(at == 0 || stat(format!("{dir}/{at}/link")).ino == linked.ino);
        assert!(
            fs.read(format!("{dir}/{at}/below/large")).expect("it is there") == vec![at as u8 + 1; 70_000]
        );
    }
}

/// The inodes and the space that are in use.
fn used(fs: &Fs) -> (u64, u64) {
    fs.settle();
    (fs.superblock().live_inodes(), fs.superblock().bytes_used())
}

#[test]
fn a_clone_of_a_tree_larger_than_memory_leaves_memory_while_it_is_made() {
    if !HOSTS_SHARE {
        return;
    }
    let (below, disk, fs) = with_tree(None);
    let before = used(&fs);
    for (times, name) in [(2, "clone"), (3, "snapshot")] {
        disk.at(&fs);
        match name {
            "clone" => fs.clone_tree("/tree", "/clone").expect("room"),
            _ => fs.superblock().take_snapshot(b"one").expect("room"),
        }
        let most = disk.most.load(Ordering::SeqCst).max(fs.superblock().inodes_in_memory());
        // Besides what may be in memory: a directory that is copied, its copy, and what has died just now.
        assert!(most < 4 * SHARE, "a {name}: {most} of {TREE} inodes were in memory");
        let now = used(&fs);
        assert!(now.0 >= before.0 + (times - 1) * TREE, "{now:?}");
    }
    *disk.at.lock() = None;
    for dir in ["/clone", "/.snapshots/one/tree", "/.snapshots/one/clone"] {
        is_whole(&fs, dir);
    }
    assert!(fs.check().is_clean(), "{}", fs.check());
    audit(&fs).expect("nothing is left over");
    let now = used(&fs);
    fs.superblock().close().expect("the disk works");
    assert_eq!(check(&below).found, 0, "{:?}", check(&below));
    let fs = opened(&below);
    assert_eq!(used(&fs), now);
    is_whole(&fs, "/clone");
    fs.remove_dir_all("/clone").expect("it is there");
    fs.superblock().drop_snapshot(b"one").expect("it is there");
    assert_eq!(used(&fs), (before.0 + 1, before.1), "the directory of the snapshots stays");
    audit(&fs).expect("nothing is left over");
}

#[test]
fn nothing_is_left_of_a_large_clone_that_finds_no_room() {
    if !HOSTS_SHARE {
        return;
    }
    // The inodes come to an end, or the room on the disk does.
    for (inodes, looks) in [(Some(TREE + TREE / 2), None), (None, Some(5)), (None, Some(0))] {
        let (below, disk, fs) = with_tree(inodes);
        let before = used(&fs);
        disk.at(&fs);
        looks.into_iter().for_each(|looks| disk.full_from.store(looks, Ordering::SeqCst));
        assert_eq!(fs.clone_tree("/tree", "/clone"), Err(Errno::ENOSPC));
        assert!(inodes.is_none() || disk.looks.load(Ordering::SeqCst) > 5, "it had begun");
        disk.full_from.store(u64::MAX, Ordering::SeqCst);
        *disk.at.lock() = None;
        assert!(!fs.exists("/clone"));
        assert_eq!(used(&fs), before);
        assert!(fs.check().is_clean(), "{}", fs.check());
        audit(&fs).expect("nothing is left over");
        is_whole(&fs, "/tree");
        fs.superblock().close().expect("the disk works");
        assert_eq!(check(&below).found, 0, "{:?}", check(&below));
        assert_eq!(used(&opened(&below)), before);
    }
}

#[test]
fn after_a_crash_in_the_middle_of_a_large_clone_nothing_of_it_is_left() {
    if !HOSTS_SHARE {
        return;
    }
    let (below, _disk, fs) = with_tree(None);
    let before = used(&fs);
    let from = below.steps();
    fs.clone_tree("/tree", "/clone").expect("room");
    let whole = used(&fs);
    fs.sync().expect("the disk works");
    let mut absent = 0;
    for step in (from..=below.steps()).step_by((below.steps() - from) / 7) {
        let disk = below.crash(step, sluice_store::disk::crash::Survivors::All);
        let report = check(&disk);
        assert_eq!(report.found, 0, "after step {step}: {report:?}");
        let fs = Fs::with_superblock(Superblock::open_on(shared(&disk), tight(None)).expect("a store"));
        let is_there = fs.exists("/clone");
        absent += u32::from(!is_there);
        assert_eq!(used(&fs), if is_there { whole } else { before });
        if is_there {
            is_whole(&fs, "/clone");
        }
        // One more crash, while the rest is being removed.
        fs.write("/more", "").expect("room");
        fs.sync().expect("the disk works");
        let again = CrashDisk::with(disk.files());
        let report = check(&again);
        assert_eq!(report.found, 0, "after step {step}, and again: {report:?}");
        for disk in [disk, again] {
            let fs = opened(&disk);
            fs.remove_file("/more").expect("it is there");
            assert_eq!(used(&fs), if is_there { whole } else { before });
            assert!(fs.superblock().inodes_in_memory() < 20);
            audit(&fs).expect("nothing is left over");
            assert!(fs.check().is_clean(), "{}", fs.check());
        }
        drop(fs);
    }
    assert!(absent > 3, "the clone was absent {absent} times");
}

/// A tree with files of several names, in several directories, and one inode of each kind.
const TREE_CALLS: &[Call] = &[
    Mkdir("/d/n"),
    Mkdir("/d/n/m"),
    Link("/d/g", "/d/n/l"),
    Link("/d/g", "/d/n/m/l"),
    Create("/d/n/x"),
    Write("/d/n/x", 0, 5_000),
    SetXattr("/d/n/x", 5),
    Symlink("target", "/d/n/m/s"),
    Mknod("/d/p"),
    Sync,
];

#[test]
fn after_a_crash_at_any_step_of_a_clone_it_is_whole_or_absent() {
    if !HOSTS_SHARE {
        return;
    }
    let base = begin();
    // An even number of calls leaves no memory for more than one batch, see run().
    let workloads: &[&[Call]] = &[
        &[Clone("/d", "/e/c"), Sync],
        &[Clone("/d", "/e/c"), Unlink("/e/c/n/l"), Sync, Write("/e/c/n/m/l", 0, 10)],
        &[Clone("/d", "/d/n/c"), Sync, Rename("/d/n/c", "/e/c", super::crash_calls_tests::NONE), Sync],
        &[Write("/d/g", 0, 100_000), Clone("/d", "/c"), Clone("/c", "/e/c"), Unlink("/d/n/l")],
    ];
    let crash = |calls: &[Call], mutant, stride| {
        let calls = [TREE_CALLS, calls].concat();
        run(&base, &calls, mutant).and_then(|ran| ran.crash_everywhere(1, stride))
    };
    for (n, calls) in workloads.iter().enumerate() {
        // The first at each step, the others at some.
        let stride = if n == 0 { 1 } else { 3 };
        crash(calls, None, stride).unwrap_or_else(|what| panic!("{calls:?}: {what}"));
    }
    assert!(crash(workloads[0], Some(Mutant::OrphanForgotten), 1).is_err(), "the planted fault is found");
}

#[test]
fn a_clone_whose_disk_fails_at_some_step_leaves_a_store_without_it() {
    if !HOSTS_SHARE {
        return;
    }
    let (below, _disk, fs) = with_tree(None);
    let before = used(&fs);
    fs.superblock().close().expect("the disk works");
    drop(fs);
    let mut failed = 0;
    for at in (20..400).step_by(37) {
        let disk = CrashDisk::with(below.files());
        let fault = FaultDisk::new(shared(&disk), at, true, Errno::EIO.raw());
        let Ok(superblock) = Superblock::open_on(of(fault), tight(None)) else { continue };
        let fs = Fs::with_superblock(superblock);
        let cloned = fs.clone_tree("/tree", "/clone").and_then(|()| fs.sync());
        failed += u32::from(cloned.is_err());
        let _ = fs.superblock().close();
        assert_eq!(check(&disk).found, 0, "step {at}: {:?}", check(&disk));
        let fs = opened(&disk);
        assert!(cloned.is_err() || fs.exists("/clone"), "step {at}");
        if !fs.exists("/clone") {
            assert_eq!(used(&fs), before, "step {at}");
        }
        audit(&fs).expect("nothing is left over");
    }
    assert!(failed > 3, "{failed} failed");
}

#[test]
fn others_change_the_tree_and_push_while_it_is_cloned_in_little_memory() {
    if !HOSTS_SHARE {
        return;
    }
    let (below, _disk, fs) = with_tree(None);
    thread::scope(|scope| {
        let (others, pushes) = (fs.process(Cred::root()), fs.process(Cred::root()));
        scope.spawn(move || {
            for round in 0..200 {
                let (dir, file) = (round * 7 % DIRS, round * 11 % FILES);
                let path = format!("/tree/{dir}/{file}");
                let _ = others.rename(&path, format!("/tree/{}/moved-{round}", round * 5 % DIRS));
                others.fs().write(&path, "new").expect("room");
                if round % 20 == 0 {
                    let _ =
                        others.rename(format!("/tree/{dir}/below"), format!("/tree/{}/b", (dir + 1) % DIRS));
                }
            }
        });
        scope.spawn(move || (0..40).for_each(|_| pushes.fs().sync().expect("the disk works")));
        for clone in 0..3 {
            fs.clone_tree("/tree", format!("/clone{clone}")).expect("room");
        }
    });
    assert!(fs.check().is_clean(), "{}", fs.check());
    audit(&fs).expect("nothing is left over");
    let now = used(&fs);
    fs.superblock().close().expect("the disk works");
    assert_eq!(check(&below).found, 0, "{:?}", check(&below));
    assert_eq!(used(&opened(&below)), now);
}
