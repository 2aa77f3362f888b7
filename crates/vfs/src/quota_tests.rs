//! Quotas: what counts is what a walk over the tree finds, after random calls, after crashes, and while threads work.

use crate::durable::Mutant;
use crate::{
    Cred, Errno, FallocateMode, FileType, Fs, OpenFlags, Options, Process, RenameFlags, StoreOptions,
    Superblock,
};
use sluice_store::Gravity;
use sluice_store::disk::Disk;
use sluice_store::disk::crash::{CrashDisk, Survivors};
use sluice_sync::face::HOSTS_SHARE;
use sluice_sync::random::Random;
use sluice_sync::time::Duration;
use sluice_sync::{Arc, thread};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PAGE: u64 = 4096;

fn shared(disk: &CrashDisk) -> Arc<dyn Disk> {
    Arc::from(Box::new(disk.clone()) as Box<dyn Disk>)
}

fn options() -> Options {
    let store =
        StoreOptions::default().log_size(1 << 20).segment_size(1 << 20).cache(1 << 20).background(false);
    Options { store, ..Options::default() }
}

fn store() -> (CrashDisk, Fs) {
    let disk = CrashDisk::new();
    let made = Superblock::create_on(shared(&disk), options()).expect("an empty disk");
    (disk, Fs::with_superblock(made))
}

fn opened(disk: &CrashDisk) -> Fs {
    Fs::with_superblock(Superblock::open_on(shared(disk), options()).expect("a store"))
}

fn is_sound(fs: &Fs, what: &str) {
    let report = fs.superblock().check_idle();
    assert!(report.is_clean(), "{what}: {report}");
}

fn used(fs: &Fs, dir: &str) -> u64 {
    fs.quota(dir).expect("it is there").expect("a quota").used
}

/// The bytes that a walk finds below `dir`, and whether a file there has a name elsewhere.
fn walked(fs: &Fs, dir: &Path) -> (u64, bool) {
    let mut met: BTreeMap<u64, (u32, u32, u64)> = BTreeMap::new();
    for entry in fs.walk(dir) {
        let entry = entry.expect("it is there");
        let bytes = match entry.stat.file_type() {
            FileType::Symlink if entry.stat.size >= 128 => entry.stat.size.next_multiple_of(64),
            FileType::Regular => entry.stat.blocks * 512,
            _ => 0,
        };
        let links = if entry.stat.file_type() == FileType::Directory { 1 } else { entry.stat.nlink };
        met.entry(entry.stat.ino).or_insert((0, links, bytes)).0 += 1;
    }
    let has_others = met.values().any(|(names, links, _)| names < links);
    (met.values().map(|file| file.2).sum(), has_others)
}

/// The directories of a random tree; of each, whether it has a quota.
const DIRS: [&str; 6] = ["/a", "/a/in", "/b", "/b/in", "/b/in/below", "/free"];

/// Random calls, and the quotas that there are by then.
struct Calls<'f> {
    fs: &'f Fs,
    process: Process,
    random: Random,
    quotas: BTreeMap<PathBuf, u64>,
    /// More was in use when the limit was set.
    over: BTreeMap<PathBuf, u64>,
}

impl Calls<'_> {
    fn new(fs: &Fs, seed: u64) -> Calls<'_> {
        DIRS.iter().for_each(|dir| _ = fs.create_dir(dir));
        let (process, random) = (fs.process(Cred::root()), Random::new(seed));
        Calls { fs, process, random, quotas: BTreeMap::new(), over: BTreeMap::new() }
    }

    fn dir(&mut self) -> &'static str {
        self.random.pick(&DIRS)
    }

    fn file(&mut self) -> String {
        format!("{}/f{}", self.dir(), self.random.below(4_u64))
    }

    fn quota_above(&self, path: &str) -> Option<(&Path, u64)> {
        let above = Path::new(path).ancestors();
        above.filter_map(|dir| self.quotas.get_key_value(dir)).map(|(dir, limit)| (&**dir, *limit)).next()
    }

    /// One call. Returns what it was, and how it ended.
    fn call(&mut self) -> (String, Result<(), Errno>) {
        let (path, other) = (self.file(), self.file());
        let (at, len) = (self.random.below(12 * PAGE), 1 + self.random.below(6 * PAGE));
        let process = &self.process;
        let with_file = |act: &dyn Fn(crate::Fd) -> Result<(), Errno>| {
            let fd = process.open(&path, OpenFlags::RDWR | OpenFlags::CREAT, 0o644)?;
            let outcome = act(fd);
            process.close(fd).and(outcome)
        };
        let (at, len) = (at as i64, len as i64);
        match self.random.below(16_u64) {
            0..4 => {
                let wrote = with_file(&|fd| process.pwrite(fd, &vec![7; len as usize], at).map(drop));
                (format!("write {path} {at} {len}"), wrote)
            }
            4 => (format!("truncate {path} {at}"), process.truncate(&path, at)),
            5 => {
                let mode = self.random.pick(&[
                    FallocateMode::empty(),
                    FallocateMode::KEEP_SIZE,
                    FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
                    FallocateMode::ZERO_RANGE,
                ]);
                (
                    format!("fallocate {path} {mode:?} {at} {len}"),
                    with_file(&|fd| process.fallocate(fd, mode, at, len)),
                )
            }
            6 => (format!("unlink {path}"), process.unlink(&path)),
            7 | 8 => (format!("rename {path} {other}"), process.rename(&path, &other)),
            9 => (format!("link {path} {other}"), process.link(&path, &other)),
            10 => {
                let target = "t".repeat(100 + len as usize % 300);
                (format!("symlink {path}"), process.symlink(target, &path))
            }
            11 => {
                let copy = || {
                    let from = process.open(&other, OpenFlags::RDONLY, 0)?;
                    let to = process.open(&path, OpenFlags::RDWR | OpenFlags::CREAT, 0o644);
                    let Ok(to) = to else { return process.close(from) };
                    let copied = process.copy_file_range(from, Some(&mut 0), to, Some(&mut 0), 1 << 20);
                    process.close(from)?;
                    process.close(to)?;
                    copied.map(drop)
                };
                (format!("copy {other} {path}"), copy())
            }
            12 => {
                let (dir, to) = (self.dir(), format!("{}/clone", self.dir()));
                match self.fs.exists(&to) {
                    true => (format!("remove {to}"), self.fs.remove_dir_all(&to)),
                    false => (format!("clone {dir} {to}"), self.fs.clone_tree(dir, &to)),
                }
            }
            13 => {
                let (from, to) = (format!("{}/clone", self.dir()), format!("{}/clone", self.dir()));
                let outcome = self.process.renameat2(
                    crate::Fd::CWD,
                    &from,
                    crate::Fd::CWD,
                    &to,
                    self.random.pick(&[RenameFlags::empty(), RenameFlags::EXCHANGE]),
                );
                (format!("rename tree {from} {to}"), outcome)
            }
            _ => self.change_quota(),
        }
    }

    fn change_quota(&mut self) -> (String, Result<(), Errno>) {
        let (dir, pages) = (self.dir(), 1 + self.random.below(60_u64));
        let limit = if self.random.chance(30) { None } else { Some(pages * PAGE) };
        let path = PathBuf::from(dir);
        let nests = self
            .quotas
            .keys()
            .any(|other| *other != path && (path.starts_with(other) || other.starts_with(&path)));
        let is_linked = walked(self.fs, &path).1;
        let outcome = self.fs.set_quota(dir, limit);
        match (nests, limit, self.quotas.contains_key(&path)) {
            (true, None, _) => assert!(outcome.is_err()),
            (true, ..) => assert!(matches!(outcome, Err(Errno::EBUSY | Errno::EXDEV)), "{dir}"),
            (false, Some(_), false) if is_linked => assert_eq!(outcome, Err(Errno::EXDEV), "{dir}"),
            (false, None, false) => assert_eq!(outcome, Err(Errno::ENODATA), "{dir}"),
            _ => assert_eq!(outcome, Ok(()), "{dir}"),
        }
        if outcome.is_ok() {
            self.over.remove(&path);
            match limit {
                Some(limit) => {
                    self.quotas.insert(path.clone(), limit);
                    self.over.insert(path, used(self.fs, dir).max(limit));
                }
                None => drop(self.quotas.remove(&path)),
            }
        }
        (format!("quota {dir} {limit:?}"), outcome)
    }

    /// Compares what is counted with what a walk finds.
    fn compare(&mut self, what: &str) {
        for (dir, limit) in &self.quotas {
            let quota = self.fs.quota(dir).expect("it is there").expect("a quota");
            assert_eq!((quota.used, false), walked(self.fs, dir), "{what}: {dir:?}");
            assert_eq!(quota.limit, *limit, "{what}");
            let over = self.over.get_mut(dir).expect("since it was set");
            assert!(quota.used <= *over, "{what}: {} of {limit}", quota.used);
            *over = quota.used.max(*limit);
        }
        let without = DIRS.iter().filter(|dir| self.quota_above(dir).is_none());
        without.for_each(|dir| assert_eq!(self.fs.quota(dir), Ok(None), "{what}: {dir}"));
    }

    fn go_on(&mut self, calls: usize) {
        for call in 0..calls {
            let (what, outcome) = self.call();
            if outcome == Err(Errno::EDQUOT) {
                assert!(!self.quotas.is_empty(), "{what}");
            }
            self.compare(&format!("call {call}, {what}: {outcome:?}"));
        }
    }
}

#[test]
fn a_quota_counts_what_a_walk_finds_whatever_is_called() {
    let seeds = if HOSTS_SHARE { 200 } else { 4 };
    for seed in 0..seeds {
        let fs = Fs::new();
        Calls::new(&fs, seed).go_on(120);
        is_sound(&fs, &format!("seed {seed}"));
    }
}

#[test]
fn a_quota_in_a_store_counts_the_same_after_a_close_and_after_each_crash() {
    if !HOSTS_SHARE {
        return;
    }
    for seed in 0..40 {
        let (disk, fs) = store();
        let mut calls = Calls::new(&fs, seed);
        calls.go_on(60);
        fs.sync().expect("the disk works");
        let from = disk.steps();
        calls.go_on(20);
        let quotas: BTreeMap<_, _> =
            calls.quotas.keys().map(|dir| (dir.clone(), fs.quota(dir).expect("it is there"))).collect();
        drop(calls);
        let mut random = Random::new(seed);
        for at in [from, disk.steps(), from + random.below((disk.steps() - from).max(1))] {
            let survivors = Survivors::Some(random.bits());
            let what = format!("seed {seed}, crash after {at}");
            compare_crash(&disk.crash(at, survivors), &what);
        }
        fs.superblock().close().expect("the disk works");
        drop(fs);
        let fs = opened(&disk);
        for (dir, quota) in quotas {
            assert_eq!(fs.quota(&dir), Ok(quota), "seed {seed}, {dir:?} after a close");
        }
        is_sound(&fs, &format!("seed {seed}, after a close"));
    }
}

/// Opens what a crash left: each quota counts what a walk finds.
fn compare_crash(disk: &CrashDisk, what: &str) {
    let report = Superblock::check_store(shared(disk), &mut |_| ()).expect("it can be looked at");
    // A log may end with a part of a batch.
    let is_sound = report.findings.iter().all(|finding| finding.gravity == Gravity::Note);
    assert!(is_sound, "{what}: {report:?}");
    let fs = opened(disk);
    for dir in DIRS {
        if let Ok(Some(quota)) = fs.quota(dir)
            && fs.metadata(dir).expect("it is there").ino == quota.dir
        {
            assert_eq!((quota.used, false), walked(&fs, Path::new(dir)), "{what}: {dir}");
        }
    }
    self::is_sound(&fs, what);
}

/// A store with `/dir` in a quota, `/dir/below/file` of ten pages in there, and `/file` of three outside.
fn with_quota() -> (CrashDisk, Fs) {
    let (disk, fs) = store();
    fs.create_dir_all("/dir/below").expect("room");
    fs.write("/dir/below/file", vec![7; 10 * PAGE as usize]).expect("room");
    fs.write("/file", vec![8; 3 * PAGE as usize]).expect("room");
    fs.set_quota("/dir", Some(20 * PAGE)).expect("it has none");
    (disk, fs)
}

#[test]
fn after_a_crash_at_each_step_a_quota_is_whole_or_not_there() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, fs) = with_quota();
    let from = disk.steps();
    fs.rename("/file", "/dir/file").expect("room");
    fs.sync().expect("the disk works");
    fs.set_quota("/dir", Some(40 * PAGE)).expect("it has one");
    fs.set_quota("/dir", None).expect("it has one");
    fs.set_quota("/dir/below", Some(10 * PAGE)).expect("none is above");
    fs.rename("/dir/below/file", "/file").expect("room");
    fs.sync().expect("the disk works");
    for at in from..=disk.steps() {
        for survivors in [Survivors::None, Survivors::All, Survivors::Some(at as u64)] {
            let crash = disk.crash(at, survivors);
            let fs = opened(&crash);
            is_sound(&fs, &format!("step {at}"));
            for dir in ["/dir", "/dir/below"] {
                if let Ok(Some(quota)) = fs.quota(dir)
                    && fs.metadata(dir).expect("it is there").ino == quota.dir
                {
                    assert_eq!(quota.used, walked(&fs, Path::new(dir)).0, "step {at}, {dir}");
                }
            }
        }
    }
}

#[test]
fn planted_faults_are_found() {
    if !HOSTS_SHARE {
        return;
    }
    let is_found = |mutant: Option<Mutant>| {
        let (disk, fs) = store();
        fs.create_dir_all("/dir/below").expect("room");
        fs.write("/dir/below/file", vec![7; 10 * PAGE as usize]).expect("room");
        fs.write("/file", vec![8; 3 * PAGE as usize]).expect("room");
        fs.sync().expect("the disk works");
        fs.superblock().root().shared.durable().expect("a store").plant(mutant);
        let from = disk.steps();
        fs.set_quota("/dir", Some(20 * PAGE)).expect("it has none");
        fs.rename("/file", "/dir/file").expect("room");
        fs.sync().expect("the disk works");
        (from..=disk.steps()).any(|at| {
            let fs = opened(&disk.crash(at, Survivors::All));
            !fs.superblock().check_idle().is_clean()
        })
    };
    assert!(!is_found(None));
    for mutant in [Mutant::QuotaForgotten, Mutant::WalkUnmarked] {
        assert!(is_found(Some(mutant)), "{mutant:?}");
    }
}

#[test]
fn a_full_quota_refuses_each_call_that_takes_room_and_room_comes_back() {
    let fs = Fs::new();
    let process = fs.process(Cred::root());
    fs.create_dir("/dir").expect("room");
    fs.write("/outside", vec![1; PAGE as usize]).expect("room");
    fs.set_quota("/dir", Some(4 * PAGE)).expect("it has none");
    fs.write("/dir/full", vec![1; 4 * PAGE as usize]).expect("room");
    let full = Err(Errno::EDQUOT);
    assert_eq!(fs.write("/dir/more", "x"), full);
    assert_eq!(fs.append("/dir/full", "x"), full);
    assert_eq!(fs.symlink("t".repeat(200), "/dir/link"), full);
    assert_eq!(fs.rename("/outside", "/dir/inside"), full);
    assert_eq!(fs.copy("/outside", "/dir/copy").map(drop), full);
    assert_eq!(fs.clone_tree("/outside", "/dir/clone"), full);
    let fd = process.open("/dir/full", OpenFlags::RDWR, 0).expect("it is there");
    assert_eq!(process.fallocate(fd, FallocateMode::empty(), 1 << 20, 1), full);
    // Bytes that are there can be written again, and a longer file may be a hole.
    assert_eq!(process.pwrite(fd, b"again", 0), Ok(5));
    assert_eq!(process.ftruncate(fd, 1 << 30), Ok(()));
    assert_eq!(
        (fs.exists("/outside"), fs.exists("/dir/inside"), fs.exists("/dir/link")),
        (true, false, false)
    );
    let statfs = process.statfs("/dir/full").expect("it is there");
    assert_eq!((statfs.blocks, statfs.blocks_free), (4, 0));
    process
        .fallocate(fd, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, 0, PAGE as i64)
        .expect("a part");
    assert_eq!(fs.rename("/outside", "/dir/inside"), Ok(()));
    assert_eq!(used(&fs, "/dir"), 4 * PAGE);
    // An open file counts until it is closed.
    fs.remove_file("/dir/full").expect("it is there");
    assert_eq!(fs.append("/dir/inside", vec![2; PAGE as usize]), full);
    process.close(fd).expect("it is open");
    assert_eq!(fs.append("/dir/inside", vec![2; 3 * PAGE as usize]), Ok(()));
    is_sound(&fs, "in the end");
}

#[test]
fn names_lead_over_no_border_unless_their_file_comes_along() {
    let fs = Fs::new();
    let process = fs.process(Cred::root());
    for dir in ["/a/below", "/b", "/c/below"] {
        fs.create_dir_all(dir).expect("room");
    }
    let across = Err(Errno::EXDEV);
    fs.write("/a/file", vec![1; PAGE as usize]).expect("room");
    fs.hard_link("/a/file", "/c/twin").expect("room");
    assert_eq!(fs.set_quota("/a", Some(10 * PAGE)), across, "a file has a name elsewhere");
    assert_eq!(fs.quota("/a/file"), Ok(None));
    fs.rename("/c/twin", "/a/below/twin").expect("there is no quota");
    fs.set_quota("/a", Some(10 * PAGE)).expect("it has none");
    fs.set_quota("/b", Some(2 * PAGE)).expect("it has none");
    // A file of several names stays.
    assert_eq!(used(&fs, "/a"), PAGE);
    assert_eq!(fs.rename("/a/file", "/b/file"), across);
    assert_eq!(fs.rename("/a/below", "/b/below"), across);
    assert_eq!(fs.rename("/c/below", "/a/other"), across);
    assert_eq!(fs.hard_link("/a/file", "/b/file"), across);
    fs.write("/b/file", vec![1; PAGE as usize]).expect("room");
    let exchange =
        |one, other| process.renameat2(crate::Fd::CWD, one, crate::Fd::CWD, other, RenameFlags::EXCHANGE);
    assert_eq!(exchange("/a/file", "/b/file"), across);
    assert_eq!(fs.hard_link("/a/file", "/a/below/file"), Ok(()));
    // The directory of a quota takes it along.
    assert_eq!(fs.rename("/a", "/renamed"), Ok(()));
    assert_eq!(fs.rename("/renamed", "/c/a"), Ok(()));
    assert_eq!(used(&fs, "/c/a/below"), PAGE);
    // Quotas do not nest.
    assert_eq!(fs.set_quota("/c", Some(PAGE)), Err(Errno::EBUSY));
    assert_eq!(fs.quota("/c"), Ok(None));
    assert_eq!(fs.set_quota("/c/a/below", Some(PAGE)), Err(Errno::EBUSY));
    assert_eq!(fs.rename("/c/a", "/b/a"), across);
    // A file without a name comes along when it gets one.
    let fd = process.open("/c", OpenFlags::TMPFILE | OpenFlags::RDWR, 0o600).expect("room");
    process.write(fd, &vec![1; 2 * PAGE as usize]).expect("room");
    let link = |to| process.linkat(fd, "", crate::Fd::CWD, to, crate::AtFlags::EMPTY_PATH);
    assert_eq!(link("/b/tmp"), Err(Errno::EDQUOT));
    assert_eq!(link("/c/a/tmp"), Ok(()));
    assert_eq!(used(&fs, "/c/a"), 3 * PAGE);
    process.close(fd).expect("it is open");
    is_sound(&fs, "in the end");
}

#[test]
fn who_may_set_a_quota_and_where() {
    let fs = Fs::builder().root_owner(1000, 1000).build();
    fs.create_dir("/dir").expect("room");
    fs.write("/file", "").expect("room");
    let [owner, other] = [1000, 2000].map(|uid| fs.process(Cred::user(uid, uid)));
    assert_eq!(other.set_quota("/dir", Some(1 << 20)), Err(Errno::EPERM));
    assert_eq!(owner.set_quota("/dir", Some(1 << 20)), Ok(()));
    assert_eq!(other.quota("/dir").map(|quota| quota.map(|quota| quota.limit)), Ok(Some(1 << 20)));
    assert_eq!(fs.set_quota("/", Some(1 << 20)), Err(Errno::EINVAL));
    assert_eq!(fs.set_quota("/dir", Some(0)), Err(Errno::EINVAL));
    assert_eq!(fs.set_quota("/file", Some(1 << 20)), Err(Errno::ENOTDIR));
    fs.superblock().take_snapshot(b"one").expect("room");
    assert_eq!(fs.set_quota("/.snapshots/one/dir", Some(1 << 20)), Err(Errno::EROFS));
}

#[test]
fn a_snapshot_does_not_count_and_does_not_come_back_over_a_quota() {
    let fs = Fs::new();
    fs.create_dir_all("/dir/below").expect("room");
    fs.write("/dir/below/file", vec![1; 3 * PAGE as usize]).expect("room");
    fs.set_quota("/dir", Some(7 * PAGE)).expect("it has none");
    fs.superblock().take_snapshot(b"one").expect("room");
    assert_eq!(used(&fs, "/dir"), 3 * PAGE);
    assert_eq!(fs.quota("/.snapshots/one/dir"), Ok(None));
    let restore = |path: &[u8]| fs.superblock().restore_snapshot(b"one", path);
    assert_eq!([restore(b""), restore(b"/"), restore(b"dir")], [Err(Errno::EBUSY); 3]);
    // Below, what comes back counts beside what goes.
    assert_eq!(restore(b"dir/below"), Ok(()));
    assert_eq!(used(&fs, "/dir"), 3 * PAGE);
    fs.write("/dir/full", vec![1; 4 * PAGE as usize]).expect("room");
    assert_eq!(restore(b"dir/below"), Err(Errno::EDQUOT));
    assert_eq!(fs.read("/dir/below/file").map(|bytes| bytes.len()), Ok(3 * PAGE as usize));
    is_sound(&fs, "in the end");
}

#[test]
fn threads_that_write_rename_and_set_quotas_leave_exact_counts() {
    // On the simulated machine, threads run there alone.
    if !HOSTS_SHARE {
        return;
    }
    let fs = Fs::new();
    for dir in ["/a", "/a/in", "/free"] {
        fs.create_dir(dir).expect("room");
    }
    let rounds = 150;
    thread::scope(|scope| {
        for worker in 0..3_u64 {
            let fs = &fs;
            scope.spawn(move || {
                let mut random = Random::new(worker);
                for _ in 0..rounds * 4 {
                    let mut file =
                        || format!("{}/f{}", random.pick(&["/a", "/a/in", "/free"]), random.below(3_u64));
                    let (path, other) = (file(), file());
                    let _ = match random.below(4_u64) {
                        0 => fs.append(&path, vec![1; 5000]),
                        1 => fs.rename(&path, &other),
                        2 => fs.hard_link(&path, &other),
                        _ => fs.remove_file(&path),
                    };
                }
            });
        }
        for round in 0..rounds {
            let limit = (round % 3 != 2).then_some((round % 5 + 1) * 20 * PAGE);
            let _ = fs.set_quota("/a", limit);
        }
    });
    let _ = fs.set_quota("/a", Some(1 << 30));
    is_sound(&fs, "in the end");
}

#[test]
fn a_name_that_waits_for_the_contents_of_its_file_holds_up_no_grace_period() {
    // On the simulated machine, threads run there alone.
    if !HOSTS_SHARE {
        return;
    }
    let fs = Fs::new();
    fs.create_dir("/dir").expect("room");
    fs.set_quota("/dir", Some(1 << 20)).expect("room");
    fs.write("/dir/linked", "x").expect("room");
    fs.write("/dir/renamed", "x").expect("room");
    let find = |name: &[u8]| {
        let dir = fs.superblock().root().lookup(&Cred::root(), b"dir").expect("it was made");
        dir.lookup(&Cred::root(), name).expect("it was made")
    };
    let waits = |name: &[u8], call: &(dyn Fn() -> Result<(), Errno> + Sync)| {
        let inode = find(name);
        thread::scope(|scope| {
            let contents = inode.data.alone();
            let call = scope.spawn(call);
            // A write that has the contents waits like this when the quota is full.
            for _ in 0..50 {
                sluice_sync::rcu::domain().synchronize();
                thread::sleep(Duration::from_millis(1));
            }
            drop(contents);
            assert_eq!(call.join().expect("no panic"), Ok(()));
        });
    };
    waits(b"linked", &|| fs.hard_link("/dir/linked", "/dir/other"));
    waits(b"renamed", &|| fs.rename("/dir/renamed", "/renamed"));
    is_sound(&fs, "in the end");
}
