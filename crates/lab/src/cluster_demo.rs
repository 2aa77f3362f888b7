//! Cluster demo: three nodes of one cluster on this machine, one of which is killed, in a minute.
//!
//! As root each node has a network namespace of its own, and they are joined by a bridge, so that their packets take the way of
//! the network. Elsewhere, and for other users, they talk over the loopback. Everything is removed at the end.

use crate::failure::{Context, Failure, Result};
use crate::mounted::Mounted;
use crate::private_dir::{PrivateDir, runtime_dir};
use crate::table::duration;
use rustix::process::{Pid, Signal, kill_process};
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

const NODES: usize = 3;
/// The lease of the demo's cluster.
const TTL: &str = "2";
/// The network of the demo: for documentation, so nobody else's.
const NETWORK: &str = "198.51.100";
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Shows it on `out`. `program` is the `sluice` binary.
///
/// # Errors
/// If a step fails, or what survives is not what should.
pub fn show(program: &Path, out: &mut dyn Write) -> Result<()> {
    let place = PrivateDir::below(&runtime_dir())?;
    let (store, shared) = (place.path().join("store"), place.path().join("cluster"));
    run(Command::new(program).arg("mkfs").arg(&store))?;
    run(Command::new(program).args(["cluster", "init", "--ttl", TTL]).arg(&shared))?;
    let network = Network::new();
    writeln!(out, "A store, and a cluster with leases of {TTL} s. {}", network.description())?;
    let mut cluster = OsString::from("dir:");
    cluster.push(&shared);
    let mut nodes = Vec::new();
    for number in 0..NODES {
        let (enter, listen) = (network.enter(number), network.address(number));
        let options: [&OsStr; 4] = ["--cluster".as_ref(), &cluster, "--listen".as_ref(), listen.as_ref()];
        let began = Instant::now();
        nodes.push(Mounted::start_through(&enter, program, Some(&store), &options)?);
        writeln!(out, "node {}: mounted after {}", name(number), since(began))?;
    }
    let at = |node: usize, file: &str| nodes[node].path().join(file);

    let text = "written by A\n".repeat(1000);
    let began = Instant::now();
    let kept = File::create(at(0, "kept"))?;
    kept.write_all_at(text.as_bytes(), 0)?;
    kept.sync_all()?;
    drop(kept);
    let wrote = since(began);
    let began = Instant::now();
    agree(&fs::read_to_string(at(1, "kept"))?, &text)?;
    writeln!(
        out,
        "A writes a file and makes it durable, {wrote}; B reads it by its next call, {}",
        since(began)
    )?;
    fs::write(at(2, "kept-too"), "written by C")?;
    agree(&fs::read_to_string(at(0, "kept-too"))?, "written by C")?;

    let locked = File::create(at(1, "locked"))?;
    locked.lock()?;
    locked.sync_all()?;
    let wanted = File::open(at(2, "locked"))?;
    if wanted.try_lock().is_ok() {
        return Err(Failure::Failed("two nodes have one lock".into()));
    }
    writeln!(out, "B locks a file; C is refused")?;

    let victim = i32::try_from(nodes[0].server_pid()).ok().and_then(Pid::from_raw);
    kill_process(victim.ok_or_else(|| Failure::Failed("no node A".into()))?, Signal::KILL)
        .map_err(std::io::Error::from)?;
    let began = Instant::now();
    let read = fs::read_to_string(at(1, "kept")).context(|| "B, after A was killed")?;
    // Its kernel had it in its cache: a change takes a server.
    fs::write(at(1, "after"), "B goes on")?;
    writeln!(out, "A, the owner, is killed with kill -9; B's next change is made after {}", since(began))?;
    agree(&read, &text)?;
    agree(&fs::read_to_string(at(2, "kept"))?, &text)?;
    agree(&fs::read_to_string(at(2, "after"))?, "B goes on")?;
    if wanted.try_lock().is_ok() {
        return Err(Failure::Failed("B's lock did not survive".into()));
    }
    writeln!(out, "C sees it, the file of A is there, and B still has its lock")?;
    drop(locked);
    let limit = Instant::now() + LIMIT;
    while wanted.try_lock().is_err() {
        if Instant::now() > limit {
            return Err(Failure::Failed("the lock of B was never free".into()));
        }
        thread::sleep(Duration::from_millis(2));
    }
    writeln!(out, "B closes the file; C has the lock now\n")?;
    let status = Command::new(program).args(["cluster", "status"]).arg(&shared).output()?;
    // From here the nodes cannot be reached where each has a network of its own.
    if !network.is_apart() {
        out.write_all(&status.stdout)?;
    }
    drop(wanted);
    for (number, node) in nodes.into_iter().enumerate() {
        match (number, node.unmount()) {
            (0, _) => {}
            (_, outcome) => outcome?,
        }
    }
    Ok(())
}

fn name(number: usize) -> char {
    ['A', 'B', 'C'][number % NODES]
}

fn since(began: Instant) -> String {
    duration(began.elapsed().as_nanos() as f64)
}

fn agree(found: &str, expected: &str) -> Result<()> {
    if found == expected { Ok(()) } else { Err(Failure::Failed("a file has other contents".into())) }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(Failure::Failed(text.trim_start_matches("sluice: ").trim_end().to_owned()))
}

/// The networks of the nodes. Dropping it removes them.
struct Network {
    /// What their names begin with; none where the nodes share one.
    prefix: Option<String>,
}

impl Network {
    fn new() -> Network {
        let network = Network { prefix: Some(format!("slu{}", std::process::id() % 100_000)) };
        let is_root = rustix::process::geteuid().is_root();
        if is_root && network.make().is_ok() { network } else { Network { prefix: None } }
    }

    fn make(&self) -> Result<()> {
        let Some(prefix) = &self.prefix else { return Ok(()) };
        let ip = |arguments: String| run(Command::new("ip").args(arguments.split(' ')));
        run(Command::new("nsenter").arg("--version"))?;
        ip(format!("link add {prefix} type bridge"))?;
        ip(format!("link set {prefix} up"))?;
        for number in 0..NODES {
            let (space, here, there) =
                (format!("{prefix}n{number}"), format!("{prefix}h{number}"), format!("{prefix}t{number}"));
            ip(format!("netns add {space}"))?;
            ip(format!("link add {here} type veth peer name {there} netns {space}"))?;
            ip(format!("link set {here} master {prefix} up"))?;
            ip(format!("-n {space} addr add {NETWORK}.{}/24 dev {there}", number + 1))?;
            ip(format!("-n {space} link set {there} up"))?;
            ip(format!("-n {space} link set lo up"))?;
        }
        Ok(())
    }

    fn is_apart(&self) -> bool {
        self.prefix.is_some()
    }

    fn description(&self) -> &'static str {
        match self.prefix {
            Some(_) => "Each node has a network namespace of its own.",
            None => {
                "The nodes talk over the loopback: for networks of their own be root, with ip and nsenter."
            }
        }
    }

    /// What a command of node `number` begins with.
    fn enter(&self, number: usize) -> Vec<OsString> {
        let enter = |prefix: &String| {
            vec!["nsenter".into(), format!("--net=/run/netns/{prefix}n{number}").into(), "--".into()]
        };
        self.prefix.as_ref().map(enter).unwrap_or_default()
    }

    fn address(&self, number: usize) -> String {
        match self.prefix {
            Some(_) => format!("{NETWORK}.{}:0", number + 1),
            None => "127.0.0.1:0".into(),
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let Some(prefix) = &self.prefix else { return };
        // What is not there cannot be removed. The pairs go with their namespaces.
        for number in 0..NODES {
            let _ = run(Command::new("ip").args(["netns", "del", &format!("{prefix}n{number}")]));
        }
        let _ = run(Command::new("ip").args(["link", "del", prefix]));
    }
}
