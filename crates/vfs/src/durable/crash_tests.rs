//! Crash tests: after a crash at any step of the disk the tree is that after some prefix of the calls, and the prefix has all that
//! was synchronised.
//!
//! Workloads are made as CrashMonkey's ACE makes them: one or two calls on a small tree, each followed by a synchronisation or
//! not. The oracle is the tree as it was in memory after each call, down to its times. The same calls on a file system in
//! memory must give the same trees.

use super::audit::audit;
use super::crash_calls_tests::Call::{self, *};
use super::crash_calls_tests::{BEGIN, KEEP, NONE, workloads};
use super::mutant::Mutant;
use crate::{
    Cred, Errno, FileType, Fs, OpenFlags, Options, Process, StoreOptions, Superblock, Timestamp, Whence,
};
use sluice_store::disk::Disk;
use sluice_store::disk::crash::{CrashDisk, Survivors};
use sluice_sync::face::HOSTS_SHARE;
use sluice_sync::{Arc, cpu, thread};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A file as a user sees it: everything but its access time. Names that lead to one file show the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// Type, mode, owner, group, links, device.
    attributes: (FileType, u32, u32, u32, u32, u64),
    size: u64,
    /// Storage that it takes, reserved storage included.
    blocks: u64,
    /// Where there are bytes and not holes.
    data: Vec<(u64, u64)>,
    /// The times of change and modification, if times are looked at.
    times: Option<(Timestamp, Timestamp, Timestamp)>,
    /// The first path that leads to the same file.
    same_as: PathBuf,
    contents: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

type Tree = BTreeMap<PathBuf, Seen>;

/// A log so short that a long extended attribute goes past it.
const LOG: u64 = 128 << 10;
/// Segments so short that a file takes several.
const SEGMENT: u64 = 128 << 10;

fn options() -> Options {
    let store = StoreOptions::default()
        .log_size(LOG)
        .segment_size(SEGMENT)
        .open_segments(1)
        .cache(1 << 20)
        .background(false);
    Options { store, ..Options::default() }
}

/// Options with which next to nothing stays in memory of contents in segments, and no names that can be read again.
fn tight() -> Options {
    options().memory_limit(64 << 10)
}

pub(super) fn shared(disk: &CrashDisk) -> Arc<dyn Disk> {
    Arc::from(Box::new(disk.clone()) as Box<dyn Disk>)
}

/// The tree below "/".
fn look(fs: &Fs, with_times: bool) -> Result<Tree, Errno> {
    let process = fs.process(Cred::root());
    let (mut tree, mut first) = (Tree::new(), BTreeMap::new());
    let mut walk: Vec<_> = fs.walk("/").collect::<Result<_, _>>()?;
    walk.sort_by(|a, b| a.path.cmp(&b.path));
    for entry in walk {
        let stat = fs.symlink_metadata(&entry.path)?;
        let contents = match stat.file_type() {
            FileType::Regular => fs.read(&entry.path)?,
            FileType::Symlink => fs.read_link(&entry.path)?.into_os_string().into_encoded_bytes(),
            _ => Vec::new(),
        };
        let mut xattrs = BTreeMap::new();
        for name in process.llistxattr(&entry.path)? {
            let value = process.lgetxattr(&entry.path, &name)?;
            xattrs.insert(name, value);
        }
        let seen = Seen {
            attributes: (stat.file_type(), stat.permissions(), stat.uid, stat.gid, stat.nlink, stat.rdev),
            size: stat.size,
            blocks: stat.blocks,
            data: data_of(&process, &entry.path, stat.file_type())?,
            times: with_times.then_some((stat.mtime, stat.ctime, stat.btime)),
            same_as: first.entry(stat.ino).or_insert_with(|| entry.path.clone()).clone(),
            contents,
            xattrs,
        };
        tree.insert(entry.path, seen);
    }
    Ok(tree)
}

/// The parts of a regular file that are no holes.
fn data_of(process: &Process, path: &Path, file_type: FileType) -> Result<Vec<(u64, u64)>, Errno> {
    let mut parts = Vec::new();
    if file_type == FileType::Regular {
        let (fd, mut at) = (process.open(path, OpenFlags::RDONLY, 0)?, 0);
        while let Ok(start) = process.lseek(fd, at, Whence::Data) {
            let end = process.lseek(fd, start as i64, Whence::Hole)?;
            parts.push((start, end));
            at = end as i64;
        }
        process.close(fd)?;
    }
    Ok(parts)
}

/// The disk with the tree that workloads begin with, all durable.
pub(super) fn begin() -> CrashDisk {
    begin_on(CrashDisk::new(), are_compressed())
}

/// Whether the stores of tests that do not look at sizes are compressed: with `SLUICE_CRASH_COMPRESSED` in the environment.
pub(super) fn are_compressed() -> bool {
    std::env::var_os("SLUICE_CRASH_COMPRESSED").is_some()
}

fn begin_on(disk: CrashDisk, compress: bool) -> CrashDisk {
    let options = Options { store: options().store.compress(compress), ..options() };
    let fs = Fs::with_superblock(Superblock::create_on(shared(&disk), options).expect("an empty disk"));
    let process = fs.process(Cred::root());
    BEGIN.iter().for_each(|call| call.run(&process).expect("each of them works"));
    drop(process);
    close(fs);
    CrashDisk::with(disk.files())
}

/// Drops a file system at once: others may hold its parts yet.
fn close(fs: Fs) {
    let _ = fs.superblock().close();
}

/// The results of the calls in a file system in memory, and the tree after them.
fn in_memory(calls: &[Call]) -> (Vec<Result<(), Errno>>, Tree) {
    let fs = Fs::new();
    let process = fs.process(Cred::root());
    BEGIN.iter().for_each(|call| call.run(&process).expect("each of them works"));
    let results = calls.iter().map(|call| call.run(&process)).collect();
    (results, look(&fs, false).expect("memory"))
}

pub(super) struct Ran {
    disk: CrashDisk,
    /// The tree before the calls, and after each.
    trees: Vec<Tree>,
    /// Steps of the disk, and how many calls had begun then.
    begun: Vec<(usize, usize)>,
    /// Steps of the disk, and how many calls were durable then.
    synced: Vec<(usize, usize)>,
    /// Steps of the disk until then.
    steps: usize,
}

fn open(disk: &CrashDisk) -> Result<Fs, String> {
    open_with(disk, options())
}

fn open_with(disk: &CrashDisk, options: Options) -> Result<Fs, String> {
    let superblock = Superblock::open_on(shared(disk), options.clone()).map_err(|error| error.to_string())?;
    let durable = superblock.root().shared.durable().expect("a store");
    // Each push removes one chunk of a file with several.
    durable.pending.removals.limit(1);
    if options.memory_limit.is_some() {
        durable.names().shrink();
    }
    Ok(Fs::with_superblock(superblock))
}

pub(super) fn run(base: &CrashDisk, calls: &[Call], mutant: Option<Mutant>) -> Result<Ran, String> {
    let disk = CrashDisk::with(base.files());
    // One half of the workloads lets go of contents as soon as it can.
    let options = if calls.len().is_multiple_of(2) { tight() } else { options() };
    let fs = open_with(&disk, options).expect("made just now");
    let durable = |fs: &Fs| fs.superblock().root().shared.durable().expect("a store").pending.clone();
    durable(&fs).planted.plant(mutant);
    let process = fs.process(Cred::root());
    let look = |fs: &Fs| look(fs, true).map_err(|error| format!("what was written is not there: {error:?}"));
    let tree = look(&fs)?;
    let (mut trees, mut begun, mut synced) = (vec![tree], vec![(0, 0)], vec![(0, 0)]);
    for (at, call) in calls.iter().enumerate() {
        begun.push((disk.steps(), at + 1));
        let done = call.run(&process);
        if done.is_ok() && call.synchronises() {
            synced.push((disk.steps(), at + 1));
        }
        trees.push(look(&fs)?);
    }
    assert!(fs.check().is_clean(), "{calls:?}: {}", fs.check());
    if self::look(&fs, false).ok() != Some(in_memory(calls).1) {
        return Err("another tree than in memory".into());
    }
    // The writes of closing come too late.
    let steps = disk.steps();
    drop(process);
    close(fs);
    Ok(Ran { disk, trees, begun, synced, steps })
}

impl Ran {
    fn bounds(&self, steps: usize) -> (usize, usize) {
        let at = |marks: &[(usize, usize)]| {
            marks.iter().filter(|(when, _)| *when <= steps).map(|(_, count)| *count).max().unwrap_or(0)
        };
        (at(&self.synced), at(&self.begun))
    }

    /// Opens what a crash after `steps` left, and says what is wrong with it.
    fn judge(&self, disk: &CrashDisk, steps: usize) -> Result<(), String> {
        let fs = open_with(disk, tight())?;
        let report = fs.check();
        if !report.is_clean() {
            return Err(report.to_string());
        }
        let found = look(&fs, true).map_err(|error| error.to_string())?;
        let (least, most) = self.bounds(steps);
        if !self.trees[least..=most].contains(&found) {
            let differs = |tree: &Tree| {
                tree.iter().find(|(path, seen)| found.get(*path) != Some(*seen)).map(|(path, _)| path.clone())
            };
            let last: Vec<_> = self.trees[least..=most].iter().map(differs).collect();
            return Err(format!("no tree between {least} and {most} calls; of each differs {last:?}"));
        }
        fs.sync().map_err(|error| error.to_string())?;
        audit(&fs)?;
        close(fs);
        Ok(())
    }

    /// Crashes after each `stride`-th step in each way, of which `seeds` are random, and says how many disks that left. Ways that leave
    /// one disk are one crash.
    pub(super) fn crash_everywhere(&self, seeds: u64, stride: usize) -> Result<u64, String> {
        let mut seen = BTreeSet::new();
        let mut judge =
            |disk: &CrashDisk, steps: usize| match seen.insert((disk.digest(), self.bounds(steps))) {
                true => self.judge(disk, steps),
                false => Ok(()),
            };
        let mut ways = vec![Survivors::None, Survivors::All];
        ways.extend((0..seeds).map(Survivors::Some));
        for steps in (0..=self.steps).step_by(stride) {
            for (n, way) in ways.iter().enumerate() {
                let said = |what: String| format!("crash after step {steps}, {way:?}: {what}");
                let disk = self.disk.crash(steps, *way);
                judge(&disk, steps).map_err(said)?;
                // A second crash, at one step of the recovery or after it.
                if disk.steps() > 0 && (steps + n).is_multiple_of(3) {
                    let second = disk.crash((steps * 7 + n) % disk.steps(), ways[(n + 1) % ways.len()]);
                    judge(&second, steps).map_err(|what| said(format!("again in recovery: {what}")))?;
                }
            }
        }
        Ok(seen.len() as u64)
    }
}

#[test]
fn after_a_crash_at_any_step_the_tree_is_of_a_prefix_with_all_that_was_synchronised() {
    if !HOSTS_SHARE {
        return;
    }
    let crashes = crashes_of(&begin(), 0, 1);
    assert!(crashes > 20_000);
}

#[test]
fn after_a_crash_at_any_step_an_encrypted_tree_is_of_a_prefix_with_all_that_was_synchronised() {
    if !HOSTS_SHARE {
        return;
    }
    let crashes = crashes_of(&begin_on(CrashDisk::encrypted(), false), 5, 32);
    assert!(crashes > 500);
}

#[test]
fn after_a_crash_at_any_step_a_compressed_tree_is_of_a_prefix_with_all_that_was_synchronised() {
    if !HOSTS_SHARE {
        return;
    }
    let crashes = crashes_of(&begin_on(CrashDisk::new(), true), 3, 16);
    assert!(crashes > 500);
    let crashes = crashes_of(&begin_on(CrashDisk::encrypted(), true), 7, 64);
    assert!(crashes > 100);
}

/// How many disks crashes of some workloads left: those of [`workloads`] with these arguments, which begin with `base`.
fn crashes_of(base: &CrashDisk, from: usize, step: usize) -> u64 {
    // With more random ways than one this is the long run.
    let seeds = std::env::var("SLUICE_CRASH_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let threads = cpu::count();
    let part = |first: usize| -> u64 {
        let crashes = workloads(from, step).skip(first).step_by(threads).map(|calls| {
            let found = run(base, &calls, None).and_then(|ran| ran.crash_everywhere(seeds, 1));
            found.unwrap_or_else(|what| panic!("{calls:?}: {what}"))
        });
        crashes.sum()
    };
    let crashes: u64 = thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        parts.into_iter().map(|part| part.join().expect("no crash that leaves another tree")).sum()
    });
    println!("{crashes} disks after crashes of {} workloads", workloads(from, step).count());
    crashes
}

#[test]
fn calls_on_a_store_give_the_trees_that_they_give_in_memory() {
    if !HOSTS_SHARE {
        return;
    }
    let disk = begin();
    for calls in workloads(3, 11) {
        let trees = |fs: &Fs| {
            let process = fs.process(Cred::root());
            let results: Vec<_> = calls.iter().map(|call| call.run(&process)).collect();
            (results, look(fs, false).expect("memory"))
        };
        let expected = in_memory(&calls);
        let disk = CrashDisk::with(disk.files());
        let fs = open_with(&disk, tight()).expect("a store");
        let found = trees(&fs);
        let differs = |path: &&PathBuf| found.1.get(*path) != expected.1.get(*path);
        let differing: Vec<_> = found.1.keys().chain(expected.1.keys()).filter(differs).collect();
        assert!(differing.is_empty() && found.0 == expected.0, "{calls:?}: {differing:?} {:?}", found.0);
        close(fs);
        // The first may still have the disk.
        let fs = open_with(&CrashDisk::with(disk.files()), tight()).expect("a store");
        assert_eq!(look(&fs, false).expect("the disk works"), expected.1, "{calls:?}, opened again");
        close(fs);
    }
}

#[test]
fn each_planted_fault_is_found() {
    if !HOSTS_SHARE {
        return;
    }
    use Mutant::*;
    let base = begin();
    let shows: &[(Mutant, &[Call])] = &[
        (NameForgotten, &[Rename("/f", "/g", NONE), Sync]),
        (OlderName, &[Create("/new"), Unlink("/new"), Create("/new"), Unlink("/new"), Sync]),
        (SyncDoesNotWait, &[Create("/new"), Fsync("/new")]),
        (SizeWithoutBytes, &[Append("/f", 100), Sync]),
        (ChunksStay, &[Truncate("/d/g", 10), Truncate("/d/g", 150_000), Sync]),
        (XattrsForgotten, &[SetXattr("/f", 10), Sync]),
        (OrphanForgotten, &[UnlinkOpenSync("/f")]),
        (RecordBeforeChange, &[Chmod("/f", 0o600), Sync]),
        (FreedEarly, &[Write("/f", 0, 20_000), Sync]),
        (NameWithoutBytes, &[Write("/f", 0, 20_000), Sync]),
        (PatchForgotten, &[Write("/b", 70_000, 10), Sync, Write("/b", 80_000, 10), Sync, Sync]),
        (ChangedPagesLeave, &[Read("/b"), Write("/b", 70_000, 10), Read("/d/g"), Sync]),
        (ExtentsStay, &[Truncate("/b", 0), Sync]),
        (UnwrittenForgotten, &[Fallocate("/f", KEEP, 50_000, 9_000), Sync]),
    ];
    for (mutant, calls) in shows {
        let outcome = |mutant| run(&base, calls, mutant).and_then(|ran| ran.crash_everywhere(1, 1));
        outcome(None).expect("without the fault all is well");
        let found = outcome(Some(*mutant));
        assert!(found.is_err(), "{mutant:?} was not found");
    }
}

#[test]
fn of_what_threads_did_at_the_same_time_a_crash_leaves_a_prefix_of_each() {
    if !HOSTS_SHARE {
        return;
    }
    const THREADS: usize = 3;
    let disk = begin();
    let fs = open(&disk).expect("a store");
    // For each thread: steps of the disk when a call had returned that made so many files durable.
    let marks: Vec<Vec<(usize, usize)>> = thread::scope(|scope| {
        let work = |thread: usize| {
            let (process, disk) = (fs.process(Cred::root()), &disk);
            move || {
                let mut synced = vec![(0, 0)];
                process.mkdir(format!("/t{thread}"), 0o755).expect("a new name");
                for n in 0..12 {
                    let (part, whole) = (format!("/t{thread}/part"), format!("/t{thread}/{n}"));
                    let fd = process.open(&part, OpenFlags::CREAT | OpenFlags::WRONLY, 0o644).expect("room");
                    process.write(fd, whole.as_bytes()).expect("room");
                    if n % 3 == 0 {
                        process.fsync(fd).expect("the disk works");
                    }
                    process.rename(&part, &whole).expect("it is there");
                    if n % 4 == 3 {
                        process.fsync(fd).expect("the disk works");
                        synced.push((disk.steps(), n + 1));
                    }
                    process.close(fd).expect("it is open");
                }
                synced
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let steps = disk.steps();
    close(fs);
    for at in 0..=steps {
        for way in [Survivors::None, Survivors::All, Survivors::Some(at as u64)] {
            let fs = open(&disk.crash(at, way)).expect("a store");
            assert!(fs.check().is_clean(), "{}", fs.check());
            for (thread, marks) in marks.iter().enumerate() {
                let dir = PathBuf::from(format!("/t{thread}"));
                let least = marks.iter().filter(|(when, _)| *when <= at).map(|(_, count)| *count).max();
                let there = (0..).take_while(|n| fs.exists(dir.join(n.to_string()))).count();
                let names = fs
                    .read_dir(&dir)
                    .map_or(0, |entries| entries.flatten().filter(|entry| entry.name() != "part").count());
                assert_eq!(names, there, "crash after step {at}: not the first files of thread {thread}");
                assert!(
                    there >= least.unwrap_or(0),
                    "crash after step {at}: thread {thread} has {there} of {least:?}"
                );
                for n in 0..there {
                    let path = dir.join(n.to_string());
                    let text = fs.read_to_string(&path).expect("whole");
                    assert_eq!(Path::new(&text), path, "crash after step {at}");
                }
            }
            close(fs);
        }
    }
}
