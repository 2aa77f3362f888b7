//! Hello: the first frame of each side of a connection: which cluster, which nodes.

use crate::tls::Secure;
use crate::view::NodeId;
use std::io;

/// The longest name of a cluster.
const CLUSTER_MAX: usize = 64;

/// The first message of a node on a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol that is spoken, and its version.
    pub protocol: [u8; 8],
    /// The name of the cluster, of at most 64 bytes.
    pub cluster: String,
    /// The node that says it.
    pub from: NodeId,
    /// The node that it means to talk to.
    pub to: NodeId,
}

impl Hello {
    /// Sends it.
    ///
    /// # Errors
    /// The connection's; `InvalidInput` if the name is too long.
    pub fn say(&self, connection: &Secure) -> io::Result<()> {
        let mut bytes = self.protocol.to_vec();
        bytes.extend(self.from.0.to_le_bytes());
        bytes.extend(self.to.0.to_le_bytes());
        let mut name = [0; CLUSTER_MAX];
        let cluster = self.cluster.as_bytes();
        name.get_mut(..cluster.len()).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(cluster);
        bytes.extend(name);
        connection.write_all(&bytes)
    }

    /// Reads the other side's. Whether it is the right one is for the caller to judge.
    ///
    /// # Errors
    /// The connection's, or if the name is no text.
    pub fn hear(connection: &Secure) -> io::Result<Hello> {
        let mut protocol = [0; 8];
        connection.read_exact(&mut protocol)?;
        let mut rest = [0; 8 + 8 + CLUSTER_MAX];
        connection.read_exact(&mut rest)?;
        let number = |at: usize| {
            let bytes = rest[at..at + 8].try_into().expect("eight bytes");
            NodeId(u64::from_le_bytes(bytes))
        };
        let name = &rest[16..];
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let cluster = str::from_utf8(&name[..length]).map_err(io::Error::other)?.to_string();
        Ok(Hello { protocol, cluster, from: number(0), to: number(8) })
    }
}
