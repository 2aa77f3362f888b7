//! Moments: copies of trees that several threads change are the tree after one prefix of their calls.

use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::thread;
use sluice_vfs::{
    Cred, Fd, Fs, OpenFlags, Options, Process, RenameFlags, StoreOptions, WalkEntry, XattrFlags,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const WRITERS: usize = 3;
const ROUNDS: usize = 150;
const CALLS: usize = 13;

/// Call number `at` of a writer in the directory `dir`, where `big` is open. Each shows.
fn call(process: &Process, dir: &str, big: Fd, at: usize) {
    let (round, kind) = (at / CALLS, at % CALLS);
    let path = |name: &str| format!("{dir}/{name}");
    let (made, moved) = (path(&format!("a{round}")), path(&format!("m{round}")));
    let open = |flags| process.open(format!("{made}/f"), flags, 0o600);
    match kind {
        0 => process.mkdir(&made, 0o755),
        1 => open(OpenFlags::WRONLY | OpenFlags::CREAT).and_then(|fd| process.close(fd)),
        2 => open(OpenFlags::WRONLY).and_then(|fd| {
            process.pwrite(fd, format!("round {round}").as_bytes(), 0)?;
            process.close(fd)
        }),
        3 => process.link(format!("{made}/f"), path(&format!("l{round}"))),
        4 => process.pwrite(big, &[round as u8; 12_288], 0).map(drop),
        5 => process.rename(&made, &moved),
        6 => process.setxattr(format!("{moved}/f"), b"user.round", &round.to_le_bytes(), XattrFlags::empty()),
        7 => process.rename(path(&format!("l{round}")), path("last")),
        8 => process.renameat2(Fd::CWD, &moved, Fd::CWD, path("x"), RenameFlags::EXCHANGE),
        9 => process.chmod(path("last"), 0o640),
        10 => process.ftruncate(big, 12_289 + round as i64),
        11 if round == 0 => process.symlink("last", path("link")),
        11 => process.unlink(format!("{moved}/f")),
        _ => process.rmdir(&moved),
    }
    .unwrap_or_else(|errno| panic!("call {at}: {errno}"));
}

/// Makes the directory of a writer, and opens its large file.
fn begin(process: &Process, dir: &str) -> Fd {
    process.mkdir(dir, 0o755).unwrap();
    process.mkdir(format!("{dir}/x"), 0o755).unwrap();
    process.open(format!("{dir}/big"), OpenFlags::RDWR | OpenFlags::CREAT, 0o600).unwrap()
}

/// The files in `top`, by path, times aside.
type Seen = BTreeMap<PathBuf, String>;

fn seen(fs: &Fs, top: &str) -> Seen {
    let process = fs.process(Cred::root());
    let of = |entry: WalkEntry| {
        let WalkEntry { path, stat, .. } = entry;
        let bytes = stat.is_file().then(|| fs.read(&path).unwrap());
        let bytes = bytes.map(|bytes| (bytes.len(), bytes.first().copied(), bytes.last().copied()));
        let round = process.lgetxattr(&path, b"user.round").ok();
        let target = fs.read_link(&path).ok();
        let seen = format!("{:o} {} {} {bytes:?} {round:?} {target:?}", stat.mode, stat.nlink, stat.size);
        (path.strip_prefix(top).unwrap().to_owned(), seen)
    };
    fs.walk(top).map(|entry| of(entry.unwrap())).collect()
}

/// When the calls of a writer began and ended, by a common clock; 0 is not yet.
struct Times(Vec<[AtomicU64; 2]>);

/// The directory of a writer after each number of calls.
fn states() -> Vec<Seen> {
    let fs = Fs::new();
    let process = fs.process(Cred::root());
    let big = begin(&process, "/w");
    let mut states = vec![seen(&fs, "/w")];
    for at in 0..ROUNDS * CALLS {
        call(&process, "/w", big, at);
        states.push(seen(&fs, "/w"));
        assert_ne!(states[at], states[at + 1], "call {at} does not show");
    }
    states
}

/// Takes copies of what writers change by `copy`, which shows the directories of the writers in one.
fn check_copies(fs: &Fs, mut copy: impl FnMut(usize) -> Vec<Seen>) {
    let states = states();
    let clock = AtomicU64::new(1);
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    let times: Vec<_> =
        (0..WRITERS).map(|_| Times((0..ROUNDS * CALLS).map(|_| Default::default()).collect())).collect();
    fs.create_dir("/tree").unwrap();
    let process = fs.process(Cred::root());
    let files: Vec<_> = (0..WRITERS).map(|writer| begin(&process, &format!("/tree/w{writer}"))).collect();
    let left = AtomicU64::new(WRITERS as u64);
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        for (writer, Times(times)) in times.iter().enumerate() {
            let (process, big) = (&process, files[writer]);
            let (tick, left, failed) = (&tick, &left, &failed);
            scope.spawn(move || {
                for (at, [began, ended]) in times.iter().enumerate() {
                    if failed.load(Ordering::SeqCst) {
                        break;
                    }
                    began.store(tick(), Ordering::SeqCst);
                    call(process, &format!("/tree/w{writer}"), big, at);
                    ended.store(tick(), Ordering::SeqCst);
                }
                left.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let check = |number: usize, before: u64, after: u64, copies: &[Seen]| {
            let done: Vec<usize> = copies
                .iter()
                .map(|copy| states.iter().position(|state| state == copy))
                .collect::<Option<_>>()
                .ok_or_else(|| format!("copy {number} is of no number of calls: {copies:#?}"))?;
            let time = |writer: usize, at: usize, end: usize| {
                times[writer].0.get(at).map_or(0, |times| times[end].load(Ordering::SeqCst))
            };
            for (writer, &calls) in done.iter().enumerate() {
                let next_ended = time(writer, calls, 1);
                if next_ended != 0 && next_ended < before {
                    return Err(format!("copy {number} lacks call {calls} of {writer}, which had ended"));
                }
                if calls > 0 && time(writer, calls - 1, 0) > after {
                    return Err(format!("copy {number} has call {calls} of {writer}, which came later"));
                }
                for (other, &others) in done.iter().enumerate().filter(|(_, others)| **others > 0) {
                    if next_ended != 0 && next_ended < time(other, others - 1, 0) {
                        return Err(format!(
                            "copy {number} lacks call {calls} of {writer}, and has later call {} of {other}",
                            others - 1
                        ));
                    }
                }
            }
            Ok(())
        };
        let mut number = 0;
        while left.load(Ordering::SeqCst) > 0 || number == 0 {
            let before = tick();
            let copies = copy(number);
            let checked = check(number, before, tick(), &copies);
            if let Err(why) = checked {
                failed.store(true, Ordering::SeqCst);
                panic!("{why}");
            }
            number += 1;
        }
        println!("{number} copies");
    });
    let report = fs.check();
    assert!(report.is_clean(), "{:?}", report.findings);
}

fn writers_in(fs: &Fs, top: &str) -> Vec<Seen> {
    (0..WRITERS).map(|writer| seen(fs, Path::new(top).join(format!("w{writer}")).to_str().unwrap())).collect()
}

/// As `check_copies`, by clones beside the tree.
fn check_clones(fs: &Fs) {
    check_copies(fs, |number| {
        let to = format!("/clone{number}");
        fs.clone_tree("/tree", &to).unwrap();
        let seen = writers_in(fs, &to);
        fs.remove_dir_all(&to).unwrap();
        seen
    });
}

#[test]
fn a_snapshot_beside_writers_is_the_tree_after_one_prefix_of_their_calls() {
    let fs = Fs::new();
    check_copies(&fs, |_| {
        let copy = fs.snapshot("/tree").unwrap();
        assert!(copy.check().is_clean());
        writers_in(&copy, "/")
    });
}

#[test]
fn a_clone_beside_writers_is_the_tree_after_one_prefix_of_their_calls() {
    check_clones(&Fs::new());
}

#[test]
fn a_clone_in_a_store_beside_writers_is_the_tree_after_one_prefix_of_their_calls() {
    let dir = std::env::temp_dir().join(format!("sluice-moments-{}", std::process::id()));
    let store = StoreOptions::default().log_size(1 << 20);
    let fs = Options::default().store(store).create_store(&dir).unwrap();
    check_clones(&fs);
    drop(fs);
    std::fs::remove_dir_all(&dir).unwrap();
}
