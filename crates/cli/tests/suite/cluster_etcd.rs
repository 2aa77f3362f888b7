//! Clusters whose members meet at an etcd: what survives the death of the owner and of members of etcd, and what is said when
//! something is wrong.

use crate::harness::{SLUICE, Scratch, can_mount, skipped, sluice};
use rustix::process::{Pid, Signal, kill_process};
use sluice_console::mounted::Mounted;
use sluice_console::servers::{ServerProcess, endpoints};
use std::fs::{self, File};
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// After this long something is taken to hang. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(120);
/// The lease: a node that is to live does so though the machine is slow, and a death that is awaited is not awaited for long.
const TTL: Duration = Duration::from_secs(12);
/// Where nobody listens.
const NOBODY: &str = "http://127.0.0.1:1/test";

/// Members of an etcd with their data in a directory, and the place of a cluster there. None, said loudly, where there is no etcd.
pub(crate) fn etcd(test: &str, members: usize) -> Option<((Vec<ServerProcess>, Scratch), String)> {
    let tools = std::env::var_os("TOOLS").map(PathBuf::from);
    let tools = tools.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools").into());
    let data = Scratch::in_memory();
    let servers =
        ServerProcess::etcd(&tools, &data.0, Ipv4Addr::LOCALHOST.into(), members).expect("etcd starts");
    if servers.is_none() {
        skipped(test, "there is no etcd (make programs installs it, or apt-get install etcd-server)");
    }
    let servers = servers?;
    let place = format!("{}/test", endpoints(&servers).to_str().expect("text"));
    Some(((servers, data), place))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

/// Its nodes go first, then its etcd.
struct Cluster {
    nodes: Vec<Mounted>,
    etcd: (Vec<ServerProcess>, Scratch),
    place: String,
    scratch: Scratch,
}

impl Cluster {
    /// A cluster of `nodes` nodes at an etcd of `members`.
    fn new(test: &str, nodes: usize, members: usize) -> Option<Cluster> {
        if !can_mount(test) {
            return None;
        }
        let scratch = Scratch::new();
        let (etcd, place) = etcd(test, members)?;
        let mut cluster = Cluster { nodes: Vec::new(), etcd, place, scratch };
        sluice(["mkfs", &cluster.store()]).well();
        let keys = cluster.keys();
        sluice([
            "cluster",
            "init",
            "--ttl",
            &TTL.as_secs().to_string(),
            "--authority",
            &keys,
            &cluster.place,
        ])
        .well();
        for _ in 0..nodes {
            let node = cluster.join();
            cluster.nodes.push(node);
        }
        Some(cluster)
    }

    fn store(&self) -> String {
        format!("file://{}", self.scratch.0.join("store").display())
    }

    fn keys(&self) -> String {
        text(&self.scratch.0.join("keys")).to_owned()
    }

    fn join(&self) -> Mounted {
        let keys = self.keys();
        let options = ["--cluster", &self.place, "--identity", &keys].map(AsRef::as_ref);
        Mounted::start_on(Path::new(SLUICE), Some(self.store().as_ref()), &options)
            .expect("mounting works here")
    }

    fn path(&self, node: usize, name: &str) -> PathBuf {
        self.nodes[node].path().join(name)
    }

    fn status(&self) -> String {
        sluice(["cluster", "status", "--json", "--identity", &self.keys(), &self.place]).well()
    }

    /// The value of `field` in a node's `sluice stat`.
    fn stat(&self, node: usize, field: &str) -> String {
        crate::harness::stat_field(self.nodes[node].path(), field)
    }

    /// All but `dead` unmount; the store is sound.
    fn finish(mut self, dead: &[usize]) {
        for (number, node) in self.nodes.drain(..).enumerate() {
            let ended = node.unmount();
            assert!(dead.contains(&number) || ended.is_ok(), "{number}: {ended:?}");
        }
        let checked = sluice(["fsck", &self.store()]);
        assert_eq!(checked.status, Some(0), "{}", checked.stdout);
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process"), signal).expect("it runs");
}

fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nodes_that_meet_at_an_etcd_share_a_tree_and_go_on_when_the_owner_is_killed() {
    let test = "nodes_that_meet_at_an_etcd_share_a_tree_and_go_on_when_the_owner_is_killed";
    let Some(mut cluster) = Cluster::new(test, 2, 1) else { return };
    assert_eq!([0, 1].map(|node| cluster.stat(node, "role")), ["owner", "guest"]);
    let mut kept = File::options().append(true).create(true).open(cluster.path(1, "kept")).expect("made");
    kept.write_all(b"one\n").expect("written");
    assert_eq!(fs::read_to_string(cluster.path(0, "kept")).expect("it is there"), "one\n");
    kept.sync_all().expect("durable");
    kept.lock().expect("free");
    let third = cluster.join();
    cluster.nodes.push(third);
    let epoch = cluster.stat(1, "epoch");
    kill(cluster.nodes[0].server_pid());
    kept.write_all(b"two\n").expect("another serves");
    assert!(cluster.stat(1, "epoch").len() >= epoch.len() && cluster.stat(1, "epoch") != epoch);
    assert_eq!(fs::read_to_string(cluster.path(2, "kept")).expect("it is there"), "one\ntwo\n");
    let other = File::open(cluster.path(2, "kept")).expect("it is there");
    assert!(other.try_lock().is_err(), "the lock survived");
    kept.unlock().expect("it is held");
    other.lock().expect("it is free");
    eventually("the dead node is forgotten", || cluster.status().lines().count() == 2);
    assert_eq!(cluster.status().matches("\"role\":\"owner\"").count(), 1, "{}", cluster.status());
    drop((kept, other));
    let left = cluster.nodes.pop().expect("the third");
    sluice(["cluster", "leave", text(left.path())]).well();
    let _ = left.unmount();
    assert_eq!(cluster.status().lines().count(), 1);
    fs::write(cluster.path(1, "after"), "still here").expect("it serves");
    cluster.finish(&[0]);
}

#[test]
fn a_member_of_etcd_that_is_killed_costs_no_takeover_and_a_dead_endpoint_no_mount() {
    let test = "a_member_of_etcd_that_is_killed_costs_no_takeover_and_a_dead_endpoint_no_mount";
    let Some(mut cluster) = Cluster::new(test, 2, 3) else { return };
    let epoch = cluster.stat(1, "epoch");
    fs::write(cluster.path(1, "f"), "before").expect("written");
    // The first one is asked first by every command; it may be the leader.
    kill(cluster.etcd.0[0].pid());
    // Longer than a lease: whoever could not renew it would be dead.
    let begun = Instant::now();
    let mut round = 0;
    while begun.elapsed() < TTL + TTL / 4 {
        round += 1;
        fs::write(cluster.path(round % 2, "f"), format!("{round}")).expect("written");
        assert_eq!(fs::read_to_string(cluster.path(1 - round % 2, "f")).expect("read"), format!("{round}"));
    }
    assert_eq!((cluster.stat(1, "epoch"), cluster.stat(1, "role").as_str()), (epoch, "guest"));
    let third = cluster.join();
    cluster.nodes.push(third);
    assert_eq!(fs::read_to_string(cluster.path(2, "f")).expect("read"), format!("{round}"));
    assert_eq!(cluster.status().lines().count(), 3);
    cluster.finish(&[]);
}

#[test]
fn while_etcd_has_no_leader_all_wait_and_go_on_when_it_has_one_with_what_was_written() {
    let test = "while_etcd_has_no_leader_all_wait_and_go_on_when_it_has_one_with_what_was_written";
    let Some(cluster) = Cluster::new(test, 2, 3) else { return };
    let mut kept = File::options().append(true).create(true).open(cluster.path(1, "kept")).expect("made");
    kept.write_all(b"durable\n").and_then(|()| kept.sync_all()).expect("durable");
    kept.write_all(b"written\n").expect("written");
    // A program that is started has it closed, which would wait as well.
    drop(kept);
    let most = [cluster.etcd.0[0].pid(), cluster.etcd.0[1].pid()];
    most.iter().for_each(|member| signal(*member, Signal::STOP));
    eventually("both wait", || [0, 1].iter().all(|node| cluster.stat(*node, "role") == "waiting"));
    let waits = [0, 1].map(|node| {
        let path = cluster.path(node, &format!("by-{node}"));
        std::thread::spawn(move || File::create(path).and_then(|file| file.sync_all()))
    });
    most.iter().for_each(|member| signal(*member, Signal::CONT));
    for waits in waits {
        waits.join().expect("no panic").expect("it goes on");
    }
    // The store was there all the time, so it has what the last owner had.
    assert_eq!(fs::read_to_string(cluster.path(0, "kept")).expect("read"), "durable\nwritten\n");
    for node in [0, 1] {
        assert!([0, 1].iter().all(|by| cluster.path(node, &format!("by-{by}")).exists()), "node {node}");
    }
    cluster.finish(&[]);
}

#[test]
fn what_is_wrong_with_a_cluster_at_an_etcd_is_said_in_a_line() {
    let test = "what_is_wrong_with_a_cluster_at_an_etcd_is_said_in_a_line";
    let scratch = Scratch::new();
    let (dir, store) = (scratch.dir("m"), format!("file://{}", scratch.0.join("store").display()));
    let (dir, keys, others) = (text(&dir), scratch.0.join("keys"), scratch.0.join("others"));
    let (keys, others) = (text(&keys), text(&others));
    let complains = |status, word: &str, arguments: &[&str]| {
        let said = sluice(arguments).complaint(status);
        assert!(said.contains(word), "{arguments:?}: {said}");
    };
    complains(1, "does not answer", &["cluster", "init", "--authority", keys, NOBODY]);
    complains(1, "does not answer", &["mount", &store, dir, "--cluster", NOBODY]);
    complains(2, "dir:SHARED", &["mount", &store, dir, "--cluster", "ftp://a"]);
    complains(2, "letters", &["cluster", "status", "http://127.0.0.1:1/a b"]);
    complains(2, "ETCDCTL_CACERT", &["cluster", "status", "https://127.0.0.1:1/test"]);
    complains(2, "--listen", &["mount", &store, dir, "--cluster", NOBODY, "--listen", "0.0.0.0:0"]);
    let Some((_etcd, place)) = etcd(test, 1) else { return };
    let other = format!("{place}-2");
    complains(1, "sluice cluster init", &["mount", &store, dir, "--cluster", &place]);
    complains(1, "sluice cluster init", &["cluster", "status", &place]);
    complains(2, "four seconds", &["cluster", "init", "--ttl", "2", "--authority", keys, &place]);
    sluice(["cluster", "init", "--authority", keys, &place]).well();
    complains(1, "give another name", &["cluster", "init", "--authority", others, &place]);
    complains(1, "keys of a cluster already", &["cluster", "init", "--authority", keys, &other]);
    sluice(["cluster", "init", "--authority", others, &other]).well();
    complains(1, "another cluster", &["mount", &store, dir, "--cluster", &place, "--identity", others]);
    complains(1, "no ca.key", &["cluster", "status", &place, "--identity", dir]);
    let identity = scratch.0.join("identity");
    sluice(["cluster", "join", "--authority", keys, &place, text(&identity)]).well();
    assert!(identity.join("node.key").exists() && !identity.join("ca.key").exists());
    assert!(sluice(["cluster", "status", &place, "--identity", text(&identity)]).well().contains("test-"));
}

#[test]
fn workspaces_whose_members_meet_at_an_etcd_are_owned_moved_and_taken_over() {
    let test = "workspaces_whose_members_meet_at_an_etcd_are_owned_moved_and_taken_over";
    let Some(cluster) = Cluster::new(test, 3, 1) else { return };
    let path = cluster.path(0, "a");
    sluice(["workspace".as_ref(), "create".as_ref(), path.as_os_str()]).well();
    // The second is the first that uses it.
    let mut kept = File::options().append(true).create(true).open(cluster.path(1, "a/kept")).expect("made");
    kept.write_all(b"one\n").and_then(|()| kept.sync_all()).expect("durable");
    assert_eq!(fs::read_to_string(cluster.path(2, "a/kept")).expect("read"), "one\n");
    let status = || sluice(["cluster", "status", "--identity", &cluster.keys(), &cluster.place]).well();
    let numbers: Vec<_> = (0..3).map(|node| cluster.stat(node, "node")).collect();
    let is_owned_by = |node: usize| status().contains(&format!("workspace 1: owner {},", numbers[node]));
    assert!(is_owned_by(1), "{}", status());
    let words = ["workspace".into(), "move".into(), path.clone().into_os_string(), numbers[2].clone().into()];
    sluice(words).well();
    assert!(is_owned_by(2), "{}", status());
    kept.write_all(b"two\n").and_then(|()| kept.sync_all()).expect("durable");
    kill(cluster.nodes[2].server_pid());
    kept.write_all(b"three\n").expect("another has taken over");
    assert!(is_owned_by(1) || is_owned_by(0), "{}", status());
    assert_eq!(fs::read_to_string(cluster.path(0, "a/kept")).expect("read"), "one\ntwo\nthree\n");
    drop(kept);
    cluster.finish(&[2]);
}
