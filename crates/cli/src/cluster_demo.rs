//! Cluster demo: three nodes of one cluster on this machine: one is killed, one is cut off and comes back, in a minute.
//!
//! As root each node has a network namespace of its own, so that packets take the way of the network and a link can be pulled;
//! elsewhere, and for other users, the nodes talk over the loopback. An etcd and an S3 server are started if there are such programs,
//! and directories stand for them if not. Everything is removed at the end, also after a failure or Ctrl-C.

use crate::network::Network;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sluice_cluster::LOST_CHANGES;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::mounted::Mounted;
use sluice_console::private_dir::{PrivateDir, runtime_dir};
use sluice_console::servers::{ServerProcess, endpoints};
use sluice_console::table::duration;
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{mpsc, thread};
use sluice_vfs::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NODES: u8 = 3;
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The bucket.
const BUCKET: &str = "demo";

/// The nodes and what they stand on. Nodes end before their servers, servers before their network.
struct DemoCluster<'a> {
    program: &'a Path,
    interrupt: &'a Interrupt,
    nodes: Vec<Mounted>,
    s3: Option<ServerProcess>,
    etcd: Vec<ServerProcess>,
    network: Option<Network>,
    dir: PrivateDir,
}

/// Shows it on `out`. `program` is the `sluice` binary; `tools` is where `make` puts the servers that are not installed.
///
/// # Errors
/// If a step fails, or what survives is not what should; [`Failure::Interrupted`].
pub(crate) fn show(program: &Path, tools: &Path, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let dir = PrivateDir::below(&runtime_dir())?;
    let (network, why) = match Network::new(NODES) {
        Ok(network) => (Some(network), String::new()),
        Err(failure) => (None, failure.to_string()),
    };
    match &network {
        Some(_) => writeln!(out, "Network: each node has a network namespace of its own.")?,
        None => writeln!(out, "Network: the loopback ({why}).")?,
    }
    let address = network.as_ref().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), Network::own_address);
    let etcd = ServerProcess::etcd(tools, dir.path(), address, 1)?.unwrap_or_default();
    let s3 = ServerProcess::s3(tools, dir.path(), address, BUCKET)?;
    let mut cluster = DemoCluster { program, interrupt, nodes: Vec::new(), s3, etcd, network, dir };
    cluster.found(out)?;
    for node in 0..NODES {
        let began = Instant::now();
        let mounted = cluster.join(node)?;
        cluster.nodes.push(mounted);
        writeln!(out, "node {}: mounted after {}", name(node), since(began))?;
    }
    cluster.share(out)?;
    cluster.kill(out)?;
    cluster.pull(out)?;
    writeln!(out)?;
    let (place, keys) = (cluster.place(), cluster.path("keys"));
    let status = cluster.sluice().args(["cluster", "status", "--identity"]).arg(keys).arg(place).output()?;
    out.write_all(&status.stdout)?;
    for (number, node) in (0..).zip(std::mem::take(&mut cluster.nodes)) {
        match (number, node.unmount()) {
            // It was killed.
            (0, _) => {}
            // It was cut off while it was the owner.
            (_, Err(Failure::Failed(why))) if why.contains(LOST_CHANGES) => {
                writeln!(out, "node {} says at its end: {why}", name(number))?;
            }
            (_, outcome) => outcome?,
        }
    }
    Ok(())
}

impl DemoCluster<'_> {
    /// Makes the store and the cluster.
    fn found(&self, out: &mut dyn Write) -> Result<()> {
        self.interrupt.check()?;
        match &self.s3 {
            Some(server) => {
                writeln!(out, "Store: {} in an S3 server, versitygw at {}.", self.store(), server.url)?
            }
            None => writeln!(
                out,
                "Store: {}; for one in S3, `make s3-server`, or bring versitygw into PATH.",
                self.store()
            )?,
        }
        // The shortest lease that etcd keeps; a directory keeps shorter ones.
        let (ttl, what) = match self.etcd.is_empty() {
            true => ("2", "a directory; for an etcd, `make programs`, or apt-get install etcd-server".into()),
            false => ("4", format!("an etcd at {}", self.etcd[0].url)),
        };
        writeln!(out, "Members: {what}. Leases of {ttl} s.")?;
        run(self.sluice().arg("mkfs").arg(self.store()))?;
        let keys = self.path("keys");
        run(self.sluice().args(["cluster", "init", "--ttl", ttl, "--authority"]).arg(keys).arg(self.place()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn store(&self) -> String {
        match &self.s3 {
            Some(_) => format!("s3://{BUCKET}/fs"),
            None => format!("file://{}", self.path("store").display()),
        }
    }

    fn place(&self) -> OsString {
        let mut place = endpoints(&self.etcd);
        match self.etcd.is_empty() {
            true => self.path("cluster").into(),
            false => {
                place.push("/demo");
                place
            }
        }
    }

    /// How the store is reached.
    fn environment(&self) -> Vec<(&str, &str)> {
        let url = self.s3.iter().map(|server| ("AWS_ENDPOINT_URL", server.url.as_str()));
        url.chain(self.s3.iter().flat_map(|server| server.environment.iter().copied())).collect()
    }

    fn sluice(&self) -> Command {
        let mut command = Command::new(self.program);
        command.envs(self.environment());
        command
    }

    fn join(&self, node: u8) -> Result<Mounted> {
        self.interrupt.check()?;
        let (enter, address) = match &self.network {
            Some(network) => (network.enter(node), network.address(node)),
            None => (Vec::new(), Ipv4Addr::LOCALHOST.into()),
        };
        let (mut place, keys, listen) = (OsString::new(), self.path("keys"), format!("{address}:0"));
        if self.etcd.is_empty() {
            place.push("dir:");
        }
        place.push(self.place());
        let options: [&OsStr; 6] = [
            "--cluster".as_ref(),
            &place,
            "--identity".as_ref(),
            keys.as_ref(),
            "--listen".as_ref(),
            listen.as_ref(),
        ];
        let store = self.store();
        Mounted::start_through(&enter, &self.environment(), self.program, Some(store.as_ref()), &options)
    }

    fn at(&self, node: u8, file: &str) -> PathBuf {
        self.nodes[usize::from(node)].path().join(file)
    }

    /// The status of a node.
    fn status(&self, node: u8) -> Result<Value> {
        // The question is asked in the node's network, where its status socket listens, too.
        let mut words = self.network.iter().flat_map(|network| network.enter(node));
        let mut command = Command::new(words.next().unwrap_or_else(|| self.program.into()));
        command.args(words);
        if self.network.is_some() {
            command.arg(self.program);
        }
        command.args(["stat", "--json"]).arg(self.nodes[usize::from(node)].path());
        let told = command.stdin(Stdio::null()).output()?;
        let told: Value = serde_json::from_slice(&told.stdout)
            .map_err(|_| Failure::Failed(String::from_utf8_lossy(&told.stderr).trim_end().to_owned()))?;
        Ok(told["cluster"].clone())
    }

    /// A silent node has no role.
    fn has_role(&self, node: u8, role: &str) -> bool {
        self.status(node).is_ok_and(|status| status["role"] == role)
    }

    /// Waits until `condition` holds.
    fn eventually(&self, what: &str, condition: impl Fn() -> bool) -> Result<()> {
        let limit = Instant::now() + LIMIT;
        while !condition() {
            self.interrupt.check()?;
            if Instant::now() > limit {
                return Err(Failure::Failed(format!("{what}: not after {LIMIT:?}")));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Shows that a node sees another node's changes.
    fn share(&self, out: &mut dyn Write) -> Result<()> {
        let text = "written by A\n".repeat(1000);
        let began = Instant::now();
        write_durably(&self.at(0, "kept"), &text)?;
        let wrote = since(began);
        let began = Instant::now();
        agree(&fs::read_to_string(self.at(1, "kept"))?, &text)?;
        let read = since(began);
        writeln!(out, "A writes a file and makes it durable, {wrote}; B reads it by its next call, {read}")?;
        self.interrupt.check()
    }

    /// The owner is killed while another node has a lock.
    fn kill(&self, out: &mut dyn Write) -> Result<()> {
        let locked = File::create(self.at(1, "locked"))?;
        locked.lock()?;
        locked.sync_all()?;
        let wanted = File::open(self.at(2, "locked"))?;
        if wanted.try_lock().is_ok() {
            return Err(Failure::Failed("two nodes have one lock".into()));
        }
        writeln!(out, "B locks a file; C is refused")?;
        fs::write(self.at(2, "unsynced"), "written by C")?;

        let victim = i32::try_from(self.nodes[0].server_pid()).ok().and_then(Pid::from_raw);
        let victim = victim.ok_or_else(|| Failure::Failed("no node A".into()))?;
        kill_process(victim, Signal::KILL).map_err(std::io::Error::from)?;
        let began = Instant::now();
        // B reads cached files at once, without a server, but a change needs a server.
        fs::write(self.at(1, "after"), "B goes on").context(|| "B, after A was killed")?;
        let took = since(began);
        let owner = self.owner()?;
        writeln!(
            out,
            "A, the owner, is killed with kill -9; B's next change is made after {took}, by {}",
            name(owner)
        )?;
        agree(&fs::read_to_string(self.at(2, "after"))?, "B goes on")?;
        agree(&fs::read_to_string(self.at(2, "kept"))?, &"written by A\n".repeat(1000))?;
        let is_lost = match fs::read_to_string(self.at(1, "unsynced")) {
            Ok(text) => text != "written by C",
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => return Err(error.into()),
        };
        // This process made the lost change.
        let told = File::create(self.at(2, "next"))?.sync_all();
        let unsynced = match (is_lost, told) {
            (false, Ok(())) => "was durable by then all the same",
            (true, Err(error)) if error.raw_os_error() == Some(Errno::EIO.raw()) => {
                "is lost, and C's next fsync fails with EIO"
            }
            (true, Ok(())) => return Err(Failure::Failed("nobody was told of what is lost".into())),
            (_, Err(error)) => return Err(error.into()),
        };
        if wanted.try_lock().is_ok() {
            return Err(Failure::Failed("B's lock did not survive".into()));
        }
        writeln!(
            out,
            "What A made durable is there, and B still has its lock; what C wrote and did not fsync {unsynced}"
        )?;
        drop(locked);
        self.eventually("the lock of B is free", || wanted.try_lock().is_ok())?;
        writeln!(out, "B closes the file; C has the lock now")?;
        Ok(())
    }

    /// The owner among B and C, after waiting until there is one.
    fn owner(&self) -> Result<u8> {
        let owner = || (1..NODES).find(|node| self.has_role(*node, "owner"));
        self.eventually("a node is the owner", || owner().is_some())?;
        owner().ok_or_else(|| Failure::Failed("the owner is none any more".into()))
    }

    /// The owner is cut off for longer than its lease.
    fn pull(&self, out: &mut dyn Write) -> Result<()> {
        let Some(network) = self.network.as_ref().filter(|_| !self.etcd.is_empty()) else {
            let text = "No link is pulled: that takes networks of their own, and an etcd";
            return Ok(writeln!(out, "{text}")?);
        };
        self.interrupt.check()?;
        // Or what this process did since the last takeover would be lost with the owner, and its next fsync say so.
        for node in 1..NODES {
            File::open(self.at(node, "next"))?.sync_all()?;
        }
        let cut = self.owner()?;
        let other = if cut == 1 { 2 } else { 1 };
        let (began, pulled) = (Instant::now(), network.pull(cut)?);
        self.eventually("another node is the owner", || self.has_role(other, "owner"))?;
        write_durably(&self.at(other, "meanwhile"), "by the new owner")?;
        writeln!(
            out,
            "The link of {}, the owner, is down; {} is the owner, and makes a file durable, after {}",
            name(cut),
            name(other),
            since(began)
        )?;
        self.eventually("the node that is cut off serves nothing", || self.has_role(cut, "waiting"))?;
        let (tell, told) = mpsc::channel();
        let path = self.at(cut, "meanwhile");
        // It waits until the link is up. Should it never be, it ends with the mount.
        thread::spawn(move || drop(tell.send(fs::read_to_string(path))));
        if told.try_recv().is_ok() {
            return Err(Failure::Failed("a node that is cut off still serves".into()));
        }
        writeln!(out, "{} serves nothing by itself: a read there waits", name(cut))?;
        drop(pulled);
        let began = Instant::now();
        self.eventually("the node is served again", || self.has_role(cut, "guest"))?;
        let read = told.recv_timeout(LIMIT).map_err(|_| Failure::Failed("the read never ends".into()))?;
        agree(&read?, "by the new owner")?;
        writeln!(
            out,
            "The link is up: {} is a guest of {} after {}, and the read gives what {} wrote",
            name(cut),
            name(other),
            since(began),
            name(other)
        )?;
        Ok(())
    }
}

fn name(node: u8) -> char {
    ['A', 'B', 'C'][usize::from(node % NODES)]
}

fn since(began: Instant) -> String {
    duration(began.elapsed().as_nanos() as f64)
}

fn write_durably(path: &Path, text: &str) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    Ok(file.sync_all()?)
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
