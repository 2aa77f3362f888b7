//! Network: a network namespace for each node of a demo or a test, all on one bridge, where this process has an address, too.
//!
//! Dropping it removes them. The addresses are of a network that is kept for documentation, so nobody else's; a part of it that
//! another demo or test uses is passed over.

use sluice_console::failure::{Failure, Result};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

/// The network, and how many parts it has.
const NETWORK: [u8; 3] = [198, 51, 100];
const PARTS: u8 = 16;
/// Addresses of a part; the last but one is this process's.
const PART_SIZE: u8 = 16;

/// The networks of the nodes.
pub(crate) struct Network {
    part: u8,
    nodes: u8,
}

impl Network {
    /// A network of so many nodes, at most twelve.
    ///
    /// # Errors
    /// A missing precondition, in one line.
    pub(crate) fn new(nodes: u8) -> Result<Network> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::Unsupported("networks of their own take root".into()));
        }
        run("nsenter", "--version")?;
        let mut outcome = Err(Failure::Failed("all addresses are in use".into()));
        for turn in 0..PARTS {
            let part = (std::process::id() % u32::from(PARTS)) as u8;
            let network = Network { part: (part + turn) % PARTS, nodes: 0 };
            let bridge = network.bridge();
            outcome = run("ip", &format!("link add {bridge} type bridge"));
            if outcome.is_err() {
                // The namespace belongs to another process, and must not be removed.
                std::mem::forget(network);
                continue;
            }
            return network.make(nodes);
        }
        outcome.and(Err(Failure::Failed("no network could be made".into())))
    }

    fn make(mut self, nodes: u8) -> Result<Network> {
        let bridge = self.bridge();
        run("ip", &format!("addr add {}/28 dev {bridge}", self.own_address()))?;
        run("ip", &format!("link set {bridge} up"))?;
        for node in 0..nodes {
            self.nodes = node + 1;
            let (space, here, there) = (self.space(node), self.end(node), format!("{bridge}t{node}"));
            run("ip", &format!("netns add {space}"))?;
            run("ip", &format!("link add {here} type veth peer name {there} netns {space}"))?;
            run("ip", &format!("link set {here} master {bridge} up"))?;
            run("ip", &format!("-n {space} addr add {}/28 dev {there}", self.address(node)))?;
            run("ip", &format!("-n {space} link set {there} up"))?;
            run("ip", &format!("-n {space} link set lo up"))?;
        }
        Ok(self)
    }

    fn bridge(&self) -> String {
        format!("sluice{}", self.part)
    }

    fn space(&self, node: u8) -> String {
        format!("{}n{node}", self.bridge())
    }

    /// The end of a node's link that is at the bridge.
    fn end(&self, node: u8) -> String {
        format!("{}h{node}", self.bridge())
    }

    fn host(&self, number: u8) -> IpAddr {
        let [a, b, c] = NETWORK;
        Ipv4Addr::new(a, b, c, self.part * PART_SIZE + number).into()
    }

    /// Where all nodes reach this process.
    pub(crate) fn own_address(&self) -> IpAddr {
        self.host(PART_SIZE - 2)
    }

    /// Where `node` is reached.
    pub(crate) fn address(&self, node: u8) -> IpAddr {
        self.host(node + 1)
    }

    /// The prefix of a command in `node`'s network.
    pub(crate) fn enter(&self, node: u8) -> Vec<OsString> {
        vec!["nsenter".into(), format!("--net=/run/netns/{}", self.space(node)).into(), "--".into()]
    }

    /// Takes the link of `node` down, until the value is dropped.
    ///
    /// # Errors
    /// As `ip` says.
    pub(crate) fn pull(&self, node: u8) -> Result<Pulled<'_>> {
        run("ip", &format!("link set {} down", self.end(node)))?;
        Ok(Pulled(self, node))
    }
}

/// A link that is down.
pub(crate) struct Pulled<'n>(&'n Network, u8);

impl Drop for Pulled<'_> {
    fn drop(&mut self) {
        // A removed link cannot be set up.
        let _ = run("ip", &format!("link set {} up", self.0.end(self.1)));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A missing link cannot be removed. A namespace ends only some time later, so its link is removed by itself.
        for node in 0..self.nodes {
            let _ = run("ip", &format!("link del {}", self.end(node)));
            let _ = run("ip", &format!("netns del {}", self.space(node)));
        }
        let _ = run("ip", &format!("link del {}", self.bridge()));
    }
}

fn run(program: &str, arguments: &str) -> Result<()> {
    let command = Command::new(program).args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = command.map_err(|error| Failure::Failed(format!("{program}: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::Failed(String::from_utf8_lossy(&output.stderr).trim_end().to_owned())),
    }
}
