//! Counts and states that nodes of a cluster show, and how one of two on a machine is unmounted.

use super::{Cluster, Mounted, OsStr, Path, SLUICE, eventually, sluice};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sluice_console::failure::Failure;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Less than a command waits for a store, and more than any machine needs to unmount.
const UNMOUNTED: Duration = Duration::from_secs(60);
/// So many lines of many screens.
const SHOWN: usize = 500;

impl Cluster {
    /// The JSON of a node's `sluice stat`.
    fn told_by(&self, node: usize) -> Value {
        let json = sluice(["stat".as_ref(), "--json".as_ref(), self.nodes[node].path().as_os_str()]).well();
        serde_json::from_str(&json).expect("JSON")
    }

    /// One of its counts as a node of a cluster.
    fn counted_by(&self, node: usize, name: &str) -> u64 {
        self.told_by(node)["cluster"][name].as_u64().expect("a number")
    }

    /// Joins a node that tells its metrics at the port.
    fn join_with_metrics(&mut self) -> u16 {
        // A port that was free a moment ago: another program may take it before the mount does.
        let join = |_| {
            let free = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = free.local_addr().expect("it is bound").port();
            drop(free);
            match self.try_join_with(&["-o", &format!("metrics=127.0.0.1:{port}")]) {
                Ok(node) => Some((node, port)),
                Err(Failure::Failed(text)) if text.contains("in use") => None,
                Err(failure) => panic!("{failure}"),
            }
        };
        let (node, port) = (0..5).find_map(join).expect("one is free");
        self.nodes.push(node);
        port
    }
}

fn metrics_at(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("asked");
    std::io::read_to_string(stream).expect("answered")
}

#[test]
fn the_owner_tells_what_its_store_does_and_another_node_only_what_it_can_know() {
    let test = "the_owner_tells_what_its_store_does_and_another_node_only_what_it_can_know";
    let Some(mut cluster) = Cluster::over(true, test, 0) else { return };
    let ports = [cluster.join_with_metrics(), cluster.join_with_metrics()];
    for node in [0, 1] {
        let mut file = File::create_new(cluster.path(node, &format!("by {node}"))).expect("made");
        file.write_all(&[7; 100_000]).expect("written");
        file.sync_all().expect("durable");
    }
    let [owner, guest] = [0, 1].map(|node| cluster.told_by(node));
    assert_eq!([&owner, &guest].map(|told| told["cluster"]["role"].as_str()), [Some("owner"), Some("guest")]);

    let puts = owner["object_requests"]["put"]["buckets"].as_array().expect("buckets");
    assert!(puts.iter().filter_map(|bucket| bucket[1].as_u64()).sum::<u64>() > 0, "{owner}");
    assert!(
        owner["live_inodes"].as_u64() >= Some(3) && owner["memory_limit_bytes"].as_u64() > Some(0),
        "{owner}"
    );
    assert!(owner["write_stalls"].is_u64() && owner["dirty_bytes"].is_u64() && owner["hot_locks"].is_array());
    assert!(
        guest["requests"]["FSYNC"].as_u64() > Some(0) && guest["latency"]["FSYNC"].is_object(),
        "{guest}"
    );
    for name in ["live_inodes", "object_requests", "write_stalls", "blocks", "dirty_bytes", "failure"] {
        assert!(guest.get(name).is_none() && owner.get(name).is_some(), "{name}: {guest}");
    }
    for told in [&owner, &guest] {
        let counts = [
            "locks_decided",
            "answered_here",
            "awaited",
            "behind",
            "recalls",
            "waiting_locks",
            "dirty_bytes",
        ];
        assert!(counts.iter().all(|name| told["cluster"][name].is_u64()), "{told}");
    }
    assert!(guest["cluster"]["awaited"].as_u64() > Some(0), "{guest}");
    let status = cluster.status();
    assert!(
        status.lines().count() == 2 && status.lines().all(|line| line.contains("\"recalls\":")),
        "{status}"
    );

    let texts = [0, 1].map(|node| sluice(["stat".as_ref(), cluster.nodes[node].path().as_os_str()]).well());
    let metrics = ports.map(metrics_at);
    // Names in the owner's output, and whether they are in its output alone.
    let tell = |said: &[String; 2], names: &[(bool, &str)]| {
        for (of_owner, name) in names {
            assert!(
                said[0].contains(name) && said[1].contains(name) != *of_owner,
                "{name}: {}{}",
                said[0],
                said[1]
            );
        }
    };
    tell(
        &texts,
        &[
            (true, "object put"),
            (true, "write stalls"),
            (true, "live inodes"),
            (false, "FSYNC"),
            (false, "cluster recalls"),
        ],
    );
    tell(
        &metrics,
        &[
            (true, "sluicefs_object_request_duration_seconds_count{kind=\"put\"}"),
            (true, "sluicefs_write_stalls "),
            (true, "sluicefs_cluster_info{role=\"owner\"} 1"),
            (false, "sluicefs_requests_total{kind=\"FSYNC\"}"),
            (false, "sluicefs_cluster_epoch "),
            (false, "sluicefs_cluster_dirty_bytes "),
        ],
    );
    cluster.finish(&[]);
}

#[test]
fn what_was_left_to_a_node_is_counted_when_another_takes_it_and_so_are_locks_that_are_waited_for() {
    let test =
        "what_was_left_to_a_node_is_counted_when_another_takes_it_and_so_are_locks_that_are_waited_for";
    let Some(cluster) = Cluster::new(test, 2) else { return };
    let first = File::create_new(cluster.path(1, "locked")).expect("made");
    for _ in 0..3 {
        first.lock().expect("free");
        first.unlock().expect("it is held");
    }
    first.lock().expect("free");
    assert!(cluster.counted_by(1, "locks_decided") > 0, "the file's locks are left to the node");
    let before = cluster.counted_by(1, "recalls");
    let second = File::open(cluster.path(0, "locked")).expect("it is there");
    let after = cluster.counted_by(1, "recalls");
    assert!(after > before, "{before} and then {after}");

    let waits = std::thread::spawn(move || second.lock());
    eventually("the lock is waited for", || cluster.counted_by(0, "waiting_locks") == 1);
    assert_eq!(cluster.told_by(0)["waiting_locks"], 1);
    assert_eq!(cluster.counted_by(1, "waiting_locks"), 0);
    drop(first);
    waits.join().expect("no panic").expect("it is free");
    eventually("nothing is waited for", || cluster.counted_by(0, "waiting_locks") == 0);

    fs::create_dir(cluster.path(1, "dir")).expect("made");
    fs::write(cluster.path(1, "dir/file"), "contents").expect("written");
    let before = cluster.counted_by(1, "recalls");
    assert_eq!(fs::read_to_string(cluster.path(0, "dir/file")).expect("it is there"), "contents");
    let after = cluster.counted_by(1, "recalls");
    assert!(after > before, "{before} and then {after}");
    cluster.finish(&[]);
}

#[test]
fn a_node_is_unmounted_though_the_owner_has_the_store_in_another_process() {
    let test = "a_node_is_unmounted_though_the_owner_has_the_store_in_another_process";
    for is_bucket in [false, true] {
        let Some(mut cluster) = Cluster::over(is_bucket, test, 2) else { return };
        fs::write(cluster.path(1, "file"), "contents").expect("written");
        let began = Instant::now();
        sluice(["umount".as_ref(), cluster.nodes[1].path().as_os_str()]).well();
        assert!(began.elapsed() < UNMOUNTED, "it has waited for the owner");
        cluster.nodes.remove(1).unmount().expect("it is unmounted already");
        assert_eq!(cluster.role(0), "owner");
        assert_eq!(fs::read_to_string(cluster.path(0, "file")).expect("read"), "contents");
        // When the owner's umount has ended, the store is free.
        sluice(["umount".as_ref(), cluster.nodes[0].path().as_os_str()]).well();
        cluster.finish(&[]);
    }
}

fn role(node: &Value) -> Option<&str> {
    node["stat"]["cluster"]["role"].as_str()
}

#[test]
fn top_shows_each_node_of_a_cluster_until_it_is_told_to_stop() {
    let test = "top_shows_each_node_of_a_cluster_until_it_is_told_to_stop";
    let Some(cluster) = Cluster::over(true, test, 2) else { return };
    File::create_new(cluster.path(1, "file")).expect("made").sync_all().expect("durable");
    let mut top = Command::new(SLUICE)
        .args(["top", "--cluster"])
        .arg(cluster.shared())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(top.stdout.take().expect("a pipe")).lines();
    let mut rest = lines.map(|line| line.expect("text"));
    for role in ["owner", "guest"] {
        let has_role = |line: &String| line.split_whitespace().nth(1) == Some(role);
        let line = rest.by_ref().take(SHOWN).find(has_role).expect("it is shown");
        println!("{line}");
        // The owner's line has the requests to the object store, too.
        let cells = if role == "owner" { 14 } else { 12 };
        assert!(line.split_whitespace().count() >= cells, "{line}");
    }
    let pid = i32::try_from(top.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, Signal::INT).expect("it runs");
    rest.for_each(drop);
    assert_eq!(top.wait().expect("it has ended").code(), Some(0));
    let shared = cluster.shared();
    let line = sluice(["top", "--once", "--json", "--cluster", shared.to_str().expect("text")]).well();
    let line: Value = serde_json::from_str(&line).expect("one line of JSON");
    let mut roles: Vec<_> = line["nodes"].as_array().expect("nodes").iter().map(role).collect();
    roles.sort_unstable();
    assert_eq!(roles, [Some("guest"), Some("owner")], "{line}");
    cluster.finish(&[]);
}

#[test]
fn a_store_that_a_later_cluster_has_used_is_refused_at_once_and_goes_on_there() {
    let test = "a_store_that_a_later_cluster_has_used_is_refused_at_once_and_goes_on_there";
    let Some(earlier) = Cluster::over(true, test, 0) else { return };
    let later = earlier.scratch.0.join("later");
    // Clusters are ordered by the second in which they were made.
    std::thread::sleep(Duration::from_millis(1_100));
    sluice(["cluster", "init", "--ttl", "10", later.to_str().expect("a path of ours")]).well();
    let place = format!("dir:{}", later.display());
    let by_later = || {
        let options: [&OsStr; 2] = ["--cluster".as_ref(), place.as_ref()];
        Mounted::start_on(Path::new(SLUICE), Some(&earlier.store()), &options).expect("mounting works here")
    };
    // The later one takes over from the earlier one, which has used the store before.
    let node = earlier.join();
    fs::write(node.path().join("f"), "kept").expect("room");
    node.unmount().expect("all is durable");
    let node = by_later();
    assert_eq!(fs::read_to_string(node.path().join("f")).expect("it was durable"), "kept");
    node.unmount().expect("all is durable");
    let refused = earlier.try_join_with(&[]).err().expect("the store is another cluster's").to_string();
    assert!(
        refused.contains("in use by another cluster, which was made later than this one: mount it with"),
        "{refused}"
    );
    by_later().unmount().expect("all is durable");
}
