//! Processes: nodes of their own that fight for one lock, killed, or frozen for longer than their lease.
//!
//! The lock protects a *journal*: a file that takes a line only with a fencing token that is not less than the last one
//! it took, as a store does. Excluded from each other are holders whose lines it takes: between the `in` of one and its `out` there
//! is no line of another, unless the first one never came to its `out`.

#[path = "../../../membership/tests/suite/etcd/server.rs"]
mod server;

use rustix::process::Pid;
use server::{Server, send, stop, until};
use sluice_dlm::{Config, Dlm, Mode, Token, Want, ask_status};
use sluice_membership::{ClusterCa, Etcd, EtcdAccess, Identity};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest that there is: deaths are awaited. A node whose lease runs out because the machine is slow joins again.
const TTL: Duration = Duration::from_secs(4);
/// Says to this program that it is a node: where the files of the test are, and where etcd is.
const NODE: &str = "SLUICE_ETCD_NODE";

/// The lines of a file; none if it does not exist yet.
fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// A line of the journal, if its token is not of the past.
fn write(journal: &Path, token: Token, what: &str) -> std::io::Result<bool> {
    let mut file = File::options().read(true).append(true).create(true).open(journal)?;
    file.lock()?;
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    let last = text.lines().last().and_then(token_of);
    let is_due = last.is_none_or(|last| token >= last);
    if is_due {
        // In one write: others read meanwhile, and a process may be killed between two.
        let line = format!("{} {} {what} {}\n", token.epoch, token.number, std::process::id());
        file.write_all(line.as_bytes())?;
    }
    Ok(is_due)
}

fn token_of(line: &str) -> Option<Token> {
    let mut words = line.split(' ');
    Some(Token { epoch: words.next()?.parse().ok()?, number: words.next()?.parse().ok()? })
}

/// The program of a node. As a test of its own it does nothing.
#[test]
fn a_node_that_another_test_has_started() {
    let Ok(order) = std::env::var(NODE) else { return };
    let words: Vec<&str> = order.split(' ').collect();
    let [dir, etcd] = words[..] else { panic!("{order}") };
    let dir = PathBuf::from(dir);
    let journal = dir.join("journal");
    let parent = rustix::process::getppid();
    // An orphaned process ends.
    while rustix::process::getppid() == parent {
        // A node whose lease is over comes back as another member.
        let membership = Etcd::connect(
            &EtcdAccess { endpoints: vec![etcd.to_owned()], ..EtcdAccess::default() },
            "processes",
            2,
            TTL,
        );
        let identity = Identity::load(&dir).expect("saved before");
        let joined = membership.and_then(|membership| {
            let status = Some(status_of(std::process::id()));
            Dlm::join_now(Config { status, ..Config::local("processes", identity, Arc::new(membership)) })
        });
        if let Ok(dlm) = joined {
            take_turns(&dlm, &journal, parent);
        }
    }
}

/// Where the node of this process tells its status. The path of a socket is short.
fn status_of(pid: u32) -> PathBuf {
    std::env::temp_dir().join(format!("sluice-node-{pid}"))
}

/// Locks and unlocks, until the node is no member any more.
fn take_turns(dlm: &Dlm, journal: &Path, parent: Option<Pid>) {
    let key = dlm.key("the lock").expect("short");
    while rustix::process::getppid() == parent
        && let Ok(guard) = dlm.lock_wait(&key, &Want::new(Mode::Ex), None)
    {
        // A holder that is no longer valid may still try: the journal refuses it.
        let Some(token) = guard.token() else { continue };
        if write(journal, token, "in").expect("a file") {
            std::thread::sleep(Duration::from_millis(1));
            write(journal, token, "out").expect("a file");
        }
        drop(guard);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The processes of one test. Killed when dropped.
struct Nodes<'s> {
    server: &'s Server,
    running: Vec<Child>,
}

impl Nodes<'_> {
    fn start(&mut self) -> u32 {
        let program = std::env::current_exe().expect("this program");
        let order = format!("{} {}", self.server.dir.display(), self.server.address);
        let node = Command::new(program)
            .args(["--exact", "processes::a_node_that_another_test_has_started", "--nocapture"])
            .env(NODE, order)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let pid = node.id();
        self.running.push(node);
        pid
    }

    fn end(&mut self, pid: u32) {
        let at = self.running.iter().position(|node| node.id() == pid).expect("running");
        end(&mut self.running.swap_remove(at));
    }

    fn journal(&self) -> Vec<String> {
        lines(&self.server.dir.join("journal"))
    }

    /// How often `pid` has held the lock.
    fn turns(&self, pid: u32) -> usize {
        self.journal().iter().filter(|line| line.ends_with(&format!(" in {pid}"))).count()
    }

    /// Waits until all nodes but `without` had the lock again.
    fn await_turns(&self, without: Option<u32>) {
        for node in self.running.iter().map(Child::id).filter(|pid| Some(*pid) != without) {
            let before = self.turns(node);
            until(&format!("{node} has the lock"), || self.turns(node) > before);
        }
    }

    /// Asserts that holders excluded each other.
    fn check(&self) {
        let (mut last, mut inside): (Option<(Token, String)>, _) = (None, None);
        for line in self.journal() {
            let token = token_of(&line).unwrap_or_else(|| panic!("a line of its own: {line}"));
            let (words, pid) = line.rsplit_once(' ').expect("four words");
            // A node that has the lock cached has several turns under one token.
            let is_due =
                last.as_ref().is_none_or(|(last, of)| *last < token || (*last == token && of == pid));
            assert!(is_due, "an old token, or that of another node: {line} after {last:?}");
            if words.ends_with("in") {
                inside = Some(pid.to_owned());
            } else {
                assert_eq!(inside.take().as_deref(), Some(pid), "somebody else came in between: {line}");
            }
            last = Some((token, pid.to_owned()));
        }
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in self.running.iter().map(Child::id) {
                let status = ask_status(&status_of(node), false);
                println!("process {node}: {}", status.unwrap_or_else(|error| error.to_string()));
            }
        }
        self.running.iter_mut().for_each(end);
    }
}

fn end(node: &mut Child) {
    let _ = node.kill();
    let _ = node.wait();
    let _ = std::fs::remove_file(status_of(node.id()));
}

/// How many deaths there are to be.
fn rounds() -> usize {
    std::env::var("SLUICE_ETCD_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Freezes a process, but not while it has the journal locked: that lock is the machine's, and would hold up the others.
fn freeze(journal: &Path, pid: u32) {
    let file = File::options().append(true).create(true).open(journal).expect("a file");
    file.lock().expect("a file");
    stop(pid);
}

#[test]
fn processes_that_are_killed_or_frozen_for_longer_than_their_lease_break_no_lock() {
    let name = "processes_that_are_killed_or_frozen_for_longer_than_their_lease_break_no_lock";
    let Some(server) = Server::start(name) else { return };
    ClusterCa::new().and_then(|ca| ca.issue()).and_then(|one| one.save(&server.dir)).expect("made");
    let mut nodes = Nodes { server: &server, running: Vec::new() };
    for _ in 0..3 {
        nodes.start();
    }
    nodes.await_turns(None);
    for round in 0..rounds() {
        let victim = nodes.running[round % 3].id();
        let began = Instant::now();
        let is_killed = round % 2 == 0;
        match is_killed {
            true => nodes.end(victim),
            false => freeze(&server.dir.join("journal"), victim),
        }
        nodes.await_turns(Some(victim));
        println!("round {round}: {} s", began.elapsed().as_secs_f32());
        if !is_killed {
            // It wakes, and believes what it believed; its lease is over.
            send("-CONT", victim);
            nodes.await_turns(Some(victim));
            nodes.end(victim);
        }
        nodes.start();
        nodes.await_turns(None);
        nodes.check();
    }
}
