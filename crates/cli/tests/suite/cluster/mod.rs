//! Clusters of processes on this machine: what survives when the owner is killed or stands still, and what never happens.

mod histories;
mod watching;
mod workspaces;

use crate::harness::{Ran, SLUICE, Scratch, can_mount, skipped, sluice};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use sluice_console::mounted::Mounted;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// After this long something is taken to hang. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(120);
/// The lease: a node that is to live does so though the machine is slow, and a death that is awaited is not awaited for long.
const TTL: Duration = Duration::from_secs(10);

struct Cluster {
    scratch: Scratch,
    /// The store is one in an object store.
    is_bucket: bool,
    nodes: Vec<Mounted>,
}

impl Cluster {
    fn new(test: &str, nodes: usize) -> Option<Cluster> {
        Cluster::over(false, test, nodes)
    }

    fn over(is_bucket: bool, test: &str, nodes: usize) -> Option<Cluster> {
        if !can_mount(test) {
            return None;
        }
        let scratch = Scratch::new();
        let mut cluster = Cluster { scratch, is_bucket, nodes: Vec::new() };
        sluice(["mkfs", cluster.store().to_str().expect("a path of ours")]).well();
        let ttl = TTL.as_secs().to_string();
        sluice(["cluster", "init", "--ttl", &ttl, cluster.shared().to_str().expect("a path of ours")]).well();
        (0..nodes).for_each(|_| cluster.nodes.push(cluster.join()));
        Some(cluster)
    }

    fn store(&self) -> PathBuf {
        let dir = self.scratch.0.join("store");
        if self.is_bucket { format!("file://{}", dir.display()).into() } else { dir }
    }

    fn shared(&self) -> PathBuf {
        self.scratch.0.join("cluster")
    }

    fn join(&self) -> Mounted {
        self.join_with(&[])
    }

    fn join_with(&self, options: &[&str]) -> Mounted {
        self.try_join_with(options).expect("mounting works here")
    }

    fn try_join_with(&self, options: &[&str]) -> sluice_console::failure::Result<Mounted> {
        let place = format!("dir:{}", self.shared().display());
        let mut all: Vec<&OsStr> = vec!["--cluster".as_ref(), place.as_ref()];
        all.extend(options.iter().map(OsStr::new));
        Mounted::start_on(Path::new(SLUICE), Some(&self.store()), &all)
    }

    fn path(&self, node: usize, name: &str) -> PathBuf {
        self.nodes[node].path().join(name)
    }

    fn signal(&self, node: usize, signal: Signal) {
        let pid = i32::try_from(self.nodes[node].server_pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process"), signal).expect("it runs");
    }

    /// Stops a node, and waits until it stands still: the signal has to reach each of its threads.
    fn stop(&self, node: usize) {
        self.signal(node, Signal::STOP);
        let tasks = format!("/proc/{}/task", self.nodes[node].server_pid());
        eventually("it stands still", || {
            let threads = fs::read_dir(&tasks).expect("it runs");
            threads.map(|thread| fs::read_to_string(thread?.path().join("stat"))).all(is_stopped)
        });
    }

    fn status(&self) -> String {
        sluice(["cluster", "status", "--json", self.shared().to_str().expect("a path of ours")]).well()
    }

    /// The node's role, by its status.
    fn role(&self, node: usize) -> String {
        self.stat(node, "role")
    }

    /// The value of `field` in the node's status.
    fn stat(&self, node: usize, field: &str) -> String {
        crate::harness::stat_field(self.nodes[node].path(), field)
    }

    /// All but `dead` unmount; the store is sound.
    fn finish(self, dead: &[usize]) {
        drop(self.finish_keeping(dead));
    }

    /// Ends the cluster, as [`finish`](Self::finish) does, and returns the directory of its stores.
    fn finish_keeping(mut self, dead: &[usize]) -> Scratch {
        for (number, node) in self.nodes.drain(..).enumerate() {
            let ended = node.unmount();
            assert!(dead.contains(&number) || ended.is_ok(), "{number}: {ended:?}");
        }
        let checked = sluice(["fsck", self.store().to_str().expect("a path of ours")]);
        assert_eq!(checked.status, Some(0), "{}", checked.stdout);
        self.scratch
    }
}

/// Whether a thread is, by what the kernel says of it.
fn is_stopped(stat: io::Result<String>) -> bool {
    stat.is_ok_and(|stat| stat.contains(") T "))
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn kernels_of_all_nodes_forget_what_they_do_not_use_when_the_owner_lacks_memory() {
    let test = "kernels_of_all_nodes_forget_what_they_do_not_use_when_the_owner_lacks_memory";
    let Some(mut cluster) = Cluster::new(test, 0) else { return };
    if crate::harness::kernel() < (6, 18) {
        return skipped(test, "a kernel before Linux 6.18 keeps what it has seen (cure: a newer one)");
    }
    // A quarter of that is for names and inodes of a KiB each.
    (0..2).for_each(|_| cluster.nodes.push(cluster.join_with(&["-o", "memory=8M"])));
    const FILES: u64 = 6_000;
    for n in 0..FILES {
        if n % 100 == 0 {
            fs::create_dir(cluster.path(1, &(n / 100).to_string())).expect("room");
        }
        fs::write(cluster.path(1, &format!("{}/{n}", n / 100)), n.to_string()).expect("room");
    }
    eventually("the guest's kernel has forgotten most", || {
        // The server handles the kernel's FORGETs when a request comes.
        drop(fs::read_dir(cluster.path(1, "0")).map(Iterator::count));
        cluster.stat(1, "known_inodes").parse::<u64>().expect("a number") < FILES / 2
    });
    let read = |n: u64| fs::read_to_string(cluster.path(1, &format!("{}/{n}", n / 100)));
    assert!((0..FILES).all(|n| read(n).is_ok_and(|text| text == n.to_string())));
    cluster.finish(&[]);
}

#[test]
fn when_the_owner_is_killed_files_locks_and_what_was_durable_stay() {
    let test = "when_the_owner_is_killed_files_locks_and_what_was_durable_stay";
    let Some(cluster) = Cluster::new(test, 3) else { return };
    assert_eq!([0, 1, 2].map(|node| cluster.role(node)), ["owner", "guest", "guest"]);
    let refused = sluice(["receive".as_ref(), cluster.nodes[0].path().as_os_str()]).complaint(1);
    assert!(refused.contains("a node of a cluster receives nothing"), "{refused}");
    fs::write(cluster.path(0, "by-owner"), "gone unless durable").expect("written");
    let mut durable =
        File::options().read(true).append(true).create(true).open(cluster.path(1, "durable")).expect("made");
    durable.write_all(b"first\n").expect("written");
    durable.sync_all().expect("durable");
    durable.lock().expect("free");
    let mut unsynced = File::create_new(cluster.path(2, "unsynced")).expect("made");
    unsynced.write_all(b"maybe").expect("written");
    let unnamed = File::create_new(cluster.path(1, "unnamed")).expect("made");
    unnamed.sync_all().expect("durable");
    fs::remove_file(cluster.path(2, "unnamed")).expect("removed");
    durable.sync_all().expect("durable");
    let contender = File::open(cluster.path(2, "durable")).expect("it is there");
    // More than stands in records: the store has objects for it.
    let large: Vec<u8> = (0..9 << 20).map(|at: u32| (at / 4096 % 251) as u8).collect();
    let mut objects_of_data = File::create_new(cluster.path(1, "large")).expect("made");
    objects_of_data.write_all(&large).and_then(|()| objects_of_data.sync_all()).expect("durable");

    cluster.signal(0, Signal::KILL);
    // The next change needs a new owner, and is made.
    durable.write_all(b"second\n").expect("appended");
    assert!(["owner", "guest"].contains(&cluster.role(1).as_str()));
    assert_eq!(fs::read_to_string(cluster.path(2, "durable")).expect("read"), "first\nsecond\n");
    assert_eq!(
        fs::read_to_string(cluster.path(2, "by-owner")).expect("it was durable"),
        "gone unless durable"
    );
    assert!(fs::read(cluster.path(2, "large")).expect("it was durable") == large);
    drop(objects_of_data);
    let refused = rustix::fs::flock(&contender, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK), "the lock survived");
    // It was unlinked and open: it is there for the one that has it open, and for nobody else.
    unnamed.set_len(10).expect("it is open");
    assert_eq!(unnamed.metadata().expect("it is open").len(), 10);
    assert!(!cluster.path(2, "unnamed").exists());
    // A write without fsync may be lost: then fsync says so.
    match unsynced.sync_all() {
        Ok(()) => assert_eq!(fs::read_to_string(cluster.path(1, "unsynced")).expect("kept"), "maybe"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(5)),
    }
    drop(unsynced);
    durable.unlock().expect("it is held");
    contender.lock().expect("it is free");
    assert!(cluster.status().lines().count() >= 2, "{}", cluster.status());
    drop((durable, contender, unnamed));
    cluster.finish(&[0]);
}

#[test]
fn a_quota_is_exact_after_its_owner_was_killed_and_a_guest_names_who_takes_the_command() {
    let test = "a_quota_is_exact_after_its_owner_was_killed_and_a_guest_names_who_takes_the_command";
    for is_bucket in [false, true] {
        let Some(cluster) = Cluster::over(is_bucket, test, 2) else { return };
        let quota = |node: usize, more: &[&str]| {
            let (dir, words) = (cluster.path(node, "dir"), ["quota".as_ref()]);
            sluice(words.into_iter().chain([dir.as_os_str()]).chain(more.iter().map(OsStr::new)))
        };
        fs::create_dir(cluster.path(0, "dir")).expect("made");
        let refused = quota(1, &["4M"]).complaint(1);
        assert!(refused.contains("give this order on the owner's mount"), "{refused}");
        quota(0, &["4M"]).well();
        let mut file = File::create(cluster.path(1, "dir/file")).expect("made");
        file.write_all(&[7; 3 << 20]).and_then(|()| file.sync_all()).expect("durable");
        drop(file);
        let much = |node: usize| {
            let mut file = File::create(cluster.path(node, "dir/more"))?;
            file.write_all(&[8; 2 << 20])?;
            file.sync_all()
        };
        // A guest is told at the write, or at fsync.
        assert_eq!(much(1).expect_err("it does not fit").kind(), ErrorKind::QuotaExceeded);
        fs::remove_file(cluster.path(1, "dir/more")).expect("it is there");
        File::open(cluster.path(1, "dir")).and_then(|dir| dir.sync_all()).expect("durable");

        cluster.signal(0, Signal::KILL);
        eventually("the other node is the owner", || cluster.role(1) == "owner");
        eventually("what was removed does not count", || {
            quota(1, &[]).stdout.contains("3.0 MiB of 4.0 MiB used")
        });
        assert_eq!(much(1).expect_err("it does not fit").kind(), ErrorKind::QuotaExceeded);
        cluster.finish(&[0]);
    }
}

#[test]
fn a_process_that_goes_on_is_told_if_a_name_that_it_gave_is_lost_and_not_if_the_owner_has_left() {
    let test = "a_process_that_goes_on_is_told_if_a_name_that_it_gave_is_lost_and_not_if_the_owner_has_left";
    let Some(mut cluster) = Cluster::new(test, 3) else { return };
    // Each has a name of its own before: that comes back when the rename is lost.
    let before = |to: &str| format!("before {to}");
    for (node, to) in [(1, "first"), (2, "second"), (1, "third")] {
        File::create_new(cluster.path(node, &before(to))).expect("made").sync_all().expect("durable");
    }
    let rename = |cluster: &Cluster, node: usize, to: &str| {
        fs::rename(cluster.path(node, &before(to)), cluster.path(node, to)).expect("renamed");
    };
    rename(&cluster, 1, "first");
    rename(&cluster, 2, "second");
    cluster.signal(0, Signal::KILL);
    for (node, to) in [(1, "first"), (2, "second")] {
        let other = File::create_new(cluster.path(node, &format!("other {node}"))).expect("made");
        let told = other.sync_all().map_err(|error| error.raw_os_error());
        // By chance the owner has made it durable.
        let is_lost = !cluster.path(node, to).exists();
        println!("node {node}: lost: {is_lost}");
        assert_eq!(told, if is_lost { Err(Some(5)) } else { Ok(()) });
        other.sync_all().expect("it is told once");
    }
    let owner = if cluster.role(1) == "owner" { 1 } else { 2 };
    rename(&cluster, 3 - owner, "third");
    let unsynced = File::create_new(cluster.path(3 - owner, "unsynced")).expect("made");
    (&unsynced).write_all(b"kept").expect("written");
    cluster.nodes.remove(owner).unmount().expect("it leaves");
    unsynced.sync_all().expect("nothing is lost");
    assert!(cluster.path(1, "third").exists());
    drop(unsynced);
    cluster.finish(&[0]);
}

#[test]
fn exclusive_names_appended_lines_and_locks_hold_while_the_owner_is_killed() {
    let test = "exclusive_names_appended_lines_and_locks_hold_while_the_owner_is_killed";
    let Some(mut cluster) = Cluster::new(test, 3) else { return };
    let seconds =
        std::env::var("SLUICE_CLUSTER_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let over = AtomicBool::new(false);
    let trials: u64 =
        std::env::var("SLUICE_CLUSTER_TRIALS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (turns, inside) = (AtomicU64::new(0), [AtomicBool::new(false), AtomicBool::new(false)]);
    let dirs = [1, 2].map(|node| cluster.nodes[node].path().to_owned());
    let (turns, inside, over) = (&turns, &inside, &over);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let tasks: Vec<_> = dirs
            .iter()
            .enumerate()
            .map(|(me, dir)| scope.spawn(move || work(me, dir, over, inside, turns)))
            .collect();
        // On a slow machine turns are slow, but there are some.
        let until = |turn: u64| {
            let (mut seen, mut since) = (0, Instant::now());
            while seen < turn {
                let now = turns.load(Ordering::Relaxed);
                (seen, since) = if now == seen { (seen, since) } else { (now, Instant::now()) };
                assert!(since.elapsed() < HANG, "both stand still after {now} turns");
                assert!(!tasks.iter().any(ScopedJoinHandle::is_finished), "one has failed");
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        let begun = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let before = turns.load(Ordering::Relaxed);
                until(before + 20);
                // Only the first node has no clients: it is killed as an owner, and then as a guest.
                cluster.signal(0, Signal::KILL);
                until(before + 60);
                let fresh = cluster.join();
                let dead = std::mem::replace(&mut cluster.nodes[0], fresh);
                let _ = dead.unmount();
                if begun.elapsed() >= Duration::from_secs(seconds) && turns.load(Ordering::Relaxed) >= trials
                {
                    return;
                }
            }
        }));
        over.store(true, Ordering::Relaxed);
        if ended.is_err() {
            // A call that waits in a mount ends with its server.
            (0..cluster.nodes.len()).for_each(|node| cluster.signal(node, Signal::KILL));
        }
        let did: Vec<_> = tasks.into_iter().map(ScopedJoinHandle::join).collect();
        ended.unwrap_or_else(|panic| resume_unwind(panic));
        did.into_iter().map(|did| did.expect("no violation")).collect()
    });
    let [first, second] = outcomes.as_slice() else { unreachable!() };
    let both: Vec<_> = first.won.iter().filter(|name| second.won.contains(name)).collect();
    assert!(both.is_empty(), "both made {both:?}");
    // One of them may have been a turn ahead all the time.
    assert!(!first.won.is_empty() || !second.won.is_empty(), "a name is made by one of them");
    let log = fs::read_to_string(dirs[0].join("log")).expect("it is there");
    for line in first.appended.iter().chain(&second.appended) {
        assert!(log.lines().any(|other| other == line), "{line} was durable and is not there");
    }
    let mut lines: Vec<_> = log.lines().collect();
    lines.sort_unstable();
    let twice = lines.windows(2).find(|two| two[0] == two[1]);
    assert_eq!(twice, None, "appended once");
    println!("{} turns, {} lines", turns.load(Ordering::Relaxed), log.lines().count());
    cluster.finish(&[]);
}

/// The changes that a task knows to be durable.
#[derive(Default)]
struct Did {
    won: Vec<u64>,
    appended: Vec<String>,
}

/// Makes names that another makes too, and names of its own, appends lines, renames what another renames too, and locks a file, in
/// turns.
fn work(me: usize, dir: &Path, over: &AtomicBool, inside: &[AtomicBool; 2], turns: &AtomicU64) -> Did {
    let alone = |inside: &AtomicBool, what: &str| {
        assert!(!inside.swap(true, Ordering::SeqCst), "two have one {what}");
        std::thread::yield_now();
        inside.store(false, Ordering::SeqCst);
    };
    let mut did = Did::default();
    let open = |name: &str| File::options().append(true).create(true).open(dir.join(name)).expect("open");
    let (mut log, guard) = (open("log"), open("guard"));
    let (token, mine, top) =
        (dir.join("token"), dir.join(format!("token-{me}")), File::open(dir).expect("open"));
    drop(open("token"));
    let mut turn = 0;
    while !over.load(Ordering::Relaxed) {
        turn += 1;
        match File::create_new(dir.join(format!("x{turn}"))) {
            // A name counts as made only when it is durable.
            Ok(file) if file.sync_all().is_ok() => did.won.push(turn),
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists, "x{turn}: {error}"),
        }
        let line = format!("{me} {turn}");
        log.write_all(format!("{line}\n").as_bytes()).expect("appended");
        match log.sync_all() {
            Ok(()) => did.appended.push(line),
            Err(error) => assert_eq!(error.raw_os_error(), Some(5)),
        }
        // Nobody else makes it: that it is there would mean that it was made twice.
        fs::create_dir(dir.join(format!("d{me}-{turn}"))).expect("made");
        match fs::rename(&token, &mine) {
            // A name counts as gone only when its removal is durable.
            Ok(()) if top.sync_all().is_ok() => alone(&inside[0], "name"),
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        }
        // It may have come back with the death of an owner.
        if let Err(error) = fs::rename(&mine, &token) {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        }
        guard.lock().expect("locked");
        alone(&inside[1], "lock");
        guard.unlock().expect("it is held");
        turns.fetch_add(1, Ordering::Relaxed);
    }
    did
}

#[test]
fn an_owner_that_stands_still_for_longer_than_its_lease_gives_way_and_comes_back() {
    let test = "an_owner_that_stands_still_for_longer_than_its_lease_gives_way_and_comes_back";
    let Some(cluster) = Cluster::new(test, 2) else { return };
    fs::write(cluster.path(1, "f"), "before").expect("written");
    File::open(cluster.path(1, "f")).and_then(|file| file.sync_all()).expect("durable");
    cluster.stop(0);
    let waits = std::thread::spawn({
        let path = cluster.path(1, "g");
        move || fs::write(path, "meanwhile")
    });
    // Longer than its lease; it has the store locked, so that nobody else can serve.
    std::thread::sleep(TTL + Duration::from_secs(1));
    assert!(!waits.is_finished());
    cluster.signal(0, Signal::CONT);
    waits.join().expect("no panic").expect("it is made at last");
    assert_eq!(fs::read_to_string(cluster.path(0, "f")).expect("it serves again"), "before");
    assert_eq!(fs::read_to_string(cluster.path(0, "g")).expect("it serves again"), "meanwhile");
    eventually("one owns", || {
        let roles = [0, 1].map(|node| cluster.role(node));
        roles.iter().filter(|role| *role == "owner").count() == 1 && roles.iter().any(|role| role == "guest")
    });
    cluster.finish(&[]);
}

#[test]
fn in_an_object_store_another_takes_over_while_the_owner_stands_still() {
    let test = "in_an_object_store_another_takes_over_while_the_owner_stands_still";
    let Some(cluster) = Cluster::over(true, test, 2) else { return };
    fs::write(cluster.path(0, "f"), "before").expect("written");
    File::open(cluster.path(1, "f")).and_then(|file| file.sync_all()).expect("durable");
    cluster.stop(0);
    let written = fs::write(cluster.path(1, "g"), "meanwhile");
    let synced = File::open(cluster.path(1, "g")).and_then(|file| file.sync_all());
    cluster.signal(0, Signal::CONT);
    written.expect("another serves");
    synced.expect("durable");
    eventually("the old owner is a guest", || cluster.role(0) == "guest");
    assert_eq!(fs::read_to_string(cluster.path(0, "g")).expect("it is served"), "meanwhile");
    assert_eq!(fs::read_to_string(cluster.path(0, "f")).expect("it is served"), "before");
    fs::write(cluster.path(0, "f"), "after").expect("written");
    assert_eq!(fs::read_to_string(cluster.path(1, "f")).expect("read"), "after");
    cluster.finish(&[]);
}

#[test]
fn an_owner_that_lost_changes_with_its_store_says_so_when_it_is_unmounted() {
    let test = "an_owner_that_lost_changes_with_its_store_says_so_when_it_is_unmounted";
    let Some(mut cluster) = Cluster::over(true, test, 2) else { return };
    fs::write(cluster.path(0, "f"), "before").expect("written");
    File::open(cluster.path(0, "f")).and_then(|file| file.sync_all()).expect("durable");
    fs::write(cluster.path(0, "unsynced"), "lost").expect("written");
    cluster.stop(0);
    let written = fs::write(cluster.path(1, "g"), "meanwhile");
    cluster.signal(0, Signal::CONT);
    written.expect("another serves");
    eventually("the old owner is a guest", || cluster.role(0) == "guest");
    assert!(!cluster.path(0, "unsynced").exists());
    let ended = cluster.nodes.remove(0).unmount().expect_err("it lost changes").to_string();
    assert!(ended.contains("not all is durable: changes were lost when this node lost the store"), "{ended}");
    assert_eq!(ended.lines().count(), 1, "{ended}");
    cluster.finish(&[]);
}

#[test]
fn a_node_without_access_times_moves_none_and_the_others_do() {
    let test = "a_node_without_access_times_moves_none_and_the_others_do";
    let Some(mut cluster) = Cluster::new(test, 1) else { return };
    for options in ["noatime", "nodiratime"] {
        let node = cluster.join_with(&["-o", options]);
        cluster.nodes.push(node);
    }
    fs::create_dir(cluster.path(0, "d")).expect("room");
    let early = || std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(100);
    for (node, [file_moves, dir_moves]) in [(1, [false, false]), (2, [true, false]), (0, [true, true])] {
        let name = format!("f{node}");
        fs::write(cluster.path(0, &name), "contents").expect("room");
        for path in [cluster.path(0, &name), cluster.path(0, "d")] {
            File::open(path)
                .and_then(|file| file.set_times(fs::FileTimes::new().set_accessed(early())))
                .expect("root may");
        }
        assert_eq!(fs::read_to_string(cluster.path(node, &name)).expect("readable"), "contents");
        assert_eq!(fs::read_dir(cluster.path(node, "d")).expect("readable").count(), 0);
        // Asked by way of a node that has read neither.
        let other = (node + 1) % 3;
        let moved = |name: &str| {
            fs::metadata(cluster.path(other, name)).and_then(|it| it.accessed()).expect("told") != early()
        };
        assert_eq!([moved(&name), moved("d")], [file_moves, dir_moves], "node {node}");
    }
    cluster.finish(&[]);
}

#[test]
fn a_mount_that_waits_for_the_lease_of_a_dead_owner_says_so_once() {
    let test = "a_mount_that_waits_for_the_lease_of_a_dead_owner_says_so_once";
    let Some(cluster) = Cluster::new(test, 1) else { return };
    cluster.signal(0, Signal::KILL);
    let (place, store) = (format!("dir:{}", cluster.shared().display()), cluster.store());
    let dir = cluster.scratch.dir("late");
    let paths = [&store, &dir].map(|path| path.to_str().expect("a path of ours"));
    let ran = sluice(["mount", "--cluster", &place, paths[0], paths[1]]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let waits = "waits for a node that serves it, or for the lease of one that died";
    assert!(ran.stderr.contains(waits) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    crate::harness::umount(&dir);
    cluster.finish(&[0]);
}

#[test]
fn the_demo_of_a_cluster_shows_what_it_should() {
    let test = "the_demo_of_a_cluster_shows_what_it_should";
    if !can_mount(test) {
        return;
    }
    let mut command = Command::new(SLUICE);
    if std::env::var_os("TOOLS").is_none() {
        command.env("TOOLS", concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools"));
    }
    let shown = Ran::from(command.args(["cluster", "demo"]).output().expect("it starts")).well();
    assert!(shown.contains("B still has its lock") && shown.contains("C has the lock now"), "{shown}");
    assert!(shown.contains("next fsync fails with EIO") || shown.contains("durable by then"), "{shown}");
    if shown.contains("No link is pulled") {
        skipped(
            test,
            "its half with a link that is pulled: not root, or no ip, nsenter or etcd (make programs)",
        );
    } else {
        assert!(shown.contains("serves nothing by itself") && shown.contains("is a guest of"), "{shown}");
    }
}

#[test]
fn what_is_wrong_with_a_cluster_is_said_in_a_line() {
    let scratch = Scratch::new();
    let (dir, shared) = (scratch.dir("m"), scratch.0.join("cluster"));
    let (dir, shared) = (dir.to_str().expect("a path"), shared.to_str().expect("a path"));
    let place = format!("dir:{shared}");
    for (arguments, status, word) in [
        (vec!["mount", "/nowhere", dir, "--cluster", &place], 1, "/nowhere"),
        (vec!["mount", dir, dir, "--cluster", "etcd"], 2, "dir:SHARED"),
        (vec!["mount", dir, "--cluster", &place], 1, "cluster"),
        (vec!["cluster", "status", shared], 1, "sluice cluster init"),
        (vec!["cluster", "init", "--ttl", "0.1", shared], 2, "half a second"),
        (vec!["cluster", "leave", dir], 1, dir),
        (vec!["top"], 2, "--cluster"),
        (vec!["top", "--cluster", &place, dir], 2, "cannot be used with"),
        (vec!["top", "--identity", dir], 2, "--cluster"),
        (vec!["top", "--cluster", &place], 1, "sluice cluster init"),
    ] {
        let ran = sluice(arguments.clone());
        assert_eq!(ran.status, Some(status), "{arguments:?}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(word) && ran.stderr.lines().count() == 1,
            "{arguments:?}: {}",
            ran.stderr
        );
    }
    sluice(["cluster", "init", shared]).well();
    assert!(sluice(["cluster", "init", shared]).stderr.contains("there is a cluster already"));
    let identity = scratch.0.join("identity");
    sluice(["cluster", "join", shared, identity.to_str().expect("a path")]).well();
    assert!(identity.join("node.key").exists());
    assert!(sluice(["cluster", "status", shared]).well().contains("leases of 5s"));
}
